"""Group commit: replies that wait for the journal leave together, when one batch of records is safe.

The greenlets that serve connections run whole chunks of commands and hand their replies to `hold`. The
committer greenlet runs after all of them have had their turn, takes every record there is as one batch, has
it written, and synced if -f is 0, and then sends all replies. While one batch is on its way to the disk the
next one gathers, so however many connections have work, each waits for two syncs at most.

Whatever blocks runs in a thread, so that the disk stalls nobody: batches and syncs in one native thread of
their own, since the way to the hub's threadpool and back costs more CPU than all else about a batch; what is
seldom, in the threadpool.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import gevent
import gevent.threadpool  # gevent would do it when it is wanted, and may lack the right or a descriptor then
from gevent import get_hub
from gevent.event import Event
from gevent.lock import BoundedSemaphore
from greenlet import getcurrent

from greenstalk_server.core.job import SECOND
from greenstalk_server.journal.batch import Batch, Sync
from greenstalk_server.journal.compaction import READ_BATCH
from greenstalk_server.journal.writer import Binlog
from greenstalk_server.net.body_loader import LET_GO_AT_ONCE, Loader
from greenstalk_server.runtime.scheduling import YIELD_DELAY

log = logging.getLogger(__name__)

RETRY_EVERY: Final = 1.0
"""Seconds between attempts while the disk fails or is full."""

COMPACTION_SHARE: Final = 3
COMPACTION_AT_MOST: Final = 524288
"""Bytes that compaction copies for each byte written or deleted, and bytes at most in one turn; it copies the rest
before the next batch."""

COMPACTION_WHEN_FULL: Final = 65536
"""Or, on a full disk, so many bytes after each batch: releases must not overtake it."""

COMPACTION_SLICE: Final = 32768

IDLE_PAUSE: Final = 0.005
"""And so many bytes besides, each so many seconds, though nobody writes."""

LONE_BATCHES: Final = 8
QUICK_SYNC: Final = 0.001
"""After so many batches for one client alone, and while syncs take less than so many seconds on average, a sync
runs in the loop itself: the way to a thread and back costs about as much as a good disk's sync."""

WRITTEN_IN_LOOP: Final = 2**20
"""Bytes, at most, of a batch that is written in the loop: half a millisecond if the system has room in its cache."""


class Holder(Protocol):
    """Someone whose replies wait."""

    def release(self, safe: int) -> None:
        """Send the replies that waited for records up to number *safe*. Must not switch."""


class Committer:
    """Writes and syncs *binlog*, and releases who waits for it."""

    def __init__(self, binlog: Binlog, loader: Loader | None = None) -> None:
        """*loader* reads bodies back, if some may be on disk alone; it begins and ends with the committer."""
        self.binlog: Binlog = binlog
        self._loader: Loader | None = loader
        self._holders: list[Holder] = []
        self._wanted: Event = Event()
        self._upkeep_wanted: Event = Event()
        self._upkeep_done: Event = Event()
        self._sync_wanted: Event = Event()
        self._disk: BoundedSemaphore = BoundedSemaphore(1)
        self._thread: DiskThread = DiskThread()
        self._greenlets: list[gevent.Greenlet] = []
        self._copied: int = 0
        self._died: int = 0
        self._owed: int = 0
        self._lone_holder: Holder | None = None
        self._lone_batches: int = 0
        self._sync_time: float = QUICK_SYNC

    def start(self) -> None:
        """Begin. Does not switch."""
        get_hub().threadpool  # noqa: B018  made while there is a file descriptor for it
        self._greenlets = [gevent.spawn(self._commit_forever), gevent.spawn(self._keep_up_forever)]
        if self.binlog.sync_interval is not None and self.binlog.sync_interval > 0:
            self._greenlets.append(gevent.spawn(self._sync_forever, self.binlog.sync_interval / SECOND))
        if self._loader is not None:
            self._greenlets.append(gevent.spawn(self._loader.run))
        for greenlet in self._greenlets:
            greenlet.link_exception(_end_process)
        self.note_records()

    def stop(self) -> None:
        """Write and sync what there is, release who waits, end. Switches, and if that takes a disk blocks at last."""
        with self._disk:  # so nothing is under way in the thread
            gevent.killall(self._greenlets)
            run = self._run_in_thread if self.binlog.is_remote else Batch.run
            if not self._write_all(run):
                log.error("journal: stopped with changes that are not on disk; none of them was acknowledged")
            elif self.binlog.release_ids():
                self._write_released_ids()
        self._thread.stop()

    def hold(self, holder: Holder) -> None:
        """Have *holder* released when all records made so far are safe. Does not switch."""
        if not self._holders:
            self._wanted.set()
        self._holders.append(holder)

    def commit_for(self, holder: Holder) -> bool:
        """Commit here and now if *holder* alone has had work lately and the disk is quick; else False: `hold` it.

        It spares the way to another greenlet and back. Does not switch; blocks for one sync.
        """
        if holder is not self._lone_holder:
            self._lone_holder = holder
            self._lone_batches = 0
        self._lone_batches += 1
        is_quick = self._lone_batches > LONE_BATCHES and self._sync_time < QUICK_SYNC
        if not is_quick or self._owed or self._holders or self._disk.locked():
            return False
        binlog = self.binlog
        if binlog.sync_interval != 0 or binlog.is_remote or binlog.wants_rewrite or binlog.is_full:
            return False
        if binlog.pending_bytes > WRITTEN_IN_LOOP:
            return False
        return self._write(self._run_timed, is_synced=True)

    def wait(self, timeout: float) -> bool:
        """Return when all records made so far are safe; False if *timeout* seconds do not suffice. Switches."""
        waiter = _Waiter()
        self.hold(waiter)
        return bool(waiter.is_safe.wait(timeout))

    def note_records(self) -> None:
        """See that what the journal has been told gets written, though nobody waits for it. Does not switch."""
        self._wanted.set()

    def _commit_forever(self) -> None:
        while True:
            self._wanted.wait()
            gevent.sleep(0)
            self._wanted.clear()
            if not self._commit():
                self._wanted.set()
                if self.binlog.trouble is not None:
                    gevent.sleep(RETRY_EVERY)

    def _commit(self) -> bool:
        """Commit what there is, where it stalls nobody; False if that has to be tried again. Switches if it blocks."""
        binlog = self.binlog
        is_large = binlog.is_over_bound
        is_synced = binlog.sync_interval == 0 or (is_large and binlog.sync_interval is not None)
        self._await_room(is_large)
        while self._owed > 0 and self._compact_slice(COMPACTION_SLICE):
            gevent.sleep(YIELD_DELAY)
        if not binlog.wants_rewrite:
            if not binlog.has_records:  # a new segment's header waits for the first record
                self._release(self._take_holders())
                return True
            is_quick = not binlog.is_changing_files and binlog.pending_bytes <= WRITTEN_IN_LOOP
            if not is_synced and not is_large and is_quick:
                return self._write(Batch.run, is_synced)
        with self._disk:
            return self._rewrite() and self._write(self._run_in_thread, is_synced)

    def _rewrite(self) -> bool:
        """Have the binlog record the next step of a rewrite, if it wants one; False if there is no room. Switches."""
        binlog = self.binlog
        if not binlog.wants_rewrite:
            return True
        while not self._rewrite_in_slices():
            read = binlog.read_for_compaction()
            if read is None:
                return False
            get_hub().threadpool.apply(read.run)
            binlog.have_read(read)
        return True

    def _rewrite_in_slices(self) -> bool:
        """Attempt a step of a rewrite, and let other greenlets run between its slices; False if it has to wait."""
        slices = self.binlog.rewrite()
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return bool(end.value)
            gevent.sleep(YIELD_DELAY)

    def _write_all(self, run: Callable[[Batch], None]) -> bool:
        """Write and sync all there is, in as many steps as it takes; False if the disk fails. Only for `stop`."""
        binlog = self.binlog
        while True:
            is_rewrite = binlog.wants_rewrite
            is_written = self._rewrite() and self._write(run, is_synced=binlog.sync_interval is not None)
            if not binlog.wants_rewrite or (is_rewrite and not is_written):
                return is_written
            upkeep = binlog.upkeep()
            if upkeep is not None:
                upkeep.run()
                binlog.kept(upkeep)

    def _write_released_ids(self) -> None:
        """Write that ids set aside were not given. Only for `stop`: a failure loses no job, so nothing is rewritten."""
        try:
            self.binlog.take(is_synced=self.binlog.sync_interval is not None).run()
        except OSError as error:
            log.warning("journal: cannot record the next id: %s; the next start skips ids", error)

    def _await_room(self, is_large: bool) -> None:
        """Wait until segments are removed, if the disk is full or the directory *is_large*. Switches."""
        if (self.binlog.is_full or is_large) and self.binlog.wants_upkeep:
            self._upkeep_done.clear()
            self._upkeep_wanted.set()
            self._upkeep_done.wait(RETRY_EVERY)

    def _write(self, run: Callable[[Batch], None], is_synced: bool) -> bool:
        """Run a batch, and release who waited for it; False if it failed. Switches if *run* does.

        A step of a rewrite that is not the last releases nobody.
        """
        holders = self._take_holders()
        batch = self.binlog.take(is_synced)
        try:
            run(batch)
        except OSError as error:
            self.binlog.failed(error, batch)
            self._holders = holders + self._holders
            return False
        self.binlog.done(batch)
        if self.binlog.wants_rewrite:
            self._holders = holders + self._holders
            self._wanted.set()
            return True
        self._release(holders)
        if self.binlog.has_unsynced:
            self._sync_wanted.set()
        is_behind = self._compact(batch)
        if self.binlog.let_go(LET_GO_AT_ONCE) or is_behind or self.binlog.wants_bodies or self.binlog.wants_upkeep:
            self._upkeep_wanted.set()
        return True

    def _compact(self, batch: Batch) -> bool:
        """Copy in proportion to what *batch* has written and what was deleted since the last; return if more is due.

        What exceeds COMPACTION_AT_MOST is owed: it is copied before the next batch, so that clients whose commands
        come in large batches do not overtake compaction.
        """
        binlog = self.binlog
        churned = batch.size - self._copied + binlog.bytes_died - self._died
        self._copied, self._died = 0, binlog.bytes_died
        self._owed = COMPACTION_WHEN_FULL if binlog.is_full else self._owed + COMPACTION_SHARE * churned
        if binlog.is_over_bound:
            self._owed = max(self._owed, COMPACTION_AT_MOST)
        return self._compact_slice(COMPACTION_AT_MOST)

    def _compact_slice(self, at_most: int) -> bool:
        """Copy *at_most* bytes of what is owed; return if more is due. If none is, nothing is owed any longer."""
        budget = min(self._owed, at_most)
        before = self.binlog.pending_bytes
        is_behind = self.binlog.compact(budget)
        self._copied += self.binlog.pending_bytes - before  # they come with the next batch, and are not to count
        self._owed = self._owed - budget if is_behind else 0
        return is_behind

    def _take_holders(self) -> list[Holder]:
        holders, self._holders = self._holders, []
        return holders

    def _release(self, holders: list[Holder]) -> None:
        for holder in holders:
            holder.release(self.binlog.safe)

    def _run_in_thread(self, batch: Batch) -> None:
        self._thread.call(self._run_timed, batch)

    def _run_timed(self, batch: Batch) -> None:
        began = time.perf_counter()
        batch.run()
        self._sync_time += (time.perf_counter() - began - self._sync_time) / 16

    def _sync_forever(self, interval: float) -> None:
        while True:
            self._sync_wanted.wait()
            gevent.sleep(interval / 2)
            self._sync_wanted.clear()
            if self.binlog.has_unsynced:
                with self._disk:
                    self._sync()

    def _sync(self) -> None:
        sync = self.binlog.take_sync()
        if sync is None:
            return
        try:
            self._thread.call(Sync.run, sync)
        except OSError as error:
            self.binlog.failed(error)
            self._wanted.set()
            return
        self.binlog.synced(sync)
        self._upkeep_wanted.set()

    def _keep_up_forever(self) -> None:
        """Make and remove files, and go on with compaction when nobody writes."""
        retried = time.monotonic()
        while True:
            self._upkeep_wanted.wait(RETRY_EVERY)
            self._upkeep_wanted.clear()
            is_retry = time.monotonic() > retried + RETRY_EVERY
            if is_retry:
                retried = time.monotonic()
            upkeep = self.binlog.upkeep(is_retry)
            if upkeep is not None:
                get_hub().threadpool.apply(upkeep.run)
                self.binlog.kept(upkeep)
            self._upkeep_done.set()
            read = self.binlog.read_for_compaction()
            if read is not None:
                get_hub().threadpool.apply(read.run)
                self.binlog.have_read(read)
            is_behind = self.binlog.compact(COMPACTION_SLICE if read is None else READ_BATCH)
            while self.binlog.let_go(LET_GO_AT_ONCE):
                gevent.sleep(YIELD_DELAY)
            if is_behind or self.binlog.wants_bodies:
                gevent.sleep(IDLE_PAUSE)
                self._upkeep_wanted.set()
            if self.binlog.has_records:
                self._wanted.set()


def _end_process(greenlet: gevent.Greenlet) -> None:
    """End as by SIGTERM: a committer that is dead acknowledges nothing any more, and says so to nobody."""
    log.critical("journal: internal error, the server stops: %r", greenlet.exception)
    os.kill(os.getpid(), signal.SIGTERM)


class _Waiter:
    """A Holder without replies. One release will do: each batch takes all that was recorded before it."""

    def __init__(self) -> None:
        self.is_safe: Event = Event()

    def release(self, safe: int) -> None:
        self.is_safe.set()


class DiskThread:
    """A native thread that runs one call at a time for the greenlet that asks."""

    def __init__(self) -> None:
        self._go: threading.Lock = threading.Lock()
        self._go.acquire()
        self._done: Any = get_hub().loop.async_()
        self._asker: Any = None
        self._task: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[Any], None], argument: Any) -> None:
        """Run *function* of *argument* in the thread; raise what it raises. Switches till it is done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()
            self._done.start(self._answer)
        self._asker = getcurrent()
        self._task = lambda: function(argument)
        self._go.release()
        get_hub().switch()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stop(self) -> None:
        """End the thread; nothing may be under way. Does not switch."""
        self._task = None
        self._go.release()
        self._done.stop()
        self._done.close()

    def _answer(self) -> None:
        """Run by the loop when the thread has sent for it."""
        self._asker.switch()

    def _run(self) -> None:
        while True:
            self._go.acquire()
            if self._task is None:
                return
            try:
                self._task()
            except BaseException as error:  # noqa: BLE001  it is raised where it was asked for
                self._error = error
            self._done.send()
