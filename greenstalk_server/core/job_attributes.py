"""The binary encoding of job attributes: fields that most jobs do not have. Later versions may add attributes.

The bytes are a sequence of tag (u8), length (u8) and value of that many bytes. A reader skips unknown tags and invalid
values. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from greenstalk_server.core.jobs.job import DEFAULT_COLD_STATE, SECOND, Job
from greenstalk_server.core.tags.tags import TaggedJob, Tags
from greenstalk_server.core.travel import Travel
from greenstalk_server.core.tube_names import is_tube_name

ATTEMPTS_BASE: Final = 1
"""u32."""
EXPIRES_FROM: Final = 2
"""u64, nanoseconds since the Unix epoch."""
UNIQUE_KEY: Final = 3
"""1 to MAX_KEY bytes."""
DEAD_LETTER: Final = 4
"""A packed DeadLetter."""
IDEMPOTENCY_KEY: Final = 5
"""1 to MAX_TAG bytes, like all keys and group names."""
IDEMPOTENCY_TTL: Final = 6
"""u64, nanoseconds."""
GROUP: Final = 7
AFTER: Final = 8
CONCURRENCY_KEY: Final = 9
CONCURRENCY_LIMIT: Final = 10
"""u32; the default is 1 if there is a concurrency key."""

TRUNCATED: Final = 16
"""No value. The job is deleted when its reservation ends, or at the next start."""

TRAVEL: Final = 17
"""A packed Travel."""
RESERVATION: Final = 18
"""The packed Reservation by a remote client (see greenstalk_server.journal.record), of a reserved job."""

MAX_KEY: Final = 64
"""Maximum bytes of a unique key."""
MAX_TAG: Final = 200
"""Maximum bytes of a key or a group name in a tag."""

_TAG_KEYS: Final = frozenset((IDEMPOTENCY_KEY, GROUP, AFTER, CONCURRENCY_KEY))
_MAX_TTL: Final = (2**32 - 1) * SECOND
"""Maximum time in nanoseconds that an idempotency key outlives its job."""

_U32: Final = 2**32 - 1
_U64: Final = 2**64 - 1

_ATTEMPTS_BASE: Final = struct.Struct("<BBI")
_EXPIRES_FROM: Final = struct.Struct("<BBQ")
_IDEMPOTENCY_TTL: Final = struct.Struct("<BBQ")
_CONCURRENCY_LIMIT: Final = struct.Struct("<BBI")
_DEAD_LETTER: Final = struct.Struct("<BIQQ")
"""Reason, attempts, first and last time; the name of the source tube follows."""


class DeadLetterReason:
    """The reason for a move to a dead-letter tube."""

    ATTEMPTS: Final = 1
    EXPIRED: Final = 2
    BURIED_EXPIRED: Final = 3
    OVERFLOW: Final = 4


REASON_NAMES: Final = ("", "attempts", "expired", "buried-expired", "overflow")
"""Names of the reasons, by number."""


class DeadLetter(NamedTuple):
    """The origin of a job in a dead-letter tube.

    reason      one of DeadLetterReason.
    source      name of the tube from which it was last moved.
    attempts    its attempts in that tube, since the count last restarted.
    first_at    time of its first move to a dead-letter tube.
    last_at     time of its last move to a dead-letter tube.
    """

    reason: int
    source: bytes
    attempts: int
    first_at: int
    last_at: int

    def pack(self) -> bytes:
        """Return the value of `Job.dead_letter`; numbers that are too large are reduced to the maximum."""
        attempts, first_at, last_at = min(self.attempts, _U32), min(self.first_at, _U64), min(self.last_at, _U64)
        return _DEAD_LETTER.pack(self.reason, attempts, first_at, last_at) + self.source

    @staticmethod
    def unpack(data: bytes) -> DeadLetter:
        """Return the dead letter in *data*, a value of `Job.dead_letter` that is not empty; raise ValueError."""
        source = data[_DEAD_LETTER.size :]
        if not is_tube_name(source):
            raise ValueError("no valid name of the source tube")
        reason, attempts, first_at, last_at = _DEAD_LETTER.unpack_from(data)
        if not 0 < reason < len(REASON_NAMES):
            raise ValueError(f"unknown reason {reason}")
        return DeadLetter(reason, source, attempts, first_at, last_at)


def value_of(tag: int, data: bytes) -> bytes:
    """Return the value of the attribute *tag* in *data*; empty if it is missing."""
    for found, value in _attributes(data):
        if found == tag:
            return value
    return b""


def encode(job: Job) -> bytes:
    """Return the attributes of *job*; empty if all have their defaults."""
    tags, cold = encode_tags(job) if isinstance(job, TaggedJob) else b"", job.cold
    if cold is DEFAULT_COLD_STATE:
        return tags
    data = b""
    if cold.attempts_base:
        data = _ATTEMPTS_BASE.pack(ATTEMPTS_BASE, 4, min(cold.attempts_base, _U32))
    if cold.expires_from:
        data += _EXPIRES_FROM.pack(EXPIRES_FROM, 8, min(cold.expires_from, _U64))
    if cold.unique_key:
        data += bytes((UNIQUE_KEY, len(cold.unique_key))) + cold.unique_key
    if cold.dead_letter:
        data += bytes((DEAD_LETTER, len(cold.dead_letter))) + cold.dead_letter
    if cold.is_truncated:
        data += bytes((TRUNCATED, 0))
    if cold.travel:
        data += bytes((TRAVEL, len(cold.travel))) + cold.travel
    return data + tags


def encode_tags(job: TaggedJob) -> bytes:
    """Return the tags of *job* as attributes."""
    tags = job.more_tags
    if tags is None:
        return _key(IDEMPOTENCY_KEY, job.idempotency_key)
    data = b""
    if tags.idempotency_key:
        data = _key(IDEMPOTENCY_KEY, tags.idempotency_key)
    if tags.idempotency_ttl:
        data += _IDEMPOTENCY_TTL.pack(IDEMPOTENCY_TTL, 8, tags.idempotency_ttl)
    if tags.group:
        data += _key(GROUP, tags.group)
    if tags.after:
        data += _key(AFTER, tags.after)
    if tags.concurrency_key:
        data += _key(CONCURRENCY_KEY, tags.concurrency_key)
    if tags.concurrency_limit > 1:
        data += _CONCURRENCY_LIMIT.pack(CONCURRENCY_LIMIT, 4, tags.concurrency_limit)
    return data


def _key(tag: int, key: bytes) -> bytes:
    return b"%c%c%b" % (tag, len(key), key)


def tags_in(data: bytes) -> Tags | None:
    """Return the tags in *data*, the attributes of a job, or None if there are none. Invalid bytes are ignored."""
    tags = Tags()
    for tag, value in _attributes(data):
        if tag in _TAG_KEYS and not is_tube_name(value):
            continue
        if tag == IDEMPOTENCY_KEY:
            tags.idempotency_key = value
        elif tag == IDEMPOTENCY_TTL and len(value) == 8:
            tags.idempotency_ttl = min(int.from_bytes(value, "little"), _MAX_TTL)
        elif tag == GROUP:
            tags.group = value
        elif tag == AFTER:
            tags.after = value
        elif tag == CONCURRENCY_KEY:
            tags.concurrency_key = value
        elif tag == CONCURRENCY_LIMIT and len(value) == 4:
            tags.concurrency_limit = int.from_bytes(value, "little")
    if not tags.idempotency_key:
        tags.idempotency_ttl = 0
    tags.concurrency_limit = max(1, tags.concurrency_limit) if tags.concurrency_key else 0
    return tags if tags.packed() else None


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Iterate over the attributes in *data* as (tag, value); ignore a truncated last one."""
    at, end = 0, len(data)
    while at + 2 <= end:
        tag, length = data[at], data[at + 1]
        at += 2 + length
        if at > end:
            return
        yield tag, data[at - length : at]


def decode_into(job: Job, data: bytes) -> None:
    """Replace the attributes of *job* by those in *data*, except its tags; invalid bytes are ignored."""
    job.attempts_base, job.expires_from, job.unique_key, job.dead_letter = 0, 0, b"", b""
    job.is_truncated, job.travel = False, b""
    for tag, value in _attributes(data):
        length = len(value)
        if tag == ATTEMPTS_BASE and length == 4:
            job.attempts_base = int.from_bytes(value, "little")
        elif tag == EXPIRES_FROM and length == 8:
            job.expires_from = int.from_bytes(value, "little")
        elif tag == UNIQUE_KEY and 0 < length <= MAX_KEY:
            job.unique_key = value
        elif tag == DEAD_LETTER and _is_dead_letter(value):
            job.dead_letter = value
        elif tag == TRUNCATED:
            job.is_truncated = True
        elif tag == TRAVEL and _is_travel(value):
            job.travel = value


def _is_travel(value: bytes) -> bool:
    try:
        travel = Travel.unpack(value)
    except ValueError:
        return False
    return not travel.target or is_tube_name(travel.target)


def _is_dead_letter(value: bytes) -> bool:
    try:
        DeadLetter.unpack(value)
    except ValueError:
        return False
    return True
