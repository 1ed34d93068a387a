"""Command and job counters of the server, and facts that stay the same while it runs. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

COUNTERS: Final = (
    "cmd_bury",
    "cmd_delete",
    "cmd_ignore",
    "cmd_kick",
    "cmd_list_tube_used",
    "cmd_list_tubes",
    "cmd_list_tubes_watched",
    "cmd_pause_tube",
    "cmd_peek",
    "cmd_peek_buried",
    "cmd_peek_delayed",
    "cmd_peek_ready",
    "cmd_put",
    "cmd_release",
    "cmd_reserve",
    "cmd_reserve_with_timeout",
    "cmd_stats",
    "cmd_stats_job",
    "cmd_stats_tube",
    "cmd_touch",
    "cmd_use",
    "cmd_watch",
    "job_timeouts",
    "total_connections",
    "total_jobs",
)
"""The keys of "stats" that are counters, with `_` for `-`.

Each has a field in `protocol.stats.ServerStats`, and those that begin with cmd_ are the commands of `/metrics`.
"""


class Counters:
    """Counters since the server's start, named as the keys of "stats" in protocol.txt."""

    __slots__ = COUNTERS

    def __init__(self) -> None:
        self.cmd_put: int = 0
        self.cmd_peek: int = 0
        self.cmd_peek_ready: int = 0
        self.cmd_peek_delayed: int = 0
        self.cmd_peek_buried: int = 0
        self.cmd_reserve: int = 0
        self.cmd_reserve_with_timeout: int = 0
        self.cmd_delete: int = 0
        self.cmd_release: int = 0
        self.cmd_use: int = 0
        self.cmd_watch: int = 0
        self.cmd_ignore: int = 0
        self.cmd_bury: int = 0
        self.cmd_kick: int = 0
        self.cmd_touch: int = 0
        self.cmd_stats: int = 0
        self.cmd_stats_job: int = 0
        self.cmd_stats_tube: int = 0
        self.cmd_list_tubes: int = 0
        self.cmd_list_tube_used: int = 0
        self.cmd_list_tubes_watched: int = 0
        self.cmd_pause_tube: int = 0
        self.job_timeouts: int = 0
        self.total_jobs: int = 0
        self.total_connections: int = 0


def _unknown_memory() -> None:
    """Stand in for `ServerFacts.memory` where the system does not report it."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about a server that do not change while it runs, and functions that measure the process.

    id              16 hexadecimal digits, new at each start.
    build           "compiled" or "pure Python": how the core runs.
    started_at      nanoseconds since the Unix epoch.
    rusage          returns the user and system CPU time of the process, seconds.
    memory          returns the resident and the private memory of the process in bytes, or None if unknown.
    extensions      names of the protocol's extensions that are on.
    """

    id: str
    pid: int
    version: str
    build: str
    hostname: str
    os: str
    platform: str
    started_at: int
    rusage: Callable[[], tuple[float, float]]
    memory: Callable[[], tuple[int, int] | None] = _unknown_memory
    extensions: tuple[str, ...] = ()
