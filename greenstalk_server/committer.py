"""Group commit: replies that wait for the journal leave together, when one batch of records is safe.

The greenlets that serve connections run whole chunks of commands and hand their replies to `hold`. The
committer greenlet runs after all of them have had their turn, takes every record there is as one batch, has
it written, and synced if -f is 0, and then sends all replies. While one batch is on its way to the disk the
next one gathers, so however many connections have work, each waits for two syncs at most.

Whatever blocks runs in the hub's threadpool, so that the disk stalls nobody.
"""

from __future__ import annotations

import logging
import time
from typing import Final, Protocol

import gevent
from gevent import get_hub
from gevent.event import Event
from gevent.lock import BoundedSemaphore

from greenstalk_server.job import SECOND
from greenstalk_server.journal.binlog import Batch, Binlog

log = logging.getLogger(__name__)

RETRY_EVERY: Final = 1.0
"""Seconds between attempts while the disk fails or is full."""

COMPACTION_SHARE: Final = 3
COMPACTION_SLICE: Final = 65536
"""Compaction may copy this many bytes for each byte written, and this many in one turn at least."""

IDLE_PAUSE: Final = 0.005
"""Seconds between two turns of compaction when nobody writes."""

LONE_BATCHES: Final = 8
QUICK_SYNC: Final = 0.001
"""After so many batches for one client alone, and while syncs take less than so many seconds on average, a sync
runs in the loop itself: the way to the threadpool and back costs 0.1 to 0.2 ms, more than a good disk's sync."""


class Holder(Protocol):
    """Someone whose replies wait."""

    def release(self, safe: int) -> None:
        """Send the replies that waited for records up to number *safe*. Must not switch."""


class Committer:
    """Writes and syncs *binlog*, and releases who waits for it."""

    def __init__(self, binlog: Binlog) -> None:
        self.binlog: Binlog = binlog
        self._holders: list[Holder] = []
        self._wanted: Event = Event()
        self._upkeep_wanted: Event = Event()
        self._disk: BoundedSemaphore = BoundedSemaphore(1)
        self._greenlets: list[gevent.Greenlet] = []
        self._lone_batches: int = 0
        self._sync_time: float = QUICK_SYNC

    def start(self) -> None:
        """Begin. Does not switch."""
        self._greenlets = [gevent.spawn(self._commit_forever), gevent.spawn(self._keep_up_forever)]
        if self.binlog.sync_interval is not None and self.binlog.sync_interval > 0:
            self._greenlets.append(gevent.spawn(self._sync_forever, self.binlog.sync_interval / SECOND))
        self.note_records()

    def stop(self) -> None:
        """Write and sync what there is, release who waits, end. Switches."""
        gevent.killall(self._greenlets)
        self._greenlets = []
        with self._disk:
            self._commit(is_synced=self.binlog.sync_interval is not None)

    def hold(self, holder: Holder) -> None:
        """Have *holder* released when all records made so far are safe. Does not switch."""
        self._holders.append(holder)
        self._wanted.set()

    def note_records(self) -> None:
        """See that what the journal has been told gets written, though nobody waits for it. Does not switch."""
        self._wanted.set()

    def _commit_forever(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self.binlog.trouble is not None:
                gevent.sleep(RETRY_EVERY)
                with self._disk:
                    self.binlog.record_anew()
            if self._commit(is_synced=self.binlog.sync_interval == 0):
                self._upkeep_wanted.set()
            else:
                self._wanted.set()

    def _commit(self, is_synced: bool) -> bool:
        """Write what there is, release who waited for it; False if the disk failed. Switches if it blocks."""
        holders, self._holders = self._holders, []
        batch = self.binlog.take(is_synced)
        try:
            self._run(batch, is_lone=len(holders) == 1)
        except OSError as error:
            self.binlog.failed(error)
            self._holders = holders + self._holders
            return False
        self.binlog.done(batch)
        for holder in holders:
            holder.release(self.binlog.safe)
        if self.binlog.compact(max(COMPACTION_SHARE * batch.size, COMPACTION_SLICE)):
            self._upkeep_wanted.set()
        return True

    def _run(self, batch: Batch, is_lone: bool) -> None:
        if not batch.blocks:
            batch.run()
            return
        self._lone_batches = self._lone_batches + 1 if is_lone and not self._holders else 0
        if self._lone_batches > LONE_BATCHES and self._sync_time < QUICK_SYNC:
            self._run_timed(batch)
        else:
            with self._disk:
                get_hub().threadpool.apply(self._run_timed, (batch,))

    def _run_timed(self, batch: Batch) -> None:
        began = time.perf_counter()
        batch.run()
        self._sync_time += (time.perf_counter() - began - self._sync_time) / 16

    def _sync_forever(self, interval: float) -> None:
        while True:
            gevent.sleep(interval / 2)
            if self.binlog.has_unsynced:
                with self._disk:
                    self._sync()

    def _sync(self) -> None:
        sync = self.binlog.take_sync()
        if sync is None:
            return
        try:
            get_hub().threadpool.apply(sync.run)
        except OSError as error:
            self.binlog.failed(error)
            self._wanted.set()
            return
        self.binlog.synced(sync)
        self._upkeep_wanted.set()

    def _keep_up_forever(self) -> None:
        """Make and remove files, and go on with compaction when nobody writes."""
        while True:
            self._upkeep_wanted.wait(RETRY_EVERY)
            self._upkeep_wanted.clear()
            upkeep = self.binlog.upkeep()
            if upkeep is not None:
                get_hub().threadpool.apply(upkeep.run)
                self.binlog.kept(upkeep)
                if upkeep.error is not None:
                    gevent.sleep(RETRY_EVERY)
            if self.binlog.compact(COMPACTION_SLICE):
                gevent.sleep(IDLE_PAUSE)
                self._upkeep_wanted.set()
            if self.binlog.has_records:
                self._wanted.set()
