"""Group commit: write the journal records of many connections in one batch, then send all of their replies.

There are two ways:
- In the loop. If -f is not 0, the poller calls `commit_before_send` after it has served a batch of connections. One
  call writes the records of the batch to the page cache. The replies are sent at once, and no greenlet runs.
- In a thread, for everything that may block: syncs, new segments, large writes, rewrites after a failure. Connections
  hold their replies, and register by `hold`. Then the committer greenlet takes all pending records as one batch, makes
  the thread write and sync it, and releases the replies. The next batch accumulates while one is being written, so a
  reply waits for at most two syncs, however many connections there are. If the next batch has records by then, the
  thread starts it before the replies are sent, so that the disk is not idle during the sends.

Batches and syncs have a native thread of their own: a round trip to the hub's thread pool costs more CPU than the rest
of a batch. Rare calls use that pool.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import gevent
import gevent.threadpool  # a later import, on first use, could fail for lack of permission or a descriptor
from gevent import get_hub
from gevent.event import Event
from gevent.lock import BoundedSemaphore
from greenlet import getcurrent

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.journal.batch import Batch, SyncTask
from greenstalk_server.journal.compaction import READ_BATCH
from greenstalk_server.journal.writer import JournalWriter
from greenstalk_server.net.body_loader import EVICTION_BATCH, Loader
from greenstalk_server.net.poller import Handler
from greenstalk_server.runtime.scheduling import yield_to_loop
from greenstalk_server.runtime.supervisor import Service, abort, stop_all

log = logging.getLogger(__name__)

DISK_RETRY_INTERVAL: Final = 1.0
"""Seconds between attempts while the disk fails or is full."""

COMPACTION_RATIO: Final = 3
"""Bytes that compaction copies for each byte written or deleted."""

MAX_COMPACTION: Final = 524288
"""Bytes copied after one batch. The rest is copied before the next batch."""

COMPACTION_WHEN_FULL: Final = 65536
"""Bytes copied after each batch while the disk is full, so that releases do not outpace compaction."""

COMPACTION_SLICE: Final = 32768
"""Bytes copied before the loop serves others, and per `IDLE_PAUSE` when no client writes."""

MAINTENANCE_SHARE: Final = 512
"""Writes in the loop examine whether compaction or maintenance is due once they have written or deleted
1/MAINTENANCE_SHARE of a segment (20 KiB by default): the examination costs as much as the write of a batch."""

IDLE_PAUSE: Final = 0.005
"""Seconds between slices of compaction when no client writes."""

LONE_BATCHES: Final = 8
"""Consecutive batches of the poller with a single connection, after which the committer may sync in the loop; see
`QUICK_SYNC`."""

QUICK_SYNC: Final = 0.001
"""Seconds. While syncs take less on average, a sync for a lone connection runs in the loop: the round trip to a thread
costs about as much as the sync of a good disk."""

SLOW_WRITE: Final = 0.005
"""Seconds. If a write in the loop takes longer, the system throttles writers because the disk cannot keep up.
RWF_NOWAIT would detect this in advance, but ext4 does not support it for such writes."""

THREAD_WRITES: Final = 1.0
"""Seconds for which batches are written in the thread after a slow write in the loop."""

MAX_LOOP_WRITE: Final = 2**20
"""Bytes of a batch that is written in the loop: half a millisecond if the page cache has room."""

MAX_UNCOMMITTED: Final = 262144
"""Bytes of pending records above which a slice of an unfinished command schedules a commit."""


class Holder(Protocol):
    """A connection, or another object, whose replies wait for the journal."""

    def release(self, safe: int) -> None:
        """Send the replies that waited for records up to number *safe*. Must not switch."""


class Committer:
    """Writes and syncs *journal*, and releases the holders that wait for it."""

    def __init__(self, journal: JournalWriter, loader: Loader | None = None) -> None:
        """*loader* reads evicted bodies, if bodies can be evicted; it starts and stops with the committer."""
        self.journal: JournalWriter = journal
        self._loader: Loader | None = loader
        self._holders: list[Holder] = []
        self._safe_holders: list[Holder] = []  # holders of safe records, released when the next batch has begun
        self._wanted: Event = Event()
        self._maintenance_wanted: Event = Event()
        self._maintenance_done: Event = Event()
        self._sync_wanted: Event = Event()
        self._disk: BoundedSemaphore = BoundedSemaphore(1)
        self._disk_thread: DiskThread = DiskThread()
        self._services: list[Service] = self._make_services()
        self._copied: int = 0
        self._died: int = 0
        self._owed: int = 0
        self._churned: int = 0
        self._is_over_bound: bool = True
        self._is_writing: bool = False
        self._lone_handler: Handler | None = None
        self._lone_batches: int = 0
        self._loop_writes_at: float = 0.0  # time from which the loop may write again
        self._sync_time: float = QUICK_SYNC

    def start(self) -> None:
        """Start the greenlets. Does not switch."""
        get_hub().threadpool  # noqa: B018  created while a file descriptor is free for it
        for service in self._services:
            service.start()
        self.note_records()

    def stop(self) -> None:
        """Write and sync all records, release all holders, and end. Switches; writes to a local disk block."""
        with self._disk:  # no call is in progress in the thread
            stop_all(*self._services)
            run = self._run_in_thread if self.journal.is_remote else Batch.run
            is_written = self._write_all(run)
            self._release_safe()
            if not is_written:
                log.error("journal: stopped with changes that are not on disk; none of them was acknowledged")
            elif self.journal.release_ids():
                self._write_released_ids()
        self._disk_thread.stop()

    def hold(self, holder: Holder) -> None:
        """Release *holder* when all records made so far are safe. Does not switch."""
        if not self._holders:
            self._wanted.set()
        self._holders.append(holder)

    def commit_before_send(self, senders: list[Handler]) -> None:
        """Commit the records of the replies of *senders* now, if that is quick; they hold replies that are not safe.

        With -f 0 a commit is quick if only one connection was active recently and the disk syncs fast. Does not switch.
        """
        journal = self.journal
        if journal.promised <= journal.safe or self._holders or journal.is_remote:
            return
        is_synced = journal.sync_interval == 0
        if is_synced and (not self._is_lone(senders) or self._disk.locked()):
            return
        try:
            self._write_here(is_synced)
        except Exception as error:  # noqa: BLE001  logged by `abort`
            abort("commit", error)

    def wait(self, timeout: float) -> bool:
        """Wait until all that the journal has promised is safe; return False after *timeout* seconds. May switch."""
        if self.journal.promised <= self.journal.safe:
            return True
        waiter = _Waiter()
        self.hold(waiter)
        return bool(waiter.is_safe.wait(timeout))

    def note_records(self) -> None:
        """Schedule a commit of the pending records even if no reply waits for it. Does not switch."""
        self._wanted.set()

    def _make_services(self) -> list[Service]:
        services = [Service("commit", self._commit_forever), Service("journal-files", self._maintain_forever)]
        interval = self.journal.sync_interval
        if interval is not None and interval > 0:
            services.append(Service("sync", partial(self._sync_forever, interval / SECOND)))
        if self._loader is not None:
            services.append(Service("body-loader", self._loader.run))
        return services

    def _is_lone(self, senders: list[Handler]) -> bool:
        """Return whether only one handler had replies in the last batches of the poller, and syncs are quick."""
        handler = senders[0] if len(senders) == 1 else None
        if handler is None or handler is not self._lone_handler:
            self._lone_handler = handler
            self._lone_batches = 0
        self._lone_batches += 1
        return self._lone_batches > LONE_BATCHES and self._sync_time < QUICK_SYNC

    def _write_here(self, is_synced: bool) -> bool:
        """Write all pending records in the loop; return False if the greenlet must do so. Does not switch."""
        journal = self.journal
        began = time.perf_counter()
        if self._is_writing or self._owed or self._is_over_bound or journal.is_full or began < self._loop_writes_at:
            return False
        try:
            size = journal.write_here(MAX_LOOP_WRITE, is_synced=is_synced)
        except OSError as error:
            journal.note_failure(error)
            self._wanted.set()
            return False
        if not size:
            return False
        if is_synced:
            self._note_sync_time(began)
        else:
            if time.perf_counter() - began > SLOW_WRITE:
                self._loop_writes_at = began + THREAD_WRITES
            if not self._sync_wanted.is_set():
                self._sync_wanted.set()
        self._churned += size
        if self._churned + journal.bytes_died - self._died > journal.segment_size // MAINTENANCE_SHARE:
            self._keep_pace()
        return True

    def has_held_replies(self) -> bool:
        """Return whether replies are held, or wait for a batch that is being written."""
        return bool(self._is_writing or self._holders or self._safe_holders)

    def limit_records(self) -> None:
        """Schedule a commit if more than MAX_UNCOMMITTED bytes of records are pending. Does not switch."""
        if self.journal.pending_bytes > MAX_UNCOMMITTED:
            self._wanted.set()

    def _commit_forever(self) -> None:
        while True:
            if not self._safe_holders:
                self._wanted.wait()
                gevent.sleep(0)
            self._wanted.clear()
            if not self._commit():
                self._wanted.set()
                if self.journal.write_error is not None:
                    gevent.sleep(DISK_RETRY_INTERVAL)

    def _commit(self) -> bool:
        """Commit the pending records, in a thread if that may block; return False if it must be retried. May switch."""
        journal = self.journal
        self._is_over_bound = is_large = journal.is_over_bound
        if is_large or self._owed or journal.is_full or journal.wants_rewrite or self._disk.locked():  # it may wait
            self._release_safe()
        is_synced = journal.sync_interval == 0 or (is_large and journal.sync_interval is not None)
        self._await_room(is_large)
        while self._owed > 0 and self._compact_slice(COMPACTION_SLICE):
            yield_to_loop()
        if not journal.wants_rewrite:
            if not journal.has_records:  # a new segment's header waits for the first record
                self._safe_holders += self._take_holders()
                self._release_safe()
                return True
            if not is_synced:
                if self._write_here(is_synced=False):
                    self._safe_holders += self._take_holders()
                    self._release_safe()
                    return True
                if self.journal.wants_rewrite:  # the write has failed
                    return False
        with self._disk:
            return self._rewrite() and self._write(self._run_in_thread, is_synced)

    def _rewrite(self) -> bool:
        """Record the next step of a rewrite, if one is due; return False if there is no room. Switches."""
        journal = self.journal
        if not journal.wants_rewrite:
            return True
        while not self._rewrite_in_slices():
            read = journal.read_for_compaction()
            if read is None:
                return False
            get_hub().threadpool.apply(read.run)
            journal.complete_read(read)
        return True

    def _rewrite_in_slices(self) -> bool:
        """Do a step of a rewrite, and yield between its slices; return False if it needs a read first. Switches."""
        slices = self.journal.rewrite()
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return bool(end.value)
            yield_to_loop()

    def _write_all(self, run: Callable[[Batch], None]) -> bool:
        """Write and sync all records, in several steps if needed; return False if the disk fails. Only for `stop`."""
        journal = self.journal
        while True:
            is_rewrite = journal.wants_rewrite
            is_written = self._rewrite() and self._write(run, is_synced=journal.sync_interval is not None)
            if not journal.wants_rewrite or (is_rewrite and not is_written):
                return is_written
            maintenance = journal.take_maintenance()
            if maintenance is not None:
                maintenance.run()
                journal.complete_maintenance(maintenance)

    def _write_released_ids(self) -> None:
        """Record that reserved ids were not used. Only for `stop`. A failure loses no job, so nothing is rewritten."""
        try:
            self.journal.take_batch(is_synced=self.journal.sync_interval is not None).run()
        except OSError as error:
            log.warning("journal: cannot record the next id: %s; the next start skips ids", error)

    def _await_room(self, is_large: bool) -> None:
        """If the disk is full or the directory *is_large*, wait until segments are removed. Switches."""
        if (self.journal.is_full or is_large) and self.journal.wants_maintenance:
            self._maintenance_done.clear()
            self._maintenance_wanted.set()
            self._maintenance_done.wait(DISK_RETRY_INTERVAL)

    def _write(self, run: Callable[[Batch], None], is_synced: bool) -> bool:
        """Run a batch, and release the holders that waited for it; return False if it failed. Switches if *run* does.

        Only the last step of a rewrite releases holders.
        """
        holders = self._take_holders()
        batch = self.journal.take_batch(is_synced)
        self._is_writing = True
        try:
            run(batch)
        except OSError as error:
            self.journal.note_failure(error, batch)
            self._holders = holders + self._holders
            return False
        finally:
            self._is_writing = False
        self.journal.complete_batch(batch)
        if self.journal.wants_rewrite:
            self._holders = holders + self._holders
            self._wanted.set()
            return True
        self._safe_holders += holders
        if not self._holders:
            self._release_safe()
        if self.journal.has_unsynced:
            self._sync_wanted.set()
        self._churned += batch.size
        self._keep_pace()
        return True

    def _keep_pace(self) -> None:
        """Compact in proportion to the bytes written and deleted since the last call; request maintenance if it is due.

        Bytes above MAX_COMPACTION are copied before the next batch, so that clients that send large batches do not
        outpace compaction.
        """
        journal = self.journal
        churned = self._churned - self._copied + journal.bytes_died - self._died
        self._churned, self._copied, self._died = 0, 0, journal.bytes_died
        self._owed = COMPACTION_WHEN_FULL if journal.is_full else self._owed + COMPACTION_RATIO * churned
        self._is_over_bound = journal.is_over_bound
        if self._is_over_bound:
            self._owed = max(self._owed, MAX_COMPACTION)
        if self._owed > COMPACTION_SLICE:
            self._release_safe()
        is_behind = self._compact_slice(MAX_COMPACTION)
        if journal.evict(EVICTION_BATCH) or is_behind or journal.wants_bodies or journal.wants_maintenance:
            self._maintenance_wanted.set()

    def _compact_slice(self, limit: int) -> bool:
        """Copy up to *limit* of the bytes that are owed; return whether more is due. If not, reset the debt to 0."""
        budget = min(self._owed, limit)
        before = self.journal.pending_bytes
        is_behind = self.journal.compact(budget)
        self._copied += self.journal.pending_bytes - before  # the next batch must not count these bytes
        self._owed = self._owed - budget if is_behind else 0
        return is_behind

    def _take_holders(self) -> list[Holder]:
        holders, self._holders = self._holders, []
        return holders

    def _release_safe(self) -> None:
        """Release the holders whose records are safe. Does not switch."""
        holders, self._safe_holders = self._safe_holders, []
        for holder in holders:
            holder.release(self.journal.safe)

    def _run_in_thread(self, batch: Batch) -> None:
        """Run *batch* in the thread; release the holders of the previous batch while the disk is busy. Switches."""
        self._disk_thread.call(self._run_timed, batch, self._release_safe)

    def _run_timed(self, batch: Batch) -> None:
        began = time.perf_counter()
        batch.run()
        self._note_sync_time(began)

    def _note_sync_time(self, began: float) -> None:
        """Record the end of the sync of a batch that began at *began*."""
        self._sync_time += (time.perf_counter() - began - self._sync_time) / 16

    def _sync_forever(self, interval: float) -> None:
        while True:
            self._sync_wanted.wait()
            gevent.sleep(interval / 2)
            self._sync_wanted.clear()
            if self.journal.has_unsynced:
                with self._disk:
                    self._sync()

    def _sync(self) -> None:
        sync = self.journal.take_sync()
        if sync is None:
            return
        try:
            self._disk_thread.call(SyncTask.run, sync, self._release_safe)
        except OSError as error:
            self.journal.note_failure(error)
            self._wanted.set()
            return
        self.journal.complete_sync(sync)
        self._maintenance_wanted.set()

    def _maintain_forever(self) -> None:
        """Create and remove files, and continue compaction while no client writes. Switches."""
        retried = time.monotonic()
        while True:
            self._maintenance_wanted.wait(DISK_RETRY_INTERVAL)
            self._maintenance_wanted.clear()
            is_retry = time.monotonic() > retried + DISK_RETRY_INTERVAL
            if is_retry:
                retried = time.monotonic()
            maintenance = self.journal.take_maintenance(is_retry)
            if maintenance is not None:
                get_hub().threadpool.apply(maintenance.run)
                self.journal.complete_maintenance(maintenance)
            self._maintenance_done.set()
            read = self.journal.read_for_compaction()
            if read is not None:
                get_hub().threadpool.apply(read.run)
                self.journal.complete_read(read)
            is_behind = self.journal.compact(COMPACTION_SLICE if read is None else READ_BATCH)
            while self.journal.evict(EVICTION_BATCH):
                yield_to_loop()
            if is_behind or self.journal.wants_bodies:
                gevent.sleep(IDLE_PAUSE)
                self._maintenance_wanted.set()
            if self.journal.has_records:
                self._wanted.set()


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
        self._native_thread: threading.Thread | None = None

    def call(self, function: Callable[[Any], None], argument: Any, meanwhile: Callable[[], None]) -> None:
        """Call *function* with *argument* in the thread, and *meanwhile* here at the same time.

        Re-raise the exception of *function*. Switches until the thread has finished. *meanwhile* must not switch.
        """
        if self._native_thread is None:
            self._native_thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._native_thread.start()
            self._done.start(self._resume_caller)
        self._caller = getcurrent()
        self._task = lambda: function(argument)
        self._start.release()
        meanwhile()
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
