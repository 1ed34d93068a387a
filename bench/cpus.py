"""Assign separate CPUs to the server and the load generator, so that neither disturbs the other."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BUSY_FIELDS: Final = (1, 2, 3, 6, 7, 8)  # proc(5), /proc/stat: all columns except idle, iowait and guests


@dataclass(frozen=True)
class Cpus:
    """The CPUs of the server and of the load generator; None means not pinned."""

    server: int | None
    load: int | None

    def busy_seconds(self) -> float:
        """Return the total time in seconds that these CPUs have been busy, for any process; includes stolen time."""
        wanted = ["cpu"] if self.server is None else [f"cpu{self.server}", f"cpu{self.load}"]
        rows = (line.split() for line in Path("/proc/stat").read_text().splitlines())
        ticks = sum(int(row[i]) for row in rows if row[0] in wanted for i in _BUSY_FIELDS)
        return ticks / os.sysconf("SC_CLK_TCK")

    def __str__(self) -> str:
        if self.server is None:
            return "server and load generator share one CPU: expect noise"
        return f"server pinned to CPU {self.server}, load generator to CPU {self.load}"


def cpu_model() -> str:
    """Return the number and model of this machine's CPUs."""
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    model = next((value.strip() for name, _, value in lines if name.strip() == "model name"), "CPU of unknown model")
    return f"{os.cpu_count()} CPUs, {model}"


def choose_cpus() -> Cpus:
    """Choose two CPUs that this process may use; none if there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        return Cpus(None, None)
    return Cpus(server=allowed[0], load=allowed[1])


@contextmanager
def started_on(cpu: int | None) -> Iterator[None]:
    """Pin processes started inside the block, with all their threads, to *cpu*."""
    before = os.sched_getaffinity(0)
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
