"""The codec of the journal: encodes and decodes segments and records (docs/journal-format.md). No I/O, no clock.

A record is a fact about one job, one tube, one policy, one unique key or the ids. Replaying all records of all segments
in the order of their sequence numbers gives the state. A later fact replaces an earlier one, except that the events of
a job accumulate.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias
from zlib import crc32

from greenstalk_server.core import job_attributes
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.body_cache import resident_body
from greenstalk_server.core.jobs.job import DEFAULT_COLD_STATE, Job
from greenstalk_server.core.jobs.job_history import RESERVED
from greenstalk_server.core.remote import Reservation
from greenstalk_server.core.tags.tags import TaggedJob
from greenstalk_server.core.travel import Location, is_moving

try:
    from greenstalk_server.journal._seal import seal
except ImportError:  # not compiled
    seal = None  # type: ignore[assignment]

MAGIC: Final = b"GSJOURNL"
VERSION: Final = 4

LATER_VERSION: Final = "a later version of the server has written the journal; use that version"
EARLIER_VERSION: Final = (
    "a version of the server before 0.2 has written the journal; export it with that version, and import the archive"
)

JOB: Final = 1
"""A whole job, including its body, with no events."""

DELETE: Final = 4
PAUSE: Final = 5
"""The pause of a tube: its end and length; zeros end the pause."""

IMPORT_BEGIN: Final = 6
IMPORT_END: Final = 7
IMPORT_UNDO: Final = 8
"""Jobs after an IMPORT_BEGIN count only if an IMPORT_END follows. An IMPORT_UNDO in its place discards them."""

JOB_WITH_EVENTS: Final = 9
"""Like JOB, plus the job's events."""

UPDATE: Final = 10
"""A job's state, pri, delay, deadline and counts, and the event that has changed them."""

RESERVE: Final = 11
"""A job was reserved, or its reservation ended without a command: the counts of reserves and timeouts, the event, and
for a reservation by a remote client its Reservation."""

IDS: Final = 12
"""The next job id. It may be lower than an earlier recorded one if reserved ids were not used."""

JOB_WITH_ATTRIBUTES: Final = 13
"""Like JOB_WITH_EVENTS, plus attributes (see job_attributes)."""

MOVE: Final = 14
"""Like UPDATE, plus the job's tube and all of its attributes."""

GROUP: Final = 15
"""The next records, all of jobs, take effect only if all of them are there."""

POLICY: Final = 16
"""The document of a policy; an empty one deletes the policy."""

KEY: Final = 17
"""A key that outlives its job, the id of the job, and the time at which the key becomes free; time 0 deletes the key.

The scope is the name of the tube; for an idempotency key, a colon follows the name."""

JOB_KINDS: Final = (JOB, JOB_WITH_EVENTS, JOB_WITH_ATTRIBUTES)

LOCATION: Final = 18
"""The place of a job that was here: it has moved to another shard, or was deleted; 0 moves delete the record. If the
job exists, the record deletes it."""

Entry: TypeAlias = str | bytes | tuple[bytes, bytes] | int
"""A policy by its name, the pause of a tube by the tube's name, a key that outlives its job by its scope and its
bytes, or the location of a job by the job's id."""

_U32: Final = 2**32 - 1

BITS: Final = 63
"""Maximum bits of an id, sequence number, burial, delay or ttr that a server writes. A larger value is forged, and
would leave no number for the next record or job."""

MAX_FRONT: Final = 64
"""Maximum characters of the id of a front, which consists of ASCII letters and digits."""

ID_LIMIT: Final = 2**62 + 2**61
"""Every job id is below this: a record with another id is not written, and is ignored when read. Imported ids are at
most 2**62, which leaves 2**61 for new jobs."""

_SEGMENT: Final = struct.Struct("<8sI4sQQQ")
"""magic, version, salt, number, first sequence number, next job id; a CRC-32 of these follows."""

SEGMENT_HEADER_SIZE: Final = _SEGMENT.size + 4

_PREFIX: Final = struct.Struct("<4sI")
"""salt, CRC-32 of the rest of the record."""

HEADER: Final = struct.Struct("<4sIIQB")
"""The prefix; then length of the payload, sequence number, kind."""

HEADER_SIZE: Final = HEADER.size
PREFIX_SIZE: Final = _PREFIX.size

JOB_FIELDS: Final = struct.Struct("<QIQQQQIIIIIBB")
"""id, pri, delay, ttr, created_at, deadline, reserves, timeouts, releases, buries, kicks, state, length of name."""

UPDATE_FIELDS: Final = struct.Struct(f"<QIQQIIIIIB{job_history.EVENT.size}s")
"""id, pri, delay, deadline, reserves, timeouts, releases, buries, kicks, state, event."""

RESERVE_FIELDS: Final = struct.Struct("<QII" + job_history.EVENT.format[1:])
"""id, reserves, timeouts; time, kind and client of the event."""

RESERVATION_FIELDS: Final = struct.Struct("<QQ")
"""session, number; the id of the front follows."""

JOB_WITH_EVENTS_FIELDS: Final = struct.Struct(JOB_FIELDS.format + "B")
"""The fields of JOB, then the length of the events, which are between the name and the body."""

JOB_WITH_ATTRIBUTES_FIELDS: Final = struct.Struct(JOB_FIELDS.format + "BH")
"""The fields of JOB, then the lengths of the events and attributes, which are between the name and the body."""

MOVE_FIELDS: Final = struct.Struct(UPDATE_FIELDS.format + "B")
"""The fields of UPDATE, then the length of the tube's name; the name and the attributes follow."""

GROUP_FIELDS: Final = struct.Struct("<I")
"""number of records."""

POLICY_FIELDS: Final = struct.Struct("<B")
"""length of the name; the name and the document follow."""

KEY_FIELDS: Final = struct.Struct("<QQB")
"""job id, until, length of the scope; the scope and the key follow."""

LOCATION_FIELDS: Final = struct.Struct("<QIHH")
"""job id, number of its moves, shard, source."""

DELETE_FIELDS: Final = struct.Struct("<Q")
PAUSE_FIELDS: Final = struct.Struct("<QQ")
"""end, length; the name follows."""

IDS_FIELDS: Final = struct.Struct("<Q")
"""next job id."""

_JOB_RECORD: Final = struct.Struct("<IQB" + JOB_FIELDS.format[1:])
_NEW_JOB_RECORD: Final = struct.Struct("<IQBQI8xQQQ20xBB")
"""_NEW_JOB_RECORD: like _JOB_RECORD, for a job without a delay and with all counts 0."""

_UPDATE_RECORD: Final = struct.Struct("<IQB" + UPDATE_FIELDS.format[1:])
_RESERVE_RECORD: Final = struct.Struct("<IQB" + RESERVE_FIELDS.format[1:])
_LENGTHS: Final = struct.Struct("<BH")
"""Lengths of the events and attributes in JOB_WITH_ATTRIBUTES."""
_DELETE_RECORD: Final = struct.Struct("<IQB" + DELETE_FIELDS.format[1:])
_OTHER_RECORD: Final = struct.Struct("<IQB")

_JOB_LENGTH: Final = JOB_FIELDS.size
_UPDATE_LENGTH: Final = UPDATE_FIELDS.size
_DELETE_LENGTH: Final = DELETE_FIELDS.size
_RESERVE_LENGTH: Final = RESERVE_FIELDS.size
_EVENT_SIZE: Final = job_history.EVENT.size

_JOB_OVERHEAD: Final = HEADER_SIZE + JOB_FIELDS.size
DELETE_SIZE: Final = HEADER_SIZE + DELETE_FIELDS.size
UPDATE_SIZE: Final = HEADER_SIZE + UPDATE_FIELDS.size
RESERVE_SIZE: Final = HEADER_SIZE + RESERVE_FIELDS.size
IDS_SIZE: Final = HEADER_SIZE + IDS_FIELDS.size
GROUP_SIZE: Final = HEADER_SIZE + GROUP_FIELDS.size
LOCATION_SIZE: Final = HEADER_SIZE + LOCATION_FIELDS.size

MIN_PAYLOAD: Final = {
    JOB: JOB_FIELDS.size,
    DELETE: DELETE_FIELDS.size,
    PAUSE: PAUSE_FIELDS.size,
    IMPORT_BEGIN: 0,
    IMPORT_END: 0,
    IMPORT_UNDO: 0,
    JOB_WITH_EVENTS: JOB_WITH_EVENTS_FIELDS.size,
    UPDATE: UPDATE_FIELDS.size,
    RESERVE: RESERVE_FIELDS.size,
    IDS: IDS_FIELDS.size,
    JOB_WITH_ATTRIBUTES: JOB_WITH_ATTRIBUTES_FIELDS.size,
    MOVE: MOVE_FIELDS.size,
    GROUP: GROUP_FIELDS.size,
    POLICY: POLICY_FIELDS.size,
    KEY: KEY_FIELDS.size,
    LOCATION: LOCATION_FIELDS.size,
}
"""Minimum size of the payload in bytes, for every kind."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment.

    salt            4 random bytes: each record of the segment starts with them, and their value is the initial value of
                    its CRC. So neither data in a body nor data that an older file has left on the disk can be mistaken
                    for a record.
    number          number of the segment, as in its file name.
    first_sequence  number of its first record, if it gets one; in the first segment of a rewrite, number of the first
                    record that is rewritten.
    next_id         greater than every job id that was assigned or reserved.
    """

    salt: bytes
    number: int
    first_sequence: int
    next_id: int

    def encode(self) -> bytes:
        """Return the first SEGMENT_HEADER_SIZE bytes of the file."""
        head = _SEGMENT.pack(MAGIC, VERSION, self.salt, self.number, self.first_sequence, self.next_id)
        return head + crc32(head).to_bytes(4, "little")


class BadSegment(Exception):
    """A file does not begin with a segment header that this version reads; str() says why."""


class OtherVersion(BadSegment):
    """Another version of the server has written the segment. No start may continue without its content.

    advice  says what to do with the journal.
    """

    def __init__(self, version: int) -> None:
        super().__init__(f"format version {version}, but this server reads only version {VERSION}")
        self.advice: str = EARLIER_VERSION if version < VERSION else LATER_VERSION


def decode_segment_header(data: bytes) -> SegmentHeader:
    """Return the header at the start of *data*; raise BadSegment."""
    if len(data) < SEGMENT_HEADER_SIZE:
        raise BadSegment(f"only {len(data)} bytes, shorter than a header")
    magic, version, salt, number, first_sequence, next_id = _SEGMENT.unpack_from(data)
    if magic != MAGIC:
        raise BadSegment("does not start with the magic bytes of a journal segment")
    if crc32(data[: _SEGMENT.size]) != int.from_bytes(data[_SEGMENT.size : SEGMENT_HEADER_SIZE], "little"):
        raise BadSegment("the checksum of its header does not match")
    if version != VERSION:
        raise OtherVersion(version)
    if first_sequence >> BITS or next_id > ID_LIMIT:
        raise BadSegment("its header has an impossible sequence number or job id")
    return SegmentHeader(salt, number, first_sequence, next_id)


def job_size(job: Job) -> int:
    """Return the size in bytes of a JOB record of *job* without events and attributes."""
    return _JOB_OVERHEAD + len(job.tube.name) + job.size


def events_of(job: Job) -> bytes:
    """Return the events of *job*, including its current reservation."""
    holder = job.holder if not is_moving(job.cold.travel) else None
    return job.events if holder is None else job_history.add(job.events, RESERVED, job.reserved_at, holder.number)


def attributes_of(job: Job) -> bytes:
    """Return the attributes of *job*, including its current reservation if a remote client holds it."""
    attributes, reservation = job_attributes.encode(job), reservation_of(job)
    return (
        attributes + bytes((job_attributes.RESERVATION, len(reservation))) + reservation if reservation else attributes
    )


def reservation_of(job: Job) -> bytes:
    """Return the current reservation of *job* if a remote client holds it whose session can be resumed; else empty."""
    if job.holder is None or job.holder.remote is None:
        return b""
    front, session, number = job.holder.remote.reservation_of(job.id)
    return RESERVATION_FIELDS.pack(session, number) + front.encode()


def decode_reservation(data: bytes) -> Reservation | None:
    """Return the Reservation in *data*; None if it is malformed."""
    front = data[RESERVATION_FIELDS.size :]
    if not (0 < len(front) <= MAX_FRONT and front.isalnum()):
        return None
    session, number = RESERVATION_FIELDS.unpack_from(data)
    return Reservation(front.decode(), session, number) if not (session | number) >> BITS else None


def reserve_size(job: Job) -> int:
    """Return the size in bytes of a RESERVE record of *job*, which has just been reserved."""
    return RESERVE_SIZE + len(reservation_of(job))


def extra_size(events: bytes, attributes: bytes) -> int:
    """Return the number of bytes that *events* and *attributes* take in a JOB record."""
    if attributes:
        return 3 + len(events) + len(attributes)
    return 1 + len(events) if events else 0


def recorded_size(job: Job) -> int:
    """Return the size in bytes of the newest JOB record of *job* in the journal."""
    return _JOB_OVERHEAD + len(job.tube.name) + job.size + extra_of(job)


def extra_of(job: Job) -> int:
    """Return the number of bytes that events and attributes add to the newest JOB record of *job*."""
    return job.cold.record_extra + tags_size(job)


def note_extra(job: Job, extra: int) -> None:
    """Store in *job* that its newest JOB record has *extra* bytes of events and attributes.

    `record_extra` excludes the tags, because every record of the job has them. So tags alone need no cold state.
    """
    job.record_extra = extra - tags_size(job)


def tags_size(job: Job) -> int:
    """Return the number of bytes that the tags of *job* add to its JOB record; 0 without tags."""
    return extra_size(b"", job_attributes.encode_tags(job)) if isinstance(job, TaggedJob) else 0


def move_size(job: Job, attributes: bytes) -> int:
    """Return the size in bytes of a MOVE record of *job* with *attributes*."""
    return HEADER_SIZE + MOVE_FIELDS.size + len(job.tube.name) + len(attributes)


def policy_size(name: str, document: bytes) -> int:
    """Return the size in bytes of a POLICY record."""
    return HEADER_SIZE + POLICY_FIELDS.size + len(name.encode()) + len(document)


def key_size(tube: bytes, key: bytes) -> int:
    """Return the size in bytes of a KEY record."""
    return HEADER_SIZE + KEY_FIELDS.size + len(tube) + len(key)


def pause_size(tube: bytes) -> int:
    """Return the size in bytes of a PAUSE record."""
    return HEADER_SIZE + PAUSE_FIELDS.size + len(tube)


class Encoder:
    """Encodes the records of one segment."""

    def __init__(self, salt: bytes) -> None:
        self._salt: bytes = salt
        self._seed: int = seed_of(salt)
        in_c: Callable[[bytes, bytes, bytes], bytes] | None = seal
        self._seal: Callable[[bytes, bytes, bytes], bytes] = in_c or seal_in_python

    def job(self, job: Job, sequence: int, events: bytes = b"") -> bytes:
        """Return a JOB record of *job* as it is now, with *events*. Its body must be in memory."""
        return self.seal(self.begin_job(job, sequence, events, job_attributes.encode(job)), resident_body(job))

    def begin_job(self, job: Job, sequence: int, events: bytes = b"", attributes: bytes = b"") -> bytes:
        """Return the bytes between the prefix and the body of a JOB record with *events* and *attributes*.

        Pass them to `seal_job`. *attributes* are those that job_attributes.encode(*job*) returns.
        """
        name, fields = job.tube.name, self._job_fields(job, sequence, events, attributes)
        if attributes:
            lengths = _LENGTHS.pack(len(events), len(attributes))
            return b"%b%b%b%b%b" % (fields, lengths, name, events, attributes)
        return b"%b%c%b%b" % (fields, len(events), name, events) if events else fields + name

    def seal_job(self, start: bytes, body: bytes) -> bytes:
        """Return the part of the record before *body*; *start* is the result of `begin_job`. May run in any thread.

        It takes 0.3 ms of CPU per megabyte of *body*, and releases the GIL meanwhile.
        """
        return _PREFIX.pack(self._salt, crc32(body, crc32(start, self._seed))) + start

    def _job_fields(self, job: Job, sequence: int, events: bytes, attributes: bytes) -> bytes:
        """Return the bytes between the prefix and the name of the tube in a JOB record."""
        name, kind, cold = job.tube.name, JOB, job.cold
        state, deadline = job.state, job.deadline
        length = _JOB_LENGTH + len(name) + job.size
        if cold is DEFAULT_COLD_STATE and not job.reserves and not events and not attributes:
            return _NEW_JOB_RECORD.pack(
                length, sequence, JOB, job.id, job.pri, job.ttr, job.created_at, deadline, state, len(name)
            )
        if cold.former_state:
            state, deadline = cold.former_state, cold.former_deadline
        if attributes:
            kind = JOB_WITH_ATTRIBUTES
        elif events:
            kind = JOB_WITH_EVENTS
        length += extra_size(events, attributes)
        try:
            return _JOB_RECORD.pack(
                length,
                sequence,
                kind,
                job.id,
                job.pri,
                cold.delay,
                job.ttr,
                job.created_at,
                deadline,
                job.reserves,
                cold.timeouts,
                cold.releases,
                cold.buries,
                cold.kicks,
                state,
                len(name),
            )
        except struct.error:
            _clamp_counts(job)
            return self._job_fields(job, sequence, events, attributes)

    def update(self, job: Job, sequence: int) -> bytes:
        """Return an UPDATE record of *job* as it is now, with its last event."""
        return self._changed(job, sequence, UPDATE, b"")

    def move(self, job: Job, sequence: int, attributes: bytes) -> bytes:
        """Return a MOVE record of *job* as it is now, with its last event; *attributes* as for `begin_job`."""
        name = job.tube.name
        return self._changed(job, sequence, MOVE, b"%c%b%b" % (len(name), name, attributes))

    def _changed(self, job: Job, sequence: int, kind: int, rest: bytes) -> bytes:
        """Return a record of *kind* with the fields of UPDATE and *rest*."""
        state, deadline = job.state, job.deadline
        if job.cold.former_state:
            state, deadline = job.cold.former_state, job.cold.former_deadline
        try:
            fields = _UPDATE_RECORD.pack(
                _UPDATE_LENGTH + len(rest),
                sequence,
                kind,
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
            return self._changed(job, sequence, kind, rest)
        return self.seal(fields, rest)

    def reserve(self, job: Job, sequence: int) -> bytes:
        """Return a RESERVE record of *job*, which has just been reserved."""
        assert job.holder is not None
        return self._reservation(job, sequence, job.reserved_at, RESERVED, job.holder.number, reservation_of(job))

    def expire_reservation(self, job: Job, sequence: int) -> bytes:
        """Return a RESERVE record of *job*, whose reservation has ended as its last event says."""
        at, kind, client = job_history.last(job.events)
        return self._reservation(job, sequence, at, kind, client)

    def _reservation(
        self, job: Job, sequence: int, at: int, event: int, client: int, reservation: bytes = b""
    ) -> bytes:
        """Return a RESERVE record of *job* with an event of the kind *event*, and the packed *reservation*."""
        length, timeouts = _RESERVE_LENGTH + len(reservation), job.cold.timeouts
        try:
            fields = _RESERVE_RECORD.pack(length, sequence, RESERVE, job.id, job.reserves, timeouts, at, event, client)
        except struct.error:
            _clamp_counts(job)
            return self._reservation(job, sequence, at, event, client, reservation)
        return self.seal(fields, reservation)

    def delete(self, id: int, sequence: int) -> bytes:
        """Return a DELETE record of the job *id*."""
        return self.seal(_DELETE_RECORD.pack(_DELETE_LENGTH, sequence, DELETE, id))

    def pause(self, tube: bytes, until: int, length: int, sequence: int) -> bytes:
        """Return a PAUSE record."""
        return self._other(PAUSE, sequence, PAUSE_FIELDS.pack(until, length) + tube)

    def ids(self, next_id: int, sequence: int) -> bytes:
        """Return an IDS record."""
        return self._other(IDS, sequence, IDS_FIELDS.pack(next_id))

    def group(self, count: int, sequence: int) -> bytes:
        """Return a GROUP record of the next *count* records."""
        return self._other(GROUP, sequence, GROUP_FIELDS.pack(count))

    def policy(self, name: str, document: bytes, sequence: int) -> bytes:
        """Return a POLICY record; *name* has at most 255 bytes in UTF-8."""
        encoded = name.encode()
        return self._other(POLICY, sequence, POLICY_FIELDS.pack(len(encoded)) + encoded + document)

    def key(self, tube: bytes, key: bytes, id: int, until: int, sequence: int) -> bytes:
        """Return a KEY record."""
        return self._other(KEY, sequence, KEY_FIELDS.pack(id, until, len(tube)) + tube + key)

    def location(self, id: int, location: Location, sequence: int) -> bytes:
        """Return a LOCATION record."""
        fields = LOCATION_FIELDS.pack(id, location.hops, location.shard, location.source)
        return self._other(LOCATION, sequence, fields)

    def mark(self, kind: int, sequence: int) -> bytes:
        """Return a record without payload: IMPORT_BEGIN, IMPORT_END or IMPORT_UNDO."""
        return self._other(kind, sequence, b"")

    def _other(self, kind: int, sequence: int, payload: bytes) -> bytes:
        return self.seal(_OTHER_RECORD.pack(len(payload), sequence, kind) + payload)

    def seal(self, start: bytes, body: bytes = b"") -> bytes:
        """Return the record that consists of the prefix, *start* and *body*."""
        return self._seal(self._salt, start, body)


def seal_in_python(salt: bytes, start: bytes, body: bytes) -> bytes:
    """Return the record that consists of a prefix with *salt*, *start* and *body*."""
    rest = start + body
    return _PREFIX.pack(salt, crc32(rest, seed_of(salt))) + rest


def is_job(start: bytes, body: bytes, size: int, id: int, seed: int) -> bool:
    """Return whether *start* and *body* are a sound JOB record of the job *id*, of *size* bytes.

    *seed* is the initial value of the CRCs of its segment.
    """
    if len(start) + len(body) != size:
        return False
    _, crc, length, _, kind = HEADER.unpack_from(start)
    is_whole = kind in JOB_KINDS and length == size - HEADER_SIZE
    is_sound = is_whole and crc32(body, crc32(start[PREFIX_SIZE:], seed)) == crc
    return is_sound and DELETE_FIELDS.unpack_from(start, HEADER_SIZE) == (id,)


def seed_of(salt: bytes) -> int:
    """Return the initial value of the CRCs of a segment with *salt*."""
    return int.from_bytes(salt, "little")


def _clamp_counts(job: Job) -> None:
    """Limit the counts of *job*, which may exceed 32 bits, to what a record holds."""
    job.reserves = min(job.reserves, _U32)
    job.timeouts = min(job.timeouts, _U32)
    job.releases = min(job.releases, _U32)
    job.buries = min(job.buries, _U32)
    job.kicks = min(job.kicks, _U32)
