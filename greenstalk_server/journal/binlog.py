"""The journal on disk: segments, group commit, compaction, and what happens when the disk fails.

The broker appends records; they collect in memory, encoded. Whoever serves (the committer) takes a batch of
them, runs it, which writes and syncs, in a thread or not, and reports back; then the replies may leave. All
but `Batch.run` and `Upkeep.run` belongs to the thread of the broker, and none of that touches the disk, save
`put` when the room made ahead has run out.

Segments leave in the order they came: only the oldest is ever removed, once no job has its newest JOB record
in it. So an UPDATE or a DELETE never outlives a JOB record that it is about. Compaction copies the live jobs
of the oldest segment to the newest, a slice at a time, when there is more than twice as much on disk as live.

Room. Segments are made ahead of their use, with all their bytes allocated, so many that every live job's
DELETE has room; and they are made only while the disk keeps some room besides, which is for compaction. So a
full disk stops puts, and deletes, releases and buries go on. Copies made meanwhile take no more than what they
replace: of a job to which much has happened since they leave out the oldest events.

Ids. Where replies do not wait for a sync, a loss of power may take jobs whose ids clients know. So ids are set aside in
blocks: the header of each segment, or an IDS record, names the end of the block, and the next block is recorded when
half of one is used. A batch with an id beyond the last block known to be on disk is synced before its replies leave.
Invariant: an id that a client knows is below a next id that is on disk.

Failure. After a failed write or sync nobody knows what the file holds. So all jobs that had a record in a
segment that was not yet on disk whole are recorded anew, from memory, in a fresh segment, and until that has
worked nothing is acknowledged and no put accepted.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from greenstalk_server import life
from greenstalk_server.bodies import SMALL, Bodies
from greenstalk_server.job import Job
from greenstalk_server.journal import record
from greenstalk_server.journal.files import Files
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.segment import Limbo, Segment, name_of
from greenstalk_server.stats import JournalStats
from greenstalk_server.tube import Tube

log = logging.getLogger(__name__)

SMALLEST_SEGMENT: Final = 4096
"""A segment holds at least its header and some records, whatever -s says."""

SMALLEST_FIRST_SEGMENT: Final = 16384
"""What a start on a full disk makes do with, bytes."""

SEGMENT_OVERHEAD: Final = record.SEGMENT_HEADER_SIZE + record.UPDATE_SIZE
"""Bytes of a segment that no record takes: its header, and what is left when the next record does not fit."""

SPARE_SEGMENTS: Final = 1.5
"""What is left free of the disk for others than puts: the copy of one segment, and releases meanwhile."""

UNFINISHED: Final = 3
"""Segments, about, whose bodies stay in memory until they are on disk whole."""

READ_AT_ONCE: Final = 2**18
"""Bytes of a budget of compaction whose bodies are read back in one go."""

ANEW_AT_MOST: Final = 2**24
"""Bytes of bodies, of jobs that are on disk whole, that are in memory to be recorded anew after a failure."""

GAP_AT_MOST: Final = 65536
LOT_AT_MOST: Final = 4 * 2**20
"""Bytes between two records that are read in one go, and in all of such a lot."""

ID_BLOCK: Final = 32768
"""Ids set aside at once, unless each put is synced. A start after a crash skips those that were not used.

Half a block lasts for 0.2 s at 80,000 puts a second, so the record of the next one is on disk in time."""

LOOK_COST: Final = 64
"""Bytes of a budget that compaction pays for looking at a job that has gone, which takes about a microsecond."""


class Batch:
    """Records to be written, and perhaps synced; made by `Binlog.take`, run anywhere, reported by `Binlog.done`.

    sequence    of the last record it holds.
    size        bytes it writes.
    ids         the new jobs in it.
    is_synced   whether its records are on disk once it has run.
    next_id     above all ids set aside so far.
    sync_times  what each sync took that it has done, nanoseconds.
    """

    __slots__ = (
        "_files",
        "_is_never_synced",
        "_parts",
        "ids",
        "is_synced",
        "next_id",
        "sequence",
        "size",
        "sync_times",
    )

    def __init__(
        self,
        files: Files,
        parts: list[tuple[Segment, bytes, bool]],
        sequence: int,
        ids: set[int],
        is_synced: bool,
        is_never_synced: bool,
        next_id: int,
    ) -> None:
        """*parts* are segments, what to append to each, and whether it is full then."""
        self._files: Files = files
        self._parts: list[tuple[Segment, bytes, bool]] = parts
        self._is_never_synced: bool = is_never_synced
        self.is_synced: bool = is_synced
        self.next_id: int = next_id
        self.sequence: int = sequence
        self.ids: set[int] = ids
        self.size: int = sum([len(data) for _, data, _ in parts])
        self.sync_times: list[int] = []

    @property
    def segments(self) -> list[Segment]:
        """Those it writes to."""
        return [segment for segment, _, _ in self._parts]

    @property
    def finished(self) -> list[Segment]:
        """Those that are full and, once it has run, on disk whole."""
        return [segment for segment, _, is_full in self._parts if is_full]

    def run(self) -> None:
        """Do it. Raises OSError, after which it is not known what is on disk.

        A segment is on disk whole before the next one gets its first byte: so only the newest can be torn.
        """
        for segment, data, is_full in self._parts:
            self._write(segment, data)
            if is_full:
                self._finish(segment)
            elif self.is_synced and segment.handle is not None:
                self.sync_times.append(_timed_sync(self._files, segment.handle))

    def _write(self, segment: Segment, data: bytes) -> None:
        if segment.handle is None:
            segment.handle = self._files.create(name_of(segment.number), segment.capacity)
        if not segment.is_listed and (self.is_synced or not self._is_never_synced):
            self._files.sync_directory()
            segment.is_listed = True
        if data:
            self._files.write(segment.handle, segment.written, data)
            segment.written += len(data)

    def _finish(self, segment: Segment) -> None:
        assert segment.handle is not None
        self._files.truncate(segment.handle, segment.written)
        if not self._is_never_synced:
            self.sync_times.append(_timed_sync(self._files, segment.handle))
        self._files.close(segment.handle)
        segment.handle = None


class Sync:
    """A sync of what was written before it; made by `Binlog.take_sync`, run in a thread, reported by `synced`.

    segment     number of the segment that it syncs.
    next_id     above all ids set aside in what was written.
    time        what it took, nanoseconds, once it has run.
    """

    __slots__ = ("_files", "_handle", "next_id", "segment", "sequence", "time")

    def __init__(self, files: Files, handle: int, segment: int, sequence: int, next_id: int) -> None:
        self._files: Files = files
        self._handle: int = handle
        self.segment: int = segment
        self.sequence: int = sequence
        self.next_id: int = next_id
        self.time: int = 0

    def run(self) -> None:
        """Do it. Blocks; raises OSError, after which it is not known what is on disk."""
        self.time = _timed_sync(self._files, self._handle)


class Read:
    """Bodies to be read back; made by `Binlog.read`, run in a thread, reported by `Binlog.have_read`.

    jobs        whose they are, by id, each with the number of the segment that it is read from.
    bodies      those that were read, by the ids of their jobs.
    errors      why others were not.
    """

    __slots__ = ("_files", "_wanted", "bodies", "errors", "jobs")

    def __init__(
        self,
        files: Files,
        jobs: dict[int, tuple[Job, int]],
        wanted: dict[int, tuple[Segment, dict[int, tuple[int, int]]]],
    ) -> None:
        """*wanted* is by number a segment, on disk whole, and by the ids of jobs the sizes of record and body."""
        self._files: Files = files
        self._wanted: dict[int, tuple[Segment, dict[int, tuple[int, int]]]] = wanted
        self.jobs: dict[int, tuple[Job, int]] = jobs
        self.bodies: dict[int, bytes] = {}
        self.errors: dict[int, str] = {}

    def run(self) -> None:
        """Do it. Blocks; never raises OSError."""
        for number, (segment, sizes) in self._wanted.items():
            positions = _positions(segment, sizes)
            records = [(segment.starts[at], *sizes[id], id) for id, at in positions.items()]
            self.errors.update({id: f"{name_of(number)} has no record of it" for id in sizes if id not in positions})
            try:
                head = self._files.read_at(name_of(number), 0, record.SEGMENT_HEADER_SIZE)
                seed = record.seed_of(record.decode_segment_header(head).salt)
                for together in _neighbours(sorted(records)):
                    self._read(number, together, seed)
            except (OSError, record.BadSegment) as error:
                for id in sizes:
                    if id not in self.bodies:
                        self.errors[id] = str(error)

    def _read(self, number: int, records: list[tuple[int, int, int, int]], seed: int) -> None:
        """Read *records*, which stand close together."""
        begin = records[0][0]
        data = self._files.read_at(name_of(number), begin, records[-1][0] + records[-1][1] - begin)
        for start, size, body_size, id in records:
            one = data[start - begin : start - begin + size]
            if record.is_job(one, size, id, seed):
                self.bodies[id] = one[size - body_size :]
            else:
                self.errors[id] = f"{name_of(number)}: the record at offset {start} is damaged"


class Upkeep:
    """Files to be made ahead and removed; made by `Binlog.upkeep`, run in a thread, reported by `Binlog.kept`.

    made            segments that have their file now.
    not_removed     segments that may still have theirs.
    error           why it did not do all, or None.
    """

    __slots__ = ("_files", "_is_never_synced", "_to_make", "_to_remove", "error", "made", "not_removed")

    def __init__(self, files: Files, to_make: list[Segment], to_remove: list[Segment], is_never_synced: bool) -> None:
        self._files: Files = files
        self._is_never_synced: bool = is_never_synced
        self._to_make: list[Segment] = to_make
        self._to_remove: list[Segment] = to_remove
        self.made: list[Segment] = []
        self.not_removed: list[Segment] = list(to_remove)
        self.error: OSError | None = None

    def run(self) -> None:
        """Do it. Blocks; never raises OSError."""
        try:
            for segment in self._to_remove:
                self._remove(segment)
                self._sync_directory()  # else a crash may bring a job back, and not the DELETE in the next one
                self.not_removed.remove(segment)
            for segment in self._to_make:
                create_ahead(self._files, segment)
                self.made.append(segment)
            self._sync_directory()
            for segment in self._to_make:
                segment.is_listed = not self._is_never_synced
        except OSError as error:
            self.error = error

    def _sync_directory(self) -> None:
        if not self._is_never_synced:
            self._files.sync_directory()

    def _remove(self, segment: Segment) -> None:
        handle, segment.handle = segment.handle, None
        if handle is not None:
            self._files.close(handle)
        with suppress(FileNotFoundError):
            self._files.remove(name_of(segment.number))


class Binlog:
    """The journal of one directory.

    promised    sequence number of the last record whose reply has to wait for it.
    safe        sequence number up to which records are as durable as was asked for.
    trouble     why puts are refused and nothing is acknowledged, or None.
    is_full     the disk had no room for a segment ahead.
    bytes_died  bytes of JOB records whose jobs were deleted or replaced, since the start.
    is_remote   a batch waits for a network, however quick it may have been so far.
    """

    is_remote: bool = False

    def __init__(
        self,
        files: Files,
        max_size: int,
        sync_interval: int | None,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """*max_size* in bytes of a segment; *sync_interval* in nanoseconds, 0 for every write, None for never."""
        self.promised: int = 0
        self.safe: int = 0
        self.trouble: str | None = None
        self.is_full: bool = False
        self.bytes_died: int = 0
        self.sync_interval: int | None = sync_interval
        self._files: Files = files
        self._random_bytes: Callable[[int], bytes] = random_bytes
        self._shown_max_size: int = max_size
        self._max_size: int = max(max_size, SMALLEST_SEGMENT)
        self._jobs: Mapping[int, Job] = {}
        self._tubes: dict[bytes, Tube] = {}
        self._sequence: int = 0
        self._first_sequence: int = 0
        self._written: int = 0
        self._on_disk: int = 0
        self._synced_at: float | None = None
        self._syncs: dict[int, int] = {}
        self._sync_time: int = 0
        self._next_id: int = 1
        self._ids_end: int = 1
        self._ids_end_written: int = 1
        self._ids_end_on_disk: int = 1 if sync_interval != 0 else record.ID_LIMIT
        self._ids_wanted_at: int = 0 if sync_interval != 0 else record.ID_LIMIT
        self._newest_on_disk: int = 0
        self._records_migrated: int = 0
        self._live_bytes: int = 0
        self._finished_bytes: int = 0
        self._segments: dict[int, Segment] = {}
        self._next_number: int = 1
        self._newest: int = 0
        self._current: Segment = Limbo()
        self._unsafe: list[Segment] = [self._current]
        self._ahead: deque[Segment] = deque()
        self._condemned: deque[tuple[int, Segment]] = deque()
        self._litter: list[Segment] = []
        self._superseded: list[Segment] = []
        self._new_ids: set[int] = set()
        self._to_record_anew: set[int] = set()
        self._tubes_to_record_anew: set[bytes] = set()
        self._bodies: Bodies | None = None
        self._to_let_go: deque[int] = deque()
        self._let_go_of: int = 0
        self._let_go_before: int = 0
        self._wants_read: list[Job] = []
        self._lost: set[int] = set()

    def begin(
        self, recovery: Recovery, jobs: Mapping[int, Job], tubes: dict[bytes, Tube], bodies: Bodies | None = None
    ) -> None:
        """Go on after *recovery*, in a fresh segment. Call once, before all else.

        *jobs* and *tubes* are the broker's tables; it reads them when it copies or records anew. *bodies*, if there is
        a limit to memory, says when it is short.
        """
        self._jobs = jobs
        self._bodies = bodies
        self._tubes = tubes
        self._sequence = self._written = self._on_disk = self.safe = self.promised = recovery.sequence
        self._first_sequence = recovery.sequence
        self._next_id = recovery.next_id
        for replayed in recovery.segments:
            segment = Segment(replayed.header.number, replayed.end)
            segment.used = segment.written = replayed.end
            segment.ids, segment.starts, segment.has_repeats = replayed.ids, replayed.starts, replayed.has_repeats
            segment.touched = None
            self._to_let_go.append(segment.number)
            self._segments[segment.number] = segment
            self._finished_bytes += segment.used
        for job in jobs.values():
            self._segments[job.segment].live_count += 1
            self._live_bytes += record.recorded_size(job)
        self._next_number = recovery.highest_number + 1
        self._unsafe.clear()
        if bodies is not None:
            bodies.margin = max(bodies.margin, UNFINISHED * self._max_size)
        self._make_first()
        self._begin_segment(0)
        if recovery.is_import_open:
            self.mark(record.IMPORT_UNDO)

    # What the broker tells

    def put(self, job: Job) -> bool:
        """Record *job*; False if there is no room for it and its DELETE on the disk, or the disk fails."""
        size = record.job_size(job)
        if not self._has_room(size):
            return False
        if job.id >= self._ids_wanted_at and not self._set_ids_aside(job.id):
            return False
        if job.id >= self._next_id:
            self._next_id = job.id + 1
        self._add_job(job, size)
        self._new_ids.add(job.id)
        self.promised = self._sequence
        return True

    def replace(self, old: Job, new: Job) -> bool:
        """Record *new*; False if there is no room for it on the disk, or the disk fails."""
        events = record.events_of(new)
        size = record.job_size(new) + record.events_size(events)
        if not self._has_room(size):
            return False
        self._lose_copy(old)
        self._add_job(new, size, events)
        self._segments[new.segment].has_repeats |= old.segment == new.segment
        self.promised = self._sequence
        return True

    def update(self, job: Job) -> None:
        segment = self._room(record.UPDATE_SIZE)
        self._sequence += 1
        segment.add(segment.encoder.update(job, self._sequence), job.id)
        self.promised = self._sequence

    def reserve(self, job: Job) -> None:
        segment = self._room(record.RESERVE_SIZE)
        self._sequence += 1
        segment.add(segment.encoder.reserve(job, self._sequence), job.id)
        if job.id in self._new_ids:  # nobody may hear of a job that a crash could still take back
            self.promised = self._sequence

    def lapse(self, job: Job) -> None:
        segment = self._room(record.RESERVE_SIZE)
        self._sequence += 1
        segment.add(segment.encoder.lapse(job, self._sequence), job.id)

    def delete(self, job: Job) -> None:
        self._lose_copy(job)
        segment = self._room(record.DELETE_SIZE)
        self._sequence += 1
        segment.add(segment.encoder.delete(job.id, self._sequence), job.id)
        self.promised = self._sequence

    def pause(self, tube: Tube) -> None:
        self._add_pause(tube, self._room(record.pause_size(tube)))
        self.promised = self._sequence

    def note_id(self, id: int) -> None:
        """Record that *id* has been given, to a job that may be gone."""
        if id >= self._next_id and (id < self._ids_wanted_at or self._set_ids_aside(id)):
            self._next_id = id + 1
            segment = self._room(record.DELETE_SIZE)
            self._sequence += 1
            segment.add(segment.encoder.delete(id, self._sequence), id)
            self.promised = self._sequence

    def release_ids(self) -> None:
        """Record that the ids set aside were not given, so that the next start gives them. For a stop in order."""
        if self._ids_end > self._next_id and self.trouble is None:
            self._add_ids(self._next_id)
            self._ids_end_on_disk = min(self._ids_end_on_disk, self._ids_end)

    def mark(self, kind: int) -> None:
        """Record record.IMPORT_BEGIN, IMPORT_END or IMPORT_UNDO."""
        segment = self._room(record.HEADER_SIZE)
        self._sequence += 1
        segment.add_bare(segment.encoder.mark(kind, self._sequence))
        self.promised = self._sequence

    def stats(self) -> JournalStats:
        return JournalStats(
            oldest_index=next(iter(self._segments), 0),
            current_index=self._current.number,
            records_migrated=self._records_migrated,
            records_written=self._sequence - self._first_sequence,
            max_size=self._shown_max_size,
            is_on_disk=True,
            is_full=self.is_full,
            files=len(self._segments) - self._unmade() + len(self._ahead) + len(self._condemned) + len(self._litter),
            bytes_on_disk=self._bytes_on_disk(),
            bytes_recorded=self._bytes_recorded(),
            bytes_live=self._live_bytes,
            synced_ago=None if self._synced_at is None else time.monotonic() - self._synced_at,
            syncs=self._syncs.copy(),
            sync_time=self._sync_time,
        )

    def _bytes_recorded(self) -> int:
        return self._finished_bytes + sum([segment.used for segment in self._unsafe])

    def _unmade(self) -> int:
        """How many segments get their file only with the next batch."""
        return sum([segment.handle is None and segment.number > 0 for segment in self._unsafe])

    def _bytes_on_disk(self) -> int:
        """What its files take: all that they have room for, until they are full and cut."""
        whole = [*self._ahead, *self._litter, *[segment for segment in self._unsafe if segment.handle is not None]]
        removed_soon = [segment.used for _, segment in self._condemned]
        return self._finished_bytes + sum([segment.capacity for segment in whole]) + sum(removed_soon)

    # Commit

    @property
    def has_records(self) -> bool:
        """Whether a batch has anything to write."""
        return self._sequence > self._written and self.trouble is None

    @property
    def is_changing_files(self) -> bool:
        """Whether the next batch makes, finishes or syncs a file, and should not run in the loop's own thread."""
        return len(self._unsafe) > 1 or self._current.handle is None or self._must_sync

    @property
    def pending_bytes(self) -> int:
        """Bytes that the next batch will write."""
        return sum([segment.used - segment.written for segment in self._unsafe])

    @property
    def has_unsynced(self) -> bool:
        """Whether a sync has anything to do."""
        return self._written > self._on_disk and self.trouble is None

    def take(self, is_synced: bool) -> Batch:
        """All records not written yet, to be written, and synced if asked for or needed. One batch at a time."""
        is_synced = is_synced or self._must_sync
        parts = []
        for segment in self._unsafe:
            parts.append((segment, b"".join(segment.chunks), segment is not self._current))
            segment.chunks.clear()
        is_never_synced = self.sync_interval is None
        new_ids = self._new_ids.copy()
        return Batch(self._files, parts, self._sequence, new_ids, is_synced, is_never_synced, self._ids_end)

    def done(self, batch: Batch) -> None:
        """Note that *batch* has run."""
        self._written = batch.sequence
        if batch.is_synced or self.sync_interval is None:
            self._on_disk = batch.sequence
        self._ids_end_written = batch.next_id
        if batch.is_synced:
            self._synced_at = time.monotonic()
            self._note_on_disk(batch.segments[-1].number, batch.next_id)
        self.safe = batch.sequence
        for taken in batch.sync_times:
            self._count_sync(taken)
        self._new_ids -= batch.ids
        for segment in batch.segments:
            segment.is_proven = True
        for segment in batch.finished:
            self._unsafe.remove(segment)
            segment.touched = None
            self._finished_bytes += segment.used
            if self._bodies is not None:
                self._to_let_go.append(segment.number)
        if self.trouble is not None:
            log.warning("journal: writes work again; what the failed ones had to hold is recorded anew")
            self.trouble = None
            for segment in self._superseded:
                assert not segment.live_count
                self._condemn(segment)
            self._superseded.clear()
            self._to_record_anew.clear()
            self._tubes_to_record_anew.clear()

    def take_sync(self) -> Sync | None:
        """A sync of all that is written; None if there is no file to sync, as all was synced when it was full."""
        handle = self._unsafe[0].handle
        if handle is None or len(self._unsafe) > 1:
            return None
        return Sync(self._files, handle, self._unsafe[0].number, self._written, self._ids_end_written)

    def synced(self, sync: Sync) -> None:
        """Note that *sync* has run."""
        self._on_disk = max(self._on_disk, sync.sequence)
        self._synced_at = time.monotonic()
        self._note_on_disk(sync.segment, sync.next_id)
        self._count_sync(sync.time)

    def _note_on_disk(self, segment: int, next_id: int) -> None:
        """Note that all written to *segment* is on disk, and with it that ids below *next_id* are set aside."""
        self._newest_on_disk = max(self._newest_on_disk, segment)
        self._ids_end_on_disk = max(self._ids_end_on_disk, next_id)

    @property
    def _must_sync(self) -> bool:
        """Whether the next batch must be synced, so that no id is given again after a loss of power.

        Under -F, also if no later segment is on disk than one to be removed (see `_can_remove`).
        """
        if self._next_id > self._ids_end_on_disk:
            return True
        is_removing_unsynced = self.sync_interval is None and bool(self._condemned)
        return is_removing_unsynced and self._newest_on_disk <= self._condemned[0][1].number

    def _count_sync(self, taken: int) -> None:
        length = taken.bit_length()
        self._syncs[length] = self._syncs.get(length, 0) + 1
        self._sync_time += taken

    # Failure

    def failed(self, error: OSError) -> None:
        """Note that a batch or a sync has failed: until `record_anew` and a batch have worked, nothing is safe."""
        if self.trouble is None:
            log.error("journal: %s: nothing is acknowledged and no put accepted until it works again", error)
        self.trouble = str(error)
        for segment in self._unsafe:
            self._to_record_anew.update(segment.touched or ())
            self._tubes_to_record_anew |= segment.touched_tubes
            self._abandon(segment)
        self._current = Limbo()
        self._unsafe = [self._current]

    def read_to_record_anew(self) -> Read | None:
        """What reads back the bodies that `record_anew` wants, to be run and reported before; None if it wants none.

        It goes without some if there are many; of those jobs only the last event is recorded anew.
        """
        ids = self._to_record_anew.union(self._current.touched or ()) - self._lost
        jobs = [job for id in ids if (job := self._jobs.get(id)) is not None and self._is_finished(job.segment)]
        size = sum([job.size for job in jobs if job.body is not None])
        wanted = []
        for job in jobs:
            if job.body is None and size < ANEW_AT_MOST:
                wanted.append(job)
                size += job.size
        return self.read(wanted) if wanted else None

    def record_anew(self) -> None:
        """Put into a fresh segment all that the failed ones had to hold, for the next batch to write."""
        self._to_record_anew.update(self._current.touched or ())
        self._tubes_to_record_anew |= self._current.touched_tubes
        self._unsafe.clear()
        self._begin_segment(0, self._on_disk + 1)
        for name in sorted(self._tubes_to_record_anew):
            tube = self._tubes.get(name) or Tube(name, self._jobs)
            self._add_pause(tube, self._room(record.pause_size(tube)))
        for id in sorted(self._to_record_anew):
            job = self._jobs.get(id)
            if job is not None and job.body is None:  # what was recorded of it before is on disk
                self._add_change(job)
            elif job is not None:
                self._forget_copy(job)
                self._add_copy(job)
            else:
                segment = self._room(record.DELETE_SIZE)
                self._sequence += 1
                segment.add(segment.encoder.delete(id, self._sequence), id)

    def _abandon(self, segment: Segment) -> None:
        """Leave *segment* as it is. If no batch on it ever worked, nothing was promised on it: it is litter.

        If nothing of it is known to be on disk, it may go once all of it is recorded anew.
        """
        segment.chunks.clear()
        segment.touched = array("Q")
        if segment.is_proven:
            if segment.first_sequence > self._on_disk:
                self._superseded.append(segment)
            segment.used = max(segment.used, segment.capacity)  # that much of the disk it takes, as it is not cut
            self._finished_bytes += segment.used
        elif segment.number:
            del self._segments[segment.number]
            self._litter.append(segment)

    # Room

    def _has_room(self, size: int) -> bool:
        """Whether a record of *size* has room beside the DELETEs of all jobs; make a segment ahead if it lacks."""
        if self.trouble is not None:
            return False
        left = self._current.capacity - self._current.used
        is_large = size > left and size > self._max_size - SEGMENT_OVERHEAD
        needed = (len(self._jobs) + 1) * record.DELETE_SIZE + (0 if is_large else 2 * size)
        room = left + (len(self._ahead) - is_large) * (self._max_size - SEGMENT_OVERHEAD)
        while room < needed or (is_large and not self._ahead):
            if not self._make_ahead():
                return False
            room += self._max_size - SEGMENT_OVERHEAD
        return not is_large or self._grow_ahead(size)

    def _make_ahead(self) -> bool:
        """Make a segment ahead here and now; only if upkeep has been overtaken by a burst of puts."""
        segment = Segment(self._next_number, self._max_size)
        self._next_number += 1
        try:
            create_ahead(self._files, segment)
        except OSError as error:
            self._note_full(error)
            return False
        self._note_space()
        self._ahead.append(segment)
        return True

    def _make_first(self) -> None:
        """Make the segment to begin in, a smaller one if a whole one has no room; raise OSError if none has."""
        segment = Segment(self._next_number, self._max_size)
        self._next_number += 1
        while segment.handle is None:
            try:
                segment.handle = self._files.create(name_of(segment.number), segment.capacity)
            except OSError:
                if segment.capacity <= min(self._max_size, SMALLEST_FIRST_SEGMENT):
                    raise
                segment.capacity = max(segment.capacity // 2, SMALLEST_SEGMENT)
        self._ahead.append(segment)

    def _grow_ahead(self, size: int) -> bool:
        """Give the next segment room for a record of *size*, larger than most."""
        segment = self._ahead[0]
        assert segment.handle is not None
        size += SEGMENT_OVERHEAD
        if segment.capacity < size:
            try:
                self._files.grow(segment.handle, size)
            except OSError as error:
                self._note_full(error)
                return False
            segment.capacity = size
        return True

    def _note_full(self, error: OSError) -> None:
        if not self.is_full:
            log.error("journal: no room for a segment ahead: %s: puts are refused once what there is runs out", error)
        self.is_full = True

    def _note_space(self) -> None:
        if self.is_full:
            log.warning("journal: there is room for segments again")
        self.is_full = False

    def _room(self, size: int) -> Segment:
        """The segment that a record of *size* goes to."""
        if self._current.used + size > self._current.capacity:
            self._begin_segment(size)
        return self._current

    def _begin_segment(self, size: int, first_sequence: int = 0) -> None:
        """Make the next segment the current one; it has room for *size* bytes, whatever it begins with.

        *first_sequence* is that of the first record that it tells of, if not of its own first one.
        """
        if self._ahead:
            segment = self._ahead.popleft()
        else:
            segment = Segment(self._next_number, self._max_size)
            self._next_number += 1
        if self._current.used == record.SEGMENT_HEADER_SIZE:  # it has stayed without records
            first_sequence = self._current.first_sequence
        if self._next_id >= self._ids_wanted_at:
            self._take_ids(self._next_id)
        next_id = max(self._next_id, self._ids_end)
        segment.begin(self._random_bytes(4), first_sequence or self._sequence + 1, next_id)
        self._segments[segment.number] = segment
        self._unsafe.append(segment)
        self._current = segment
        self._newest = segment.number
        for tube in [tube for tube in self._tubes.values() if tube.paused_until]:
            self._add_pause(tube, segment)
        segment.capacity = max(segment.capacity, segment.used + max(size, segment.capacity // 4))

    # Ids

    def _take_ids(self, first: int) -> None:
        """Have a block of ids begin at *first*, if ids are set aside at all; the caller records its end."""
        if self.sync_interval != 0:
            self._ids_end = min(first + ID_BLOCK, record.ID_LIMIT)
            self._ids_wanted_at = self._ids_end - ID_BLOCK // 2

    def _set_ids_aside(self, first: int) -> bool:
        """Record a block of ids that begins at *first*; False if that is no id."""
        if first >= record.ID_LIMIT:
            return False
        self._take_ids(first)
        self._add_ids(self._ids_end)
        return True

    def _add_ids(self, next_id: int) -> None:
        """Record *next_id* as the end of the ids set aside."""
        segment = self._room(record.IDS_SIZE)
        self._sequence += 1
        segment.add_bare(segment.encoder.ids(next_id, self._sequence))
        self._ids_end = next_id

    # Records

    def _add_change(self, job: Job) -> None:
        """Record what is true of *job* but its body, and of its events the last ones."""
        if job.events:
            segment = self._room(record.UPDATE_SIZE)
            self._sequence += 1
            segment.add(segment.encoder.update(job, self._sequence), job.id)
        if job.holder is not None:
            segment = self._room(record.RESERVE_SIZE)
            self._sequence += 1
            segment.add(segment.encoder.reserve(job, self._sequence), job.id)

    def _add_copy(self, job: Job) -> int:
        """Record *job* whole, as before; return how many bytes that takes: not more than before if the disk is full."""
        events = record.events_of(job)
        if self.is_full:
            events = life.newest(events, job.events_recorded)
        size = record.job_size(job) + record.events_size(events)
        self._add_job(job, size, events)
        return size

    def _add_job(self, job: Job, size: int, events: bytes = b"") -> None:
        """Record *job* whole, with *events*, in *size* bytes."""
        job.events_recorded = record.events_size(events)
        segment = self._room(size)
        self._sequence += 1
        if self._bodies is not None:
            segment.starts.append(segment.used)
        segment.add(segment.encoder.job(job, self._sequence, events), job.id)
        segment.ids.append(job.id)
        segment.live_count += 1
        self._live_bytes += size
        job.segment = segment.number

    def _lose_copy(self, job: Job) -> None:
        """Count the newest JOB record of *job* as dead, and as room to be won back."""
        self.bytes_died += record.recorded_size(job)
        self._forget_copy(job)
        if self._lost:
            self._lost.discard(job.id)

    def _forget_copy(self, job: Job) -> None:
        """Count the newest JOB record of *job* as dead."""
        self._live_bytes -= record.recorded_size(job)
        segment = self._segments.get(job.segment)
        if segment is not None:
            segment.live_count -= 1

    def _add_pause(self, tube: Tube, segment: Segment) -> None:
        self._sequence += 1
        segment.add_pause(segment.encoder.pause(tube, self._sequence), tube.name)

    # Bodies on disk alone

    def let_go(self, at_most: int) -> bool:
        """While memory is short, let go of bodies that are on disk too, the newest first; return if more are to go.

        Only what a finished segment holds is, so that what is recorded anew after a failure is in memory. It looks at
        *at_most* jobs.
        """
        bodies = self._bodies
        if bodies is None:
            return False
        while at_most > 0 and bodies.are_short():
            if bodies.back:
                at_most -= 1
                job, _ = bodies.back.popitem()
                if self._is_finished(job.segment):
                    bodies.let_go(job)
                continue
            segment = self._next_to_let_go()
            if segment is None:
                bodies.is_exhausted = True
                return False
            at_most -= self._let_go_from(segment, bodies, at_most)
        return bodies.are_short()

    def _let_go_from(self, segment: Segment, bodies: Bodies, at_most: int) -> int:
        """Let go of bodies of *segment* till memory is short no more; return how many jobs, of *at_most*, it looked at.

        Those read ahead stay.
        """
        looked = 0
        while self._let_go_before and looked < at_most and bodies.are_short():
            self._let_go_before -= 1
            looked += 1
            job = self._jobs.get(segment.ids[self._let_go_before])
            if job is None or job.segment != segment.number or job.body is None:
                continue
            if job.size > SMALL and job not in bodies.ahead:
                bodies.let_go(job)
        if not self._let_go_before:
            self._to_let_go.pop()
            self._let_go_of = 0
        return looked

    def _next_to_let_go(self) -> Segment | None:
        """The segment to go on with, `_let_go_before` jobs of it; None if there is none."""
        while self._to_let_go:
            segment = self._segments.get(self._to_let_go[-1])
            if segment is not None and segment.ids:
                if self._let_go_of != segment.number:
                    self._let_go_of, self._let_go_before = segment.number, len(segment.ids)
                return segment
            self._to_let_go.pop()
        return None

    def _is_finished(self, number: int) -> bool:
        """Whether the segment *number* is there, and on disk whole."""
        segment = self._segments.get(number)
        return segment is not None and segment.touched is None

    def read(self, jobs: Iterable[Job]) -> Read:
        """What reads back the bodies of those of *jobs* that are on disk alone."""
        read: dict[int, tuple[Job, int]] = {}
        wanted: dict[int, tuple[Segment, dict[int, tuple[int, int]]]] = {}
        for job in jobs:
            segment = self._segments.get(job.segment)
            if job.body is None and segment is not None:
                read[job.id] = job, segment.number
                of_segment = wanted.setdefault(segment.number, (segment, {}))
                of_segment[1][job.id] = record.recorded_size(job), job.size
        return Read(self._files, read, wanted)

    def have_read(self, read: Read, ahead: Collection[int] = ()) -> None:
        """Take in what *read* has read; *ahead* are the ids of jobs that nobody waits for yet."""
        assert self._bodies is not None
        for id, body in read.bodies.items():
            job, _ = read.jobs[id]
            if self._jobs.get(id) is job:  # else another, with another body, stands in its place
                self._bodies.take_back(job, body, is_ahead=id in ahead)
        self.note_lost(read)

    def note_lost(self, read: Read) -> None:
        """Note what *read* could not read."""
        if self._lost:
            self._lost.difference_update(read.bodies)
        for id, reason in read.errors.items():
            job, number = read.jobs[id]
            is_there = self._jobs.get(id) is job and job.body is None and job.segment == number
            if is_there and id not in self._lost:  # else it has gone, or was copied, and its segment has gone since
                log.error("journal: the body of job %d cannot be read back: %s", id, reason)
                self._lost.add(id)

    @property
    def wants_bodies(self) -> bool:
        """Whether compaction waits for bodies to be read back."""
        return bool(self._wants_read)

    def read_for_compaction(self) -> Read | None:
        """What reads back the bodies that compaction waits for; None if it waits for none.

        Once that is reported, `compact` is to be called with READ_AT_ONCE, before they are let go again.
        """
        wanted, self._wants_read = self._wants_read, []
        return self.read(wanted) if wanted else None

    # Compaction and upkeep

    def compact(self, budget: int) -> bool:
        """Copy live jobs out of the oldest segments, about *budget* bytes, if that is due; return if more is."""
        while budget > 0:
            if self.trouble is not None:
                return False
            oldest = next(iter(self._segments.values()))
            if oldest in self._unsafe:
                return False
            if not oldest.live_count:
                self._condemn(oldest)
            elif self.is_full and self._condemned:
                return False  # the room left takes one segment's copy; first the one before has to go
            elif self._wants_compaction() and (cost := self._migrate_next(oldest)):
                budget -= cost
            else:
                return False
        return True

    def _wants_compaction(self) -> bool:
        """Whether more is dead than live; what is left up to the bound takes copies and what is written meanwhile."""
        dead = self._bytes_recorded() - self._live_bytes
        return dead > self._live_bytes or (self.is_full and dead > self._max_size // 8)

    def _migrate_next(self, oldest: Segment) -> int:
        """Look at the next job of *oldest*, copy it to the newest segment if it is live; return what it cost.

        That is nothing if its body has to be read back before.
        """
        job = self._jobs.get(oldest.ids[oldest.cursor])
        if job is None or job.segment != oldest.number:
            oldest.cursor += 1
            return LOOK_COST
        if job.body is None:
            self._wants_read = [] if job.id in self._lost else self._next_on_disk(oldest)
            return 0
        oldest.cursor += 1
        self._forget_copy(job)
        self._records_migrated += 1
        return self._add_copy(job)

    def _next_on_disk(self, oldest: Segment) -> list[Job]:
        """The jobs of *oldest* on disk alone that compaction comes to with the next READ_AT_ONCE bytes of a budget."""
        found, cost = [], 0
        for at in range(oldest.cursor, len(oldest.ids)):
            if cost >= READ_AT_ONCE:
                break
            job = self._jobs.get(oldest.ids[at])
            if job is None or job.segment != oldest.number:
                cost += LOOK_COST
                continue
            cost += record.recorded_size(job)
            if job.body is None and job.id not in self._lost:
                found.append(job)
        return found

    def _condemn(self, segment: Segment) -> None:
        """Have *segment*, the oldest or superseded, removed once the copies of its jobs are on disk."""
        del self._segments[segment.number]
        if self._to_let_go and self._to_let_go[0] == segment.number:
            self._to_let_go.popleft()
        self._finished_bytes -= segment.used
        self._condemned.append((self._sequence, segment))

    @property
    def wants_upkeep(self) -> bool:
        """Whether `upkeep` has something to do."""
        wants_more = len(self._ahead) < self._wanted_ahead() and not self.is_full
        return wants_more or bool(self._litter) or self._can_remove()

    def _can_remove(self) -> bool:
        """Whether the first condemned segment may be removed.

        Copies of its jobs are on disk then, and a later segment, whose header has the next id.
        """
        if not self._condemned:
            return False
        sequence, segment = self._condemned[0]
        return sequence <= self._on_disk and segment.number < self._newest_on_disk

    def _wanted_ahead(self) -> int:
        """So many that all DELETEs have room; and one more while the disk is full, to see if it still is."""
        return 1 + len(self._jobs) * record.DELETE_SIZE // self._max_size + self.is_full

    def upkeep(self, is_retry: bool = True) -> Upkeep | None:
        """What is to be made and removed now, or None. One at a time.

        While the disk is full, it is tried to make something if something is removed, or if *is_retry*.
        """
        to_remove, self._litter = self._litter, []
        while self._can_remove():
            to_remove.append(self._condemned.popleft()[1])
        to_make = []
        makes = is_retry or not self.is_full or to_remove
        for _ in range(len(self._ahead), self._wanted_ahead() if makes else 0):
            to_make.append(Segment(self._next_number, self._max_size))
            self._next_number += 1
        if not to_make and not to_remove:
            return None
        return Upkeep(self._files, to_make, to_remove, self.sync_interval is None)

    def kept(self, upkeep: Upkeep) -> None:
        """Note what *upkeep* has done."""
        made = [*self._ahead, *upkeep.made]
        self._ahead = deque(sorted([s for s in made if s.number > self._newest], key=_number_of))
        self._litter += [s for s in made if s.number <= self._newest]
        self._litter += upkeep.not_removed
        if upkeep.error is not None:
            self._note_full(upkeep.error)
        else:
            self._note_space()


def _positions(segment: Segment, wanted: Collection[int]) -> dict[int, int]:
    """Where among the JOB records of *segment*, which gets no more, the newest of each of the jobs *wanted* stands."""
    ids, found = segment.ids, dict[int, int]()
    if not segment.has_repeats:
        for id in wanted:
            at = bisect_left(ids, id)
            if at < len(ids) and ids[at] == id:
                found[id] = at
    if len(found) < len(wanted):  # copies, and what came in parts, stand out of order
        missing = set(wanted).difference(found)
        found |= {id: at for at, id in enumerate(ids) if id in missing}
    return found


def _neighbours(records: list[tuple[int, int, int, int]]) -> Iterator[list[tuple[int, int, int, int]]]:
    """*records*, which rise, in lots to be read in one go."""
    lot: list[tuple[int, int, int, int]] = []
    for one in records:
        if lot and (one[0] - lot[-1][0] - lot[-1][1] > GAP_AT_MOST or one[0] + one[1] - lot[0][0] > LOT_AT_MOST):
            yield lot
            lot = []
        lot.append(one)
    if lot:
        yield lot


def create_ahead(files: Files, segment: Segment) -> None:
    """Make the file of *segment*; raise OSError if that leaves too little of the disk for others than puts."""
    if files.free() < (1 + SPARE_SEGMENTS) * segment.capacity:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} beside what compaction needs")
    segment.handle = files.create(name_of(segment.number), segment.capacity)


def _timed_sync(files: Files, handle: int) -> int:
    """Sync a file; return what that took, nanoseconds. Blocks; raises OSError."""
    began = time.perf_counter_ns()
    files.sync(handle)
    return time.perf_counter_ns() - began


def _number_of(segment: Segment) -> int:
    return segment.number
