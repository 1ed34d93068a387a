"""The codec: what is written is read, and nothing that is not a header passes for one."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.job import BURIED, DELAYED, MAX_ID, READY, RESERVED, Job
from greenstalk_server.journal import record
from greenstalk_server.journal.record import BadSegment, Encoder, SegmentHeader, decode_segment_header
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.tube import Tube

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
SALTS = st.binary(min_size=4, max_size=4)
NAMES = st.from_regex(rb"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199}", fullmatch=True)
STATES = st.sampled_from([READY, RESERVED, BURIED, DELAYED])

HEADER = SegmentHeader(b"salt", number=3, first_sequence=17, next_id=9)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    id, tube = draw(st.integers(1, MAX_ID)), Tube(draw(NAMES), {})
    job = Job(id, tube, draw(st.binary()), draw(U32), draw(U64), draw(U64), draw(U64))
    job.state, job.deadline = draw(STATES), draw(U64)
    change_counts(job, *[draw(U32) for _ in range(5)])
    return job


def change_counts(job: Job, *counts: int) -> None:
    job.reserves, job.timeouts, job.releases, job.buries, job.kicks = counts


def look(job: Job) -> tuple[object, ...]:
    """All that a JOB record tells."""
    counts = (job.reserves, job.timeouts, job.releases, job.buries, job.kicks)
    times = (job.delay, job.ttr, job.created_at, job.deadline)
    return (job.id, job.tube.name, job.body, job.pri, *times, *counts, job.state)


def replayed(salt: bytes, *records: bytes) -> Recovery:
    """What a segment of *records*, numbered from 1 on, holds; it has to be without damage."""
    table: dict[int, Job] = {}
    recovery = Recovery(lambda name: Tube(name, table), table)
    header = SegmentHeader(salt, number=1, first_sequence=1, next_id=1)
    recovery.replay("journal.1", 1, header.encode() + b"".join(records), is_newest=True)
    assert not recovery.damage
    assert recovery.records == len(records)
    return recovery


# Headers


@given(SALTS, U64, U64, U64)
def test_a_header_is_read_as_it_was_written(salt: bytes, number: int, first_sequence: int, next_id: int) -> None:
    header = SegmentHeader(salt, number, first_sequence, next_id)
    assert decode_segment_header(header.encode() + b"records") == header


def test_a_header_with_any_bit_flipped_is_refused() -> None:
    data = HEADER.encode()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadSegment):
            decode_segment_header(bytes(flipped))


def test_a_header_cut_at_any_byte_is_refused() -> None:
    data = HEADER.encode()
    for size in range(len(data)):
        with pytest.raises(BadSegment, match=f"only {size} bytes"):
            decode_segment_header(data[:size])


def test_a_header_of_another_version_says_which() -> None:
    data = HEADER.encode()[: record.SEGMENT_HEADER_SIZE - 4].replace(b"\1\0\0\0", b"\2\0\0\0", 1)
    with pytest.raises(BadSegment, match="version 2, and this server reads 1"):
        decode_segment_header(data + crc32(data).to_bytes(4, "little"))


@given(st.binary())
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    with pytest.raises(BadSegment):
        decode_segment_header(data)


# Records


@given(SALTS, jobs())
def test_a_job_is_read_as_it_was_written(salt: bytes, job: Job) -> None:
    data = Encoder(salt).job(job, 1)
    assert len(data) == record.job_size(job)
    recovery = replayed(salt, data)
    assert [look(each) for each in recovery.jobs.values()] == [look(job)]
    assert recovery.jobs[job.id].segment == 1
    assert recovery.next_id == job.id + 1


@given(SALTS, jobs(), jobs())
def test_an_update_is_read_as_it_was_written(salt: bytes, job: Job, other: Job) -> None:
    encoder = Encoder(salt)
    data = encoder.job(job, 1)
    job.pri, job.delay, job.deadline, job.state = other.pri, other.delay, other.deadline, other.state
    change_counts(job, other.reserves, other.timeouts, other.releases, other.buries, other.kicks)
    update = encoder.update(job, 2)
    assert len(update) == record.UPDATE_SIZE
    assert look(replayed(salt, data, update).jobs[job.id]) == look(job)


@given(SALTS, jobs(), U32, U32)
def test_a_reservation_is_read_as_it_was_written(salt: bytes, job: Job, reserves: int, timeouts: int) -> None:
    encoder = Encoder(salt)
    data = encoder.job(job, 1)
    job.reserves, job.timeouts, job.state = reserves, timeouts, RESERVED
    reserve = encoder.reserve(job, 2)
    assert len(reserve) == record.RESERVE_SIZE
    assert look(replayed(salt, data, reserve).jobs[job.id]) == look(job)


@given(SALTS, jobs())
def test_a_delete_is_read_as_it_was_written(salt: bytes, job: Job) -> None:
    delete = Encoder(salt).delete(job.id, 2)
    assert len(delete) == record.DELETE_SIZE
    recovery = replayed(salt, Encoder(salt).job(job, 1), delete)
    assert not recovery.jobs
    assert recovery.next_id == job.id + 1


@given(SALTS, NAMES, st.integers(1, 2**64 - 1), U64)
def test_a_pause_is_read_as_it_was_written(salt: bytes, name: bytes, until: int, length: int) -> None:
    tube = Tube(name, {})
    tube.paused_until, tube.pause = until, length
    data = Encoder(salt).pause(tube, 1)
    assert len(data) == record.pause_size(tube)
    assert replayed(salt, data).pauses == {name: (until, length)}
    tube.paused_until = tube.pause = 0
    assert replayed(salt, data, Encoder(salt).pause(tube, 2)).pauses == {}


def test_counts_stop_at_what_a_record_takes() -> None:
    job = Job(1, Tube(b"default", {}), b"", 0, 0, 0, 0)
    encoder = Encoder(b"salt")
    for write in (encoder.job, encoder.update, encoder.reserve):
        change_counts(job, *[2**32] * 5)
        write(job, 1)
        assert job.reserves == job.kicks == 2**32 - 1


def test_the_salt_is_part_of_every_record() -> None:
    """So a record of another segment, or one that a client has made up, is none."""
    assert Encoder(b"abcd").delete(1, 1) != Encoder(b"abce").delete(1, 1)
    assert Encoder(b"abcd").delete(1, 1)[4:] != Encoder(b"abce").delete(1, 1)[4:]
