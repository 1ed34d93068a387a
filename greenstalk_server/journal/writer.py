"""The journal on disk: segments, group commit, compaction, and what happens when the disk fails.

The broker appends records; they collect in memory, encoded. Whoever serves (the committer) takes a batch of
them, runs it, which writes and syncs, in a thread or not, and reports back; then the replies may leave. All
but `Batch.run` and `Upkeep.run` belongs to the thread of the broker, and none of that touches the disk, save
`put` when the room made ahead has run out.

Segments leave in the order they came: only the oldest is ever removed, once no job has its newest JOB record
in it. So an UPDATE or a DELETE never outlives a JOB record that it is about. Compaction copies the live jobs
of the oldest segment to the newest, a slice at a time, when there is more than twice as much on disk as live.

Room. Segments are allocated before they are used, enough of them for a DELETE of every live job, and only
while SPARE_SEGMENTS of the disk stay free beside them. So a full disk stops puts, and every other command
continues. On a full disk a copy is never larger than the record that it replaces: it omits the oldest events.
Invariant: a batch begins a segment only if the room of one segment remains for compaction (`_compaction_room`).

Ids. Where replies do not wait for a sync, a loss of power may take jobs whose ids clients know. So ids are set aside in
blocks: the header of each segment, or an IDS record, names the end of the block, and the next block is recorded when
half of one is used. A batch with an id beyond the last block known to be on disk is synced before its replies leave.
Invariant: an id that a client knows is below a next id that is on disk.

Failure. Three kinds, each with its own consequence:
- A segment cannot be allocated. Nothing is in doubt: the batch ends before that segment, and the records that
  it did not write are discarded and rewritten (see below). This is the normal state of a full disk under load.
- A write or a sync fails. What that segment holds is unknown, so every job with a record in it is rewritten;
  nothing is acknowledged and no put is accepted until then. The segments before it are on disk whole.
- Upkeep fails: a file cannot be made ahead or removed. It is retried every second.

Rewriting. `rewrite` records the present state of the jobs concerned from memory. If that does not fit, it works
in steps, each on disk before the next: it first copies the jobs that have no JOB record on disk, then evacuates
the oldest segments one by one, each removed before the next is copied. A step never needs more room than the
invariant above keeps, and each evacuated segment takes its jobs off the list, so rewriting ends.
A step is planned and encoded in slices, and commands run between two slices. `Limbo` notes the jobs that they change;
these are rewritten by a later step. Invariant: the last step takes a single slice, so nothing changes during it.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from greenstalk_server.core import job_history
from greenstalk_server.core.body_cache import SMALL, Bodies, held_body
from greenstalk_server.core.job import Job
from greenstalk_server.core.journal import JournalStats
from greenstalk_server.core.tube import Tube
from greenstalk_server.journal import record
from greenstalk_server.journal.files import Files
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.segment import Limbo, Segment, Unwritten, name_of

log = logging.getLogger(__name__)

SMALLEST_SEGMENT: Final = 4096
"""A segment holds at least its header and some records, whatever -s says."""

SMALLEST_FIRST_SEGMENT: Final = 16384
"""What a start on a full disk makes do with, bytes."""

SEGMENT_OVERHEAD: Final = record.SEGMENT_HEADER_SIZE + record.UPDATE_SIZE
"""Bytes of a segment that no record takes: its header, and what is left when the next record does not fit."""

SPARE_SEGMENTS: Final = 1.5
"""What is left free of the disk for others than puts: the copy of one segment, and releases meanwhile."""

PUTS_ARE_REFUSED: Final = "puts return OUT_OF_MEMORY until it works"
PUTS_WILL_BE_REFUSED: Final = "puts return OUT_OF_MEMORY once the room in existing files is used"

UNFINISHED: Final = 3
"""Segments, about, whose bodies stay in memory until they are on disk whole."""

READ_AT_ONCE: Final = 2**18
"""Bytes of a budget of compaction whose bodies are read back in one go."""

REWRITE_BODIES: Final = 2**24
"""Bytes of bodies of jobs on finished segments that a rewrite records whole; of further jobs it records the changes."""

REWRITE_SLICE: Final = 2048
GATHER_COST: Final = 64
PLAN_COST: Final = 3
ENCODE_COST: Final = 8
BYTES_PER_COST: Final = 512
"""Work after which a rewrite lets other greenlets run, about 1 ms, and its parts: GATHER_COST for each GATHERED ids,
PLAN_COST for each time that a job is looked at, ENCODE_COST for a record and 1 for each BYTES_PER_COST of it."""

GATHERED: Final = 1024
"""Ids of jobs that a rewrite puts on its list at a time."""

BLOCK: Final = 4096
"""Bytes that a file system allocates at a time."""

SEGMENTS_PER_DISK: Final = 8
"""A disk holds at least this many segments; on a small disk they are smaller than -s."""

FULL_LOG_INTERVAL: Final = 10.0
"""Seconds for which a disk must have had space before the log says so."""

MARGIN: Final = 4 * BLOCK
"""Bytes that a rewrite counts as used, once more after each allocation that failed though the disk claimed room."""

OVERHEAD: Final = 2.5
"""Bytes of the directory for each byte of live jobs, beside three segments."""

OUTSTANDING_SHARE: Final = 4
"""Compaction's copies take at most this part of the free bytes before their originals are removed, or a segment."""

UNMEASURED: Final = 2**62
"""Stands for the free bytes of a disk outside a rewrite, when nobody has measured them."""

NEVER: Final = 2**63
"""Above every sequence number."""

LACK_OF_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)

GAP_AT_MOST: Final = 65536
LOT_AT_MOST: Final = 4 * 2**20
"""Bytes between two records that are read in one go, and in all of such a lot."""

ID_BLOCK: Final = 32768
"""Ids set aside at once, unless each put is synced. A start after a crash skips those that were not used.

Half a block lasts for 0.2 s at 80,000 puts a second, so the record of the next one is on disk in time."""

LARGE_BODY: Final = 16384
"""Bytes; a larger body is written from where it is, and its checksum is computed then. A smaller one is copied."""

LOOK_COST: Final = 64
"""Bytes of a budget that compaction pays for looking at a job that has gone, which takes about a microsecond."""


class Batch:
    """Records to be written, and perhaps synced; made by `Binlog.take`, run anywhere, reported by `Binlog.done`.

    sequence    of the last record it holds.
    size        bytes it writes.
    ids         the new jobs in it.
    is_synced   whether its records are on disk once it has run.
    next_id     above all ids set aside so far.
    sync_times  nanoseconds that each completed sync took.
    finished    segments that are full and on disk whole.
    is_short    it stopped because a segment could not be allocated; what it has written is sound.
    """

    __slots__ = (
        "_files",
        "_is_never_synced",
        "_kept",
        "_parts",
        "_room_ahead",
        "finished",
        "ids",
        "is_short",
        "is_synced",
        "next_id",
        "sequence",
        "size",
        "sync_times",
    )

    def __init__(
        self,
        files: Files,
        parts: list[tuple[Segment, Unwritten, bool, int]],
        sequence: int,
        ids: set[int],
        is_synced: bool,
        is_never_synced: bool,
        next_id: int,
        kept: int,
        room_ahead: int,
        size: int,
    ) -> None:
        """*parts* are segments, the records to append, whether the segment is full then, and bytes of copies in them.

        *kept* is how many bytes, less these copies, must remain to be written elsewhere when a segment is begun: free
        ones of the disk, or the *room_ahead* in files that the batch does not use.
        """
        self._files: Files = files
        self._parts: list[tuple[Segment, Unwritten, bool, int]] = parts
        self._is_never_synced: bool = is_never_synced and not is_synced
        self._kept: int = kept
        self._room_ahead: int = room_ahead
        self.is_synced: bool = is_synced
        self.next_id: int = next_id
        self.sequence: int = sequence
        self.ids: set[int] = ids
        self.size: int = size
        self.sync_times: list[int] = []
        self.finished: list[Segment] = []
        self.is_short: bool = False

    @property
    def segments(self) -> list[Segment]:
        """The segments it writes to."""
        return [segment for segment, _, _, _ in self._parts]

    def run(self) -> None:
        """Write and sync. Raises OSError; unless `is_short`, the content of the first unfinished segment is unknown.

        A segment is on disk whole before the next one gets its first byte: so only the newest can be torn.
        """
        kept = self._kept
        for index, (segment, records, is_full, copies) in enumerate(self._parts):
            kept -= copies
            try:
                if not segment.is_begun:
                    self._allocate(segment, kept if index else 0)
                self._write(segment, records.encode())
                if is_full:
                    self._finish(segment)
                elif self.is_synced and segment.handle is not None:
                    self.sync_times.append(_timed_sync(self._files, segment.handle))
            except OSError as error:
                if error.errno is not None:  # else it is one of the database's, and its text has no place for a file
                    error.filename = error.filename or name_of(segment.number)
                raise

    def _allocate(self, segment: Segment, kept: int) -> None:
        """Allocate all bytes of *segment*; if that fails or leaves less than *kept*, set `is_short`, raise OSError."""
        self.is_short = True
        lacking = segment.capacity - segment.allocated
        if kept > 0 and self._files.free() - lacking + self._room_ahead < kept:
            raise no_spare()
        if segment.handle is None:
            create(self._files, segment)
        elif lacking > 0:
            self._files.grow(segment.handle, segment.capacity)
            segment.allocated = segment.capacity
        self.is_short = False

    def _write(self, segment: Segment, pieces: list[bytes]) -> None:
        assert segment.handle is not None
        if not segment.is_listed and not self._is_never_synced:
            self._files.sync_directory()
            segment.is_listed = True
        if pieces:
            segment.is_begun = True
            self._files.write(segment.handle, segment.written, pieces)
            segment.written += sum(map(len, pieces))

    def _finish(self, segment: Segment) -> None:
        assert segment.handle is not None
        self._files.truncate(segment.handle, segment.written)
        if not self._is_never_synced:
            self.sync_times.append(_timed_sync(self._files, segment.handle))
        self._files.close(segment.handle)
        segment.handle = None
        self.finished.append(segment)


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
        name, begin = name_of(number), records[0][0]
        _, size, body_size, id = records[0]
        if body_size > LARGE_BODY and len(records) == 1:  # read without a copy, which would hold the GIL
            start = self._files.read_at(name, begin, size - body_size)
            body = self._files.read_at(name, begin + size - body_size, body_size)
            self._take(start, body, size, id, seed, f"{name}: the record at offset {begin} is damaged")
            return
        data = self._files.read_at(name, begin, records[-1][0] + records[-1][1] - begin)
        for at, size, body_size, id in records:
            body_at, end = at + size - body_size - begin, at + size - begin
            damage = f"{name}: the record at offset {at} is damaged"
            self._take(data[at - begin : body_at], data[body_at:end], size, id, seed, damage)

    def _take(self, start: bytes, body: bytes, size: int, id: int, seed: int, damage: str) -> None:
        """Note *body* if it follows *start* in a sound record of *size*, else *damage*."""
        if record.is_job(start, body, size, id, seed):
            self.bodies[id] = body
        else:
            self.errors[id] = damage


class Upkeep:
    """Files to be made ahead and removed; made by `Binlog.upkeep`, run in a thread, reported by `Binlog.kept`.

    made            segments that have their file now.
    not_removed     segments that may still have their file.
    free            bytes of the disk that are free after it.
    doing           the operation that failed, and what follows from that.
    error           why it failed, or None.
    """

    __slots__ = (
        "_files",
        "_has_ahead",
        "_is_never_synced",
        "_spare",
        "_to_make",
        "_to_remove",
        "doing",
        "error",
        "free",
        "made",
        "not_removed",
    )

    def __init__(
        self,
        files: Files,
        to_make: list[Segment],
        to_remove: list[Segment],
        is_never_synced: bool,
        spare: int,
        *,
        has_ahead: bool,
    ) -> None:
        """*spare* bytes of the disk stay free beside what is made, but for the first one unless it *has_ahead* one."""
        self._files: Files = files
        self._is_never_synced: bool = is_never_synced
        self._spare: int = spare
        self._has_ahead: bool = has_ahead
        self._to_make: list[Segment] = to_make
        self._to_remove: list[Segment] = to_remove
        self.made: list[Segment] = []
        self.not_removed: list[Segment] = list(to_remove)
        self.free: int = 0
        self.doing: str = ""
        self.error: OSError | None = None

    def run(self) -> None:
        """Remove, then make. Blocks; never raises OSError."""
        try:
            for segment in self._to_remove:
                self.doing = f"cannot remove {name_of(segment.number)}: %s; its space stays in use"
                self._remove(segment)
                self._sync_directory()  # else a crash may bring a job back, and not the DELETE in the next one
                self.not_removed.remove(segment)
            for segment in self._to_make:
                self.doing = f"cannot allocate {name_of(segment.number)}: %s; {PUTS_WILL_BE_REFUSED}"
                self._make(segment)
            self.doing = f"cannot sync the directory: %s; {PUTS_WILL_BE_REFUSED}"
            self._sync_directory()
            for segment in self.made:
                segment.is_listed = not self._is_never_synced
            self.free = self._files.free()
        except OSError as error:
            self.error = error

    def _make(self, segment: Segment) -> None:
        """Make *segment*; raise OSError if the disk keeps too little free beside it, or cannot hold it."""
        is_roomy = has_spare(self._files, segment, self._spare)
        if is_roomy or not (self._has_ahead or self.made):
            create(self._files, segment)
            self.made.append(segment)
        if not is_roomy:
            raise no_spare()

    def _sync_directory(self) -> None:
        if not self._is_never_synced:
            self._files.sync_directory()

    def _remove(self, segment: Segment) -> None:
        handle, segment.handle = segment.handle, None
        if handle is not None:
            self._files.close(handle)
        with suppress(FileNotFoundError):
            self._files.remove(name_of(segment.number))


class Step:
    """One step of a rewrite.

    copies      jobs to be recorded whole.
    changes     jobs whose JOB record is on disk, of which the rest is recorded, and the last event.
    deletes     ids of jobs that were deleted.
    is_last     nothing remains to be rewritten after it, unless commands run meanwhile.
    """

    __slots__ = ("changes", "copies", "deletes", "is_last")

    def __init__(self, copies: list[Job], changes: list[Job], deletes: list[int], *, is_last: bool) -> None:
        self.copies: list[Job] = copies
        self.changes: list[Job] = changes
        self.deletes: list[int] = deletes
        self.is_last: bool = is_last


class Meter:
    """Counts the work of one attempt at a step of a rewrite.

    is_sliced   other greenlets have run since the attempt began.
    """

    __slots__ = ("_left", "is_sliced")

    def __init__(self) -> None:
        self._left: int = REWRITE_SLICE
        self.is_sliced: bool = False

    def is_due(self, cost: int) -> bool:
        """Count *cost*; return whether the slice ends here, and the caller must yield."""
        self._left -= cost
        if self._left > 0:
            return False
        self._left = REWRITE_SLICE
        self.is_sliced = True
        return True


class Binlog:
    """The journal of one directory.

    promised    sequence number of the last record whose reply has to wait for it.
    safe        sequence number up to which records are as durable as was asked for.
    trouble     why puts are refused and nothing is acknowledged until the next retry succeeds, or None.
    wants_rewrite   records were discarded or are in doubt: until `rewrite` has restored them nothing is safe.
    is_full     the disk had no room for a segment ahead.
    refusal     why a segment could not be made the last time.
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
        self.wants_rewrite: bool = False
        self.is_full: bool = False
        self.refusal: str = ""
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
        self._highest_begun: int = 0
        self._current: Segment = Limbo()
        self._unsafe: list[Segment] = [self._current]
        self._ahead: deque[Segment] = deque()
        self._condemned: deque[tuple[int, Segment]] = deque()
        self._litter: list[Segment] = []
        self._largest: int = 0
        self._upkeep_error: str = ""
        self._full_at: float | None = None
        self._superseded: list[Segment] = []
        self._new_ids: set[int] = set()
        self._failed: deque[Segment] = deque()
        self._to_rewrite: dict[int, None] = {}
        self._tubes_to_rewrite: set[bytes] = set()
        self._rewrite_from: int = 0
        self._is_rewriting: bool = False
        self._steps_left: int = 0
        self._outstanding: int = 0
        self._known_free: int = 0
        self._free: int = UNMEASURED
        self._margin: int = 0
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

        *jobs* and *tubes* are the broker's tables; it reads them when it copies or rewrites. *bodies*, if there is
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
            segment.has_file = True
            self._to_let_go.append(segment.number)
            self._segments[segment.number] = segment
            self._finished_bytes += segment.used
            self._largest = max(self._largest, segment.used)
        for job in jobs.values():
            size = record.recorded_size(job)
            self._segments[job.segment].live_bytes += size
            self._live_bytes += size
        self._next_number = recovery.highest_number + 1
        self._max_size = self._fitting_size()
        self._unsafe.clear()
        if bodies is not None:
            bodies.margin = max(bodies.margin, UNFINISHED * self._max_size)
        self._make_first()
        self._begin_segment(0)
        if recovery.is_import_open:
            self.mark(record.IMPORT_UNDO)

    def _fitting_size(self) -> int:
        """The size of a segment: -s, or less where the disk would not hold SEGMENTS_PER_DISK of them; raise OSError."""
        self._known_free = self._files.free()
        share = (self._known_free + self._finished_bytes) // SEGMENTS_PER_DISK
        return min(self._max_size, max(SMALLEST_SEGMENT, share // BLOCK * BLOCK))

    # What the broker tells

    def put(self, job: Job) -> bool:
        """Record *job*; False if there is no room for it and its DELETE on the disk, or the disk fails."""
        size = record.job_size(job)
        if job.id < self._ids_wanted_at:
            if not self._has_room(size):
                return False
        elif not self._has_room(record.IDS_SIZE + size) or not self._set_ids_aside(job.id):
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

    def release_ids(self) -> bool:
        """Record that the ids set aside were not given, so that the next start gives them; False if there are none.

        For an orderly stop, when nothing is to be rewritten.
        """
        if self._ids_end <= self._next_id:
            return False
        self._add_ids(self._next_id)
        self._ids_end_on_disk = min(self._ids_end_on_disk, self._ids_end)
        return True

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
        """Whether a batch has anything to write, or to sync so that a segment can be removed."""
        return (self._sequence > self._written or self._must_sync) and not self.wants_rewrite

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
        return self._written > self._on_disk and not self.wants_rewrite

    def take(self, is_synced: bool) -> Batch:
        """Return all records not written yet, as a batch to be written, and synced if asked for or needed.

        One batch at a time. That of a rewrite is always synced, since what it replaces is removed after it.
        """
        size, parts, copies = 0, [], 0
        for segment in self._unsafe:
            if segment.number:
                parts.append((segment, segment.take(), segment is not self._current, segment.pending_copies))
                size += segment.used - segment.written
                copies += segment.pending_copies
                segment.pending_copies = 0
        return Batch(
            self._files,
            parts,
            self._sequence,
            self._new_ids.copy(),
            is_synced or self.wants_rewrite or self._must_sync,
            self.sync_interval is None,
            self._ids_end,
            self._compaction_room(copies) if len(parts) > 1 and not self.wants_rewrite else 0,
            sum([segment.capacity for segment in self._ahead]),
            size,
        )

    def done(self, batch: Batch) -> None:
        """Note that *batch* has run."""
        self._note_finished(batch)
        for segment in batch.segments:
            segment.is_proven = True
        self._ids_end_written = batch.next_id
        if batch.is_synced:
            self._synced_at = time.monotonic()
            self._note_on_disk(batch.segments[-1].number, batch.next_id)
        if self.wants_rewrite:
            if self._current.number == 0:
                self._note_step()
                return
            self._end_rewrite(batch)
        self._written = batch.sequence
        if batch.is_synced or self.sync_interval is None:
            self._on_disk = batch.sequence
        self.safe = batch.sequence
        self._new_ids -= batch.ids

    def _note_finished(self, batch: Batch) -> None:
        """Note which segments *batch* has finished, and what its syncs took."""
        for taken in batch.sync_times:
            self._count_sync(taken)
        is_on_disk = batch.is_synced or self.sync_interval is not None
        for segment in batch.finished:
            self._unsafe.remove(segment)
            if is_on_disk:
                self._newest_on_disk = max(self._newest_on_disk, segment.number)
            segment.touched = None
            self._finished_bytes += segment.used
            self._largest = max(self._largest, segment.used)
            self._on_disk = max(self._on_disk, segment.last_sequence)
            self._written = max(self._written, self._on_disk)
            if self._bodies is not None:
                self._to_let_go.append(segment.number)
        if batch.finished and self.wants_rewrite:
            self._rewrite_from = self._on_disk + 1

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

    def failed(self, error: OSError, batch: Batch | None = None) -> None:
        """Note that *batch*, or a sync, has failed: until a rewrite is complete, nothing more is safe."""
        is_short = batch is not None and batch.is_short
        if batch is not None:
            self._note_finished(batch)
        if is_short and not self.wants_rewrite and error.errno in LACK_OF_ROOM:
            self._note_full(error)
        else:
            self._note_trouble(str(error))
        if is_short and self.wants_rewrite:
            self._margin += MARGIN
        if not self.wants_rewrite:
            self._condemned = deque([(at if at <= self._on_disk else NEVER, one) for at, one in self._condemned])
        self.wants_rewrite = True
        self._rewrite_from = min(self._rewrite_from or NEVER, self._on_disk + 1)
        self._steps_left = len(self._segments)
        self._forget_outstanding()
        for segment in self._unsafe:
            if segment.is_begun:
                self._highest_begun = segment.number
            if segment.number:
                self._abandon(segment)
            self._failed.append(segment)
        self._newest = max([self._highest_begun, *self._segments])
        self._current = Limbo()
        self._unsafe = [self._current]

    def _note_trouble(self, reason: str) -> None:
        if self.trouble is None:
            log.error("journal: %s; nothing is acknowledged, puts return OUT_OF_MEMORY; retried every second", reason)
        self.trouble = reason

    def _abandon(self, segment: Segment) -> None:
        """Leave *segment* as it is. Nothing was promised on one that no batch has worked on, which is not kept."""
        if segment.is_proven:
            segment.take()
            self._rewrite_from = min(self._rewrite_from, segment.first_sequence)
            self._superseded.append(segment)
            segment.used = max(segment.used, segment.allocated)  # bytes of the disk that it takes, as it is not cut
            self._finished_bytes += segment.used
            return
        del self._segments[segment.number]
        if segment.has_file and (segment.handle is None or segment.is_begun):
            self._litter.append(segment)

    def rewrite(self) -> Generator[None, None, bool]:
        """Record the next step of the rewrite, for the next batch to write; return False if no step has room.

        It yields after each slice, and commands may run then; nothing else of the rewrite, and no batch. If
        `wants_bodies` is set after it has returned False, the bodies are to be read back before another attempt.
        """
        self._is_rewriting = True
        try:
            meter = Meter()
            yield from self._gather(meter)
            self._free = self._measure_free()
            step = yield from self._next_step(meter)
            if step is not None:
                self._steps_left -= 1
                yield from self._record(step, meter)
                return True
            if not self._wants_read:
                self._steps_left = len(self._segments)
                self._note_trouble(str(no_spare()))
            return False
        finally:
            self._is_rewriting = False

    def _gather(self, meter: Meter) -> Generator[None, None, None]:
        """List what is to be rewritten: all that the failed segments hold, and all that has changed since.

        A failed segment without a byte in its file is used again.
        """
        while self._failed:
            yield from self._gather_from(self._failed[0], meter)
            segment = self._failed.popleft()
            if not segment.is_proven and segment.handle is not None and not segment.is_begun:
                yield from self._forget_number(segment, meter)
                self._ahead = deque(sorted([*self._ahead, segment.unused()], key=_number_of))
        yield from self._gather_from(self._current, meter)

    def _gather_from(self, segment: Segment, meter: Meter) -> Generator[None, None, None]:
        """List what *segment* has records of."""
        touched, segment.touched = segment.touched or (), array("Q")
        self._tubes_to_rewrite |= segment.touched_tubes
        segment.touched_tubes = set()
        for begin in range(0, len(touched), GATHERED):
            self._to_rewrite.update(dict.fromkeys(touched[begin : begin + GATHERED]))
            if meter.is_due(GATHER_COST):
                yield

    def _forget_number(self, segment: Segment, meter: Meter) -> Generator[None, None, None]:
        """Note that *segment* holds no job: another one may get its number."""
        for id in segment.ids:
            job = self._jobs.get(id)
            if job is not None and job.segment == segment.number:
                job.segment = 0
            if meter.is_due(PLAN_COST):
                yield

    def _record(self, step: Step, meter: Meter) -> Generator[None, None, None]:
        """Record *step*. What commands change between two slices is noted by Limbo, and not numbered by the step."""
        limbo, numbered = self._current, self._sequence
        self._unsafe.clear()
        self._begin_segment(0, self._rewrite_from)
        for cost in self._records_of(step):
            if meter.is_due(cost):
                segment, sequence = self._current, self._sequence
                self._current, self._sequence = limbo, numbered
                self._unsafe.append(limbo)
                yield
                self._unsafe.remove(limbo)
                numbered = self._sequence
                self._current, self._sequence = segment, sequence
        if meter.is_sliced or not step.is_last:
            self._current.last_sequence = self._sequence
            self._sequence = max(self._sequence, numbered)
            self._current = limbo
            self._unsafe.append(limbo)

    def _records_of(self, step: Step) -> Iterator[int]:
        """Add the records of *step*, and take what they are about off the list; yield the cost of each.

        Jobs that were deleted since it was planned are left to a later step.
        """
        for tube in self._tubes_of_rewrite():
            self._add_pause(tube, self._room(record.pause_size(tube)))
            self._tubes_to_rewrite.discard(tube.name)
            yield ENCODE_COST
        for id in step.deletes:
            segment = self._room(record.DELETE_SIZE)
            self._sequence += 1
            segment.add(segment.encoder.delete(id, self._sequence), id)
            self._to_rewrite.pop(id, None)
            yield ENCODE_COST
        for job in step.copies:
            self._to_rewrite.pop(job.id, None)
            if self._jobs.get(job.id) is job:
                self._forget_copy(job)
                yield ENCODE_COST + self._add_copy(job) // BYTES_PER_COST
        for job in step.changes:
            self._to_rewrite.pop(job.id, None)
            if self._jobs.get(job.id) is job:
                self._add_change(job)
                yield ENCODE_COST

    def _next_step(self, meter: Meter) -> Generator[None, None, Step | None]:
        """Choose what to rewrite next; None if there is no room, or if bodies have to be read back."""
        kept = self._compaction_room()
        homeless: list[Job] = []  # without a JOB record on disk
        whole: list[Job] = []
        changed: list[Job] = []
        wanted: list[Job] = []  # as `whole`, but without a body in memory
        deletes: list[int] = []
        size = 0
        for id in self._to_rewrite:
            job = self._jobs.get(id)
            if job is None:
                deletes.append(id)
            elif not self._is_finished(job.segment):
                homeless.append(job)
            else:
                is_whole = size < REWRITE_BODIES and id not in self._lost
                size += job.size if is_whole else 0
                (changed if not is_whole else whole if job.body is not None else wanted).append(job)
            if meter.is_due(PLAN_COST):
                yield
        if wanted:
            self._wants_read = wanted
            return None
        step = Step([*homeless, *whole], changed, deletes, is_last=True)
        if (yield from self._fits(step, kept, meter)):
            return step
        self._note_full(no_spare())
        smallest = Step(homeless, [*whole, *changed], deletes, is_last=True)
        if (yield from self._fits(smallest, kept, meter)):
            return smallest
        if homeless:
            return (yield from self._fitting(homeless, deletes, meter))
        oldest = self._evacuable()
        if oldest is not None and self._steps_left > 0:
            live = yield from self._live_in(oldest, meter)
            self._wants_read = [job for job in live if job.body is None]
            if not self._wants_read:
                return (yield from self._fitting(live, deletes, meter))
            if self._lost.isdisjoint([job.id for job in self._wants_read]):
                return None
            self._wants_read = []
        return smallest if (yield from self._fits(smallest, 0, meter)) else None

    def _fitting(self, copies: list[Job], deletes: list[int], meter: Meter) -> Generator[None, None, Step | None]:
        """A step that is not the last, of *copies* and, if they have room, *deletes*; None if it has no room."""
        for some in (deletes, []):
            step = Step(copies, [], some, is_last=False)
            if (yield from self._fits(step, 0, meter)):
                return step
        return None

    def _evacuable(self) -> Segment | None:
        """The oldest segment, if it is on disk whole."""
        oldest = next(iter(self._segments.values()), None)
        return oldest if oldest is not None and oldest.touched is None else None

    def _live_in(self, segment: Segment, meter: Meter) -> Generator[None, None, list[Job]]:
        """The jobs that have their newest JOB record in *segment*."""
        found: dict[int, Job] = {}
        for id in segment.ids:
            job = self._jobs.get(id)
            if job is not None and job.segment == segment.number:
                found[id] = job
            if meter.is_due(PLAN_COST):
                yield
        return list(found.values())

    def _fits(self, step: Step, kept: int, meter: Meter) -> Generator[None, None, bool]:
        """Whether *step* has room, and *kept* bytes remain after it."""
        ahead, free, left = [segment.capacity for segment in self._ahead], self._free, -1
        header = self._header_size()
        for size in self._sizes_of(step):
            if size > left:
                planned = ahead.pop(0) if ahead else 0
                capacity = _enlarged(planned or self._new_capacity(free), header, size)
                free -= capacity - planned
                left = capacity - header
            left -= size
            if meter.is_due(PLAN_COST):
                yield
        return free >= 0 and free + sum(ahead) >= kept

    def _sizes_of(self, step: Step) -> Iterator[int]:
        """The bytes of each record of *step*, after a 0 for the segment that it begins."""
        yield 0
        for tube in self._tubes_of_rewrite():
            yield record.pause_size(tube)
        for _ in step.deletes:
            yield record.DELETE_SIZE
        for job in step.copies:
            yield record.job_size(job) + record.events_size(self._copied_events(job))
        for _ in step.changes:
            yield record.UPDATE_SIZE + record.RESERVE_SIZE

    def _tubes_of_rewrite(self) -> list[Tube]:
        """The tubes whose pause, or its end, is to be rewritten."""
        return [self._tubes.get(name) or Tube(name, self._jobs) for name in sorted(self._tubes_to_rewrite)]

    def _note_step(self) -> None:
        """Note that a step of the rewrite, not the last one, is on disk; what it replaces may go.

        Invariant: each step copies all jobs that have no JOB record on disk, so every job has one after it.
        """
        self._restamp(self._on_disk)
        while (oldest := self._evacuable()) is not None and not oldest.live_bytes and oldest.number != self._newest:
            self._condemn(oldest, self._on_disk)

    def _end_rewrite(self, batch: Batch) -> None:
        """Note that all that was to be rewritten is on disk; what it replaces may go."""
        self._restamp(batch.sequence)
        for segment in self._superseded:
            assert not segment.live_bytes
            self._condemn(segment, batch.sequence)
        self._superseded.clear()
        self._free, self._margin, self._rewrite_from = UNMEASURED, 0, 0
        self.wants_rewrite = False
        if self.trouble is not None:
            log.warning("journal: writes work again, and all records that the failed ones held are rewritten")
            self.trouble = None

    def _restamp(self, sequence: int) -> None:
        """Let the segments go whose copies the failure has taken, and which are on disk again with *sequence*."""
        self._condemned = deque([(min(at, sequence) if at == NEVER else at, one) for at, one in self._condemned])

    # Room

    def _has_room(self, size: int) -> bool:
        """Whether a record of *size* has room beside the DELETEs of all jobs; make a segment ahead if it lacks."""
        if self.wants_rewrite:
            return False
        left = self._current.capacity - self._current.used
        is_large = size > left and size > self._max_size - SEGMENT_OVERHEAD
        needed = (len(self._jobs) + 1) * record.DELETE_SIZE + (0 if is_large else 2 * size)
        if self.is_full:
            needed += max(self._max_size, self._largest)
        room = left + (len(self._ahead) - is_large) * (self._max_size - SEGMENT_OVERHEAD)
        while room < needed or (is_large and not self._ahead):
            if not self._make_ahead():
                return False
            room += self._max_size - SEGMENT_OVERHEAD
        if size > left and not self._may_begin():
            return False
        return not is_large or self._grow_ahead(size)

    def _may_begin(self) -> bool:
        """Whether a batch may begin the next segment: room for compaction remains, unless another program took it."""
        others = sum([segment.capacity for segment in list(self._ahead)[1:]])
        try:
            return self._files.free() + others >= self._compaction_room()
        except OSError:
            return False

    def _make_ahead(self) -> bool:
        """Make a segment ahead here and now; only if upkeep has been overtaken by a burst of puts."""
        segment = Segment(self._next_number, self._max_size)
        self._next_number += 1
        try:
            if not has_spare(self._files, segment, self._spare()):
                raise no_spare()
            create(self._files, segment)
        except OSError as error:
            if segment.has_file:
                self._litter.append(segment)
            self._note_upkeep_error(error, f"cannot allocate {name_of(segment.number)}: %s; {PUTS_ARE_REFUSED}")
            return False
        self._note_space()
        self._ahead.append(segment)
        return True

    def _make_first(self) -> None:
        """Make the segment to begin in, a smaller one if a whole one has no room; raise OSError if none has."""
        segment = Segment(self._next_number, self._max_size)
        self._next_number += 1
        free = self._files.free() - self._compaction_room()
        smallest = min(max(self._shown_max_size, SMALLEST_SEGMENT), SMALLEST_FIRST_SEGMENT)
        segment.capacity = max(smallest, min(self._max_size, free // BLOCK * BLOCK))
        while segment.handle is None:
            try:
                create(self._files, segment)
            except OSError:
                if segment.capacity <= smallest:
                    raise
                segment.capacity = max(segment.capacity // 2, smallest)
        self._ahead.append(segment)

    def _grow_ahead(self, size: int) -> bool:
        """Give the next segment room for a record of *size*, larger than most."""
        segment = self._ahead[0]
        assert segment.handle is not None
        size += SEGMENT_OVERHEAD
        if segment.capacity < size:
            try:
                if self._files.free() - (size - segment.capacity) < self._spare(size):
                    raise no_spare()
                self._files.grow(segment.handle, size)
            except OSError as error:
                self._note_upkeep_error(error, f"cannot extend {name_of(segment.number)}: %s; the put is refused")
                return False
            segment.capacity = segment.allocated = size
        return True

    def _spare(self, size: int = 0) -> int:
        """Bytes of the disk that stay free beside segments made ahead, of which one has *size* bytes."""
        return int(SPARE_SEGMENTS * max(size, self._max_size, self._largest))

    def _compaction_room(self, pending: int = 0) -> int:
        """Bytes that must remain to copy one segment, less what copies have taken, of which *pending* are unwritten."""
        copied = self._outstanding - pending
        return max(0, max(self._max_size, self._largest) + self._header_size() + BLOCK - copied)

    def _header_size(self) -> int:
        """Bytes that a segment begins with: its header, and the pauses of tubes."""
        pauses = sum([record.pause_size(tube) for tube in self._tubes.values() if tube.paused_until])
        return record.SEGMENT_HEADER_SIZE + pauses

    def _measure_free(self) -> int:
        """The free bytes of the disk that a rewrite may use."""
        try:
            return max(0, self._files.free() - self._margin)
        except OSError:
            return 0

    def _new_capacity(self, free: int) -> int:
        """The capacity of a new segment where *free* bytes are left for it."""
        return max(SMALLEST_SEGMENT, min(self._max_size, free // BLOCK * BLOCK))

    def _note_full(self, error: OSError) -> None:
        self.refusal = str(error)
        if self._full_at is None:
            log.error("journal: disk full: %s; puts return OUT_OF_MEMORY until space is available", error)
        self._full_at = time.monotonic()
        self.is_full = True

    def _note_space(self) -> None:
        self.is_full = False

    def _report_space(self) -> None:
        """Log the end of a full disk once it has lasted: under load a disk is full and not full many times a second."""
        if self._full_at is not None and not self.is_full and time.monotonic() - self._full_at > FULL_LOG_INTERVAL:
            log.warning("journal: space is available again; puts are accepted")
            self._full_at = None

    def _note_upkeep_error(self, error: OSError, message: str) -> None:
        """Log *message*, with the reason at its %s, unless upkeep has failed before and not worked since."""
        if error.errno in LACK_OF_ROOM:
            self._note_full(error)
            return
        self.refusal = message % error
        if not self._upkeep_error:
            log.error("journal: %s; retried every second", self.refusal)
        self._upkeep_error = self.refusal

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
            segment = Segment(self._next_number, self._new_capacity(self._free))
            self._next_number += 1
            self._free -= segment.capacity
        self._current.last_sequence = self._sequence
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
        segment.capacity = _enlarged(segment.capacity, segment.used, size)

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
        events = self._copied_events(job)
        size = record.job_size(job) + record.events_size(events)
        self._add_job(job, size, events)
        return size

    def _copied_events(self, job: Job) -> bytes:
        """The events that a copy of *job* contains."""
        events = record.events_of(job)
        return job_history.newest(events, job.events_recorded) if self.is_full else events

    def _add_job(self, job: Job, size: int, events: bytes = b"") -> None:
        """Record *job* whole, with *events*, in *size* bytes."""
        job.events_recorded = record.events_size(events)
        segment = self._room(size)
        self._sequence += 1
        if self._bodies is not None:
            segment.starts.append(segment.used)
        if job.size > LARGE_BODY:
            segment.add_large(segment.encoder.begin_job(job, self._sequence, events), held_body(job), job.id)
        else:
            segment.add(segment.encoder.job(job, self._sequence, events), job.id)
        segment.ids.append(job.id)
        segment.live_bytes += size
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
        size = record.recorded_size(job)
        self._live_bytes -= size
        segment = self._segments.get(job.segment)
        if segment is not None:
            segment.live_bytes -= size

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
        if bodies is None or self._is_rewriting:  # a rewrite has chosen jobs whose bodies are in memory
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
            if self.wants_rewrite:
                return False
            oldest = next(iter(self._segments.values()))
            if oldest in self._unsafe:
                return False
            if not oldest.live_bytes:
                self._condemn(oldest, self._sequence)
            elif self._condemned and (self.is_full or self._outstanding > self._outstanding_at_most()):
                return False  # the segments copied before have to be removed first, as the room is limited
            elif self._wants_compaction() and (cost := self._migrate_next(oldest)):
                budget -= cost
            else:
                return False
        return True

    def _outstanding_at_most(self) -> int:
        """How many bytes of copies there may be whose originals are still on disk."""
        return max(self._max_size, self._known_free // OUTSTANDING_SHARE)

    def _forget_outstanding(self) -> None:
        """Count no bytes as copied by compaction: a failure may have taken the copies."""
        self._outstanding = 0
        for segment in [*self._segments.values(), *[segment for _, segment in self._condemned]]:
            segment.copied = 0

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
        size = self._add_copy(job)
        oldest.copied += size
        self._outstanding += size
        self._current.pending_copies += size
        return size

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

    def _condemn(self, segment: Segment, sequence: int) -> None:
        """Have *segment*, the oldest or superseded, removed once the record *sequence* is on disk, and its copies."""
        del self._segments[segment.number]
        if self._to_let_go and self._to_let_go[0] == segment.number:
            self._to_let_go.popleft()
        self._finished_bytes -= segment.used
        if segment.used >= self._largest > self._max_size:
            self._largest = max([other.used for other in self._segments.values() if other.touched is None], default=0)
        self._condemned.append((sequence, segment))

    @property
    def is_over_bound(self) -> bool:
        """Whether the directory takes more than is promised: OVERHEAD times the live bytes, and three segments.

        Only while it can shrink: a segment waits to be removed, or compaction is due.
        """
        bound = OVERHEAD * self._live_bytes + 3 * max(self._max_size, self._largest)
        can_shrink = bool(self._condemned) or self._wants_compaction()
        return can_shrink and not self.is_remote and self._bytes_on_disk() > bound

    @property
    def wants_upkeep(self) -> bool:
        """Whether `upkeep` has something to do now; after an error it waits for a retry."""
        wants_more = len(self._ahead) < self._wanted_ahead() and not self.is_full
        return not self._upkeep_error and (wants_more or bool(self._litter) or self._can_remove())

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
        """Return what is to be made and removed now, or None. One at a time.

        After an error nothing is tried unless *is_retry*; on a full disk making is tried then, or after a removal.
        """
        self._report_space()
        if self._upkeep_error and not is_retry:
            return None
        to_remove, self._litter = self._litter, []
        while self._can_remove():
            segment = self._condemned.popleft()[1]
            self._outstanding -= segment.copied
            to_remove.append(segment)
        to_make = []
        makes = not self.wants_rewrite and (is_retry or not self.is_full or to_remove)
        for _ in range(len(self._ahead), self._wanted_ahead() if makes else 0):
            to_make.append(Segment(self._next_number, self._max_size))
            self._next_number += 1
        if not to_make and not to_remove:
            return None
        return Upkeep(
            self._files, to_make, to_remove, self.sync_interval is None, self._spare(), has_ahead=bool(self._ahead)
        )

    def kept(self, upkeep: Upkeep) -> None:
        """Note what *upkeep* has done."""
        made = [*self._ahead, *upkeep.made]
        self._ahead = deque(sorted([s for s in made if s.number > self._newest], key=_number_of))
        self._litter += [s for s in made if s.number <= self._newest]
        self._litter += upkeep.not_removed
        self._known_free = upkeep.free
        if upkeep.error is not None:
            self._note_upkeep_error(upkeep.error, upkeep.doing)
            return
        if self._upkeep_error:
            log.warning("journal: files can be made and removed again")
            self._upkeep_error = ""
        if upkeep.made:
            self._note_space()


def _enlarged(capacity: int, header: int, size: int) -> int:
    """The capacity of a segment that begins with *header* bytes and has room for *size* more, at least *capacity*."""
    return max(capacity, header + max(size, capacity // 4))


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


def has_spare(files: Files, segment: Segment, spare: int) -> bool:
    """Whether the disk keeps *spare* bytes free beside a file for *segment*; raise OSError."""
    return files.free() - segment.capacity >= spare


def no_spare() -> OSError:
    """The error of a segment that has no room beside what compaction needs."""
    return OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} beside what compaction needs")


def create(files: Files, segment: Segment) -> None:
    """Create the file of *segment*, with room for all of its capacity; raise OSError."""
    segment.has_file = True
    segment.handle = files.create(name_of(segment.number), segment.capacity)
    segment.allocated = segment.capacity


def _timed_sync(files: Files, handle: int) -> int:
    """Sync a file; return what that took, nanoseconds. Blocks; raises OSError."""
    began = time.perf_counter_ns()
    files.sync(handle)
    return time.perf_counter_ns() - began


def _number_of(segment: Segment) -> int:
    return segment.number
