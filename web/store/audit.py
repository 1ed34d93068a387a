"""The audit log: who changed what through the dashboard, when and from which address, and which requests were refused.

The latest entries are in memory, and the store keeps more of them as rows. An operation neither waits for the disk nor
fails because of it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import gevent
import msgspec
from msgspec import Struct, structs
from werkzeug.exceptions import ServiceUnavailable

from greenstalk_server.cluster.status import HOME
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.shards import ALONE, Shards
from greenstalk_server.web.store.rows import Time, decoded
from greenstalk_server.web.store.store import Store

ROW: Final = "audit"
"""Kind of the rows. Their numbers are the numbers of the entries."""

MAX_ENTRIES: Final = 1000
"""Entries in memory."""

MAX_KEPT: Final = 100_000
"""Entries in the store."""

TRIM_INTERVAL: Final = 100
"""Number of new entries after which the oldest are removed."""

BATCH: Final = 200
"""Entries read from the store at a time."""

MAX_TEXT_LENGTH: Final = 300
"""Maximum characters of a text in an entry; longer texts are cut."""

MAX_REFUSALS: Final = 30
REFUSAL_WINDOW: Final = 60 * SECOND
"""At most MAX_REFUSALS refusals are logged per window, so that a flood does not evict the changes. The others are
counted, and the next logged refusal has the count as `omitted`.
"""

RETRY_INTERVAL: Final = 0.5
"""Seconds between two attempts to send an entry to the home process."""

QUESTION: Final = "audit"

log = logging.getLogger(__name__)


class Entry(Struct, frozen=True):
    """One change or refusal.

    number          increases by one per entry, across restarts; pages use it as their cursor. It is the number of the
                    row.
    at              time in nanoseconds since the Unix epoch.
    who, address    name and address of the principal.
    what            the operation, such as `tube/pause`.
    details         the arguments of the operation.
    """

    at: Time
    who: str
    address: str
    what: str
    details: dict[str, str | int]
    number: int = 0


class Audit:
    """The audit log of one server.

    entries         the latest entries, oldest first.
    store           keeps more of them.
    """

    def __init__(self, clock: Clock, store: Store, shards: Shards = ALONE) -> None:
        """Start without entries. The numbering continues from *store* when it is restored.

        With several *shards*, the home process keeps the log, and the others send their entries to it.
        """
        self.entries: deque[Entry] = deque(maxlen=MAX_ENTRIES)
        self._clock: Clock = clock
        self.store: Store = store
        self._next: int = 1
        self._is_restored: bool = False
        self._refusals: deque[int] = deque(maxlen=MAX_REFUSALS)
        self._omitted: int = 0
        self._shards: Shards = shards
        self._unsent: deque[Mapping[str, Any]] = deque(maxlen=MAX_ENTRIES)
        self._is_sending: bool = False
        store.on_restore_latest(ROW, self._restore)
        shards.answer(QUESTION, self._add)

    def note(self, what: str, **details: str | int) -> None:
        """Log that the current principal did *what*, such as `tube/pause`. Does not switch."""
        who = principal()
        self._add(who.name, who.address, what, details)

    def note_own(self, what: str, **details: str | int) -> None:
        """Log that the server did *what* by itself. Does not switch."""
        self._add("", "", what, details)

    def _add(self, who: str, address: str, what: str, details: Mapping[str, str | int]) -> None:
        if not self._shards.is_home:
            self._send(who, address, what, details)
            return
        cut = {key: value[:MAX_TEXT_LENGTH] if isinstance(value, str) else value for key, value in details.items()}
        cut = {key: value for key, value in cut.items() if value != ""}
        self.entries.append(Entry(self._clock(), who, address, what, cut, self._next))
        self._next += 1
        if self._is_restored:
            self._put(self.entries[-1])

    def _send(self, who: str, address: str, what: str, details: Mapping[str, str | int]) -> None:
        """Send an entry to the home process, after the ones before it; try again until it is there."""
        self._unsent.append({"who": who, "address": address, "what": what, "details": dict(details)})
        if not self._is_sending:
            self._is_sending = True
            gevent.spawn(self._send_all)

    def _send_all(self) -> None:
        """Send the entries that are not sent yet. Switches."""
        try:
            while self._unsent:
                try:
                    self._shards.ask(HOME, QUESTION, **self._unsent[0])
                    self._unsent.popleft()
                except ServiceUnavailable:
                    gevent.sleep(RETRY_INTERVAL)
        finally:
            self._is_sending = False

    def note_refusal(self, what: str, **details: str | int) -> None:
        """Log that the principal was refused *what*, or only count it if there are too many. Does not switch."""
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
        before = min(before, recent[0].number if recent else self._next)
        pace = Pace()
        try:
            while before > 1 and (rows := self.store.latest(ROW, before, BATCH)):
                before = rows[-1].number
                for number, _, entry in decoded(rows, Entry, "so an entry of the audit log is left out"):
                    pace.yield_if_due()
                    yield structs.replace(entry, number=number)
        except OSError as error:
            log.error("audit log: its rows cannot be read: %s", error)  # noqa: TRY400  the message is complete

    def _restore(self, last: int) -> None:
        """Continue after the number *last*; the entries so far get the numbers that follow it."""
        early = [structs.replace(entry, number=entry.number + last) for entry in self.entries]
        self.entries.clear()
        self.entries.extend(early)
        self._next, self._is_restored = self._next + last, True
        for entry in early:
            self._put(entry)

    def _put(self, entry: Entry) -> None:
        self.store.put(ROW, entry.number, b"", msgspec.json.encode(entry))
        if entry.number % TRIM_INTERVAL == 0 and entry.number > MAX_KEPT:
            self.store.trim(ROW, entry.number - MAX_KEPT)
