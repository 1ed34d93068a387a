"""Names, limits and types that the two clients share: `server` for the protocol, and `api` for the API.

Both have the same queries and changes. Bodies are bytes, statistics have the protocol's names, times are whole
seconds. A method returns None or False for a job or tube that does not exist. It raises Refused if the server refuses,
and Unreachable if the connection ends; both messages contain the address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Stats: TypeAlias = dict[str, Any]

READY: Final = "ready"
DELAYED: Final = "delayed"
BURIED: Final = "buried"
RESERVED: Final = "reserved"
STATES: Final = (READY, DELAYED, BURIED)
"""The states in which a job can be changed; a reserved job belongs to its worker."""

MAX_NUMBER: Final = 2**32 - 1
"""The largest pri, delay, ttr and pause of the protocol."""

MAX_BODY: Final = 2**30
"""Maximum bytes of a body: the largest limit that any server can be configured with."""

MAX_TUBES: Final = 1_000_000
"""Maximum number of tubes in a list; a longer list is refused, to protect our memory."""

TUBE_NAME: Final = re.compile(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}")
TUBE_PATTERN: Final = re.compile(r"[-A-Za-z0-9+/;.$_()*]{1,200}")


_Types: TypeAlias = dict[str, type | tuple[type, ...]]

SERVER_STATS: Final[_Types] = {
    "version": str,
    "uptime": int,
    "current-connections": int,
    "current-workers": int,
    "total-jobs": int,
}
JOURNAL: Final[_Types] = {
    "journal-is-on-disk": bool,
    "journal-is-full": bool,
    "journal-files": int,
    "journal-bytes-on-disk": int,
    "journal-trouble": (str, type(None)),
}
TUBE_STATS: Final[_Types] = {
    "name": str,
    **{f"current-jobs-{state}": int for state in ("urgent", *STATES, RESERVED)},
    "current-watching": int,
    "current-waiting": int,
    "total-jobs": int,
    "cmd-delete": int,
    "pause-time-left": int,
}
JOB_STATS: Final[_Types] = {"id": int, "tube": str, "state": str, "pri": int, "ttr": (int, float), "time-left": int}
CONNECTION: Final[_Types] = {
    "number": int,
    "address": str,
    "program": str,
    "is_producer": bool,
    "is_worker": bool,
    "held": int,
    "uses": (str, type(None)),
    "watches": list,
    "waiting_since": (str, type(None)),
}
CONDITION: Final[_Types] = {"condition": str, "tube": (str, type(None)), "sentence": str, "link": str}
"""Statistics that commands rely on, and the type of each."""


def validate_stats(stats: Stats, expected: Mapping[str, type | tuple[type, ...]]) -> Stats:
    """Return *stats*; raise ValueError unless they contain every *expected* name with its type."""
    for name, kind in expected.items():
        if not isinstance(stats.get(name), kind):
            raise ValueError(f"{name!r} is missing")  # noqa: TRY004  the response is invalid, not the argument
    return stats


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at one time: its statistics, which include `bytes`, and its body, None if the server does not show it."""

    stats: Stats
    body: bytes | None

    @property
    def id(self) -> int:
        return int(self.stats["id"])
