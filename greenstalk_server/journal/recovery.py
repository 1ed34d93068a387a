"""Replay of segments: from their bytes to jobs, pauses, policies, unique keys, and a report of all damage.

Pure, and safe for arbitrary input: no file content raises an exception, or yields a job that was never written, since
records with a wrong CRC are ignored. docs/journal-format.md describes the treatment of each kind of damage.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final
from zlib import crc32

from greenstalk_server.core import job_attributes
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.body_cache import BODY_COST, JOB_COST, SMALL
from greenstalk_server.core.jobs.id_sequence import ONE_SHARD, IdSequence
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.jobs.job_table import JobTable
from greenstalk_server.core.remote import Reservation
from greenstalk_server.core.tags.idempotency import is_idempotency_scope
from greenstalk_server.core.tags.tags import NO_DEADLINE, TaggedJob
from greenstalk_server.core.travel import Location
from greenstalk_server.core.tube_names import is_tube_name
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import record
from greenstalk_server.journal.record import BadSegment, OtherVersion
from greenstalk_server.journal.replayed_segment import (
    NOT_REWRITTEN,
    UNKNOWN_SEQUENCE,
    Damage,
    ReplayedSegment,
    crc_of,
    is_begun,
    is_blank,
    is_unwritten,
    sound_job,
)

_JOB_AT: Final = record.HEADER_SIZE
_NAME_AT: Final = record.HEADER_SIZE + record.JOB_FIELDS.size
_EVENT_OF_RESERVE: Final = record.HEADER_SIZE + record.RESERVE_FIELDS.size - job_history.EVENT.size
_AFTER_MOVE: Final = record.HEADER_SIZE + record.MOVE_FIELDS.size
_LENGTHS: Final = struct.Struct("<BH")
_AFTER_PREFIX: Final = record.PREFIX_SIZE

SETTLE_SLICE: Final = 2000
"""Jobs that one slice of `Recovery.settle_slices` settles: about a millisecond."""

_IMPOSSIBLE: Final = 2**record.BITS
_ID_LIMIT: Final = record.ID_LIMIT

_COUNTS: Final = struct.Struct("<IIIII")
"""reserves, timeouts, releases, buries, kicks: the counts in record.JOB_FIELDS."""

_NO_COUNTS: Final = bytes(_COUNTS.size)

_JOB: Final = struct.Struct(f"<QIQQQQ{_COUNTS.size}sBB")
"""record.JOB_FIELDS with the counts as bytes. In most records all counts are 0, which one comparison shows."""

_unpack_job: Final = _JOB.unpack_from


@dataclass(slots=True)
class Recovery:
    """The state that the segments of a journal hold. Pass them to `replay` in the order of their numbers.

    tube_of     returns the tube with a name; creates the tube if needed.
    jobs        jobs by id; empty at first. Until `settle`, their states are as last recorded.
    pauses      end and length of each pause in nanoseconds, by tube name.
    policies    documents of policies by name.
    keys        job id and end in nanoseconds of each unique key that outlives its job, by tube name and key.
    locations   places of jobs that were here, by id.
    entries     number of the segment with the newest record of each policy, pause, key and location, and bytes of the
                record.
    highest_number  highest number of a segment file, whatever it contains.
    sequence    number of the last record.
    refusal     why no start reads the journal, and what to do; "" if all segments are of this server's version.
    is_import_open  after `settle`: an import had begun and not ended.
    returned    after `settle`: the jobs whose reservations it has ended; their last event is RETURNED.
    reservations    reservations by remote clients that have not ended, by the job's id. After `settle`, those that it
                has not ended.
    undone_keys after `settle`: the keys that it has undone. The deletion that kept such a key was torn before its
                DELETE record, so the job still exists, and has the key itself. The values, as in `keys`, are from
                before that deletion; zeros if the key was free.
    memory      bytes of memory that are left for bodies; None for no limit.
    ids         the ids that the shard of the journal assigns; its other jobs came from other shards.
    """

    tube_of: Callable[[bytes], Tube]
    jobs: MutableMapping[int, Job]
    pauses: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    policies: dict[str, bytes] = field(default_factory=dict)
    keys: dict[tuple[bytes, bytes], tuple[int, int]] = field(default_factory=dict)
    locations: dict[int, Location] = field(default_factory=dict)
    entries: dict[record.Entry, tuple[int, int]] = field(default_factory=dict)
    segments: list[ReplayedSegment] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    highest_number: int = 0
    sequence: int = 0
    records: int = 0
    is_import_open: bool = False
    refusal: str = ""
    returned: list[Job] = field(default_factory=list)
    reservations: dict[int, Reservation] = field(default_factory=dict)
    undone_keys: dict[tuple[bytes, bytes], tuple[int, int]] = field(default_factory=dict)
    memory: int | None = None
    ids: IdSequence = ONE_SHARD
    _recorded_next_id: int = 1
    _highest_id: int = 0
    _tubes: dict[bytes, Tube] = field(default_factory=dict)
    _last: Job = field(default_factory=lambda: Job(0, Tube(b"", {}), b"", 0, 0, 0, 0))
    _import_undo: dict[int, Job | None] | None = None
    _damaged_after: list[tuple[int, Damage]] = field(default_factory=list)
    _blank: list[tuple[str, int]] = field(default_factory=list)
    _replaced_keys: dict[int, dict[tuple[bytes, bytes], tuple[int, int]]] = field(default_factory=dict)

    def replay(
        self, file: str, number: int, data: bytes, is_newest: bool, rewritten_from: int = NOT_REWRITTEN
    ) -> ReplayedSegment | None:
        """Replay the whole segment *number*; return it, or None if its header is not sound.

        *rewritten_from* comes from `rewrite_points`. An empty or zeroed file is a segment that was created ahead of its
        use: it is not damage, unless its number is below all others (see `_note_blank`).
        """
        self.highest_number = max(self.highest_number, number)
        if is_blank(data):
            if not self.segments:
                self._blank.append((file, len(data)))
            return None
        try:
            header = record.decode_segment_header(data)
        except BadSegment as error:
            if isinstance(error, OtherVersion):
                self.refusal = error.advice
            is_torn = is_newest and not is_begun(data)
            is_oldest_unwritten = not self.segments and not is_begun(data)
            after = UNKNOWN_SEQUENCE if is_oldest_unwritten else self.sequence
            self._note(Damage(file, 0, len(data), str(error), is_torn_tail=is_torn), after)
            return None
        if header.number != number:
            self.damage.append(Damage(file, 0, len(data), f"is a copy of segment {header.number}"))
            return None
        end, size = record.SEGMENT_HEADER_SIZE, len(data)
        segment = ReplayedSegment(file, header, end, size, array("Q"), is_newest, rewritten_from)
        self._note_start(segment, data)
        self._recorded_next_id = max(self._recorded_next_id, header.next_id)
        self._replay_records(segment, data)
        self.segments.append(segment)
        self.records += segment.records
        return segment

    def extend(self, data: bytes) -> None:
        """Replay *data*, whole records that were appended to the newest segment since its replay."""
        segment = self.segments[-1]
        begin, segment.end, records = segment.end, 0, segment.records
        segment.size = begin + len(data)
        self._replay_records(segment, data)
        segment.end += begin
        self.records += segment.records - records

    def forget_tubes(self, names: Iterable[bytes]) -> None:
        """Forget the tubes *names*, which have no jobs."""
        for name in names:
            self._tubes.pop(name, None)

    def forget_segment(self, segment: ReplayedSegment) -> None:
        """Forget *segment*, which the leader has removed, and the pauses and keys whose newest records were in it.

        These have ended: the leader has copied all others.
        """
        self.segments.remove(segment)
        for entry in segment.entries:
            if self.entries.get(entry, (0, 0))[0] == segment.header.number:
                del self.entries[entry]
                if isinstance(entry, str):
                    self.policies.pop(entry, None)
                elif isinstance(entry, bytes):
                    self.pauses.pop(entry, None)
                elif isinstance(entry, int):
                    self.locations.pop(entry, None)
                else:
                    self.keys.pop(entry, None)

    def reservation_size(self, id: int) -> int:
        """Return the bytes that the reservation of the job *id* takes as an attribute; 0 without one."""
        found = self.reservations.get(id)
        return 2 + record.RESERVATION_FIELDS.size + len(found.front) if found is not None else 0

    def settle(self, now: int, *, ends_remote: bool = True) -> None:
        """Undo an interrupted import, end all reservations, make due jobs ready, pause tubes, and drop expired keys.

        If *ends_remote* is false, the reservations by remote clients continue: their jobs keep the recorded states and
        events.

        If the clock was set back, replace by *now* each later time from which an age or a burial counts, and limit
        delays and pauses to the requested lengths.
        """
        for _ in self.settle_slices(now, ends_remote=ends_remote):
            pass

    def settle_slices(self, now: int, *, ends_remote: bool = True) -> Iterator[None]:
        """Do what `settle` does, and yield after each slice of it."""
        self.is_import_open = self._import_undo is not None
        self._undo_import()
        self.reservations = {} if ends_remote else {id: one for id, one in self.reservations.items() if id in self.jobs}
        jobs = iter(self.jobs.values())
        while slice := list(islice(jobs, SETTLE_SLICE)):
            self._settle_jobs(slice, now)
            yield
        self.undone_keys = {
            entry: self._replaced_keys.get(id, {}).get(entry, (0, 0))
            for entry, (id, _) in self.keys.items()
            if id in self.jobs
        }
        self.keys.update(self.undone_keys)
        for entry in [entry for entry, (_, until) in self.keys.items() if until <= now]:
            del self.keys[entry]
        self.pauses = {name: pause for name, pause in self.pauses.items() if pause[0] > now}
        for name, (until, length) in self.pauses.items():
            tube = self.tube_of(name)
            tube.paused_until, tube.pause = min(until, now + length), length

    def _settle_jobs(self, jobs: list[Job], now: int) -> None:
        """End the reservations of *jobs*, make those that are due ready, and limit their times."""
        for job in jobs:
            job.created_at = min(job.created_at, now)
            if job.expires_from > now:
                job.expires_from = now
            if job.id in self.reservations:
                continue
            if job.state == BURIED:
                job.events = job_history.limit(job.events, now)
            awaits = job.state == DELAYED and isinstance(job, TaggedJob) and job.may_await
            if job.state == DELAYED and job.deadline != NO_DEADLINE:
                job.deadline = max(min(job.deadline, now + job.delay), 1)  # 0 would mean that no timer is armed
            elif job.state == DELAYED and not awaits:  # reserve-job reserved it while it waited for a group
                job.deadline = now
            if job.state == RESERVED or (job.state != READY and job_history.is_reserved(job.events)):
                self._end_reservation(job, now)
            elif job.state == DELAYED and job.deadline <= now and not awaits:
                job.state = READY
            elif job.state == READY and not job.created_at <= job.deadline <= now:
                job.deadline = min(job.created_at, now)

    def _end_reservation(self, job: Job, now: int) -> None:
        """End the reservation of *job*, which makes it ready.

        A job that reserve-job took while buried or delayed returns to that state, unless its delay is over.
        """
        if job.state == RESERVED or (job.state == DELAYED and job.deadline <= now):
            job.state, job.deadline = READY, now
        if job_history.is_reserved(job.events):
            job.events = job_history.add(job.events, job_history.RETURNED, now, job_history.NOBODY)
            self.returned.append(job)

    @property
    def next_id(self) -> int:
        """The next id that the shard assigns, above every id that it has assigned."""
        return self.ids.next_after(max(self._recorded_next_id - 1, self._highest_id))

    @property
    def is_sound(self) -> bool:
        """Whether nothing was lost except torn tails, which a crash may leave."""
        return all(damage.is_torn_tail for damage in self.damage)

    def _note(self, damage: Damage, sequence: int) -> None:
        """Note *damage*; *sequence* is the number of the last sound record before it."""
        self.damage.append(damage)
        self._damaged_after.append((sequence, damage))

    def _note_start(self, segment: ReplayedSegment, data: bytes) -> None:
        """Compare the start of *segment* with the records so far: note a gap.

        Damage to records that it rewrites is a torn tail.
        """
        first_sequence = segment.header.first_sequence
        has_records = len(data) >= segment.end + record.HEADER_SIZE
        first = record.HEADER.unpack_from(data, segment.end)[3] if has_records else 0
        is_rewrite = first > first_sequence or first_sequence == 1
        if is_rewrite:
            self._blank.clear()
        elif first == first_sequence:
            self._note_blank(segment)
        for sequence, damage in self._damaged_after:
            if (is_rewrite and sequence == UNKNOWN_SEQUENCE) or first_sequence <= sequence + 1:
                damage.is_torn_tail = True
        lost = segment.header.first_sequence - self.sequence - 1
        if self.segments and lost > 0:
            reason = f"records are missing after {self.segments[-1].file},"
            self.damage.append(Damage(segment.file, 0, 0, reason, lost))
        self.sequence = max(self.sequence, segment.header.first_sequence - 1)

    def _note_blank(self, segment: ReplayedSegment) -> None:
        """Record blank files numbered below *segment*, which rewrites nothing, as damage: they had been in use.

        Segments created ahead are used in ascending order. So a blank file below a used one has lost its content,
        unless a write to it failed; then the next used segment is a rewrite.
        """
        reason = f"is blank, though {segment.file} continues it,"
        self.damage += [Damage(file, 0, size, reason) for file, size in self._blank]
        self._blank.clear()

    def _replay_records(self, segment: ReplayedSegment, data: bytes) -> None:
        salt = segment.header.salt
        seed, end, at = record.seed_of(salt), len(data), segment.end
        view, unpack, header_size = memoryview(data), record.HEADER.unpack_from, record.HEADER_SIZE
        sequence, is_next = self.sequence, False
        marker: bytes
        crc: int
        length: int
        number: int
        kind: int
        apply, smallest = self._appliers(), record.MIN_PAYLOAD
        while at + header_size <= end:
            marker, crc, length, number, kind = unpack(data, at)
            stop = at + header_size + length
            if marker != salt or stop > end or crc_of(data, view, at + _AFTER_PREFIX, stop, seed) != crc:
                at, is_next = self._skip_damage(segment, data, at, sequence), False
                continue
            if kind == record.GROUP and (resume := self._skip_partial_group(segment, data, at, stop, sequence)):
                at, is_next = resume, False
                continue
            if sequence < number < _IMPOSSIBLE and length >= smallest.get(kind, length + 1):
                if is_next and number != sequence + 1:
                    if sequence + 1 >= segment.rewritten_from:
                        break
                    self._note(Damage(segment.file, at, 0, "records are missing", number - sequence - 1), sequence)
                sequence, is_next = number, True
                if kind == record.JOB:
                    self._add_job(data, at, at + _NAME_AT, 0, stop, segment)
                else:
                    apply[kind](data, at, stop, segment)
                segment.records += 1
            else:
                self.damage.append(Damage(segment.file, at, stop - at, f"record {number} repeated or unknown", 0))
                is_next = number <= sequence
            at = stop
            segment.end = at
        self.sequence = sequence
        if not is_blank(data, at):
            self._note_tail(segment, at, end, sequence)

    def _skip_partial_group(self, segment: ReplayedSegment, data: bytes, at: int, stop: int, sequence: int) -> int:
        """Check the group whose GROUP record, a sound one, is from *at* to *stop*. Return 0 if the group is complete.

        Otherwise record its damage, and return the offset of the next sound record after it, or of the end of *data*.
        """
        number = record.HEADER.unpack_from(data, at)[3]
        if stop - at < record.GROUP_SIZE:
            return 0  # treated like a record of an unknown kind
        (count,) = record.GROUP_FIELDS.unpack_from(data, at + _JOB_AT)
        salt, last, found_at = segment.header.salt, number + count, stop
        while number < last:
            number += 1
            end = sound_job(data, found_at, number, salt)
            if not end:
                return self._skip_damage(segment, data, at, sequence, found_at, last)
            found_at = end
        return 0

    def _skip_damage(
        self, segment: ReplayedSegment, data: bytes, at: int, sequence: int, found_at: int = 0, up_to: int = 0
    ) -> int:
        """Record the damage at *at*; return the offset of the next sound record, or of the end of *data*.

        If *at* is the start of an incomplete group, *found_at* is the end of its sound records, and *up_to* the number
        of the last record that it should have.

        An unwritten (zeroed) sector of the newest segment marks a torn last write: sectors may be written in any order
        before a power failure, and nothing after that sector was acknowledged. In a part that was rewritten, records
        after damage were not acknowledged either. They would conflict with the records of the rewrite.
        """
        resume = self._next_sound(segment.header.salt, data, found_at or at + 1)
        while resume is not None and sequence < record.HEADER.unpack_from(data, resume)[3] <= up_to:
            resume = self._next_sound(segment.header.salt, data, resume + 1)  # a record of the incomplete group
        is_torn = resume is not None and segment.is_newest and is_unwritten(data, found_at or at, resume)
        if resume is not None and not is_torn and sequence + 1 < segment.rewritten_from:
            number = record.HEADER.unpack_from(data, resume)[3]
            lost = max(0, number - sequence - 1)
            self._note(Damage(segment.file, at, resume - at, "damaged", lost), sequence)
            return resume
        if data[at:].strip(b"\0"):
            self._note_tail(segment, at, len(data.rstrip(b"\0")), sequence)
        return len(data)

    def _note_tail(self, segment: ReplayedSegment, at: int, end: int, sequence: int) -> None:
        reason = "torn tail" if segment.is_newest else "damaged to its end"
        self._note(Damage(segment.file, at, end - at, reason, is_torn_tail=segment.is_newest), sequence)

    def _next_sound(self, salt: bytes, data: bytes, at: int) -> int | None:
        """Return the offset of the first sound record from *at* on, or None.

        The CRC is computed only where the salt is.
        """
        seed, view = record.seed_of(salt), memoryview(data)
        while (at := data.find(salt, at)) >= 0 and at + record.HEADER_SIZE <= len(data):
            _, crc, length, _, kind = record.HEADER.unpack_from(data, at)
            stop = at + record.HEADER_SIZE + length
            is_whole = kind in record.MIN_PAYLOAD and stop <= len(data)
            if is_whole and crc32(view[at + _AFTER_PREFIX : stop], seed) == crc:
                return at
            at += 1
        return None

    # One method per kind of record; *at* and *stop* are the offsets of the record in *data*

    def _appliers(self) -> dict[int, Callable[[bytes, int, int, ReplayedSegment], object]]:
        """Return the method for each kind except JOB, for which `_add_job` is called directly."""
        return {
            record.DELETE: self._delete,
            record.PAUSE: self._pause,
            record.IMPORT_BEGIN: self._import_begin,
            record.IMPORT_END: self._import_end,
            record.IMPORT_UNDO: self._import_aborted,
            record.JOB_WITH_EVENTS: self._job_with_events,
            record.UPDATE: self._update,
            record.RESERVE: self._reserve,
            record.IDS: self._ids,
            record.JOB_WITH_ATTRIBUTES: self._job_with_attributes,
            record.MOVE: self._move,
            record.POLICY: self._policy,
            record.KEY: self._key,
            record.LOCATION: self._location,
            record.GROUP: self._group,
        }

    def _job_with_events(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        name_at = at + _NAME_AT + 1
        self._add_job(data, at, name_at, data[name_at - 1], stop, segment)

    def _job_with_attributes(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        events_length, attributes_length = _LENGTHS.unpack_from(data, at + _NAME_AT)
        self._add_job(data, at, at + _NAME_AT + _LENGTHS.size, events_length, stop, segment, attributes_length)

    def _add_job(
        self,
        data: bytes,
        at: int,
        name_at: int,
        events_length: int,
        stop: int,
        segment: ReplayedSegment,
        attributes_length: int = 0,
    ) -> None:
        id: int
        pri: int
        delay: int
        ttr: int
        created_at: int
        deadline: int
        counts: bytes
        state: int
        name_length: int
        (id, pri, delay, ttr, created_at, deadline, counts, state, name_length) = _unpack_job(data, at + _JOB_AT)
        events_at = name_at + name_length
        attributes_at = events_at + events_length
        body_at = attributes_at + attributes_length
        tube = self._tube(data[name_at:events_at])
        if tube is None or not READY <= state <= DELAYED:
            return
        is_bad = events_length not in job_history.SIZES or body_at > stop
        if is_bad or not 0 < id < _ID_LIMIT or (delay | ttr | (deadline if state == BURIED else 0)) >> record.BITS:
            return
        like = self._last  # consecutive jobs often have equal priorities: share one int object
        pri = like.pri if pri == like.pri else pri
        tags = job_attributes.tags_in(data[attributes_at:body_at]) if attributes_length else None
        body = data[body_at:stop]
        if tags is None:
            job = Job(id, tube, body, pri, delay, ttr, created_at)
        else:
            job = TaggedJob(id, tube, body, pri, delay, ttr, created_at, tags.packed())
        self._last = job
        job.state = state
        job.segment = segment.header.number
        job.deadline = deadline
        if counts != _NO_COUNTS:
            job.reserves, job.timeouts, job.releases, job.buries, job.kicks = _COUNTS.unpack(counts)
        if events_length:
            job.events = data[events_at:attributes_at]
        if body_at > events_at:
            record.note_extra(job, body_at - (at + _NAME_AT + name_length))
        if attributes_length or self.reservations:
            self._decode_attributes(job, data[attributes_at:body_at])
        if self._import_undo is not None:
            self._import_undo.setdefault(id, self.jobs.get(id))
        if self.memory is not None:
            self._index(job, at, segment)
        jobs = self.jobs
        if isinstance(jobs, JobTable):
            jobs.set(job)
        else:
            jobs[id] = job
        self.locations.pop(id, None)
        segment.ids.append(id)
        if id > self._highest_id and self.ids.owns(id):
            self._highest_id = id

    def _index(self, job: Job, at: int, segment: ReplayedSegment) -> None:
        """Note the offset of the record of *job*, and drop its body if memory has no room for it."""
        assert self.memory is not None
        segment.starts.append(at)
        segment.has_repeats |= bool(segment.ids) and segment.ids[-1] >= job.id  # of a job deleted in between
        self._release_memory(self.jobs.get(job.id))
        if job.size > SMALL and self.memory < job.size + BODY_COST:
            job.body = None
        else:
            self.memory -= job.size + BODY_COST
        self.memory -= JOB_COST

    def _release_memory(self, job: Job | None) -> None:
        """Count the memory of *job*, which was deleted or replaced, as free."""
        if self.memory is not None and job is not None:
            self.memory += JOB_COST + (0 if job.body is None else job.size + BODY_COST)

    def _decode_attributes(self, job: Job, attributes: bytes) -> None:
        """Replace the attributes of *job* by *attributes*, and note its reservation if there is one among them."""
        job_attributes.decode_into(job, attributes)
        self._note_reservation(job.id, job_attributes.value_of(job_attributes.RESERVATION, attributes))

    def _note_reservation(self, id: int, data: bytes) -> None:
        """Note the packed reservation *data* of the job *id*; empty if no remote client holds the job."""
        reservation = record.decode_reservation(data) if data else None
        if reservation is not None:
            self.reservations[id] = reservation
        else:
            self.reservations.pop(id, None)

    def _tube(self, name: bytes) -> Tube | None:
        """Return the tube *name*, or None if that is not a valid name."""
        tube = self._tubes.get(name)
        if tube is None and is_tube_name(name):
            tube = self._tubes[name] = self.tube_of(name)
        return tube

    def _move(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        name_at = at + _AFTER_MOVE
        attributes_at = name_at + data[name_at - 1]
        job = self._job_of(data, at)
        if job is None or attributes_at > stop:
            return
        tube = self._tube(data[name_at:attributes_at])
        if tube is None:
            return
        if not self._change(job, data, at):
            return
        job.record_extra += len(job.tube.name) - len(tube.name)
        job.tube = tube
        self._decode_attributes(job, data[attributes_at:stop])

    def _update(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        job = self._job_of(data, at)
        if job is not None and self._change(job, data, at):
            self.reservations.pop(job.id, None)
            if job_history.is_kick(job.events):
                job.attempts_base = job.reserves
                job.expires_from = job_history.last(job.events).at

    def _job_of(self, data: bytes, at: int) -> Job | None:
        """Return the job of the record at *at*; None if it does not exist."""
        (id,) = record.DELETE_FIELDS.unpack_from(data, at + _JOB_AT)  # each record of a job begins with its id
        return self.jobs.get(id)

    def _change(self, job: Job, data: bytes, at: int) -> bool:
        """Apply the fields of the UPDATE or MOVE at *at* to *job*; return False if they are impossible."""
        fields = record.UPDATE_FIELDS.unpack_from(data, at + _JOB_AT)
        delay, deadline, state, event = fields[2], fields[3], fields[9], fields[10]
        if not READY <= state <= DELAYED or (delay | (deadline if state == BURIED else 0)) >> record.BITS:
            return False
        (_, job.pri, job.delay, job.deadline) = fields[:4]
        (job.reserves, job.timeouts, job.releases, job.buries, job.kicks, job.state) = fields[4:10]
        job.events = job_history.join(job.events, event)
        return True

    def _reserve(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        job = self._job_of(data, at)
        if job is None:
            return
        _, job.reserves, job.timeouts, *_ = record.RESERVE_FIELDS.unpack_from(data, at + _JOB_AT)
        event_at = at + _EVENT_OF_RESERVE
        rest_at = event_at + job_history.EVENT.size
        job.events = job_history.join(job.events, data[event_at:rest_at])
        self._note_reservation(job.id, data[rest_at:stop])
        if not job_history.is_reserved(job.events):
            job.state, job.deadline = READY, job_history.last(job.events).at
        elif job.state == READY or (job.state == DELAYED and job.deadline <= job_history.last(job.events).at):
            job.state = RESERVED  # else reserve-job took it, and `settle` restores its state

    def _delete(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        (id,) = record.DELETE_FIELDS.unpack_from(data, at + _JOB_AT)
        self._release_memory(self.jobs.pop(id, None))
        if self.reservations:
            self.reservations.pop(id, None)
        if self._replaced_keys:
            self._replaced_keys.pop(id, None)
        if self._highest_id < id < _ID_LIMIT and self.ids.owns(id):
            self._highest_id = id

    def _pause(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        until, length = record.PAUSE_FIELDS.unpack_from(data, at + _JOB_AT)
        name = data[at + _JOB_AT + record.PAUSE_FIELDS.size : stop]
        self._note_entry(name, at, stop, segment)
        if until and is_tube_name(name):
            self.pauses[name] = (until, length)
        else:
            self.pauses.pop(name, None)

    def _group(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        """Do nothing: the group is complete (see `_skip_partial_group`), and its records follow."""

    def _policy(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        name_at = at + _JOB_AT + record.POLICY_FIELDS.size
        document_at = name_at + data[name_at - 1]
        name, document = data[name_at:document_at], data[document_at:stop]
        with suppress(UnicodeDecodeError):
            self._note_entry(name.decode(), at, stop, segment)
            if document:
                self.policies[name.decode()] = document
            else:
                self.policies.pop(name.decode(), None)

    def _key(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        id, until, length = record.KEY_FIELDS.unpack_from(data, at + _JOB_AT)
        name_at = at + _JOB_AT + record.KEY_FIELDS.size
        name, key = data[name_at : name_at + length], data[name_at + length : stop]
        if is_idempotency_scope(name):
            is_sound = is_tube_name(name[:-1]) and is_tube_name(key)
        else:
            is_sound = is_tube_name(name) and 0 < len(key) <= job_attributes.MAX_KEY
        if is_sound:
            self._note_entry((name, key), at, stop, segment)
            replaced = self.keys.pop((name, key), None)
            if until:
                self.keys[name, key] = id, until
            if replaced is not None and replaced[0] != id and id in self.jobs:  # the DELETE of the job may be lost
                self._replaced_keys.setdefault(id, {})[name, key] = replaced

    def _location(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        id, hops, shard, source = record.LOCATION_FIELDS.unpack_from(data, at + _JOB_AT)
        if not 0 < id < _ID_LIMIT:
            return
        self._note_entry(id, at, stop, segment)
        if hops:
            self._delete(data, at, stop, segment)
            self.locations[id] = Location(shard, hops, source)
        else:
            self.locations.pop(id, None)

    def _note_entry(self, entry: record.Entry, at: int, stop: int, segment: ReplayedSegment) -> None:
        """Store where the newest record of *entry* is: in *segment*, from offset *at* to *stop*."""
        self.entries[entry] = segment.header.number, stop - at
        segment.entries.append(entry)

    def _ids(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        (next_id,) = record.IDS_FIELDS.unpack_from(data, at + _JOB_AT)
        if next_id <= _ID_LIMIT:
            self._recorded_next_id = next_id

    def _import_begin(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        self._undo_import()
        self._import_undo = {}

    def _import_end(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        self._import_undo = None

    def _import_aborted(self, data: bytes, at: int, stop: int, segment: ReplayedSegment) -> None:
        self._undo_import()

    def _undo_import(self) -> None:
        for id, before in (self._import_undo or {}).items():
            if before is None:
                self.jobs.pop(id, None)
            else:
                self.jobs[id] = before
        self._import_undo = None
