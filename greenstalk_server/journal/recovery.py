"""Replaying segments: from their bytes to jobs, pauses and a report of every kind of damage.

Pure, and proof against any bytes: it never raises on what a file holds and never invents a job, since nothing
counts whose CRC is wrong. What it does with each kind of damage is in docs/journal-format.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from greenstalk_server.core import job_history
from greenstalk_server.core.body_cache import BODY_COST, JOB_COST, SMALL
from greenstalk_server.core.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.tube import Tube, is_tube_name
from greenstalk_server.journal import record
from greenstalk_server.journal.record import BadSegment, NewerVersion, SegmentHeader

_JOB_AT: Final = record.HEADER_SIZE
_NAME_AT: Final = record.HEADER_SIZE + record.JOB_FIELDS.size
_EVENT_AFTER_UPDATE: Final = record.HEADER_SIZE + record.UPDATE_FIELDS.size
_EVENT_AFTER_RESERVE: Final = record.HEADER_SIZE + record.RESERVE_FIELDS.size
_AFTER_PREFIX: Final = record.PREFIX_SIZE

UNKNOWN: Final = -2
"""What was the last record before damage to the oldest file; a segment that records anew makes that good."""

NEVER: Final = 2**64
"""From which record on all is told again, if none is."""

_IMPOSSIBLE: Final = 2**record.BITS
_ID_LIMIT: Final = record.ID_LIMIT

SECTOR: Final = 512
"""What a disk writes whole or not at all, bytes."""


@dataclass(slots=True)
class Damage:
    """Something in a file that is not as it was written.

    offset          where it begins, bytes from the start of the file.
    bytes_lost      its length.
    records_lost    how many records it held, by the sequence numbers around it; None if that cannot be told.
    is_torn_tail    a crash or a failing disk leaves it so, and nothing acknowledged is lost: it is the end of the
                    newest segment, or all that was there was recorded anew.
    """

    file: str
    offset: int
    bytes_lost: int
    reason: str
    records_lost: int | None = None
    is_torn_tail: bool = False

    def __str__(self) -> str:
        lost = "" if self.records_lost is None else f", {self.records_lost} records"
        return f"{self.file}: {self.reason} at offset {self.offset}: {self.bytes_lost} bytes{lost} lost"


@dataclass(slots=True)
class Replayed:
    """One segment after its replay.

    end     where its sound records end, or those that count.
    ids     the jobs it has a JOB record of, in their order.
    starts  where those records begin, if bodies may have to be read back.
    has_repeats it has two JOB records of one job.
    is_newest   no later one was begun.
    told_again  the first record that a later one tells again; a higher number than any here if none is.
    """

    file: str
    header: SegmentHeader
    end: int
    ids: array[int]
    is_newest: bool
    told_again: int
    records: int = 0
    starts: array[int] = field(default_factory=lambda: array("Q"))
    has_repeats: bool = False


@dataclass(slots=True)
class Recovery:
    """What the segments of a journal hold; fed one by one to `replay`, in the order of their numbers.

    tube_of     gives the tube of a name, made if need be.
    jobs        by id; empty at first, and filled. Their states are as last recorded till `settle`.
    pauses      end and length by tube name, nanoseconds.
    highest_number  of any segment's file, whatever it holds.
    sequence    of the last record.
    is_readable all segments are of a version that this server knows.
    is_import_open  after `settle`: an import had begun and not ended.
    returned    after `settle`: the jobs whose reservation it has ended, and noted so among their events.
    memory      bytes of bodies that may be kept in memory, the first ones; None for all.
    """

    tube_of: Callable[[bytes], Tube]
    jobs: MutableMapping[int, Job]
    pauses: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    segments: list[Replayed] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    highest_number: int = 0
    sequence: int = 0
    records: int = 0
    is_import_open: bool = False
    is_readable: bool = True
    returned: list[Job] = field(default_factory=list)
    memory: int | None = None
    _next_id_told: int = 1
    _highest_id: int = 0
    _tubes: dict[bytes, Tube] = field(default_factory=dict)
    _last: Job = field(default_factory=lambda: Job(0, Tube(b"", {}), b"", 0, 0, 0, 0))
    _import_undo: dict[int, Job | None] | None = None
    _damaged_after: list[tuple[int, Damage]] = field(default_factory=list)
    _blank: list[tuple[str, int]] = field(default_factory=list)

    def replay(self, file: str, number: int, data: bytes, is_newest: bool, told_again: int = NEVER) -> Replayed | None:
        """Take in the segment *number*, whole; return what it was, or None if its head was not sound.

        *told_again* is what `retold` says of it. An empty or zeroed file is a segment that was made ahead of its use:
        it is nothing, and no damage, unless it stands below all others: see `_note_blank`.
        """
        self.highest_number = max(self.highest_number, number)
        if not data.strip(b"\0"):
            if not self.segments:
                self._blank.append((file, len(data)))
            return None
        try:
            header = record.decode_segment_header(data)
        except BadSegment as error:
            self.is_readable = self.is_readable and not isinstance(error, NewerVersion)
            is_torn = is_newest and not is_begun(data)
            is_oldest_unwritten = not self.segments and not is_begun(data)
            after = UNKNOWN if is_oldest_unwritten else self.sequence
            self._note(Damage(file, 0, len(data), str(error), is_torn_tail=is_torn), after)
            return None
        if header.number != number:
            self.damage.append(Damage(file, 0, len(data), f"is a copy of segment {header.number}"))
            return None
        segment = Replayed(file, header, record.SEGMENT_HEADER_SIZE, array("Q"), is_newest, told_again)
        self._note_start(segment, data)
        self._next_id_told = max(self._next_id_told, header.next_id)
        self._replay_records(segment, data)
        self.segments.append(segment)
        self.records += segment.records
        return segment

    def extend(self, data: bytes) -> None:
        """Take in *data*, whole records that were added to the newest segment since it was replayed."""
        segment = self.segments[-1]
        begin, segment.end, records = segment.end, 0, segment.records
        self._replay_records(segment, data)
        segment.end += begin
        self.records += segment.records - records

    def forget_tubes(self, names: Iterable[bytes]) -> None:
        """Forget the tubes *names*, which no job is in."""
        for name in names:
            self._tubes.pop(name, None)

    def settle(self, now: int) -> None:
        """Undo an import cut short, end all reservations, make due jobs ready, and give tubes their pauses.

        If the clock was set back, nothing was created in the future, and no delay or pause is longer than asked for.
        """
        self.is_import_open = self._import_undo is not None
        self._undo_import()
        for job in self.jobs.values():
            job.created_at = min(job.created_at, now)
            if job.state == DELAYED:
                job.deadline = min(job.deadline, now + job.delay)
            if job.state == RESERVED or (job.state != READY and job_history.is_reserved(job.events)):
                self._return(job, now)
            elif job.state == DELAYED and job.deadline <= now:
                job.state = READY
            elif job.state == READY and not job.created_at <= job.deadline <= now:
                job.deadline = min(job.created_at, now)
        self.pauses = {name: pause for name, pause in self.pauses.items() if pause[0] > now}
        for name, (until, length) in self.pauses.items():
            tube = self.tube_of(name)
            tube.paused_until, tube.pause = min(until, now + length), length

    def _return(self, job: Job, now: int) -> None:
        """End the reservation of *job*.

        It is ready then; or buried or delayed, if reserve-job took it while it was, and its delay is not over.
        """
        if job.state == RESERVED or (job.state == DELAYED and job.deadline <= now):
            job.state, job.deadline = READY, now
        if job_history.is_reserved(job.events):
            job.events = job_history.add(job.events, job_history.RETURNED, now, job_history.NOBODY)
            self.returned.append(job)

    @property
    def next_id(self) -> int:
        """Above every job id ever given."""
        return max(self._next_id_told, self._highest_id + 1)

    @property
    def is_sound(self) -> bool:
        """Whether nothing was lost but what a crash may tear."""
        return all(damage.is_torn_tail for damage in self.damage)

    def _note(self, damage: Damage, sequence: int) -> None:
        """Note *damage*; the last sound record before it has the number *sequence*."""
        self.damage.append(damage)
        self._damaged_after.append((sequence, damage))

    def _note_start(self, segment: Replayed, data: bytes) -> None:
        """See what *segment* goes on from: damage to what it tells of again is none, and a gap is damage."""
        first_sequence = segment.header.first_sequence
        has_records = len(data) >= segment.end + record.HEADER_SIZE
        first = record.HEADER.unpack_from(data, segment.end)[3] if has_records else 0
        tells_again = first > first_sequence or first_sequence == 1
        if tells_again:
            self._blank.clear()
        elif first == first_sequence:
            self._note_blank(segment)
        for sequence, damage in self._damaged_after:
            if (tells_again and sequence == UNKNOWN) or first_sequence <= sequence + 1:
                damage.is_torn_tail = True
        lost = segment.header.first_sequence - self.sequence - 1
        if self.segments and lost > 0:
            reason = f"follows on {self.segments[-1].file} with a gap"
            self.damage.append(Damage(segment.file, 0, 0, reason, lost))
        self.sequence = max(self.sequence, segment.header.first_sequence - 1)

    def _note_blank(self, segment: Replayed) -> None:
        """Note the blank files below *segment*, which begins with its own first record, as damage: they were in use.

        What was made ahead is used lowest first, and what a failed write left blank is told again.
        """
        reason = f"is blank, though {segment.file} goes on from it"
        self.damage += [Damage(file, 0, size, reason) for file, size in self._blank]
        self._blank.clear()

    def _replay_records(self, segment: Replayed, data: bytes) -> None:
        salt = segment.header.salt
        seed, end, at = record.seed_of(salt), len(data), segment.end
        view, unpack, header_size = memoryview(data), record.HEADER.unpack_from, record.HEADER_SIZE
        sequence, is_next = self.sequence, False
        apply, smallest = self._appliers(), record.SMALLEST_PAYLOAD
        while at + header_size <= end:
            marker, crc, length, number, kind = unpack(data, at)
            stop = at + header_size + length
            if marker != salt or stop > end or crc32(view[at + _AFTER_PREFIX : stop], seed) != crc:
                at, is_next = self._skip_damage(segment, data, at, sequence), False
                continue
            if sequence < number < _IMPOSSIBLE and length >= smallest.get(kind, length + 1):
                if is_next and number != sequence + 1:
                    if sequence + 1 >= segment.told_again:
                        break
                    self._note(Damage(segment.file, at, 0, "records are missing", number - sequence - 1), sequence)
                sequence, is_next = number, True
                apply[kind](data, at, stop, segment)
                segment.records += 1
            else:
                self.damage.append(Damage(segment.file, at, stop - at, f"record {number} repeated or unknown", 0))
                is_next = number <= sequence
            at = stop
            segment.end = at
        self.sequence = sequence
        if at < end and data[at:].strip(b"\0"):
            self._note_tail(segment, at, end, sequence)

    def _skip_damage(self, segment: Replayed, data: bytes, at: int, sequence: int) -> int:
        """Note what is wrong at *at*; return where to go on: the next sound record, or the end of *data*.

        A sector of the newest segment that was never written is where the last write was torn: power was lost
        while sectors were on their way in any order, and nothing behind it was acknowledged. Nor was anything behind
        damage to what is told again, be it in part: it would not go together with what stands there.
        """
        resume = self._next_sound(segment.header.salt, data, at + 1)
        is_torn = resume is not None and segment.is_newest and _is_unwritten(data, at, resume)
        if resume is not None and not is_torn and sequence + 1 < segment.told_again:
            number = record.HEADER.unpack_from(data, resume)[3]
            lost = max(0, number - sequence - 1)
            self._note(Damage(segment.file, at, resume - at, "damaged", lost), sequence)
            return resume
        if data[at:].strip(b"\0"):
            self._note_tail(segment, at, len(data.rstrip(b"\0")), sequence)
        return len(data)

    def _note_tail(self, segment: Replayed, at: int, end: int, sequence: int) -> None:
        reason = "torn tail" if segment.is_newest else "damaged to its end"
        self._note(Damage(segment.file, at, end - at, reason, is_torn_tail=segment.is_newest), sequence)

    def _next_sound(self, salt: bytes, data: bytes, at: int) -> int | None:
        """The first place from *at* on where a sound record stands. Salts are random: few places get a CRC."""
        seed, view = record.seed_of(salt), memoryview(data)
        while (at := data.find(salt, at)) >= 0 and at + record.HEADER_SIZE <= len(data):
            _, crc, length, _, kind = record.HEADER.unpack_from(data, at)
            stop = at + record.HEADER_SIZE + length
            is_whole = kind in record.SMALLEST_PAYLOAD and stop <= len(data)
            if is_whole and crc32(view[at + _AFTER_PREFIX : stop], seed) == crc:
                return at
            at += 1
        return None

    # One method a kind of record: each is handed the file, where the record begins and ends, and its segment

    def _appliers(self) -> dict[int, Callable[[bytes, int, int, Replayed], None]]:
        return {
            record.JOB: self._job,
            record.UPDATE: self._update,
            record.RESERVE: self._reserve,
            record.DELETE: self._delete,
            record.PAUSE: self._pause,
            record.IMPORT_BEGIN: self._import_begin,
            record.IMPORT_END: self._import_end,
            record.IMPORT_UNDO: self._import_aborted,
            record.JOB_WITH_EVENTS: self._job_with_events,
            record.UPDATE_WITH_EVENT: self._update_with_event,
            record.RESERVE_WITH_EVENT: self._reserve_with_event,
            record.IDS: self._ids,
        }

    def _job(self, data: bytes, at: int, stop: int, segment: Replayed) -> None:
        self._add_job(data, at, at + _NAME_AT, 0, stop, segment)

    def _job_with_events(self, data: bytes, at: int, stop: int, segment: Replayed) -> None:
        name_at = at + _NAME_AT + 1
        self._add_job(data, at, name_at, data[name_at - 1], stop, segment)

    def _add_job(self, data: bytes, at: int, name_at: int, events_length: int, stop: int, segment: Replayed) -> None:
        (
            id,
            pri,
            delay,
            ttr,
            created_at,
            deadline,
            reserves,
            timeouts,
            releases,
            buries,
            kicks,
            state,
            name_length,
        ) = record.JOB_FIELDS.unpack_from(data, at + _JOB_AT)
        events_at = name_at + name_length
        body_at = events_at + events_length
        tube = self._tube(data[name_at:events_at])
        if tube is None or not READY <= state <= DELAYED or body_at > stop or events_length not in job_history.SIZES:
            return
        if not 0 < id < _ID_LIMIT or (delay | ttr | (deadline if state == BURIED else 0)) >> record.BITS:
            return
        like = self._last  # equal numbers share one object, as they do when clients repeat themselves
        pri = like.pri if pri == like.pri else pri
        ttr = like.ttr if ttr == like.ttr else ttr
        job = self._last = Job(id, tube, data[body_at:stop], pri, delay, ttr, created_at)
        job.state = state
        job.segment = segment.header.number
        job.deadline = deadline
        if reserves or releases or kicks or buries or timeouts:
            job.reserves = reserves
            job.timeouts = timeouts
            job.releases = releases
            job.buries = buries
            job.kicks = kicks
        if events_length:
            job.events = data[events_at:body_at]
            job.events_recorded = 1 + events_length
        if self._import_undo is not None:
            self._import_undo.setdefault(id, self.jobs.get(id))
        if self.memory is not None:
            self._index(job, at, segment)
        self.jobs[id] = job
        segment.ids.append(id)
        if id > self._highest_id:
            self._highest_id = id

    def _index(self, job: Job, at: int, segment: Replayed) -> None:
        """Note where the record of *job* is, and leave its body there if memory has no room for it."""
        assert self.memory is not None
        segment.starts.append(at)
        before = self.jobs.get(job.id)
        segment.has_repeats |= before is not None and before.segment == job.segment
        self._give_back(before)
        if job.size > SMALL and self.memory < job.size + BODY_COST:
            job.body = None
        else:
            self.memory -= job.size + BODY_COST
        self.memory -= JOB_COST

    def _give_back(self, job: Job | None) -> None:
        """Count the memory of *job*, which goes, as free."""
        if self.memory is not None and job is not None:
            self.memory += JOB_COST + (0 if job.body is None else job.size + BODY_COST)

    def _tube(self, name: bytes) -> Tube | None:
        """The tube *name*, or None if no tube may be called so."""
        tube = self._tubes.get(name)
        if tube is None and is_tube_name(name):
            tube = self._tubes[name] = self.tube_of(name)
        return tube

    def _update(self, data: bytes, at: int, stop: int, segment: Replayed) -> None:
        fields = record.UPDATE_FIELDS.unpack_from(data, at + _JOB_AT)
        job = self.jobs.get(fields[0])
        if job is None or not READY <= fields[9] <= DELAYED:
            return
        if not (fields[2] | (fields[3] if fields[9] == BURIED else 0)) >> record.BITS:
            (_, job.pri, job.delay, job.deadline) = fields[:4]
            (job.reserves, job.timeouts, job.releases, job.buries, job.kicks, job.state) = fields[4:]

    def _update_with_event(self, data: bytes, at: int, stop: int, segment: Replayed) -> None:
        self._update(data, at, stop, segment)
        self._note_event(data, at, at + _EVENT_AFTER_UPDATE)

    def _note_event(self, data: bytes, at: int, event_at: int) -> Job | None:
        """Add to the job of the record at *at* the event at *event_at*; return the job, if there is one."""
        (id,) = record.DELETE_FIELDS.unpack_from(data, at + _JOB_AT)  # each record of a job begins with its id
        job = self.jobs.get(id)
        if job is not None:
            job.events = job_history.join(job.events, data[event_at : event_at + job_history.EVENT.size])
        return job

    def _reserve_with_event(self, data: bytes, at: int, stop: int, segment: Replayed) -> None:
        job = self._note_event(data, at, at + _EVENT_AFTER_RESERVE)
        if job is None:
            return
        _, job.reserves, job.timeouts = record.RESERVE_FIELDS.unpack_from(data, at + _JOB_AT)
        if not job_history.is_reserved(job.events):
            job.state, job.deadline = READY, job_history.last(job.events).at
        elif job.state == READY or (job.state == DELAYED and job.deadline <= job_history.last(job.events).at):
            job.state = RESERVED  # else reserve-job took it, and `settle` returns it to what it was

    def _reserve(self, data: bytes, at: int, stop: int, segment: Replayed) -> None:
        id, reserves, timeouts = record.RESERVE_FIELDS.unpack_from(data, at + _JOB_AT)
        job = self.jobs.get(id)
        if job is not None:
            job.state = RESERVED
            job.reserves = reserves
            job.timeouts = timeouts

    def _delete(self, data: bytes, at: int, stop: int, segment: Replayed) -> None:
        (id,) = record.DELETE_FIELDS.unpack_from(data, at + _JOB_AT)
        self._give_back(self.jobs.pop(id, None))
        if self._highest_id < id < _ID_LIMIT:
            self._highest_id = id

    def _pause(self, data: bytes, at: int, stop: int, segment: Replayed) -> None:
        until, length = record.PAUSE_FIELDS.unpack_from(data, at + _JOB_AT)
        name = data[at + _JOB_AT + record.PAUSE_FIELDS.size : stop]
        if until and is_tube_name(name):
            self.pauses[name] = (until, length)
        else:
            self.pauses.pop(name, None)

    def _ids(self, data: bytes, at: int, stop: int, segment: Replayed) -> None:
        (next_id,) = record.IDS_FIELDS.unpack_from(data, at + _JOB_AT)
        if next_id <= _ID_LIMIT:
            self._next_id_told = next_id

    def _import_begin(self, data: bytes, at: int, stop: int, segment: Replayed) -> None:
        self._undo_import()
        self._import_undo = {}

    def _import_end(self, data: bytes, at: int, stop: int, segment: Replayed) -> None:
        self._import_undo = None

    def _import_aborted(self, data: bytes, at: int, stop: int, segment: Replayed) -> None:
        self._undo_import()

    def _undo_import(self) -> None:
        for id, before in (self._import_undo or {}).items():
            if before is None:
                self.jobs.pop(id, None)
            else:
                self.jobs[id] = before
        self._import_undo = None


def retold(heads: dict[int, bytes]) -> dict[int, int]:
    """By the number of each segment, whose *heads* are given: the first record that a later one tells of, or NEVER.

    What the segment itself has from there on was recorded anew, after the disk had failed.
    """
    found, lowest = {}, NEVER
    for number in sorted(heads, reverse=True):
        found[number] = lowest
        with suppress(BadSegment):
            header = record.decode_segment_header(heads[number])
            if header.number == number:
                lowest = min(lowest, header.first_sequence)
    return found


def is_begun(data: bytes) -> bool:
    """Whether the head of a segment of *data* was ever written whole; if not, nothing in it was acknowledged."""
    size = record.SEGMENT_HEADER_SIZE
    return len(data.rstrip(b"\0")) >= size and bool(data[:size].strip(b"\0"))


def _is_unwritten(data: bytes, at: int, end: int) -> bool:
    """Whether a sector between *at* and *end*, or what there is of it from *at* on, is zeros."""
    ends = range(at // SECTOR * SECTOR + SECTOR, end + 1, SECTOR)
    return any(not data[max(at, stop - SECTOR) : stop].strip(b"\0") for stop in ends)
