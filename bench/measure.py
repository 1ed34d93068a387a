"""Measure one server under one mode, in rounds in which the servers take turns."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .cpus import Cpus
from .errors import BenchError
from .generator import Generator, running_generator
from .modes import HELD_TUBE, Measurement, Metric, Mode
from .servers import Contender, Server, data_directory, running_server
from .viewer import dashboard_viewer

Sample = dict[Metric, float]

DISTURBED_PERCENT: Final = 5.0
_ACCOUNTING_SECONDS: Final = 0.02  # until the CPU time of the last replies is accounted
_DRAIN_SECONDS: Final = 600.0  # time to drain a large backlog


@dataclass(frozen=True)
class Bench:
    """The conditions that all measurements share."""

    program: Path  # the load generator
    cpus: Cpus
    seconds: float
    rounds: int
    attempts: int  # maximum attempts at a measurement that other processes disturb
    has_dashboard: bool  # whether Greenstalk Server serves its dashboard, which a viewer has open

    def run(self, mode: Mode, contenders: list[Contender]) -> Iterator[tuple[int, Contender, Sample]]:
        """Yield the samples of each round; the contenders take turns, and each round starts with another one."""
        servers = [c for c in contenders if c.supports(mode)]
        for number in range(self.rounds):
            first = number % len(servers)
            for contender in servers[first:] + servers[:first]:
                yield number, contender, self._undisturbed_sample(mode, contender)

    def _undisturbed_sample(self, mode: Mode, contender: Contender) -> Sample:
        """Return a sample during which no other process used the CPUs, or the least disturbed of several."""
        samples = []
        for _ in range(self.attempts):
            with data_directory() as directory:
                samples.append(_MEASUREMENTS[mode.measurement](Trial(self, mode, contender, directory)))
            if samples[-1].get("others_busy", 0) <= DISTURBED_PERCENT:
                break
        return min(samples, key=lambda sample: sample.get("others_busy", 0))


@dataclass(frozen=True)
class Trial:
    """One measurement of *contender* under *mode*, with an empty *directory*."""

    bench: Bench
    mode: Mode
    contender: Contender
    directory: str

    @contextmanager
    def server(self) -> Iterator[Server]:
        """Run the server, with a viewer of its dashboard if the benchmark has one."""
        bench = self.bench
        with ExitStack() as stack:
            starting = running_server(
                self.contender, self.mode, self.directory, bench.cpus.server, has_dashboard=bench.has_dashboard
            )
            server = stack.enter_context(starting)
            stack.enter_context(dashboard_viewer(server.web_port))
            yield server

    @contextmanager
    def generator(self, server: Server, mode: Mode | None = None, seconds: float | None = None) -> Iterator[Generator]:
        """Start a load generator for *mode* (default: the trial's), and put its backlog."""
        duration = self.bench.seconds if seconds is None else seconds
        arguments = (mode or self.mode).load_arguments(duration)
        with running_generator(self.bench.program, server.port, arguments, duration, self.bench.cpus.load) as generator:
            yield generator


def speed(cpus: Cpus, server: Server, generator: Generator) -> Sample:
    """Run the measured part of *generator*; return the speed of *server*."""
    busy, cpu_ns = cpus.busy_seconds(), server.cpu_ns()
    outcome = generator.measure()
    time.sleep(_ACCOUNTING_SECONDS)
    busy, cpu_ns = cpus.busy_seconds() - busy, server.cpu_ns() - cpu_ns
    generator.finish()
    others = max(0.0, busy - cpu_ns / 1e9 - outcome.load_cpu_seconds)
    return {
        "cpu_us": cpu_ns / 1e3 / outcome.ops,
        "rate": outcome.ops / outcome.seconds,
        "p50_us": outcome.p50_us,
        "p99_us": outcome.p99_us,
        "p999_us": outcome.p999_us,
        "load_busy": 100 * outcome.load_cpu_seconds / outcome.seconds,
        "others_busy": 100 * others / outcome.seconds,
    }


def _speed(trial: Trial) -> Sample:
    with trial.server() as server, trial.generator(server) as generator:
        return speed(trial.bench.cpus, server, generator)


def _growth(trial: Trial) -> Sample:
    """Return the speed over the backlog, and the growth of p99.9 relative to the empty server."""
    cpus = trial.bench.cpus
    with trial.server() as server:
        with trial.generator(server, trial.mode.without_backlog()) as generator:
            empty = speed(cpus, server, generator)
        with trial.generator(server) as generator:
            sample = speed(cpus, server, generator)
    sample["others_busy"] = max(empty["others_busy"], sample["others_busy"])
    sample["p999_empty_us"] = empty["p999_us"]
    sample["p999_growth"] = sample["p999_us"] / empty["p999_us"]
    return sample


def _speed_past_held_tube(trial: Trial) -> Sample:
    """Return the speed while another connection holds the only job of HELD_TUBE that may be reserved."""
    with trial.server() as server, trial.generator(server) as generator, server.connect() as holder:
        holder.sendall(f"watch {HELD_TUBE}\r\nignore default\r\nreserve\r\n".encode())
        with holder.makefile("rb") as replies:
            if b"RESERVED" not in [replies.readline()[:8] for _ in range(3)]:
                raise BenchError(f"no job of {HELD_TUBE} was reserved")
            return speed(trial.bench.cpus, server, generator)


def _connection_memory(trial: Trial) -> Sample:
    grown, _ = _memory_growth(trial)
    return {"bytes_per_connection": grown / trial.mode.connections}


def _job_memory(trial: Trial) -> Sample:
    grown, jobs = _memory_growth(trial)
    return {"bytes_per_job": grown / jobs}


def _memory_growth(trial: Trial) -> tuple[int, int]:
    """Return the growth of the server's memory in bytes, and the number of commands."""
    with trial.server() as server, trial.generator(server) as generator:
        before = server.settled_private_bytes()
        outcome = generator.measure()
        grown = server.settled_private_bytes() - before
        generator.finish()
    return grown, outcome.ops


def _returned_memory(trial: Trial) -> Sample:
    with trial.server() as server:
        before = server.settled_private_bytes()
        with trial.generator(server) as generator:
            full = server.settled_private_bytes()
            generator.measure()
            after = server.settled_private_bytes(quiet_seconds=4.0)
            generator.finish()
    return {"returned_percent": 100 * (full - after) / (full - before)}


def _backlog(trial: Trial) -> Sample:
    """Return the rates at which the backlog is put and drained, the peak memory, and the disk space when all is put."""
    assert trial.mode.backlog is not None
    with trial.server() as server:
        began = time.monotonic()
        with trial.generator(server, seconds=_DRAIN_SECONDS) as generator:
            put_seconds = time.monotonic() - began
            on_disk = sum(path.stat().st_blocks * 512 for path in Path(trial.directory).iterdir())
            outcome = generator.measure()
            generator.finish()
        return {
            "puts_per_second": trial.mode.backlog / put_seconds,
            "rate": outcome.ops / outcome.seconds,
            "peak_mb": server.peak_bytes() / 1e6,
            "disk_mb": on_disk / 1e6,
        }


def _restart(trial: Trial) -> Sample:
    cpus = trial.bench.cpus
    with trial.server() as server, trial.generator(server) as generator:
        generator.measure()
        generator.finish()
    busy, began = cpus.busy_seconds(), time.monotonic()
    with running_server(
        trial.contender, trial.mode, trial.directory, cpus.server, has_dashboard=trial.bench.has_dashboard
    ) as server:
        server.wait_for_reply()
        seconds = time.monotonic() - began
        others = cpus.busy_seconds() - busy - server.cpu_ns() / 1e9
    return {"restart_seconds": seconds, "others_busy": 100 * max(0.0, others) / seconds}


_MEASUREMENTS: Final[dict[Measurement, Callable[[Trial], Sample]]] = {
    "speed": _speed,
    "growth": _growth,
    "connection memory": _connection_memory,
    "job memory": _job_memory,
    "returned memory": _returned_memory,
    "restart": _restart,
    "held": _speed_past_held_tube,
    "backlog": _backlog,
}
