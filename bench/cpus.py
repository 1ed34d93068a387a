"""Which CPU serves and which one loads, so that neither disturbs the other."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BUSY_FIELDS: Final = (1, 2, 3, 6, 7, 8)  # proc(5), /proc/stat: all but idle, iowait and guests


@dataclass(frozen=True)
class Cpus:
    """One CPU for the server and another for the load; None: wherever it likes."""

    server: int | None
    load: int | None

    def busy_seconds(self) -> float:
        """How long these CPUs have worked so far, for anyone; stolen time included."""
        wanted = ["cpu"] if self.server is None else [f"cpu{self.server}", f"cpu{self.load}"]
        rows = (line.split() for line in Path("/proc/stat").read_text().splitlines())
        ticks = sum(int(row[i]) for row in rows if row[0] in wanted for i in _BUSY_FIELDS)
        return ticks / os.sysconf("SC_CLK_TCK")

    def __str__(self) -> str:
        if self.server is None:
            return "server and load generator share one CPU: expect noise"
        return f"server pinned to CPU {self.server}, load generator to CPU {self.load}"


def choose_cpus() -> Cpus:
    """Two CPUs of those this process may use, if there are two."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        return Cpus(None, None)
    return Cpus(server=allowed[0], load=allowed[1])


@contextmanager
def started_on(cpu: int | None) -> Iterator[None]:
    """Processes that are started inside run on *cpu* alone, all their threads too."""
    before = os.sched_getaffinity(0)
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
