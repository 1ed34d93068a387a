"""The rows of one server: changes are written in the background, and reads see them at once.

A greenlet writes the changes of all features, in one transaction at a time, in a native thread. While the disk or the
database fails, or the disk is full for the journal, changes stay in memory, at most MAX_PENDING bytes, and are written
later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from gevent.event import Event

from greenstalk_server.runtime.supervisor import Service
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.store.disk_room import no_refusal
from greenstalk_server.web.store.rows import MAX_NUMBER, Row, Rows

MAX_PENDING: Final = 16 * 2**20
"""Maximum bytes of changes that wait to be written. Beyond that, the oldest are dropped."""

RETRY_INTERVAL: Final = 5.0
"""Seconds between attempts while the storage fails."""

FLUSH_TIMEOUT: Final = 2.0
"""Seconds that `flush` waits for the storage."""

log = logging.getLogger(__name__)

RowKey = tuple[str, int, bytes]
"""The kind, number and name of a row."""

Restore = Callable[[list[Row]], None]


class Store:
    """The rows of one server. No method switches, unless its docstring says so.

    is_kept         whether the rows survive a restart.
    is_restored     whether the rows of the previous run have been read. Nothing is written before that.
    last_error      why the last attempt to read or write failed; empty if it did not.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        is_kept: bool,
        prepare: Callable[[], None] = lambda: None,
        room_refusal: Callable[[int], str] = no_refusal,
    ) -> None:
        """*prepare* is called in a native thread before the rows are read; it may raise OSError.

        *room_refusal* returns why a number of bytes must not be written now, or an empty text.
        """
        self.is_kept: bool = is_kept
        self.is_restored: bool = False
        self.last_error: str = ""
        self._rows: Rows = rows
        self._prepare: Callable[[], None] = prepare
        self._room_refusal: Callable[[int], str] = room_refusal
        self._pending: dict[RowKey, bytes | None] = {}
        self._pending_size: int = 0
        self._writing: dict[RowKey, bytes | None] = {}
        self._trims: dict[str, int] = {}
        self._lost: int = 0
        self._restorers: dict[str, Restore] = {}
        self._latest_restorers: dict[str, Callable[[int], None]] = {}
        self._writer: Service = Service("dashboard-store", self._write)
        self._attempted: Event = Event()
        self._retry_now: Event = Event()
        self._is_flushing: bool = False

    # Reading

    def on_restore(self, kind: str, restore: Restore) -> None:
        """Have `restore` call *restore* with the rows of *kind*. Rows are untrusted: anything may have written them."""
        self._restorers[kind] = restore

    def on_restore_latest(self, kind: str, restore: Callable[[int], None]) -> None:
        """Have `restore` call *restore* with the last number of *kind*, 0 without rows."""
        self._latest_restorers[kind] = restore

    def restore(self) -> None:
        """Read the rows of the previous run, or try again later. Call it once, before or after changes. Switches."""
        try:
            run_in_thread(self._prepare)
            found = {kind: self.read(kind) for kind in self._restorers}
            latest = {kind: self.latest(kind, MAX_NUMBER, 1) for kind in self._latest_restorers}
        except OSError as error:
            self._report(f"cannot be read: {error}")
            self._writer.start()
            return
        for kind, restore in self._restorers.items():
            restore(found[kind])
        for kind, restore_latest in self._latest_restorers.items():
            restore_latest(latest[kind][0].number if latest[kind] else 0)
        self.is_restored, self.last_error = True, ""
        self._start()

    def read(
        self, kind: str, first: int = 0, last: int = MAX_NUMBER, names: Sequence[bytes] | None = None
    ) -> list[Row]:
        """Return rows as Rows.read does; raise OSError. Switches."""
        before, trims = [*self._writing.items(), *self._pending.items()], self._trims
        found: dict[tuple[int, bytes], bytes | None] = {
            (number, name): data for number, name, data in run_in_thread(self._rows.read, kind, first, last, names)
        }
        for (changed, number, name), data in [*before, *self._writing.items(), *self._pending.items()]:
            if changed == kind and first <= number <= last and (names is None or name in names):
                found[number, name] = data
        trimmed = (trims | self._trims).get(kind, -1)
        rows = [Row(*key, data) for key, data in found.items() if data is not None]
        return sorted(row for row in rows if row.number > trimmed)

    def latest(self, kind: str, before: int, limit: int) -> list[Row]:
        """Return written rows as Rows.latest does; raise OSError. Switches."""
        return [Row(*values) for values in run_in_thread(self._rows.latest, kind, before, limit)]

    def sizes(self, kind: str) -> dict[int, int]:
        """Return written bytes as Rows.sizes does; raise OSError. Switches."""
        return run_in_thread(self._rows.sizes, kind)

    # Writing

    def put(self, kind: str, number: int, name: bytes, data: bytes) -> None:
        """Insert or replace a row."""
        self._change((kind, number, name), data)

    def remove(self, kind: str, number: int, name: bytes) -> None:
        """Remove a row, if it exists."""
        self._change((kind, number, name), None)

    def trim(self, kind: str, last: int) -> None:
        """Remove the rows of *kind* with numbers up to *last*."""
        for key in [key for key in self._pending if key[0] == kind and key[1] <= last]:
            self._pending_size -= _size(self._pending.pop(key))
        self._trims = self._trims | {kind: max(last, self._trims.get(kind, last))}
        self._start()

    def save(self) -> None:
        """Wait until the changes so far are written, or an attempt to write them has failed. Switches."""
        while self._pending or self._writing or self._trims:
            self._attempted.clear()
            self._retry_now.set()
            self._start()
            self._attempted.wait()
            if self.last_error:
                return

    def flush(self) -> None:
        """Write all changes; give up after FLUSH_TIMEOUT, or at an error. Call it once, at the end. Switches."""
        self._is_flushing = True
        self._retry_now.set()
        self._writer.join(FLUSH_TIMEOUT)
        if self._writer.is_running or self._pending or self._writing or not self.is_restored:
            self._writer.stop()
            log.error("dashboard: stopped; its last changes are not saved")

    def _change(self, key: RowKey, data: bytes | None) -> None:
        self._pending_size += _size(data) - _size(self._pending.pop(key, b""))
        self._pending[key] = data
        while self._pending_size > MAX_PENDING and len(self._pending) > 1:
            oldest = next(iter(self._pending))
            self._pending_size -= _size(self._pending.pop(oldest))
            self._lost += 1
        self._start()

    def _start(self) -> None:
        if self.is_restored:
            self._writer.start()

    def _write(self) -> None:
        """Write until nothing is pending. Switches."""
        while self._pending or self._trims or not self.is_restored:
            if not self.is_restored:
                self.restore()
            else:
                self._write_batch()
            self._attempted.set()
            if self.last_error:
                if self._is_flushing:
                    return
                self._retry_now.clear()
                self._retry_now.wait(RETRY_INTERVAL)

    def _write_batch(self) -> None:
        """Write what is pending in one transaction, if there is room. Switches."""
        if refusal := self._room_refusal(self._pending_size):
            self._report_unwritten(refusal)
            return
        self._writing, self._pending, self._pending_size = self._pending, {}, 0
        trims = self._trims
        try:
            run_in_thread(self._rows.write, [(*key, data) for key, data in self._writing.items()], trims)
        except OSError as error:
            kept = {key: data for key, data in self._writing.items() if key[1] > self._trims.get(key[0], -1)}
            self._pending = kept | self._pending
            self._pending_size = sum(map(_size, self._pending.values()))
            self._report_unwritten(str(error))
        else:
            self._trims = {kind: last for kind, last in self._trims.items() if trims.get(kind) != last}
            self._note_success()
        finally:
            self._writing = {}

    def _note_success(self) -> None:
        if self.last_error:
            log.info("dashboard: saving its data succeeds again")
        if self._lost:
            log.error("dashboard: %d changes were lost, because too many waited to be saved", self._lost)
        self.last_error, self._lost = "", 0

    def _report_unwritten(self, reason: str) -> None:
        self._report(f"cannot be written: {reason}; changes stay in memory, and are written later")

    def _report(self, error: str) -> None:
        """Set `last_error`, and log it if it is new."""
        if error != self.last_error:
            log.error("dashboard: its data %s", error)
        self.last_error = error


def _size(data: bytes | None) -> int:
    return len(data or b"")
