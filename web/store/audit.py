"""The audit log: who changed what through the dashboard, when and from which address, and which requests were refused.

The latest entries are in memory. With a directory, a greenlet also appends every entry to files; a thread does the
writing. An operation neither waits for the disk nor fails because of it: failed writes are logged and retried.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from gevent.event import Event

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.supervisor import Service
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.store.audit_files import AuditFiles, decode, encode

MAX_ENTRIES: Final = 1000
"""Entries kept in memory."""

MAX_TEXT_LENGTH: Final = 300
"""Maximum characters of a text in an entry; longer texts are cut."""

MAX_REFUSALS: Final = 30
REFUSAL_WINDOW: Final = 60 * SECOND
"""At most MAX_REFUSALS refusals are logged per window, so that a flood does not evict the changes. The others are
counted, and the next logged refusal has the count as `omitted`.
"""

WRITE_RETRY_INTERVAL: Final = 5.0
"""Seconds between attempts to write while the disk fails."""

FLUSH_TIMEOUT: Final = 2.0
"""Seconds that `flush` waits for the disk."""

_EPOCH: Final = datetime.fromtimestamp(0, UTC)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One change or refusal.

    number          increases by one per entry, across restarts; pages use it as their cursor.
    at              time in nanoseconds since the Unix epoch.
    who, address    name and address of the principal.
    what            the operation, such as `tube/pause`.
    details         the arguments of the operation.
    """

    number: int
    at: int
    who: str
    address: str
    what: str
    details: dict[str, str | int]


class Audit:
    """The audit log of one server.

    entries         the latest entries, oldest first.
    is_kept         whether the log survives a restart.
    trouble         why some entries are not on disk; empty if all are.
    """

    def __init__(self, clock: Clock, directory: str | None = None) -> None:
        """Continue the numbering of the files in *directory*. Blocks, so call this before the server serves clients."""
        self.entries: deque[Entry] = deque(maxlen=MAX_ENTRIES)
        self.trouble: str = ""
        self._clock: Clock = clock
        self._files: AuditFiles | None = AuditFiles(directory) if directory is not None else None
        self._written: int = self._last_number()
        self._next: int = self._written + 1
        self._wanted: Event = Event()
        self._writer: Service = Service("audit-writer", self._write)
        self._refusals: deque[int] = deque(maxlen=MAX_REFUSALS)
        self._omitted: int = 0

    @property
    def is_kept(self) -> bool:
        return self._files is not None

    def note(self, what: str, **details: str | int) -> None:
        """Log that the current principal did *what*, such as `tube/pause`. Does not switch."""
        who = principal()
        cut = {key: value[:MAX_TEXT_LENGTH] if isinstance(value, str) else value for key, value in details.items()}
        cut = {key: value for key, value in cut.items() if value != ""}
        self.entries.append(Entry(self._next, self._clock(), who.name, who.address, what, cut))
        self._next += 1
        if self._files is not None:
            self._wanted.set()
            self._writer.start()

    def note_refusal(self, what: str, **details: str | int) -> None:
        """Log that *what* was refused to the current principal, or count it if there are too many. Does not switch."""
        now = self._clock()
        if len(self._refusals) == MAX_REFUSALS and now - self._refusals[0] < REFUSAL_WINDOW:
            self._omitted += 1
            return
        self._refusals.append(now)
        if self._omitted:
            details["omitted"] = self._omitted
            self._omitted = 0
        self.note(what, **details)

    def newest_first(self, before: int = 0) -> Iterator[Entry]:
        """Yield the entries with a number below *before*, or all if it is 0, newest first. May switch."""
        before = before or self._next
        recent = list(self.entries)
        yield from (entry for entry in reversed(recent) if entry.number < before)
        if self._files is None:
            return
        try:
            yield from _on_disk(self._files, min(before, recent[0].number if recent else self._next))
        except OSError as error:
            self._report(f"the file cannot be read: {error}")

    def flush(self) -> None:
        """Write the entries that are not on disk yet; give up after FLUSH_TIMEOUT. Switches."""
        self._wanted.set()
        self._writer.join(FLUSH_TIMEOUT)
        if self._writer.is_running:
            self._writer.stop()
            log.error("audit log: stopped; the last entries are not on disk")

    def _last_number(self) -> int:
        try:
            return self._files.last_number() if self._files is not None else 0
        except OSError as error:
            self._report(f"the file cannot be read: {error}")
            return 0

    def _write(self) -> None:
        """Append entries to the files until all are written. Switches."""
        files = self._files
        assert files is not None
        while self._written < self._next - 1:
            self._wanted.clear()
            batch = [entry for entry in self.entries if entry.number > self._written]
            try:
                run_in_thread(files.append, b"".join(map(_line, batch)))
            except OSError as error:
                self._report(f"the file cannot be written: {error}")
                self._wanted.wait(WRITE_RETRY_INTERVAL)
                continue
            if lost := batch[0].number - self._written - 1:
                log.error("audit log: %d entries were lost while the disk failed", lost)
            self._written = batch[-1].number
            self.trouble = ""

    def _report(self, trouble: str) -> None:
        """Set *trouble*, and log it if it is new."""
        if trouble != self.trouble:
            log.error("audit log: %s", trouble)
        self.trouble = trouble


def _on_disk(files: AuditFiles, before: int) -> Iterator[Entry]:
    """Yield the entries of *files* with a number below *before*, newest first. Switches."""
    pace = Pace()
    while (reader := run_in_thread(files.open_before, before)) is not None:
        last = before
        with reader:
            while lines := run_in_thread(reader.lines_before):
                for line in reversed(lines):
                    pace.yield_if_due()
                    entry = _entry(line)
                    if entry is not None and entry.number < before:
                        before = entry.number
                        yield entry
        if before == last:  # the entry below *before* that `open_before` found is gone: another process changes it
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
    """Return the entry in *line*; None if the line is torn or is not an entry."""
    values = decode(line)
    try:
        since = datetime.fromisoformat(values["at"]) - _EPOCH
        at = since // timedelta(microseconds=1) * 1000
        details = {
            str(key): value if isinstance(value, int) else str(value) for key, value in values["details"].items()
        }
        return Entry(int(values["n"]), at, str(values["who"]), str(values["address"]), str(values["what"]), details)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
