"""The audit log: who changed what through the dashboard, when, and from where; and who tried to, in vain.

The latest entries are in memory. With a directory all of them go to disk too, a moment later and in a thread, so an
action never waits for it, nor fails because of it: what the disk does not take is kept, tried again, and said.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import gevent
from gevent.event import Event

from greenstalk_server.core.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.auth.access import visitor
from greenstalk_server.web.cooperative import Pace
from greenstalk_server.web.disk import in_thread
from greenstalk_server.web.operations.audit_files import AuditFiles, decode, encode

KEPT: Final = 1000
"""Entries in memory."""

LONGEST_TEXT: Final = 300
"""Characters of a text in an entry."""

REFUSALS: Final = 30
REFUSALS_WITHIN: Final = 60 * SECOND
"""So many refusals within so long are noted, lest a flood of them drive out the changes; then they are counted."""

RETRY_EVERY: Final = 5.0
"""Seconds between attempts while the disk fails."""

LAST_CHANCE: Final = 2.0
"""Seconds that a disk has left at a stop."""

_EPOCH: Final = datetime.fromtimestamp(0, UTC)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One change, or one refusal.

    number          counts up, and on after a restart: what pages go by.
    at              in nanoseconds since the Unix epoch.
    what            the action's address, such as `tube/pause`.
    details         as given.
    """

    number: int
    at: int
    who: str
    address: str
    what: str
    details: dict[str, str | int]


class Audit:
    """The log of one server.

    entries         the latest, oldest first.
    is_kept         it survives a restart.
    trouble         why the disk has not all of it; empty if it has.
    """

    def __init__(self, clock: Clock, directory: str | None = None) -> None:
        """Go on where the files in *directory* end. Blocks, for the time before anyone is served."""
        self.entries: deque[Entry] = deque(maxlen=KEPT)
        self.trouble: str = ""
        self._clock: Clock = clock
        self._files: AuditFiles | None = AuditFiles(directory) if directory is not None else None
        self._written: int = self._last_number()
        self._next: int = self._written + 1
        self._wanted: Event = Event()
        self._writer: gevent.Greenlet | None = None
        self._refusals: deque[int] = deque(maxlen=REFUSALS)
        self._omitted: int = 0

    @property
    def is_kept(self) -> bool:
        return self._files is not None

    def note(self, what: str, **details: str | int) -> None:
        """Log that the current visitor has done *what*, such as `tube/pause`. Does not switch."""
        who = visitor()
        cut = {key: value[:LONGEST_TEXT] if isinstance(value, str) else value for key, value in details.items()}
        cut = {key: value for key, value in cut.items() if value != ""}
        self.entries.append(Entry(self._next, self._clock(), who.name, who.address, what, cut))
        self._next += 1
        if self._files is not None:
            self._wanted.set()
            if not self._writer:
                self._writer = gevent.spawn(self._write, self._files)

    def note_refusal(self, what: str, **details: str | int) -> None:
        """Log that the current visitor was refused *what*, unless there are too many. Does not switch."""
        now = self._clock()
        if len(self._refusals) == REFUSALS and now - self._refusals[0] < REFUSALS_WITHIN:
            self._omitted += 1
            return
        self._refusals.append(now)
        if self._omitted:
            details["omitted"] = self._omitted
            self._omitted = 0
        self.note(what, **details)

    def newest_first(self, before: int = 0) -> Iterator[Entry]:
        """Yield entries, newest first, of those with a number below *before*, if one is given. May switch."""
        before = before or self._next
        recent = list(self.entries)
        yield from (entry for entry in reversed(recent) if entry.number < before)
        if self._files is None:
            return
        try:
            yield from _on_disk(self._files, min(before, recent[0].number if recent else self._next))
        except OSError as error:
            self._tell(f"it cannot be read: {error}")

    def flush(self) -> None:
        """Write what is not on disk yet, or give up soon. Switches."""
        self._wanted.set()
        if self._writer:
            self._writer.join(LAST_CHANCE)
        if self._writer:
            self._writer.kill()
            log.error("audit log: stopped with entries that are not on disk")

    def _last_number(self) -> int:
        try:
            return self._files.last_number() if self._files is not None else 0
        except OSError as error:
            self._tell(f"it cannot be read: {error}")
            return 0

    def _write(self, files: AuditFiles) -> None:
        """Write until nothing is left to be written. Switches."""
        while self._written < self._next - 1:
            self._wanted.clear()
            batch = [entry for entry in self.entries if entry.number > self._written]
            try:
                in_thread(files.append, b"".join(map(_line, batch)))
            except OSError as error:
                self._tell(f"it cannot be written: {error}")
                self._wanted.wait(RETRY_EVERY)
                continue
            if lost := batch[0].number - self._written - 1:
                log.error("audit log: %d entries were lost while the disk failed", lost)
            self._written = batch[-1].number
            self.trouble = ""

    def _tell(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.error("audit log: %s", trouble)
        self.trouble = trouble


def _on_disk(files: AuditFiles, before: int) -> Iterator[Entry]:
    """Yield the entries of *files* with a number below *before*, newest first. Switches."""
    pace = Pace()
    while (reader := in_thread(files.open_before, before)) is not None:
        was = before
        with reader:
            while lines := in_thread(reader.lines_before):
                for line in reversed(lines):
                    pace.yield_if_due()
                    entry = _entry(line)
                    if entry is not None and entry.number < before:
                        before = entry.number
                        yield entry
        if before == was:  # its first entry was there a moment ago: somebody else changes the file
            return


def _line(entry: Entry) -> bytes:
    return encode(
        {
            "n": entry.number,
            "at": (_EPOCH + timedelta(microseconds=entry.at // 1000)).isoformat(),
            "who": entry.who,
            "address": entry.address,
            "what": entry.what,
            "details": entry.details,
        }
    )


def _entry(line: bytes) -> Entry | None:
    """Return what *line* says, or None if it is torn or of somebody else."""
    said = decode(line)
    try:
        since = datetime.fromisoformat(said["at"]) - _EPOCH
        at = since // timedelta(microseconds=1) * 1000
        details = {str(key): value if isinstance(value, int) else str(value) for key, value in said["details"].items()}
        return Entry(int(said["n"]), at, str(said["who"]), str(said["address"]), str(said["what"]), details)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
