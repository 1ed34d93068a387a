"""Command and job counters of the server, and facts that stay the same while it runs. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final


@dataclass(slots=True)
class Counters:
    """Counters since the server's start, named as the keys of "stats" in protocol.txt, with `_` for `-`.

    Each has a field in `protocol.stats.ServerStats`, and those that begin with cmd_ are the commands of `/metrics`.
    """

    cmd_put: int = 0
    cmd_peek: int = 0
    cmd_peek_ready: int = 0
    cmd_peek_delayed: int = 0
    cmd_peek_buried: int = 0
    cmd_reserve: int = 0
    cmd_reserve_with_timeout: int = 0
    cmd_delete: int = 0
    cmd_release: int = 0
    cmd_use: int = 0
    cmd_watch: int = 0
    cmd_ignore: int = 0
    cmd_bury: int = 0
    cmd_kick: int = 0
    cmd_touch: int = 0
    cmd_stats: int = 0
    cmd_stats_job: int = 0
    cmd_stats_tube: int = 0
    cmd_list_tubes: int = 0
    cmd_list_tube_used: int = 0
    cmd_list_tubes_watched: int = 0
    cmd_pause_tube: int = 0
    job_timeouts: int = 0
    total_jobs: int = 0
    total_connections: int = 0


COUNTERS: Final = tuple(sorted([field.name for field in fields(Counters)]))
"""The names of the counters."""


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
