"""What a command asks of a server, whichever way that is reached: by the protocol (`server`) or the API (`api`).

Bodies are bytes, figures bear the protocol's names, times are whole seconds. What is not there is None or False; what
the server refuses raises Refused, and what ends the connection Unreachable, each with the address in it.
"""

from __future__ import annotations

import re
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

TUBE_NAME: Final = re.compile(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}")


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
