"""The journal's codec: segments and records as bytes, by docs/journal-format.md. No disk, no clock.

A record is a fact about one job, one tube or the ids. Replaying all records of all segments in the order of
their sequence numbers gives the state; a later fact about a job replaces an earlier one, save that its events add up.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from greenstalk_server.core import job_history
from greenstalk_server.core.body_cache import held_body
from greenstalk_server.core.job import Job
from greenstalk_server.core.job_history import RESERVED
from greenstalk_server.core.tube import Tube

MAGIC: Final = b"GSJOURNL"
VERSION: Final = 3

JOB: Final = 1
"""A job whole, its body included, to which nothing has happened."""

UPDATE: Final = 2
"""A job's state, pri, delay, deadline and counts. Of version 1 only."""

RESERVE: Final = 3
"""A job was reserved, or its reservation timed out: its counts of both; it comes back ready. Of version 1 only."""

DELETE: Final = 4
PAUSE: Final = 5
"""A tube's pause: its end and length; zeros end it."""

IMPORT_BEGIN: Final = 6
IMPORT_END: Final = 7
IMPORT_UNDO: Final = 8
"""Jobs that stand after an IMPORT_BEGIN count only once an IMPORT_END follows, and no more once an IMPORT_UNDO does."""

JOB_WITH_EVENTS: Final = 9
UPDATE_WITH_EVENT: Final = 10
RESERVE_WITH_EVENT: Final = 11
"""As those without, and what has happened to the job: all of it, or what the record is about."""

IDS: Final = 12
"""The next job id, which may be lower than what was recorded before: ids set aside that were not given."""

_U32: Final = 2**32 - 1

BITS: Final = 63
"""Of any id, sequence number, burial, delay or ttr that a server has written. What has more was made up, and would
leave no number for what comes next."""

ID_LIMIT: Final = 2**62 + 2**61
"""Every job id is below this: no record with another id is written, or counts when it is read. Imported ids go up to
2**62, which leaves 2**61 for new jobs."""

_SEGMENT: Final = struct.Struct("<8sI4sQQQ")
"""magic, version, salt, number, first sequence number, next job id; a CRC-32 of these follows."""

SEGMENT_HEADER_SIZE: Final = _SEGMENT.size + 4

_PREFIX: Final = struct.Struct("<4sI")
"""salt, CRC-32 of all that follows."""

HEADER: Final = struct.Struct("<4sIIQB")
"""The prefix; then length of the payload, sequence number, kind."""

HEADER_SIZE: Final = HEADER.size
PREFIX_SIZE: Final = _PREFIX.size

JOB_FIELDS: Final = struct.Struct("<QIQQQQIIIIIBB")
"""id, pri, delay, ttr, created_at, deadline, reserves, timeouts, releases, buries, kicks, state, length of name."""

UPDATE_FIELDS: Final = struct.Struct("<QIQQIIIIIB")
"""id, pri, delay, deadline, reserves, timeouts, releases, buries, kicks, state."""

RESERVE_FIELDS: Final = struct.Struct("<QII")
"""id, reserves, timeouts."""

JOB_WITH_EVENTS_FIELDS: Final = struct.Struct(JOB_FIELDS.format + "B")
"""As JOB; then bytes of events. After the name they stand, before the body."""

UPDATE_WITH_EVENT_FIELDS: Final = struct.Struct(f"{UPDATE_FIELDS.format}{job_history.EVENT.size}s")
"""As UPDATE; then the event."""

RESERVE_WITH_EVENT_FIELDS: Final = struct.Struct(RESERVE_FIELDS.format + job_history.EVENT.format[1:])
"""As RESERVE; then the event: time, kind, number of the client."""

DELETE_FIELDS: Final = struct.Struct("<Q")
PAUSE_FIELDS: Final = struct.Struct("<QQ")
"""end, length; the name follows."""

IDS_FIELDS: Final = struct.Struct("<Q")
"""next job id."""

_JOB_RECORD: Final = struct.Struct("<IQB" + JOB_FIELDS.format[1:])
_UPDATE_RECORD: Final = struct.Struct("<IQB" + UPDATE_WITH_EVENT_FIELDS.format[1:])
_RESERVE_RECORD: Final = struct.Struct("<IQB" + RESERVE_WITH_EVENT_FIELDS.format[1:])
_DELETE_RECORD: Final = struct.Struct("<IQB" + DELETE_FIELDS.format[1:])
_OTHER_RECORD: Final = struct.Struct("<IQB")

_UPDATE_LENGTH: Final = UPDATE_WITH_EVENT_FIELDS.size
_RESERVE_LENGTH: Final = RESERVE_WITH_EVENT_FIELDS.size
_EVENT_SIZE: Final = job_history.EVENT.size

DELETE_SIZE: Final = HEADER_SIZE + DELETE_FIELDS.size
UPDATE_SIZE: Final = HEADER_SIZE + UPDATE_WITH_EVENT_FIELDS.size
RESERVE_SIZE: Final = HEADER_SIZE + RESERVE_WITH_EVENT_FIELDS.size
IDS_SIZE: Final = HEADER_SIZE + IDS_FIELDS.size

SMALLEST_PAYLOAD: Final = {
    JOB: JOB_FIELDS.size,
    UPDATE: UPDATE_FIELDS.size,
    RESERVE: RESERVE_FIELDS.size,
    DELETE: DELETE_FIELDS.size,
    PAUSE: PAUSE_FIELDS.size,
    IMPORT_BEGIN: 0,
    IMPORT_END: 0,
    IMPORT_UNDO: 0,
    JOB_WITH_EVENTS: JOB_WITH_EVENTS_FIELDS.size,
    UPDATE_WITH_EVENT: UPDATE_WITH_EVENT_FIELDS.size,
    RESERVE_WITH_EVENT: RESERVE_WITH_EVENT_FIELDS.size,
    IDS: IDS_FIELDS.size,
}
"""By kind; every kind there is."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The head of a segment.

    salt            4 random bytes: each record of the segment starts with them, and their value is where its
                    CRC starts from. So nothing that a client puts in a body, and nothing an older file left
                    on the disk, can pass for a record.
    number          of the segment, as in its file's name.
    first_sequence  of the first record in it, if any comes.
    next_id         above every job id given before, and those set aside to be given next.
    """

    salt: bytes
    number: int
    first_sequence: int
    next_id: int

    def encode(self) -> bytes:
        """As the first SEGMENT_HEADER_SIZE bytes of the file."""
        head = _SEGMENT.pack(MAGIC, VERSION, self.salt, self.number, self.first_sequence, self.next_id)
        return head + crc32(head).to_bytes(4, "little")


class BadSegment(Exception):
    """A file's head is no segment header that this version reads; str() says why."""


class NewerVersion(BadSegment):
    """A later server has written it. An earlier one must not go on without what it holds."""


def decode_segment_header(data: bytes) -> SegmentHeader:
    """The header at the start of *data*; raise BadSegment."""
    if len(data) < SEGMENT_HEADER_SIZE:
        raise BadSegment(f"only {len(data)} bytes, shorter than a header")
    magic, version, salt, number, first_sequence, next_id = _SEGMENT.unpack_from(data)
    if magic != MAGIC:
        raise BadSegment("does not start as a segment of a journal does")
    if crc32(data[: _SEGMENT.size]) != int.from_bytes(data[_SEGMENT.size : SEGMENT_HEADER_SIZE], "little"):
        raise BadSegment("checksum of its header is wrong")
    if not 1 <= version <= VERSION:
        raise NewerVersion(f"format version {version}, and this server reads 1 to {VERSION}")
    if first_sequence >> BITS or next_id > ID_LIMIT:
        raise BadSegment("counts in its header are impossible")
    return SegmentHeader(salt, number, first_sequence, next_id)


def job_size(job: Job) -> int:
    """Bytes that a JOB record of *job* without events takes."""
    return HEADER_SIZE + JOB_FIELDS.size + len(job.tube.name) + job.size


def events_of(job: Job) -> bytes:
    """What has happened to *job*, a reservation that goes on included."""
    holder = job.holder
    return job.events if holder is None else job_history.add(job.events, RESERVED, job.reserved_at, holder.number)


def events_size(events: bytes) -> int:
    """Bytes that *events* take of a JOB record."""
    return 1 + len(events) if events else 0


def recorded_size(job: Job) -> int:
    """Bytes that the newest JOB record of *job* takes in the journal."""
    return job_size(job) + job.events_recorded


def pause_size(tube: Tube) -> int:
    """Bytes that a PAUSE record of *tube* takes."""
    return HEADER_SIZE + PAUSE_FIELDS.size + len(tube.name)


class Encoder:
    """Makes the records of one segment."""

    __slots__ = ("_salt", "_seed")

    def __init__(self, salt: bytes) -> None:
        self._salt: bytes = salt
        self._seed: int = seed_of(salt)

    def job(self, job: Job, sequence: int, events: bytes = b"") -> bytes:
        """Return a JOB record of *job* as it is now, its body in memory, with *events*."""
        name, body, fields = job.tube.name, held_body(job), self._job_fields(job, sequence, events)
        if events:
            return self._seal(b"%b%c%b%b%b" % (fields, len(events), name, events, body))
        return self._seal(b"%b%b%b" % (fields, name, body))

    def begin_job(self, job: Job, sequence: int, events: bytes = b"") -> bytes:
        """Return what stands between the prefix and the body in the record that `job` returns; for `seal_job`."""
        name, fields = job.tube.name, self._job_fields(job, sequence, events)
        return b"%b%c%b%b" % (fields, len(events), name, events) if events else fields + name

    def seal_job(self, start: bytes, body: bytes) -> bytes:
        """Return the record without *body*, which follows it; *start* is what `begin_job` returned. Any thread.

        It takes 0.3 ms of CPU for each megabyte of *body*, for which it releases the GIL.
        """
        return _PREFIX.pack(self._salt, crc32(body, crc32(start, self._seed))) + start

    def _job_fields(self, job: Job, sequence: int, events: bytes) -> bytes:
        """Return what stands between the prefix and the name of the tube in a JOB record."""
        name, kind = job.tube.name, JOB
        state, deadline = job.state, job.deadline
        if job.cold.former_state:
            state, deadline = job.cold.former_state, job.cold.former_deadline
        length = JOB_FIELDS.size + len(name) + job.size
        if events:
            kind = JOB_WITH_EVENTS
            length += 1 + len(events)
        try:
            return _JOB_RECORD.pack(
                length,
                sequence,
                kind,
                job.id,
                job.pri,
                job.delay,
                job.ttr,
                job.created_at,
                deadline,
                job.reserves,
                job.timeouts,
                job.releases,
                job.buries,
                job.kicks,
                state,
                len(name),
            )
        except struct.error:
            _clamp_counts(job)
            return self._job_fields(job, sequence, events)

    def update(self, job: Job, sequence: int) -> bytes:
        """An UPDATE record of *job* as it is now, and of the last of its events."""
        state, deadline = job.state, job.deadline
        if job.cold.former_state:
            state, deadline = job.cold.former_state, job.cold.former_deadline
        try:
            fields = _UPDATE_RECORD.pack(
                _UPDATE_LENGTH,
                sequence,
                UPDATE_WITH_EVENT,
                job.id,
                job.pri,
                job.delay,
                deadline,
                job.reserves,
                job.timeouts,
                job.releases,
                job.buries,
                job.kicks,
                state,
                job.events[-_EVENT_SIZE:],
            )
        except struct.error:
            _clamp_counts(job)
            return self.update(job, sequence)
        return self._seal(fields)

    def reserve(self, job: Job, sequence: int) -> bytes:
        """A RESERVE record of *job*, which has just been reserved."""
        assert job.holder is not None
        try:
            fields = _RESERVE_RECORD.pack(
                _RESERVE_LENGTH,
                sequence,
                RESERVE_WITH_EVENT,
                job.id,
                job.reserves,
                job.timeouts,
                job.reserved_at,
                RESERVED,
                job.holder.number,
            )
        except struct.error:
            _clamp_counts(job)
            return self.reserve(job, sequence)
        return self._seal(fields)

    def lapse(self, job: Job, sequence: int) -> bytes:
        """A RESERVE record of *job*, whose reservation has ended as the last of its events says."""
        event = job_history.last(job.events)
        try:
            fields = _RESERVE_RECORD.pack(
                _RESERVE_LENGTH, sequence, RESERVE_WITH_EVENT, job.id, job.reserves, job.timeouts, *event
            )
        except struct.error:
            _clamp_counts(job)
            return self.lapse(job, sequence)
        return self._seal(fields)

    def delete(self, id: int, sequence: int) -> bytes:
        """A DELETE record of the job *id*."""
        return self._seal(_DELETE_RECORD.pack(DELETE_FIELDS.size, sequence, DELETE, id))

    def pause(self, tube: Tube, sequence: int) -> bytes:
        """A PAUSE record of *tube* as it is now."""
        payload = PAUSE_FIELDS.pack(tube.paused_until, tube.pause) + tube.name
        return self._seal(_OTHER_RECORD.pack(len(payload), sequence, PAUSE) + payload)

    def ids(self, next_id: int, sequence: int) -> bytes:
        """An IDS record."""
        payload = IDS_FIELDS.pack(next_id)
        return self._seal(_OTHER_RECORD.pack(len(payload), sequence, IDS) + payload)

    def mark(self, kind: int, sequence: int) -> bytes:
        """A record that is its kind alone: IMPORT_BEGIN, IMPORT_END or IMPORT_UNDO."""
        return self._seal(_OTHER_RECORD.pack(0, sequence, kind))

    def _seal(self, rest: bytes) -> bytes:
        return _PREFIX.pack(self._salt, crc32(rest, self._seed)) + rest


def is_job(start: bytes, body: bytes, size: int, id: int, seed: int) -> bool:
    """Return whether *start*, then *body*, are a sound JOB record of the job *id*, of *size* bytes.

    The CRCs of its segment start from *seed*.
    """
    if len(start) + len(body) != size:
        return False
    _, crc, length, _, kind = HEADER.unpack_from(start)
    is_whole = kind in (JOB, JOB_WITH_EVENTS) and length == size - HEADER_SIZE
    is_sound = is_whole and crc32(body, crc32(start[PREFIX_SIZE:], seed)) == crc
    return is_sound and DELETE_FIELDS.unpack_from(start, HEADER_SIZE) == (id,)


def seed_of(salt: bytes) -> int:
    """Where the CRCs of a segment with this *salt* start from."""
    return int.from_bytes(salt, "little")


def _clamp_counts(job: Job) -> None:
    """Hold *job*'s counts, which may have passed what a record takes, to that."""
    job.reserves = min(job.reserves, _U32)
    job.timeouts = min(job.timeouts, _U32)
    job.releases = min(job.releases, _U32)
    job.buries = min(job.buries, _U32)
    job.kicks = min(job.kicks, _U32)
