"""Marks: texts at points in time, which charts show as vertical lines.

Users and programs add marks, such as deploys. The server adds marks for pauses, policies, starts and takeovers. Each
of the two kinds has its own limit, so that many pauses do not evict deploys. The archive keeps all marks in one
document.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

import msgspec
from msgspec import Struct

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.tube_names import is_tube_name
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.history.archive import Archive
from greenstalk_server.web.framework import text

log = logging.getLogger(__name__)

MAX_MARKS: Final = 500
"""Maximum marks of users and programs, and of the server, each. The oldest are dropped."""

MAX_TEXT: Final = 200
"""Characters."""

MAX_TIME: Final = 2**63
"""Times of marks are below this, in nanoseconds since the Unix epoch. Pages cannot show later times."""

MAX_PAST: Final = 90 * 86400 * SECOND
MAX_FUTURE: Final = 60 * SECOND
"""Nanoseconds by which the time of a mark may differ from now."""

NOTE: Final = "note"
PAUSE: Final = "pause"
POLICY: Final = "policy"
START: Final = "start"
KINDS: Final = (NOTE, PAUSE, POLICY, START)
"""NOTE is the kind of the marks of users and programs."""

_time = attrgetter("at")


class Mark(Struct, frozen=True):
    """A mark.

    at      nanoseconds since the Unix epoch.
    kind    one of KINDS.
    tube    name of its tube; empty for a mark of the whole server.
    who     user name of its author; empty if there is none.
    """

    at: int
    text: str
    kind: str = NOTE
    tube: str = ""
    who: str = ""


class Marks(BrokerListener):
    """The marks of one server. Adds marks for pauses.

    Invariant: nothing is saved before `restore`, which would replace the marks of the previous run.
    """

    def __init__(self, archive: Archive, clock: Clock) -> None:
        self._archive: Archive = archive
        self._clock: Clock = clock
        self._marks: list[Mark] = []
        self._is_restored: bool = False
        self._counts: list[int] = [0, 0]  # of the server's marks, and of those of users and programs

    def restore(self) -> None:
        """Read the marks from the archive, and save those that were added before. Call once. Switches."""
        document = self._archive.load_marks() or b"[]"
        has_new, self._is_restored = bool(self._marks), True
        try:
            found = msgspec.json.decode(document, type=list[Mark])
        except (msgspec.MsgspecError, RecursionError) as error:
            log.error("history: the marks cannot be read, and are lost: %s", error)  # noqa: TRY400  the message is complete
            found = []
        for mark in found[-2 * MAX_MARKS :]:
            if 0 <= mark.at < MAX_TIME and (not mark.tube or is_tube_name(mark.tube.encode())):
                self._insert(mark)
        if has_new:
            self._archive.save_marks(self._encoded)

    def add(self, mark_text: str, *, kind: str = NOTE, tube: str = "", at: int = 0, who: str = "") -> Mark:
        """Add a mark at *at*, by default now. The caller has checked the arguments. Does not switch."""
        mark = Mark(at or self._clock(), mark_text[:MAX_TEXT], kind, tube, who)
        self._insert(mark)
        if self._is_restored:
            self._archive.save_marks(self._encoded)
        return mark

    def find(self, tube: str | None, since: int, until: int) -> list[Mark]:
        """Return the marks from *since* to *until*, oldest first.

        tube            its name for the marks about it and about the whole server, empty for only the latter, and None
                        for all marks.
        since, until    nanoseconds since the Unix epoch.
        """
        return [mark for mark in self._marks if since <= mark.at <= until and (tube is None or mark.tube in ("", tube))]

    def on_tube_paused(self, tube: Tube) -> None:
        """Add a mark for the pause, or the end of a pause, of *tube*. Does not switch."""
        pause = tube.pause // SECOND
        self.add(f"Paused for {text.duration(pause)}" if pause else "Resumed", kind=PAUSE, tube=tube.name.decode())

    def _insert(self, mark: Mark) -> None:
        insort(self._marks, mark, key=_time)
        is_note = mark.kind == NOTE
        self._counts[is_note] += 1
        if self._counts[is_note] > MAX_MARKS:
            oldest = next(at for at, other in enumerate(self._marks) if (other.kind == NOTE) == is_note)
            del self._marks[oldest]
            self._counts[is_note] -= 1

    def _encoded(self) -> bytes:
        """Return the document. May be called by another thread."""
        return encode(list(self._marks))


def encode(marks: Iterable[Mark]) -> bytes:
    """Return *marks* as a document."""
    return msgspec.json.encode(list(marks))
