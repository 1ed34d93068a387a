"""The journal on disk: records, group commit, and the handling of disk failures.

The broker and the committer use `JournalWriter`. Each part of it has a module:
`segment_log` (segments and the records appended to them), `space` (room on the disk), `compaction`, `eviction` (bodies
that are on disk only), `rewrite` (after a failure) and `batch` (all work that blocks).

The broker appends records, which are encoded and stay in memory. The committer takes a batch of them, runs the batch in
a thread or in the event loop to write and sync the records, and hands it back. Then the replies may be sent. All
methods run in the thread of the broker, except `run` of the classes of `batch`. Apart from `run`, only `begin` and
`write_here` write to the disk, and also `put` and `replace` when the space allocated ahead is used up.

Segments are removed in the order in which they were begun, each when it no longer has the newest JOB record of any job.
So a JOB record never outlives a later UPDATE or DELETE of the same job.

Ids. Where replies do not wait for a sync, a power failure may lose jobs whose ids clients know. So ids are reserved in
blocks: the header of each segment, or an IDS record, names the end of the block, and the next block is recorded when
half of the current one is used. A batch with an id beyond the last block known to be on disk is synced before its
replies are sent.
Invariant: an id that a client knows is below a next id that is on disk.

Failure. There are three kinds, each with its own consequence:
- A segment cannot be allocated. Nothing is in doubt: the batch ends before that segment, and the records that it did
  not write are discarded and rewritten. This is the normal state of a full disk under load.
- A write or a sync fails. The content of that segment is unknown, so every job with a record in it is rewritten;
  nothing is acknowledged and no put is accepted until the rewrite is complete. The segments before it are fully on
  disk.
- Maintenance fails: a file cannot be made ahead or removed. It is retried every second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping

from mypy_extensions import mypyc_attr

from greenstalk_server.core import job_attributes
from greenstalk_server.core.jobs.body_cache import Bodies
from greenstalk_server.core.jobs.job import DEFAULT_COLD_STATE, Job
from greenstalk_server.core.journal import Journal, JournalStats
from greenstalk_server.core.tags.tags import TaggedJob
from greenstalk_server.core.travel import Location
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import record
from greenstalk_server.journal.batch import Batch, BodyRead, Maintenance, SyncTask, no_space_error, timed_sync
from greenstalk_server.journal.compaction import Compaction
from greenstalk_server.journal.eviction import Eviction
from greenstalk_server.journal.files import Files
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.rewrite import Rewrite
from greenstalk_server.journal.segment import name_of
from greenstalk_server.journal.segment_log import SegmentLog
from greenstalk_server.journal.space import NO_SPACE_ERRNOS, Space

log = logging.getLogger(__name__)


@mypyc_attr(allow_interpreted_subclasses=True)  # the tests define a subclass
class JournalWriter(Journal):
    """The journal of one directory.

    promised    number of the last record that a reply has to wait for.
    safe        sequence number up to which records are as durable as `sync_interval` requires.
    write_error why puts are refused and nothing is acknowledged until the next retry succeeds, or None.
    bytes_died  bytes of JOB records whose jobs were deleted or replaced, since the start.
    is_remote   a batch waits for the network, and may be slow even if earlier ones were fast.
    """

    is_remote: bool = False

    def __init__(
        self,
        files: Files,
        max_size: int,
        sync_interval: int | None,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """*max_size*: bytes of a segment. *sync_interval*: nanoseconds; 0 syncs every write, None never syncs."""
        super().__init__()
        self.bytes_died: int = 0
        self.sync_interval: int | None = sync_interval
        self._files: Files = files
        self._shown_max_size: int = max_size
        self._log: SegmentLog = SegmentLog(max_size, random_bytes, reserves_ids=sync_interval != 0)
        self._space: Space = Space(files, self._log, max_size, is_never_synced=sync_interval is None)
        self._eviction: Eviction = Eviction(files, self._log)
        self._compaction: Compaction = Compaction(self._log, self._space, self._eviction)
        self._rewrite: Rewrite = Rewrite(self._log, self._space, self._eviction)
        self._lost: set[int] = self._eviction.lost
        self._new_ids: set[int] = set()
        self._written: int = 0
        self._synced_at: float | None = None
        self._syncs: dict[int, int] = {}
        self._sync_time: int = 0
        self._ids_end_written: int = 1
        self._ids_end_on_disk: int = 1 if sync_interval != 0 else record.ID_LIMIT

    def begin_slices(
        self,
        recovery: Recovery,
        jobs: Mapping[int, Job],
        tubes: dict[bytes, Tube],
        policies: Mapping[str, bytes],
        keys: Mapping[tuple[bytes, bytes], tuple[int, int]],
        bodies: Bodies | None = None,
        locations: Mapping[int, Location] | None = None,
    ) -> Iterator[None]:
        """Continue after *recovery*, in a new segment; yield after each slice of jobs. Raise OSError.

        Call once, before any other method.

        *jobs*, *tubes*, *policies* (documents by name) and *keys* (job id and end in nanoseconds, by tube and key) are
        the broker's tables; compaction and rewrites read them. The broker removes a key when it has expired. *bodies*
        tracks the memory limit; None if there is none. *locations* are those of the jobs that were here.
        """
        log = self._log
        log.jobs, log.tubes, log.policies, log.keys = jobs, tubes, policies, keys
        log.locations = locations if locations is not None else {}
        log.keeps_positions = bodies is not None
        yield from log.adopt_slices(recovery)
        self._written = self.safe = self.promised = log.sequence
        log.max_size = self._space.fitting_size()
        self._eviction.begin(bodies)
        self._space.create_first(may_remove=not recovery.is_import_open)
        log.begin_segment(0)
        if recovery.is_import_open:
            self.mark(record.IMPORT_UNDO)

    # The broker's changes

    def put(self, job: Job) -> bool:
        """Record *job*; return False if the disk fails, or has no room for the record and its DELETE."""
        log, size, attributes = self._log, record.job_size(job), b""
        if job.cold is not DEFAULT_COLD_STATE or isinstance(job, TaggedJob):
            attributes = job_attributes.encode(job)
            size += record.extra_size(b"", attributes)
        if job.id < log.ids_wanted_at:
            if not log.has_room(size) and not self._space.has_room(size):
                return False
        elif not self._space.has_room(record.IDS_SIZE + size) or not log.record_id_block(job.id):
            return False
        if job.id >= log.next_id and log.ids.owns(job.id):
            log.next_id = job.id + 1
        log.add_job(job, size, b"", attributes)
        self._new_ids.add(job.id)
        self.promised = log.sequence
        return True

    def put_group(self, jobs: list[Job]) -> bool:
        """Record *jobs*, all or none; return False if the disk fails, or has no room for the records and DELETEs."""
        log, last_id = self._log, max([job.id for job in jobs if self._log.ids.owns(job.id)], default=0)
        size = record.IDS_SIZE + log.group_size(jobs) + (len(jobs) - 1) * record.DELETE_SIZE
        if not log.has_room(size) and not self._space.has_room(size):
            return False
        if last_id >= log.ids_wanted_at and not log.record_id_block(last_id):
            return False
        log.next_id = max(log.next_id, last_id + 1)
        log.forget_groups()
        log.add_group(jobs)
        self._new_ids.update([job.id for job in jobs])
        self.promised = log.sequence
        return True

    def undelete(self, job: Job) -> bool:
        """Record *job*, which was deleted; return False if the disk fails, or has no room for the record."""
        return self._put_again(job, None)

    def replace(self, old: Job, new: Job) -> bool:
        """Record *new*; return False if the disk fails, or has no room for the record."""
        return self._put_again(new, old)

    def _put_again(self, new: Job, old: Job | None) -> bool:
        """Record *new* in full. Its id already has a JOB record: of *old*, or of a deleted job if *old* is None."""
        log, events, attributes = self._log, record.events_of(new), record.attributes_of(new)
        size = record.job_size(new) + record.extra_size(events, attributes)
        if not self._space.has_room(size):
            return False
        if old is not None:
            self._mark_reclaimable(old)
        log.add_job(new, size, events, attributes)
        log.segments[new.segment].has_repeats |= old is None or old.segment == new.segment
        self._new_ids.add(new.id)
        self.promised = log.sequence
        return True

    def update(self, job: Job) -> None:
        self._log.add_update(job)
        self.promised = self._log.sequence

    def move(self, job: Job, source: Tube) -> None:
        job.record_extra += len(source.name) - len(job.tube.name)
        self._log.add_move(job)
        self.promised = self._log.sequence

    def reserve(self, job: Job) -> None:
        self._log.add_reserve(job)
        assert job.holder is not None
        # No client may learn of a job that a crash could still undo, nor a remote one of a reservation.
        if job.id in self._new_ids or job.holder.remote is not None:
            self.promised = self._log.sequence

    def expire_reservation(self, job: Job) -> None:
        log = self._log
        segment = log.room_for(record.RESERVE_SIZE)
        log.sequence += 1
        segment.add(segment.encoder.expire_reservation(job, log.sequence), job.id)

    def delete(self, job: Job) -> None:
        self._mark_reclaimable(job)
        self._log.add_delete(job.id)
        self.promised = self._log.sequence

    def arrive(self, job: Job) -> bool:
        """Record *job*, which comes from another shard; return False if the disk fails, or has no room."""
        if not self._put_again(job, None):
            return False
        self._log.mark_entry_dead(job.id)
        return True

    def depart(self, job: Job, location: Location) -> None:
        self._mark_reclaimable(job)
        self.locate(job.id, location)

    def locate(self, id: int, location: Location) -> None:
        self._log.add_location(id, location)
        self.promised = self._log.sequence

    def pause(self, tube: Tube) -> None:
        self._log.add_pause(tube.name, tube.paused_until, tube.pause)
        self.promised = self._log.sequence

    def policy(self, name: str, document: bytes) -> None:
        self._log.add_policy(name, document)
        self.promised = self._log.sequence

    def key(self, tube: bytes, key: bytes, id: int, until: int) -> None:
        self._log.add_key(tube, key, id, until)
        self.promised = self._log.sequence

    def note_id(self, id: int) -> None:
        """Record that *id* was assigned to a job, which may no longer exist."""
        log = self._log
        if id >= log.next_id and (id < log.ids_wanted_at or log.record_id_block(id)):
            log.next_id = id + 1
            log.add_delete(id)
            self.promised = log.sequence

    def release_ids(self) -> bool:
        """Record, for the next start, that the remaining reserved ids are unused; return False if none remain.

        Call this method at an orderly stop, when nothing is to be rewritten.
        """
        log = self._log
        if log.ids_end <= log.next_id:
            return False
        log.add_ids_end(log.next_id)
        self._ids_end_on_disk = min(self._ids_end_on_disk, log.ids_end)
        return True

    def mark(self, kind: int) -> None:
        """Record record.IMPORT_BEGIN, IMPORT_END or IMPORT_UNDO."""
        log = self._log
        segment = log.room_for(record.HEADER_SIZE)
        log.sequence += 1
        segment.add_bare(segment.encoder.mark(kind, log.sequence))
        self.promised = log.sequence

    def _mark_reclaimable(self, job: Job) -> None:
        """Count the newest JOB record of *job* as dead, and as space for compaction to reclaim."""
        self.bytes_died += self._log.mark_dead(job)
        if self._lost:
            self._lost.discard(job.id)

    # State

    @property
    def wants_rewrite(self) -> bool:
        """Whether records were discarded or are in doubt: nothing is safe until `rewrite` has restored them."""
        return self._log.wants_rewrite

    @property
    def is_full(self) -> bool:
        """Whether the disk had no room for a segment ahead."""
        return self._log.is_full

    @property
    def refusal(self) -> str:
        """The reason why the last segment could not be allocated."""
        return self._space.refusal

    def stats(self) -> JournalStats:
        log = self._log
        return JournalStats(
            oldest_index=next(iter(log.segments), 0),
            current_index=log.current.number,
            records_migrated=self._compaction.copied_records,
            records_written=log.sequence - log.recovered_sequence,
            max_size=self._shown_max_size,
            is_on_disk=True,
            is_full=log.is_full,
            files=log.count_files(),
            bytes_on_disk=log.bytes_on_disk(),
            bytes_recorded=log.bytes_recorded(),
            bytes_live=log.live_bytes,
            bytes_reserved=self._space.spare(),
            synced_ago=None if self._synced_at is None else time.monotonic() - self._synced_at,
            syncs=self._syncs.copy(),
            sync_time=self._sync_time,
        )

    # Commit

    @property
    def has_records(self) -> bool:
        """Whether a batch has anything to write, or to sync so that a segment can be removed."""
        return (self._log.sequence > self._written or self._must_sync) and not self._log.wants_rewrite

    @property
    def pending_bytes(self) -> int:
        """Bytes that the next batch will write."""
        return sum([segment.used - segment.written for segment in self._log.unsafe])

    @property
    def has_unsynced(self) -> bool:
        """Whether a sync has anything to do."""
        return self._written > self._log.on_disk and not self._log.wants_rewrite

    @property
    def segment_size(self) -> int:
        """Size of a segment in bytes: -s, or less on a small disk."""
        return self._log.max_size

    def write_here(self, limit: int, *, is_synced: bool) -> int:
        """Write all pending records in this thread, and sync them if *is_synced*; return their number of bytes.

        Do nothing and return 0 if nothing is pending or a batch has to do it: if more than *limit* bytes are
        pending, if a file would be created, extended or finished, or if a sync is due though *is_synced* is false.
        Raise OSError, to be reported to `note_failure`. No batch may be outstanding.
        """
        log = self._log
        segment = log.current
        handle, size = segment.handle, segment.used - segment.written
        if handle is None or size > limit or len(log.unsafe) > 1 or log.wants_rewrite:
            return 0
        if segment.allocated < segment.capacity or not (segment.is_listed or self.sync_interval is None):
            return 0
        if not is_synced and self._must_sync:
            return 0
        segment.is_begun = True
        try:
            self._files.write(handle, segment.written, segment.take_pending().encode())
            if is_synced:
                self._count_sync(timed_sync(self._files, handle))
        except OSError as error:
            error.filename = error.filename or name_of(segment.number)
            raise
        segment.written += size
        segment.is_proven = True
        segment.pending_copies = 0
        self._ids_end_written = log.ids_end
        self._written = self.safe = log.sequence
        self._new_ids.clear()
        if is_synced:
            self._synced_at = time.monotonic()
            self._note_on_disk(segment.number, log.ids_end)
        if is_synced or self.sync_interval is None:
            log.on_disk = log.sequence
        return size

    def take_batch(self, is_synced: bool) -> Batch:
        """Return all records not written yet as a batch, to be synced if *is_synced* or if it has to be.

        Only one batch may be outstanding. A batch of a rewrite is always synced, since the segments that it
        replaces are removed afterwards.
        """
        log, size, parts, copies = self._log, 0, [], 0
        for segment in log.unsafe:
            if segment.number:
                parts.append((segment, segment.take_pending(), segment is not log.current, segment.pending_copies))
                size += segment.used - segment.written
                copies += segment.pending_copies
                segment.pending_copies = 0
        surplus, log.surplus = log.surplus, []
        return Batch(
            self._files,
            parts,
            log.sequence,
            self._new_ids.copy(),
            is_synced or log.wants_rewrite or self._must_sync,
            self.sync_interval is None,
            log.ids_end,
            self._space.compaction_room(copies) if len(parts) > 1 and not log.wants_rewrite else 0,
            sum([segment.capacity for segment in log.ahead]),
            size,
            surplus,
        )

    def complete_batch(self, batch: Batch) -> None:
        """Record the success of *batch*, which has run."""
        log = self._log
        self._note_finished(batch)
        for segment in batch.segments:
            segment.is_proven = True
        self._ids_end_written = batch.next_id
        if batch.is_synced:
            self._synced_at = time.monotonic()
            self._note_on_disk(batch.segments[-1].number, batch.next_id)
        if log.wants_rewrite:
            if log.current.number == 0:
                self._rewrite.complete_step()
                return
            self._rewrite.complete(batch.sequence)
            self._note_recovered()
        self._written = batch.sequence
        if batch.is_synced or self.sync_interval is None:
            log.on_disk = batch.sequence
        self.safe = batch.sequence
        self._new_ids -= batch.ids

    def _note_finished(self, batch: Batch) -> None:
        """Note which segments *batch* has finished, and how long its syncs took."""
        log = self._log
        for taken in batch.sync_times:
            self._count_sync(taken)
        is_on_disk = batch.is_synced or self.sync_interval is not None
        for segment in batch.finished:
            log.finish(segment)
            self._written = max(self._written, log.on_disk)
            if is_on_disk:
                log.newest_on_disk = max(log.newest_on_disk, segment.number)
        if batch.finished and log.wants_rewrite:
            self._rewrite.first_in_doubt = log.on_disk + 1

    def take_sync(self) -> SyncTask | None:
        """Return a sync of all written records; None if no file needs one: full segments are synced when finished."""
        unsafe = self._log.unsafe
        handle = unsafe[0].handle
        if handle is None or len(unsafe) > 1:
            return None
        return SyncTask(self._files, handle, unsafe[0].number, self._written, self._ids_end_written)

    def complete_sync(self, sync: SyncTask) -> None:
        """Record the success of *sync*, which has run."""
        self._log.on_disk = max(self._log.on_disk, sync.sequence)
        self._synced_at = time.monotonic()
        self._note_on_disk(sync.segment, sync.next_id)
        self._count_sync(sync.time)

    def _note_on_disk(self, segment: int, next_id: int) -> None:
        """Mark everything written to *segment* as on disk; ids below *next_id* are then reserved on disk too."""
        self._log.newest_on_disk = max(self._log.newest_on_disk, segment)
        self._ids_end_on_disk = max(self._ids_end_on_disk, next_id)

    @property
    def _must_sync(self) -> bool:
        """Whether the next batch must be synced, so that no id is reused after a power failure.

        With -F, it must also be synced if a segment is to be removed and no later segment is on disk (see
        `Space.can_remove`).
        """
        log = self._log
        if log.next_id > self._ids_end_on_disk:
            return True
        is_removing_unsynced = self.sync_interval is None and bool(log.pending_removal)
        return is_removing_unsynced and log.newest_on_disk <= log.pending_removal[0][1].number

    def _count_sync(self, taken: int) -> None:
        """Count a sync that took *taken* nanoseconds."""
        length = taken.bit_length()
        self._syncs[length] = self._syncs.get(length, 0) + 1
        self._sync_time += taken

    # Failure

    def note_failure(self, error: OSError, batch: Batch | None = None) -> None:
        """Handle the failure of *batch*, or of a sync: no further record is safe until a rewrite is complete."""
        log, is_short = self._log, batch is not None and batch.is_short
        if batch is not None:
            self._note_finished(batch)
            log.orphaned += batch.surplus
        if is_short and not log.wants_rewrite and error.errno in NO_SPACE_ERRNOS:
            self._space.note_full(error)
        else:
            self._note_write_error(str(error))
        if is_short and log.wants_rewrite:
            self._space.widen_margin()
        self._rewrite.restart()

    def rewrite(self) -> Generator[None, None, bool]:
        """Record the next step of the rewrite, for the next batch to write; return False if no step has room.

        It yields after each slice. Commands may run then, but no other part of the rewrite and no batch. If
        `wants_bodies` is set after it has returned False, the bodies must be read back before another attempt.
        """
        is_recorded = yield from self._rewrite.record_step()
        if not is_recorded and not self.wants_bodies:
            self._note_write_error(str(no_space_error()))
        return is_recorded

    def _note_write_error(self, reason: str) -> None:
        if self.write_error is None:
            log.error("journal: %s; nothing is acknowledged, puts return OUT_OF_MEMORY; retried every second", reason)
        self.write_error = reason

    def _note_recovered(self) -> None:
        if self.write_error is not None:
            log.warning("journal: writes work again; all records of the failed writes have been rewritten")
            self.write_error = None

    # Bodies on disk only

    def evict(self, limit: int) -> bool:
        """Examine up to *limit* jobs and evict bodies that are on disk while memory is short.

        Return whether more are due.
        """
        return not self._rewrite.is_planning and self._eviction.evict(limit)

    def read(self, jobs: Iterable[Job]) -> BodyRead:
        """Return a BodyRead of the bodies of *jobs* that are only on disk."""
        return self._eviction.read(jobs)

    def complete_read(self, read: BodyRead, ahead: Collection[int] = ()) -> None:
        """Keep the bodies that *read* has read; *ahead* are the ids of jobs that no client waits for yet."""
        self._eviction.complete_read(read, ahead)

    def note_lost(self, read: BodyRead) -> None:
        """Note which bodies *read* could not read."""
        self._eviction.note_lost(read)

    @property
    def wants_bodies(self) -> bool:
        """Whether compaction or a rewrite waits for bodies to be read back."""
        return bool(self._eviction.wanted)

    def read_for_compaction(self) -> BodyRead | None:
        """Return a read of the bodies that compaction or a rewrite waits for; None if it waits for none.

        When the read is complete, call `compact` with READ_BATCH before the bodies are evicted again.
        """
        return self._eviction.read_wanted()

    # Compaction and maintenance

    def compact(self, budget: int) -> bool:
        """If due, copy about *budget* bytes of live jobs out of the oldest segments; return whether more is due."""
        return self._compaction.compact(budget)

    @property
    def is_over_bound(self) -> bool:
        """Whether the directory is larger than documented, and can shrink."""
        return not self.is_remote and self._compaction.is_over_bound

    @property
    def wants_maintenance(self) -> bool:
        """Whether `take_maintenance` has something to do now. False after an error: a retry follows."""
        return self._space.wants_maintenance

    def take_maintenance(self, is_retry: bool = True) -> Maintenance | None:
        """Return the next maintenance, or None; only one may be outstanding.

        After an error there is none unless *is_retry*.
        """
        return self._space.take_maintenance(is_retry)

    def complete_maintenance(self, maintenance: Maintenance) -> None:
        """Note what *maintenance* has done."""
        self._space.complete_maintenance(maintenance)
