"""Measure put, reserve and delete on one connection, one command at a time."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Final, TypeVar

import click

from greenstalkctl.errors import NoResult
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.output import Advance
from greenstalkctl.params import COUNT, size_at_most
from greenstalkctl.queue import MAX_BODY, READY
from greenstalkctl.server import DEFAULT_PRI, Server
from greenstalkctl.settings import Command, Settings
from greenstalkctl.table import Cell, Column

T = TypeVar("T")
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
TTR: Final = 3600


@click.command(cls=Command, short_help="Measure put, reserve and delete.")
@click.option("--jobs", type=COUNT, default=2000, show_default=True, help="Number of jobs.")
@click.option(
    "--size", type=size_at_most(MAX_BODY), default=100, show_default=True, help="Size of each body, such as 64K."
)
@click.pass_obj
def bench(settings: Settings, jobs: int, size: int) -> None:
    """Measure put, reserve and delete: commands per second, and the latency of a command in microseconds.

    The jobs are put into a separate tube, and are deleted even if you interrupt the command.
    """
    run = Run(f"greenstalkctl-bench-{os.getpid()}-{secrets.token_hex(4)}", secrets.token_bytes(size))
    with settings.connect() as server, Interrupt() as interrupt:
        try:
            with settings.out.progress("measuring", 2 * jobs) as advance:
                run.measure(server, jobs, interrupt, advance)
        finally:
            run.clean(server)
        interrupt.check("interrupted; its jobs are deleted")
    figures = {verb: summary(times) for verb, times in run.times.items()}
    columns = [Column("", 0, "text"), Column("per second", 1), Column("p50 µs", 2), Column("p90 µs", 5)]
    columns += [Column("p99 µs", 4), Column("max µs", 3)]
    rows: list[list[Cell]] = [[verb, *map(round, line.values())] for verb, line in figures.items()]
    about = {"jobs": jobs, "size": size, "server": str(server.address)}
    settings.out.show(about | figures, settings.out.table(columns, rows))


class Run:
    """A run in a separate tube; `times` holds the latency of every command in nanoseconds."""

    def __init__(self, tube: str, body: bytes) -> None:
        self._tube = tube
        self._body = body
        self.times: dict[str, list[int]] = {"put": [], "reserve": [], "delete": []}

    def measure(self, server: Server, jobs: int, interrupt: Interrupt, advance: Advance) -> None:
        """Put all jobs, then reserve and delete each; raise NoResult if one is missing."""
        server.reserve(self._tube)  # finds no job, but uses and watches the tube before the measurement
        server.use(self._tube)
        for _ in range(jobs):
            if interrupt:
                return
            self._timed("put", lambda: server.put(self._tube, self._body, DEFAULT_PRI, 0, TTR))
            advance(1)
        for _ in range(jobs):
            if interrupt:
                return
            job = self._timed("reserve", lambda: server.reserve(self._tube))
            if job is None:
                raise NoResult(f"a job of {self._tube} is missing: another client takes jobs from this tube")
            self._timed("delete", partial(server.delete, job.id))
            advance(1)

    def clean(self, server: Server) -> None:
        """Delete the remaining jobs of the tube."""
        while (job := server.first(self._tube, READY)) is not None:
            server.delete(job.id)

    def _timed(self, verb: str, call: Callable[[], T]) -> T:
        start = perf_counter_ns()
        result = call()
        self.times[verb].append(perf_counter_ns() - start)
        return result


def summary(times: Sequence[int]) -> dict[str, float]:
    """Return the rate per second, and the percentiles in microseconds, of *times* in nanoseconds."""
    ordered = sorted(times)
    figures = {"per_second": round(len(ordered) * 1e9 / sum(ordered), 1)}
    for name, fraction in PERCENTILES.items():
        figures[name] = round(ordered[min(int(fraction * len(ordered)), len(ordered) - 1)] / 1000, 1)
    return figures
