"""Group commit: write the journal records of many connections in one batch, then send all of their replies.

Connections serve whole chunks of commands, keep the replies, and register by `hold`. Then the committer greenlet
takes all pending records as one batch, writes it, syncs it if -f is 0, and releases the replies. While a batch is
being written the next one accumulates, so a reply waits for at most two syncs, however many connections there are.

Blocking calls run in threads, so that the disk never blocks the event loop. Batches and syncs have a native thread of
their own: a round trip to the hub's thread pool costs more CPU than the rest of a batch. Rare calls use that pool.
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
import gevent.threadpool  # a later import, on first use, could fail for lack of permission or a descriptor
from gevent import get_hub
from gevent.event import Event
from gevent.lock import BoundedSemaphore
from greenlet import getcurrent

from greenstalk_server.core.job import SECOND
from greenstalk_server.journal.batch import Batch, Sync
from greenstalk_server.journal.compaction import READ_BATCH
from greenstalk_server.journal.writer import Binlog
from greenstalk_server.net.body_loader import EVICTION_BATCH, Loader
from greenstalk_server.runtime.scheduling import YIELD_DELAY

log = logging.getLogger(__name__)

RETRY_INTERVAL: Final = 1.0
"""Seconds between attempts while the disk fails or is full."""

COMPACTION_RATIO: Final = 3
"""Bytes that compaction copies for each byte written or deleted."""

MAX_COMPACTION: Final = 524288
"""Bytes copied after one batch. The rest is copied before the next batch."""

COMPACTION_WHEN_FULL: Final = 65536
"""Bytes copied after each batch while the disk is full, so that releases do not outpace compaction."""

COMPACTION_SLICE: Final = 32768
"""Bytes copied before the loop serves others, and per `IDLE_PAUSE` when no client writes."""

IDLE_PAUSE: Final = 0.005
"""Seconds between slices of compaction when no client writes."""

LONE_BATCHES: Final = 8
"""Consecutive batches for one connection alone, after which it may sync in the loop; see `QUICK_SYNC`."""

QUICK_SYNC: Final = 0.001
"""Seconds. While syncs take less on average, a sync for a lone connection runs in the loop: the round trip to a thread
costs about as much as the sync of a good disk."""

MAX_LOOP_WRITE: Final = 2**20
"""Bytes of a batch that is written in the loop: half a millisecond if the page cache has room."""


class Holder(Protocol):
    """A connection, or another object, whose replies wait for the journal."""

    def release(self, safe: int) -> None:
        """Send the replies that waited for records up to number *safe*. Must not switch."""


class Committer:
    """Writes and syncs *binlog*, and releases the holders that wait for it."""

    def __init__(self, binlog: Binlog, loader: Loader | None = None) -> None:
        """*loader* reads evicted bodies, if bodies can be evicted; it starts and stops with the committer."""
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
        """Start the greenlets. Does not switch."""
        get_hub().threadpool  # noqa: B018  created while a file descriptor is free for it
        self._greenlets = [gevent.spawn(self._commit_forever), gevent.spawn(self._maintain_forever)]
        if self.binlog.sync_interval is not None and self.binlog.sync_interval > 0:
            self._greenlets.append(gevent.spawn(self._sync_forever, self.binlog.sync_interval / SECOND))
        if self._loader is not None:
            self._greenlets.append(gevent.spawn(self._loader.run))
        for greenlet in self._greenlets:
            greenlet.link_exception(_end_process)
        self.note_records()

    def stop(self) -> None:
        """Write and sync all records, release all holders, and end. Switches; writes to a local disk block."""
        with self._disk:  # no call is in progress in the thread
            gevent.killall(self._greenlets)
            run = self._run_in_thread if self.binlog.is_remote else Batch.run
            if not self._write_all(run):
                log.error("journal: stopped with changes that are not on disk; none of them was acknowledged")
            elif self.binlog.release_ids():
                self._write_released_ids()
        self._thread.stop()

    def hold(self, holder: Holder) -> None:
        """Release *holder* when all records made so far are safe. Does not switch."""
        if not self._holders:
            self._wanted.set()
        self._holders.append(holder)

    def commit_for(self, holder: Holder) -> bool:
        """Commit now and return True if only *holder* had work lately and the disk is quick; else return False.

        This avoids a greenlet round trip. After False, call `hold`. Blocks for one sync, and does not switch.
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
        if binlog.pending_bytes > MAX_LOOP_WRITE:
            return False
        return self._write(self._run_timed, is_synced=True)

    def wait(self, timeout: float) -> bool:
        """Wait until all records made so far are safe; return False after *timeout* seconds. Switches."""
        waiter = _Waiter()
        self.hold(waiter)
        return bool(waiter.is_safe.wait(timeout))

    def note_records(self) -> None:
        """Schedule a commit of the pending records even if no reply waits for it. Does not switch."""
        self._wanted.set()

    def _commit_forever(self) -> None:
        while True:
            self._wanted.wait()
            gevent.sleep(0)
            self._wanted.clear()
            if not self._commit():
                self._wanted.set()
                if self.binlog.trouble is not None:
                    gevent.sleep(RETRY_INTERVAL)

    def _commit(self) -> bool:
        """Commit the pending records, in a thread if that may block; return False if it must be retried. May switch."""
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
            is_quick = not binlog.is_changing_files and binlog.pending_bytes <= MAX_LOOP_WRITE
            if not is_synced and not is_large and is_quick:
                return self._write(Batch.run, is_synced)
        with self._disk:
            return self._rewrite() and self._write(self._run_in_thread, is_synced)

    def _rewrite(self) -> bool:
        """Record the next step of a rewrite, if one is due; return False if there is no room. Switches."""
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
        """Do a step of a rewrite, and yield between its slices; return False if it needs a read first. Switches."""
        slices = self.binlog.rewrite()
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return bool(end.value)
            gevent.sleep(YIELD_DELAY)

    def _write_all(self, run: Callable[[Batch], None]) -> bool:
        """Write and sync all records, in several steps if needed; return False if the disk fails. Only for `stop`."""
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
        """Record that reserved ids were not used. Only for `stop`. A failure loses no job, so nothing is rewritten."""
        try:
            self.binlog.take(is_synced=self.binlog.sync_interval is not None).run()
        except OSError as error:
            log.warning("journal: cannot record the next id: %s; the next start skips ids", error)

    def _await_room(self, is_large: bool) -> None:
        """If the disk is full or the directory *is_large*, wait until segments are removed. Switches."""
        if (self.binlog.is_full or is_large) and self.binlog.wants_upkeep:
            self._upkeep_done.clear()
            self._upkeep_wanted.set()
            self._upkeep_done.wait(RETRY_INTERVAL)

    def _write(self, run: Callable[[Batch], None], is_synced: bool) -> bool:
        """Run a batch, and release the holders that waited for it; return False if it failed. Switches if *run* does.

        Only the last step of a rewrite releases holders.
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
        if self.binlog.let_go(EVICTION_BATCH) or is_behind or self.binlog.wants_bodies or self.binlog.wants_upkeep:
            self._upkeep_wanted.set()
        return True

    def _compact(self, batch: Batch) -> bool:
        """Compact in proportion to the bytes that *batch* wrote plus those deleted since; return whether more is due.

        Bytes above MAX_COMPACTION are copied before the next batch, so that clients that send large batches do not
        outpace compaction.
        """
        binlog = self.binlog
        churned = batch.size - self._copied + binlog.bytes_died - self._died
        self._copied, self._died = 0, binlog.bytes_died
        self._owed = COMPACTION_WHEN_FULL if binlog.is_full else self._owed + COMPACTION_RATIO * churned
        if binlog.is_over_bound:
            self._owed = max(self._owed, MAX_COMPACTION)
        return self._compact_slice(MAX_COMPACTION)

    def _compact_slice(self, limit: int) -> bool:
        """Copy up to *limit* of the bytes that are owed; return whether more is due. If not, reset the debt to 0."""
        budget = min(self._owed, limit)
        before = self.binlog.pending_bytes
        is_behind = self.binlog.compact(budget)
        self._copied += self.binlog.pending_bytes - before  # written with the next batch, where they must not count
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

    def _maintain_forever(self) -> None:
        """Create and remove files, and continue compaction while no client writes. Switches."""
        retried = time.monotonic()
        while True:
            self._upkeep_wanted.wait(RETRY_INTERVAL)
            self._upkeep_wanted.clear()
            is_retry = time.monotonic() > retried + RETRY_INTERVAL
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
            while self.binlog.let_go(EVICTION_BATCH):
                gevent.sleep(YIELD_DELAY)
            if is_behind or self.binlog.wants_bodies:
                gevent.sleep(IDLE_PAUSE)
                self._upkeep_wanted.set()
            if self.binlog.has_records:
                self._wanted.set()


def _end_process(greenlet: gevent.Greenlet) -> None:
    """Stop the process as SIGTERM does: without the committer no reply that waits for the journal would be sent."""
    log.critical("journal: internal error, the server stops: %r", greenlet.exception)
    os.kill(os.getpid(), signal.SIGTERM)


class _Waiter:
    """A Holder without replies. The first release suffices: a batch contains all records made before it."""

    def __init__(self) -> None:
        self.is_safe: Event = Event()

    def release(self, safe: int) -> None:
        self.is_safe.set()


class DiskThread:
    """A native thread that runs one call at a time for a greenlet."""

    def __init__(self) -> None:
        self._start: threading.Lock = threading.Lock()
        self._start.acquire()
        self._done: Any = get_hub().loop.async_()
        self._caller: Any = None
        self._task: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[Any], None], argument: Any) -> None:
        """Call *function* with *argument* in the thread; re-raise its exception. Switches until the call returns."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()
            self._done.start(self._resume_caller)
        self._caller = getcurrent()
        self._task = lambda: function(argument)
        self._start.release()
        get_hub().switch()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stop(self) -> None:
        """End the thread. No call may be in progress. Does not switch."""
        self._task = None
        self._start.release()
        self._done.stop()
        self._done.close()

    def _resume_caller(self) -> None:
        """Switch back to the calling greenlet. Called by the loop after the thread has signalled `_done`."""
        self._caller.switch()

    def _run(self) -> None:
        while True:
            self._start.acquire()
            if self._task is None:
                return
            try:
                self._task()
            except BaseException as error:  # noqa: BLE001  `call` raises it
                self._error = error
            self._done.send()
