"""One measurement of one server, and the rounds in which servers take turns."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .cpus import Cpus
from .generator import Generator, running_generator
from .modes import Metric, Mode
from .servers import Contender, Server, data_directory, running_server

Sample = dict[Metric, float]

DISTURBED_PERCENT: Final = 5.0
_ATTEMPTS: Final = 4  # at a measurement that others disturb
_ACCOUNTING_SECONDS: Final = 0.02  # for the last replies' CPU time to be booked


@dataclass(frozen=True)
class Bench:
    """The conditions that all measurements share."""

    program: Path  # the load generator
    cpus: Cpus
    seconds: float
    rounds: int

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
        for _ in range(_ATTEMPTS):
            samples.append(self._sample(mode, contender))
            if samples[-1].get("others_busy", 0) <= DISTURBED_PERCENT:
                break
        return min(samples, key=lambda sample: sample.get("others_busy", 0))

    def _sample(self, mode: Mode, contender: Contender) -> Sample:
        arguments = mode.load_arguments(self.seconds)
        if mode.restarts:
            return self._restart(mode, contender, arguments)
        with (
            data_directory() as directory,
            running_server(contender, mode, directory, self.cpus.server) as server,
            running_generator(self.program, server.port, arguments, self.seconds, self.cpus.load) as generator,
        ):
            if mode.memory_per is None:
                return speed(self.cpus, server, generator)
            return _memory(mode, server, generator)

    def _restart(self, mode: Mode, contender: Contender, arguments: list[str]) -> Sample:
        with data_directory() as directory:
            with (
                running_server(contender, mode, directory, self.cpus.server) as server,
                running_generator(self.program, server.port, arguments, self.seconds, self.cpus.load) as generator,
            ):
                generator.measure()
                generator.finish()
            busy, began = self.cpus.busy_seconds(), time.monotonic()
            with running_server(contender, mode, directory, self.cpus.server) as server:
                server.await_reply()
                seconds = time.monotonic() - began
                others = self.cpus.busy_seconds() - busy - server.cpu_ns() / 1e9
        return {"restart_seconds": seconds, "others_busy": 100 * max(0.0, others) / seconds}


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


def _memory(mode: Mode, server: Server, generator: Generator) -> Sample:
    before = server.settled_private_bytes()
    outcome = generator.measure()
    grown = server.settled_private_bytes() - before
    generator.finish()
    if mode.memory_per == "connection":
        return {"bytes_per_connection": grown / mode.connections}
    return {"bytes_per_job": grown / outcome.ops}
