"""What a command asks of a server, whichever way that is reached: by the protocol (`server`) or the API (`api`).

Bodies are bytes, figures bear the protocol's names, times are whole seconds. What is not there is None or False; what
the server refuses raises Refused, and what ends the connection Unreachable, each with the address in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from greenstalkctl.address import Address, Url

Stats: TypeAlias = dict[str, Any]

READY: Final = "ready"
DELAYED: Final = "delayed"
BURIED: Final = "buried"
RESERVED: Final = "reserved"
STATES: Final = (READY, DELAYED, BURIED)
"""States from which a job can be taken; one that is reserved is its worker's."""

MAX_NUMBER: Final = 2**32 - 1
"""The largest pri, delay, ttr and pause of the protocol."""

MAX_BODY: Final = 2**30
"""Bytes of a body: the most that any server can be configured to take."""

MAX_TUBES: Final = 1_000_000
"""Tubes of a list; a longer one is taken for an attack on our memory."""

TUBE_NAME: Final = re.compile(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}")


OF_SERVER: Final = {
    "version": str,
    "uptime": int,
    "current-connections": int,
    "current-workers": int,
    "total-jobs": int,
}
OF_TUBE: Final = {
    "name": str,
    **{f"current-jobs-{state}": int for state in ("urgent", *STATES, RESERVED)},
    "current-waiting": int,
    "total-jobs": int,
    "cmd-delete": int,
    "pause-time-left": int,
}
OF_JOB: Final = {"id": int, "tube": str, "state": str, "pri": int, "ttr": int, "time-left": int}
"""Figures that commands rely on, and the type of each."""


def checked(stats: Stats, expected: Mapping[str, type]) -> Stats:
    """Return *stats*; raise ValueError unless they have all that is *expected*."""
    for name, kind in expected.items():
        if not isinstance(stats.get(name), kind):
            raise ValueError(f"{name!r} is missing")  # noqa: TRY004  it is what an answer holds
    return stats


@dataclass(frozen=True, slots=True)
class Seen:
    """A job when it was looked at: its figures, `bytes` among them, and its body; None if that is not told."""

    stats: Stats
    body: bytes | None

    @property
    def id(self) -> int:
        return int(self.stats["id"])


class Queue(Protocol):
    """A server, and what can be asked of it in either way."""

    @property
    def address(self) -> Address | Url: ...

    def stats(self) -> Stats: ...

    def tubes(self) -> list[str]:
        """The names of all tubes."""

    def figures(self) -> list[Stats]:
        """The figures of all tubes."""

    def tube(self, name: str) -> Stats | None: ...

    def see(self, job_id: int) -> Seen | None: ...

    def see_first(self, tube: str, state: str) -> Seen | None:
        """The job of *tube* in *state* whose turn is next."""

    def put(self, tube: str, body: bytes, pri: int, delay: int, ttr: int) -> int: ...

    def kick_job(self, job_id: int) -> bool: ...

    def bury_job(self, job_id: int) -> bool:
        """Bury a ready or delayed job with the pri that it has."""

    def delete(self, job_id: int) -> bool: ...

    def pause(self, tube: str, seconds: int) -> bool:
        """Give out no job of *tube* for so long; 0 ends a pause."""
