"""The segments of a journal, and the records that are appended to the newest one.

`SegmentLog` is the state that the parts of the writer share. It does no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from greenstalk_server.core import job_attributes
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.body_cache import resident_body
from greenstalk_server.core.jobs.id_sequence import ID_END, ONE_SHARD, IdSequence
from greenstalk_server.core.jobs.job import DEFAULT_COLD_STATE, Job
from greenstalk_server.core.travel import NO_LOCATION, Location
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import record
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.segment import BLOCK, LARGE_BODY, DiscardingSegment, Segment, on_disk

MIN_SEGMENT: Final = 4096
"""Minimum capacity of a segment in bytes, regardless of -s: its header and a few records."""

SEGMENT_OVERHEAD: Final = record.SEGMENT_HEADER_SIZE + record.UPDATE_SIZE
"""Unusable bytes of a segment: its header, and its end when the next record does not fit."""

UNMEASURED: Final = 2**62
"""Value of `SegmentLog.free` outside a rewrite, when the free space of the disk does not matter."""

ID_BLOCK: int = 32768
"""Ids reserved at a time, unless each put is synced. After a crash, the unused ones are skipped.

Half a block lasts for 0.2 s at 80,000 puts a second, so the record of the next block is on disk in time. Not Final, so
that a test can change it in the compiled build.
"""


ADOPT_SLICE: Final = 1000
"""Jobs that one slice of `SegmentLog.adopt_slices` takes over: up to 2 ms, if all have attributes."""


class SegmentLog:
    """The segments of one directory, and counts of their records and bytes.

    jobs            the broker's table of jobs.
    tubes           the broker's table of tubes.
    policies        the broker's documents of policies, by name.
    keys            the broker's unique keys that outlive their jobs: job id and end, by tube and key.
    locations       the broker's table of the places of jobs that were here.
    entries         number of the segment with the newest record of each policy, pause, key and location, and bytes of
                    the record.
    groups          groups of jobs that may not be on disk yet: number of the last record and ids of the jobs.
    sequence        number of the last record.
    recovered_sequence  number of the last record found at startup; new records have higher numbers.
    on_disk         number of the last record that is known to be on disk.
    ids             the ids that the shard of the journal assigns. The next three fields ignore foreign ids.
    next_id         number above every job id assigned so far.
    ids_end         end of the reserved block of ids.
    ids_wanted_at   id at which the next block is to be reserved.
    segments        begun segments by number, ascending.
    current         the newest segment, which takes the next record.
    unsafe          segments that are not known to be fully on disk, oldest first; `current` is the last one.
    ahead           segments allocated ahead: their files exist, and have no records yet.
    surplus         former segments ahead, which the next batch of a rewrite removes before it creates files.
    pending_removal segments that nothing refers to, each with the number of the record that must be on disk before
                    its file is removed.
    orphaned        segments whose files are to be removed at the next maintenance: never used, abandoned after a failed
                    write, or not removed by the last maintenance.
    evictable       numbers of finished segments whose jobs may have bodies in memory, oldest first.
    next_number     number of the next new segment.
    newest          number of the newest segment that was begun.
    newest_on_disk  number of the newest segment of which a part is known to be on disk.
    max_size        bytes of a segment; a single large record may exceed it.
    largest         bytes of the largest finished segment.
    live_bytes      bytes of the newest JOB records of all jobs.
    finished_bytes  bytes of all finished segments.
    growth          highest `growth` of a segment.
    outstanding     bytes of copies by compaction whose originals are still on disk.
    free            bytes of the disk that new segments may take during a rewrite.
    is_full         the disk had no room to allocate a segment ahead.
    wants_rewrite   records were discarded or are in doubt; nothing is safe until a rewrite has restored them.
    pinned          numbers of the segments on disk with the last record of a job, policy, pause or key that has changed
                    since the step of the rewrite was planned. They must outlive the step, which may lack the change.
    keeps_positions bodies may be read back, so the position of each JOB record is kept.
    """

    def __init__(self, max_size: int, random_bytes: Callable[[int], bytes], *, reserves_ids: bool) -> None:
        """*max_size*: bytes of a segment. *reserves_ids*: replies may be sent before their ids are on disk."""
        self._random_bytes: Callable[[int], bytes] = random_bytes
        self._reserves_ids: bool = reserves_ids
        self.jobs: Mapping[int, Job] = {}
        self.tubes: dict[bytes, Tube] = {}
        self.policies: Mapping[str, bytes] = {}
        self.keys: Mapping[tuple[bytes, bytes], tuple[int, int]] = {}
        self.locations: Mapping[int, Location] = {}
        self.entries: dict[record.Entry, tuple[int, int]] = {}
        self.groups: deque[tuple[int, list[int]]] = deque()
        self.sequence: int = 0
        self.recovered_sequence: int = 0
        self.on_disk: int = 0
        self.next_id: int = 1
        self.ids_end: int = 1
        self.ids_wanted_at: int = 0 if reserves_ids else ID_END
        self.ids: IdSequence = ONE_SHARD
        self.segments: dict[int, Segment] = {}
        self.current: Segment = DiscardingSegment()
        self.unsafe: list[Segment] = [self.current]
        self.ahead: deque[Segment] = deque()
        self.surplus: list[Segment] = []
        self.pending_removal: deque[tuple[int, Segment]] = deque()
        self.orphaned: list[Segment] = []
        self.evictable: deque[int] = deque()
        self.next_number: int = 1
        self.newest: int = 0
        self.newest_on_disk: int = 0
        self.max_size: int = max(max_size, MIN_SEGMENT)
        self.largest: int = 0
        self.live_bytes: int = 0
        self.finished_bytes: int = 0
        self.growth: int = 0
        self.outstanding: int = 0
        self.free: int = UNMEASURED
        self.is_full: bool = False
        self.wants_rewrite: bool = False
        self.pinned: set[int] = set()
        self.keeps_positions: bool = False

    def adopt_slices(self, recovery: Recovery) -> Iterator[None]:
        """Take over the segments that *recovery* has replayed into `jobs`, and yield after each slice of jobs."""
        self.sequence = self.recovered_sequence = self.on_disk = recovery.sequence
        self.ids, self.next_id = recovery.ids, recovery.next_id
        for replayed in recovery.segments:
            segment = Segment(replayed.header.number, replayed.size)
            segment.used = segment.written = segment.allocated = replayed.size
            segment.ids, segment.starts, segment.has_repeats = replayed.ids, replayed.starts, replayed.has_repeats
            segment.has_file, segment.entries = True, replayed.entries
            self.segments[segment.number] = segment
            self._add_finished(segment)
        jobs = iter(self.jobs.values())
        while slice := list(islice(jobs, ADOPT_SLICE)):
            for job in slice:
                size = record.recorded_size(job)
                self.segments[job.segment].live_bytes += size
                self.live_bytes += size
                if job.cold is not DEFAULT_COLD_STATE:
                    self._note_growth(job, job_attributes.encode(job) + bytes(recovery.reservation_size(job.id)))
            yield
        entries: list[record.Entry] = [
            *recovery.policies,
            *recovery.pauses,
            *recovery.keys,
            *recovery.locations,
        ]
        for entry in entries:
            number, size = recovery.entries[entry]
            self._note_live(entry, self.segments[number], size)
        self.next_number = recovery.highest_number + 1
        self.unsafe.clear()

    def new_segment(self) -> Segment:
        """Return a segment with the next number, and without a file."""
        segment = Segment(self.next_number, self.max_size)
        self.next_number += 1
        return segment

    def add_ahead(self, created: list[Segment]) -> None:
        """Queue *created*, whose files exist, for use; orphan segments that are not above the newest begun one."""
        ahead = sorted([*self.ahead, *created], key=lambda segment: segment.number)
        self.ahead = deque([segment for segment in ahead if segment.number > self.newest])
        self.orphaned += [segment for segment in ahead if segment.number <= self.newest]

    def give_up_ahead(self) -> None:
        """Make the segments ahead surplus: new segments may take their bytes of the disk."""
        self.surplus += self.ahead
        self.free += sum([on_disk(segment.allocated) for segment in self.ahead])
        self.ahead.clear()

    def finish(self, segment: Segment) -> None:
        """Mark *segment* as finished: it is full, and completely on disk."""
        self.unsafe.remove(segment)
        self._add_finished(segment)
        self.on_disk = max(self.on_disk, segment.last_sequence)

    def _add_finished(self, segment: Segment) -> None:
        segment.touched = None
        self.finished_bytes += segment.used
        self.largest = max(self.largest, segment.used)
        if self.keeps_positions:
            self.evictable.append(segment.number)

    def has_room(self, size: int) -> bool:
        """Return whether the current segment has room for a record of *size* bytes, and then for a DELETE of every job.

        The DELETEs may also go to the segments ahead.
        This is a fast path of `Space.has_room` for the common case. It returns False on a full disk, before a rewrite,
        and while the file of the current segment is not allocated.
        """
        current = self.current
        left = current.capacity - current.used
        if size > left or self.is_full or self.wants_rewrite or current.allocated < current.capacity:
            return False
        room = left + len(self.ahead) * (self.max_size - SEGMENT_OVERHEAD)
        return room >= (len(self.jobs) + 1) * record.DELETE_SIZE + 2 * size

    def room_for(self, size: int) -> Segment:
        """Return the segment for a record of *size* bytes; begin the next one if the current one is too full."""
        if self.current.used + size > self.current.capacity:
            self.begin_segment(size)
        return self.current

    def begin_segment(self, size: int, first_sequence: int = 0) -> None:
        """Make the next segment the current one, with room for *size* bytes.

        *first_sequence*: number of the first record that it rewrites, 0 if it rewrites none.
        """
        if self.ahead:
            segment = self.ahead.popleft()
        else:
            segment = Segment(self.next_number, self.new_capacity(self.free))
            self.next_number += 1
        self.current.last_sequence = self.sequence
        if self.current.used == record.SEGMENT_HEADER_SIZE:  # the current segment has no records
            first_sequence = self.current.first_sequence
        if self.next_id >= self.ids_wanted_at:
            self.reserve_ids(self.next_id)
        next_id = max(self.next_id, self.ids_end)
        segment.begin(self._random_bytes(4), first_sequence or self.sequence + 1, next_id)
        self.segments[segment.number] = segment
        self.unsafe.append(segment)
        self.current = segment
        self.newest = segment.number
        segment.capacity = capacity_for(segment.capacity, size)
        self.free -= segment.unallocated

    def new_capacity(self, free: int) -> int:
        """Return the capacity of a new segment for which *free* bytes are left."""
        return max(MIN_SEGMENT, min(self.max_size, free // BLOCK * BLOCK))

    def add_job(self, job: Job, size: int, events: bytes = b"", attributes: bytes = b"") -> None:
        """Append a JOB record of *job* with *events* and *attributes*; the record takes *size* bytes."""
        if job.cold is not DEFAULT_COLD_STATE or events or attributes:
            record.note_extra(job, record.extra_size(events, attributes))
        segment = self.room_for(size)
        self.sequence += 1
        if self.keeps_positions:
            segment.starts.append(segment.used)
        start = segment.encoder.begin_job(job, self.sequence, events, attributes)
        segment.add_job(start, resident_body(job), job.id, is_large=job.size > LARGE_BODY)
        segment.ids.append(job.id)
        segment.live_bytes += size
        self.live_bytes += size
        job.segment = segment.number

    def add_copy(self, job: Job) -> int:
        """Append another JOB record of *job*; return its size in bytes.

        On a full disk the record exceeds the last JOB record of *job* only by the attributes and the longer name that
        the job has received since (see `Segment.growth`).
        """
        events, attributes = self._copied(job)
        size = record.job_size(job) + record.extra_size(events, attributes)
        self.add_job(job, size, events, attributes)
        return size

    def copy_size(self, job: Job) -> int:
        """Return the size in bytes of the record that `add_copy` appends."""
        return record.job_size(job) + record.extra_size(*self._copied(job))

    def _copied(self, job: Job) -> tuple[bytes, bytes]:
        """Return the events and attributes for a copy of *job*; on a full disk, without events that make it larger."""
        events, attributes = record.events_of(job), record.attributes_of(job)
        if self.is_full:
            lengths = record.extra_size(b"", attributes) or 1
            events = job_history.newest(events, max(0, record.extra_of(job) - lengths))
        return events, attributes

    def add_group(self, jobs: list[Job]) -> None:
        """Append JOB records of *jobs*. A replay applies all of them or none."""
        segment = self.room_for(self.group_size(jobs))
        self.sequence += 1
        segment.add_bare(segment.encoder.group(len(jobs), self.sequence))
        for job in jobs:
            self.add_copy(job)
        assert self.current is segment
        self.groups.append((self.sequence, [job.id for job in jobs]))

    def group_size(self, jobs: list[Job]) -> int:
        """Return the size in bytes of the records that `add_group` appends."""
        return record.GROUP_SIZE + sum([self.copy_size(job) for job in jobs])

    def forget_groups(self) -> None:
        """Forget the groups that are on disk. Call it only while nothing is to be rewritten."""
        while self.groups and self.groups[0][0] <= self.on_disk:
            self.groups.popleft()

    def add_move(self, job: Job) -> None:
        """Record the state, tube and attributes of *job*, and its last event."""
        attributes = record.attributes_of(job)
        segment = self.room_for(record.move_size(job, attributes))
        self.sequence += 1
        segment.add(segment.encoder.move(job, self.sequence, attributes), job.id)
        self._note_growth(job, attributes)

    def _note_growth(self, job: Job, attributes: bytes) -> None:
        """Count the bytes by which a copy of *job*, which has *attributes*, exceeds its JOB record."""
        growth = record.extra_size(b"", attributes) - record.extra_of(job)
        segment = self.segments.get(job.segment)
        if growth > 0 and segment is not None:
            segment.growth += growth
            self.growth = max(self.growth, segment.growth)

    def add_update(self, job: Job) -> None:
        """Record the state of *job*, and its last event."""
        if job_history.is_kick(job.events):  # a replay sets attempts_base and expires_from
            self._note_growth(job, job_attributes.encode(job))
        segment = self.room_for(record.UPDATE_SIZE)
        self.sequence += 1
        segment.add(segment.encoder.update(job, self.sequence), job.id)

    def add_reserve(self, job: Job) -> None:
        """Record the reservation of *job*."""
        assert job.holder is not None
        if job.holder.remote is not None:  # a copy of the job has the reservation
            self._note_growth(job, record.attributes_of(job))
            segment = self.room_for(record.reserve_size(job))
        else:
            segment = self.room_for(record.RESERVE_SIZE)
        self.sequence += 1
        segment.add(segment.encoder.reserve(job, self.sequence), job.id)

    def add_delete(self, id: int) -> None:
        """Record that the job *id* was deleted."""
        segment = self.room_for(record.DELETE_SIZE)
        self.sequence += 1
        segment.add(segment.encoder.delete(id, self.sequence), id)

    def add_policy(self, name: str, document: bytes) -> int:
        """Record the policy *name*, or its deletion if *document* is empty; return the bytes of the record."""
        size = record.policy_size(name, document)
        segment = self.room_for(size)
        self.sequence += 1
        segment.add_entry(segment.encoder.policy(name, document, self.sequence), name)
        self.mark_entry_dead(name)
        if document:
            self._note_live(name, segment, size)
        return size

    def add_pause(self, tube: bytes, until: int, length: int) -> int:
        """Record the pause of *tube*, or its end if *until* is 0; return the bytes of the record."""
        size = record.pause_size(tube)
        segment = self.room_for(size)
        self.sequence += 1
        segment.add_entry(segment.encoder.pause(tube, until, length, self.sequence), tube)
        self.mark_entry_dead(tube)
        if until:
            self._note_live(tube, segment, size)
        return size

    def add_key(self, tube: bytes, key: bytes, id: int, until: int) -> int:
        """Record the unique *key* of *tube*, or its release if *until* is 0; return the bytes of the record."""
        size = record.key_size(tube, key)
        segment = self.room_for(size)
        self.sequence += 1
        segment.add_entry(segment.encoder.key(tube, key, id, until, self.sequence), (tube, key))
        self.mark_entry_dead((tube, key))
        if until:
            self._note_live((tube, key), segment, size)
        return size

    def add_location(self, id: int, location: Location) -> int:
        """Record the *location* of the job *id*, or, if its `hops` are 0, that it is no longer kept; return the bytes.

        If the job exists, this deletes it.
        """
        segment = self.room_for(record.LOCATION_SIZE)
        self.sequence += 1
        segment.add_entry(segment.encoder.location(id, location, self.sequence), id)
        if segment.touched is not None:
            segment.touched.append(id)
        self.mark_entry_dead(id)
        if location.hops:
            self._note_live(id, segment, record.LOCATION_SIZE)
        return record.LOCATION_SIZE

    def add_entry(self, entry: record.Entry) -> int:
        """Record the present value of *entry*, or its deletion; return the bytes of the record."""
        if isinstance(entry, str):
            return self.add_policy(entry, self.policies.get(entry, b""))
        if isinstance(entry, bytes):
            tube = self.tubes.get(entry)
            return self.add_pause(entry, 0, 0) if tube is None else self.add_pause(entry, tube.paused_until, tube.pause)
        if isinstance(entry, int):
            return self.add_location(entry, self.locations.get(entry, NO_LOCATION))
        scope, key = entry
        id, until = self.keys.get(entry, (0, 0))
        return self.add_key(scope, key, id, until)

    def entry_size(self, entry: record.Entry) -> int:
        """Return the size in bytes of the record that `add_entry` appends."""
        if isinstance(entry, str):
            return record.policy_size(entry, self.policies.get(entry, b""))
        if isinstance(entry, int):
            return record.LOCATION_SIZE
        return record.pause_size(entry) if isinstance(entry, bytes) else record.key_size(*entry)

    def has_entry(self, entry: record.Entry) -> bool:
        """Whether *entry* exists: the broker has it in its table."""
        if isinstance(entry, bytes):
            return entry in self.tubes and self.tubes[entry].paused_until > 0
        if isinstance(entry, int):
            return entry in self.locations
        return entry in self.policies if isinstance(entry, str) else entry in self.keys

    def is_newest(self, entry: record.Entry, segment: Segment) -> bool:
        """Whether *segment* has the newest record of *entry*."""
        found = self.entries.get(entry)
        return found is not None and found[0] == segment.number

    def _note_live(self, entry: record.Entry, segment: Segment, size: int) -> None:
        """Store that the newest record of *entry*, *size* bytes, is in *segment*."""
        self.entries[entry] = (segment.number, size)
        segment.live_bytes += size
        self.live_bytes += size

    def mark_entry_dead(self, entry: record.Entry) -> None:
        """Count the newest record of *entry*, if there is one, as dead."""
        number, size = self.entries.pop(entry, (0, 0))
        self.live_bytes -= size
        self._mark_dead(number, size)

    def mark_dead(self, job: Job) -> int:
        """Count the newest JOB record of *job* as dead; return its size in bytes."""
        size = record.recorded_size(job)
        self.live_bytes -= size
        self._mark_dead(job.segment, size)
        return size

    def _mark_dead(self, number: int, size: int) -> None:
        """Count *size* bytes of the segment *number* as dead; pin it if the record that replaces them is discarded."""
        segment = self.segments.get(number)
        if segment is not None:
            segment.live_bytes -= size
            if not self.current.number:
                self.pinned.add(number)

    def forget_outstanding(self) -> None:
        """Reset the count of bytes copied by compaction: the copies may have been lost in a failure."""
        self.outstanding = 0
        for segment in [*self.segments.values(), *[segment for _, segment in self.pending_removal]]:
            segment.copied = 0

    def remove_after(self, segment: Segment, sequence: int) -> None:
        """Remove *segment*, the oldest or a superseded one, once the record *sequence* is on disk."""
        self.forget_segment(segment)
        self.pending_removal.append((sequence, segment))

    def forget_segment(self, segment: Segment) -> None:
        """Take *segment*, the oldest or a superseded one, from the table of segments."""
        del self.segments[segment.number]
        if self.evictable and self.evictable[0] == segment.number:
            self.evictable.popleft()
        self.finished_bytes -= segment.used
        if segment.used >= self.largest > self.max_size:
            self.largest = max([other.used for other in self.segments.values() if other.touched is None], default=0)
        if segment.growth == self.growth > 0:
            self.growth = max([other.growth for other in self.segments.values()], default=0)

    def oldest_finished(self) -> Segment | None:
        """Return the oldest segment if it is fully on disk, else None."""
        oldest = next(iter(self.segments.values()), None)
        return oldest if oldest is not None and oldest.touched is None else None

    def is_finished(self, number: int) -> bool:
        """Return whether the segment *number* exists, and is fully on disk."""
        segment = self.segments.get(number)
        return segment is not None and segment.touched is None

    def reserve_ids(self, first: int) -> None:
        """Reserve a block of ids from *first* on, if ids are reserved at all; the caller records its end."""
        if self._reserves_ids:
            block = ID_BLOCK * self.ids.shards
            self.ids_end = min(first + block, ID_END)
            self.ids_wanted_at = self.ids_end - block // 2

    def record_id_block(self, first: int) -> bool:
        """Reserve a block of ids from *first* on, and record its end; return False if *first* is not below ID_END.

        A foreign id needs no block: another shard has reserved it.
        """
        if first >= ID_END:
            return False
        if not self.ids.owns(first):
            return True
        self.reserve_ids(first)
        self.add_ids_end(self.ids_end)
        return True

    def add_ids_end(self, next_id: int) -> None:
        """Record *next_id* as the end of the reserved ids."""
        segment = self.room_for(record.IDS_SIZE)
        self.sequence += 1
        segment.add_bare(segment.encoder.ids(next_id, self.sequence))
        self.ids_end = next_id

    def unallocated(self) -> int:
        """Return the bytes that the next batch allocates.

        They are for files of segments that were begun without one, and for files that grow. Call it only while nothing
        is to be rewritten.
        """
        return sum([segment.unallocated for segment in self.unsafe if not segment.is_begun])

    def bytes_recorded(self) -> int:
        """Return the size in bytes of all records, written or not."""
        return self.finished_bytes + sum([segment.used for segment in self.unsafe])

    def bytes_on_disk(self) -> int:
        """Return the size in bytes of all files, which may be less than the capacities of the segments.

        The next batch creates the file of a segment that was begun without one, and extends a file for a large record.
        """
        removed = [*self.surplus, *self.orphaned, *[segment for _, segment in self.pending_removal]]
        others = [*self.unsafe, *self.ahead, *removed]
        return self.finished_bytes + sum([segment.allocated for segment in others])

    def count_files(self) -> int:
        """Return the number of files. The files of some segments are created only by the next batch."""
        without_file = sum([segment.number > 0 and not segment.has_file for segment in self.unsafe])
        others = len(self.ahead) + len(self.surplus) + len(self.pending_removal) + len(self.orphaned)
        return len(self.segments) - without_file + others


def capacity_for(capacity: int, size: int) -> int:
    """Return the capacity of a segment with room for a record of *size* bytes, at least *capacity*."""
    return max(capacity, record.SEGMENT_HEADER_SIZE + size)
