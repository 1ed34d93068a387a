"""Marks: texts at points in time, which charts show as vertical lines.

Users and programs add marks, such as deploys. The server adds marks for pauses, policies, starts and takeovers. Each
of the two kinds has its own limit, so that many pauses do not evict deploys.
"""

from __future__ import annotations

from bisect import insort
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.api.values import Instant, ResponseModel, TubeName, instant, nanoseconds
from greenstalk_server.web.store.rows import Row, decoded
from greenstalk_server.web.store.store import Store

MAX_MARKS: Final = 500
"""Maximum marks of users and programs, and of the server, each. The oldest are dropped."""

MAX_TEXT: Final = 200
"""Maximum characters of the text of a mark."""

MAX_PAST: Final = 90 * 86400 * SECOND
MAX_FUTURE: Final = 60 * SECOND
"""Nanoseconds by which the time of a mark may be before and after the present."""

Kind = Literal["note", "pause", "policy", "start"]

NOTE: Final = "note"
PAUSE: Final = "pause"
POLICY: Final = "policy"
START: Final = "start"
"""Kinds of marks. Users and programs add marks of the kind NOTE; the server adds the others."""

ROW: Final = "mark"
"""Kind of the rows. Each new mark gets the next number."""


class Mark(ResponseModel):
    """A mark."""

    at: Instant
    text: str
    kind: Annotated[
        Kind,
        Meta(description="`note` for a mark that a user or a program added; the server adds all other kinds."),
    ]
    tube: Annotated[TubeName | None, Meta(description="Null for a mark of the whole server.", examples=["mail"])]
    who: Annotated[
        str,
        Meta(
            description="The user name, or the kind of token; empty if there is none, or if you may not read the audit"
            " log."
        ),
    ]


class _Numbered(NamedTuple):
    at: int
    number: int
    mark: Mark


class Marks(BrokerListener):
    """The marks of one server. Adds marks for pauses."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store: Store = store
        self._clock: Clock = clock
        self._marks: list[_Numbered] = []
        self._counts: list[int] = [0, 0]  # of the server's marks, and of those of users and programs
        self._last: int = 0
        self._is_restored: bool = False
        self._early: list[Mark] = []  # added before the marks of the previous run were read
        store.on_restore(ROW, self._restore)

    def add(self, mark_text: str, *, kind: Kind = NOTE, tube: str = "", at: int = 0, who: str = "") -> Mark:
        """Add a mark at *at*, by default now. The caller has checked the arguments. Does not switch."""
        when = instant(at or self._clock())
        mark = Mark(at=when, text=mark_text[:MAX_TEXT], kind=kind, tube=tube or None, who=who)
        if self._is_restored:
            self._save(mark)
        else:
            self._early.append(mark)
        return mark

    def find(self, tube: str | None, since: int, until: int) -> list[Mark]:
        """Return the marks from *since* to *until*, oldest first.

        tube            its name for the marks about it and about the whole server, empty for only the latter, and None
                        for all marks.
        since, until    nanoseconds since the Unix epoch.
        """
        found = [mark for at, _, mark in self._marks if since <= at <= until]
        return [mark for mark in found if tube is None or mark.tube in (None, tube)]

    def on_tube_paused(self, tube: Tube) -> None:
        """Add a mark for the pause, or the end of a pause, of *tube*. Does not switch."""
        pause = tube.pause // SECOND
        self.add(f"Paused for {text.duration(pause)}" if pause else "Resumed", kind=PAUSE, tube=tube.name.decode())

    def _restore(self, rows: list[Row]) -> None:
        for number, _, mark in decoded(rows, Mark, "so a mark is lost"):
            self._insert(number, mark)
        self._last, self._is_restored = max([row.number for row in rows], default=0), True
        for mark in self._early:
            self._save(mark)
        self._early.clear()

    def _save(self, mark: Mark) -> None:
        self._last += 1
        self._store.put(ROW, self._last, b"", msgspec.json.encode(mark))
        self._insert(self._last, mark)

    def _insert(self, number: int, mark: Mark) -> None:
        insort(self._marks, _Numbered(nanoseconds(mark.at), number, mark))
        is_note = mark.kind == NOTE
        self._counts[is_note] += 1
        if self._counts[is_note] > MAX_MARKS:
            place = next(at for at, other in enumerate(self._marks) if (other.mark.kind == NOTE) == is_note)
            self._store.remove(ROW, self._marks.pop(place).number, b"")
            self._counts[is_note] -= 1
