"""One measurement of one server, and the rounds in which servers take turns."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .cpus import Cpus
from .generator import Generator, running_generator
from .modes import Measurement, Metric, Mode
from .onlooker import looked_at
from .servers import Contender, Server, data_directory, running_server

Sample = dict[Metric, float]

DISTURBED_PERCENT: Final = 5.0
_ACCOUNTING_SECONDS: Final = 0.02  # for the last replies' CPU time to be booked
_QUIET_SECONDS: Final = 5.0  # for a probe of a server where nothing falls due


@dataclass(frozen=True)
class Bench:
    """The conditions that all measurements share."""

    program: Path  # the load generator
    cpus: Cpus
    seconds: float
    rounds: int
    attempts: int  # at a measurement that others disturb
    has_dashboard: bool  # whether ours serves it, and somebody looks

    def run(self, mode: Mode, contenders: list[Contender]) -> Iterator[tuple[int, Contender, Sample]]:
        """Yield each round's samples as they come, the contenders in turns.

        Each round starts with another contender, so that none is always first.
        """
        entered = [c for c in contenders if c.takes_part_in(mode)]
        for number in range(self.rounds):
            first = number % len(entered)
            for contender in entered[first:] + entered[:first]:
                yield number, contender, self._undisturbed_sample(mode, contender)

    def _undisturbed_sample(self, mode: Mode, contender: Contender) -> Sample:
        """A sample while nobody else used the CPUs, or the least disturbed of several."""
        samples = []
        for _ in range(self.attempts):
            with data_directory() as directory:
                samples.append(_MEASUREMENTS[mode.measurement](Trial(self, mode, contender, directory)))
            if samples[-1].get("others_busy", 0) <= DISTURBED_PERCENT:
                break
        return min(samples, key=lambda sample: sample.get("others_busy", 0))


@dataclass(frozen=True)
class Trial:
    """One sample to be had: of *contender* under *mode*, on an empty *directory*."""

    bench: Bench
    mode: Mode
    contender: Contender
    directory: str

    @contextmanager
    def server(self) -> Iterator[Server]:
        """The server, running, and looked at if the conditions say so."""
        bench = self.bench
        with ExitStack() as stack:
            starting = running_server(
                self.contender, self.mode, self.directory, bench.cpus.server, has_dashboard=bench.has_dashboard
            )
            server = stack.enter_context(starting)
            stack.enter_context(looked_at(server.web_port))
            yield server

    @contextmanager
    def generator(self, server: Server, mode: Mode | None = None, seconds: float | None = None) -> Iterator[Generator]:
        """A load generator for *mode*, or the trial's own, ready to measure; the backlog is put."""
        lasts = self.bench.seconds if seconds is None else seconds
        arguments = (mode or self.mode).load_arguments(lasts)
        with running_generator(self.bench.program, server.port, arguments, lasts, self.bench.cpus.load) as generator:
            yield generator


def speed(cpus: Cpus, server: Server, generator: Generator) -> Sample:
    """Run the measured part of *generator*, and tell how *server* did."""
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
    """Speed over the backlog, and what that does to p99.9."""
    cpus = trial.bench.cpus
    with trial.server() as server:
        with trial.generator(server, trial.mode.on_an_empty_server()) as generator:
            empty = speed(cpus, server, generator)
        with trial.generator(server) as generator:
            sample = speed(cpus, server, generator)
    sample["others_busy"] = max(empty["others_busy"], sample["others_busy"])
    sample["p999_empty_us"] = empty["p999_us"]
    sample["p999_growth"] = sample["p999_us"] / empty["p999_us"]
    return sample


def _due(trial: Trial) -> Sample:
    """The longest that a connection with one command in flight waited for a reply."""
    cpus = trial.bench.cpus
    with trial.server() as server:
        with trial.generator(server, trial.mode.on_an_empty_server(), _QUIET_SECONDS) as generator:
            before = generator.measure()
            generator.finish()
        with trial.generator(server) as generator:
            busy, cpu_ns = cpus.busy_seconds(), server.cpu_ns()
            outcome = generator.measure()
            busy, cpu_ns = cpus.busy_seconds() - busy, server.cpu_ns() - cpu_ns
            generator.finish()
    others = max(0.0, busy - cpu_ns / 1e9 - outcome.load_cpu_seconds)
    return {
        "held_ms": outcome.max_us / 1e3,
        "held_before_ms": before.max_us / 1e3,
        "p99_us": outcome.p99_us,
        "p999_us": outcome.p999_us,
        "others_busy": 100 * others / outcome.seconds,
    }


def _connection_memory(trial: Trial) -> Sample:
    grown, _ = _grown(trial)
    return {"bytes_per_connection": grown / trial.mode.connections}


def _job_memory(trial: Trial) -> Sample:
    grown, jobs = _grown(trial)
    return {"bytes_per_job": grown / jobs}


def _grown(trial: Trial) -> tuple[int, int]:
    """By how many bytes the server has grown, and over how many commands."""
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


def _restart(trial: Trial) -> Sample:
    cpus = trial.bench.cpus
    with trial.server() as server, trial.generator(server) as generator:
        generator.measure()
        generator.finish()
    busy, began = cpus.busy_seconds(), time.monotonic()
    with running_server(
        trial.contender, trial.mode, trial.directory, cpus.server, has_dashboard=trial.bench.has_dashboard
    ) as server:
        server.await_reply()
        seconds = time.monotonic() - began
        others = cpus.busy_seconds() - busy - server.cpu_ns() / 1e9
    return {"restart_seconds": seconds, "others_busy": 100 * max(0.0, others) / seconds}


_MEASUREMENTS: Final[dict[Measurement, Callable[[Trial], Sample]]] = {
    "speed": _speed,
    "growth": _growth,
    "due": _due,
    "connection memory": _connection_memory,
    "job memory": _job_memory,
    "returned memory": _returned_memory,
    "restart": _restart,
}
