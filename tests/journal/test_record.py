"""The codec: every encoded record and header is decoded to the same values, and damaged headers are refused."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.remote import RemoteReservations, Reservation
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import record
from greenstalk_server.journal.record import BadSegment, Encoder, SegmentHeader, decode_segment_header
from greenstalk_server.journal.recovery import Recovery

pytestmark = pytest.mark.each_build

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
COUNT = st.integers(0, 2**record.BITS - 1)
SALTS = st.binary(min_size=4, max_size=4)
NAMES = st.from_regex(rb"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199}", fullmatch=True)
STATES = st.sampled_from([READY, BURIED, DELAYED])
EVENTS = st.tuples(st.integers(1, len(job_history.KINDS) - 1), U64, U32)

HEADER = SegmentHeader(b"salt", number=3, first_sequence=17, next_id=9)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    id, tube = draw(st.integers(1, record.ID_LIMIT - 1)), Tube(draw(NAMES), {})
    job = Job(id, tube, draw(st.binary()), draw(U32), draw(COUNT), draw(COUNT), draw(U64))
    job.state = draw(STATES)
    job.deadline = draw(COUNT if job.state == BURIED else U64)
    change_counts(job, *[draw(U32) for _ in range(5)])
    for kind, at, client in draw(st.lists(EVENTS, max_size=job_history.MAX_EVENTS + 1)):
        job.events = job_history.add(job.events, kind, at, client)
    return job


def reserve_job(job: Job, at: int, client: int) -> None:
    """Reserve *job* for the client with the number *client* at the time *at*."""
    job.state, job.reserved_at, job.holder = RESERVED, at, Client(job.tube, lambda: None, client)


def change_counts(job: Job, *counts: int) -> None:
    job.reserves, job.timeouts, job.releases, job.buries, job.kicks = counts


def recorded_fields(job: Job) -> tuple[object, ...]:
    """Return the values that a JOB record has."""
    counts = (job.reserves, job.timeouts, job.releases, job.buries, job.kicks)
    times = (job.delay, job.ttr, job.created_at, job.deadline)
    return (job.id, job.tube.name, job.body, job.pri, *times, *counts, job.state, job.events)


def replay(salt: bytes, *records: bytes) -> Recovery:
    """Replay a segment of *records*, numbered from 1 on; assert that it has no damage."""
    table: dict[int, Job] = {}
    recovery = Recovery(lambda name: Tube(name, table), table)
    header = SegmentHeader(salt, number=1, first_sequence=1, next_id=1)
    recovery.replay("journal.1", 1, header.encode() + b"".join(records), is_newest=True)
    assert not recovery.damage
    assert recovery.records == len(records)
    return recovery


# Headers


@given(SALTS, U64, COUNT, st.integers(0, record.ID_LIMIT))
def test_header_round_trip(salt: bytes, number: int, first_sequence: int, next_id: int) -> None:
    header = SegmentHeader(salt, number, first_sequence, next_id)
    assert decode_segment_header(header.encode() + b"records") == header


def test_header_with_a_flipped_bit_is_refused() -> None:
    data = HEADER.encode()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadSegment):
            decode_segment_header(bytes(flipped))


def test_truncated_header_is_refused() -> None:
    data = HEADER.encode()
    for size in range(len(data)):
        with pytest.raises(BadSegment, match=f"only {size} bytes"):
            decode_segment_header(data[:size])


def test_header_of_another_version_is_refused() -> None:
    for version in (0, 1, 2, 3, 5, 2**32 - 1):
        with pytest.raises(BadSegment, match=f"version {version}, but this server reads only version 4"):
            decode_segment_header(of_version(version))


def of_version(version: int) -> bytes:
    """Return HEADER as encoded by a server with *version* of the format."""
    data = HEADER.encode()[: record.SEGMENT_HEADER_SIZE - 4]
    data = data[:8] + version.to_bytes(4, "little") + data[12:]
    return data + crc32(data).to_bytes(4, "little")


@given(st.binary())
def test_any_other_input_is_refused(data: bytes) -> None:
    with pytest.raises(BadSegment):
        decode_segment_header(data)


# Records


@given(SALTS, jobs())
def test_job_round_trip(salt: bytes, job: Job) -> None:
    data = Encoder(salt).job(job, 1, job.events)
    assert data[record.HEADER_SIZE - 1] == (record.JOB_WITH_EVENTS if job.events else record.JOB)
    assert len(data) == record.job_size(job) + record.extra_size(job.events, b"")
    recovery = replay(salt, data)
    assert [recorded_fields(each) for each in recovery.jobs.values()] == [recorded_fields(job)]
    assert recovery.jobs[job.id].segment == 1
    assert record.recorded_size(recovery.jobs[job.id]) == len(data)
    assert recovery.next_id == job.id + 1


@given(SALTS, jobs())
def test_record_encoded_in_two_parts_has_the_same_bytes(salt: bytes, job: Job) -> None:
    encoder, body = Encoder(salt), job.body
    assert body is not None
    start = encoder.seal_job(encoder.begin_job(job, 1, job.events), body)
    assert start + body == encoder.job(job, 1, job.events)


@given(SALTS, jobs(), U64, U32)
def test_reserved_job_has_the_reservation_as_its_last_event(salt: bytes, job: Job, at: int, client: int) -> None:
    reserve_job(job, at, client)
    data = Encoder(salt).job(job, 1, record.events_of(job))
    assert record.job_size(job) < len(data) <= record.job_size(job) + 1 + 208
    found = replay(salt, data).jobs[job.id]
    assert (
        job_history.unpack(found.events)
        == [*job_history.unpack(job.events), job_history.Event(at, job_history.RESERVED, client)][
            -job_history.MAX_EVENTS :
        ]
    )
    assert found.state == RESERVED


@given(SALTS, jobs(), jobs())
def test_update_round_trip(salt: bytes, job: Job, other: Job) -> None:
    encoder = Encoder(salt)
    data = encoder.job(job, 1, job.events)
    job.pri, job.delay, job.deadline, job.state = other.pri, other.delay, other.deadline, other.state
    change_counts(job, other.reserves, other.timeouts, other.releases, other.buries, other.kicks)
    job.events = job_history.add(job.events, job_history.BURIED, other.created_at, job_history.LAST_CLIENT)
    update = encoder.update(job, 2)
    assert len(update) == record.UPDATE_SIZE
    assert recorded_fields(replay(salt, data, update).jobs[job.id]) == recorded_fields(job)


@given(SALTS, jobs(), U32, U32, U64, U32)
def test_reservation_round_trip(salt: bytes, job: Job, reserves: int, timeouts: int, at: int, client: int) -> None:
    encoder, state = Encoder(salt), job.state
    data = encoder.job(job, 1, job.events)
    job.reserves, job.timeouts = reserves, timeouts
    reserve_job(job, at, client)
    reserve = encoder.reserve(job, 2)
    assert len(reserve) == record.RESERVE_SIZE
    job.events = job_history.add(job.events, job_history.RESERVED, at, client)
    if state == BURIED or (state == DELAYED and job.deadline > at):
        job.state = state  # which `settle` returns it to
    assert recorded_fields(replay(salt, data, reserve).jobs[job.id]) == recorded_fields(job)


REMOTES = st.builds(RemoteReservations, st.text("09azAZ", min_size=1, max_size=record.MAX_FRONT), COUNT)


def reserve_remotely(job: Job, remote: RemoteReservations) -> None:
    """Reserve *job* for a remote client."""
    reserve_job(job, 1, 2)
    assert job.holder is not None
    job.holder.remote = remote
    remote.note_reserved(job.id)


@given(SALTS, jobs(), REMOTES)
def test_reservation_of_a_remote_client_round_trip(salt: bytes, job: Job, remote: RemoteReservations) -> None:
    encoder = Encoder(salt)
    data = encoder.job(job, 1, job.events)
    reserve_remotely(job, remote)
    reserve = encoder.reserve(job, 2)
    assert len(reserve) == record.reserve_size(job)
    expected = {job.id: Reservation(remote.front, remote.session, 1)}
    assert replay(salt, data, reserve).reservations == expected
    attributes = record.attributes_of(job)
    copy = encoder.seal(encoder.begin_job(job, 3, record.events_of(job), attributes), job.body or b"")
    assert replay(salt, data, reserve, copy).reservations == expected
    move = encoder.move(job, 3, attributes)
    assert replay(salt, data, reserve, move).reservations == expected
    for end in (encoder.update(job, 3), encoder.delete(job.id, 3), encoder.job(job, 3), encoder.move(job, 3, b"")):
        assert replay(salt, data, reserve, end).reservations == {}
    job.holder = Client(job.tube, lambda: None, 1)
    assert replay(salt, data, reserve, encoder.reserve(job, 3)).reservations == {}


@pytest.mark.parametrize("front", [b"", b"a" * 65, b"a b", b"\xe4"])
def test_malformed_reservation_is_ignored(front: bytes) -> None:
    assert record.decode_reservation(record.RESERVATION_FIELDS.pack(1, 1) + front) is None
    assert record.decode_reservation(record.RESERVATION_FIELDS.pack(2**63, 1) + b"a") is None
    assert record.decode_reservation(b"short") is None


@given(SALTS, jobs(), U32, st.sampled_from([job_history.TIMED_OUT, job_history.RETURNED]), U64, U32)
def test_end_of_a_reservation_round_trip(salt: bytes, job: Job, timeouts: int, kind: int, at: int, client: int) -> None:
    encoder = Encoder(salt)
    data = encoder.job(job, 1, job.events)
    reserve_job(job, at - 1 if at else 0, client)
    reserve = encoder.reserve(job, 2)
    job.events = job_history.add(job.events, job_history.RESERVED, job.reserved_at, client)
    job.timeouts, job.holder = timeouts, None
    job.events = job_history.add(job.events, kind, at, client)
    expiry = encoder.expire_reservation(job, 3)
    assert len(expiry) == record.RESERVE_SIZE
    job.state, job.deadline = READY, at
    assert recorded_fields(replay(salt, data, reserve, expiry).jobs[job.id]) == recorded_fields(job)


@pytest.mark.parametrize("length", [1, 12, 14, 207, 255])
def test_job_with_a_partial_event_is_skipped(length: int) -> None:
    """No server writes such a record."""
    job = Job(1, Tube(b"default", {}), b"body" * 100, 0, 0, 0, 0)
    job.events = job_history.add(b"", job_history.KICKED, 1, 0)
    data = bytearray(Encoder(b"salt").job(job, 1, job.events))
    data[record.HEADER_SIZE + record.JOB_FIELDS.size] = length
    data[4:8] = crc32(data[8:], record.seed_of(b"salt")).to_bytes(4, "little")
    assert not replay(b"salt", bytes(data)).jobs


@pytest.mark.parametrize("kind", [0, len(job_history.KINDS), 255])
def test_event_of_unknown_kind_is_not_shown(kind: int) -> None:
    """A job that has no other event does not become reserved either."""
    encoder, job = Encoder(b"salt"), Job(1, Tube(b"default", {}), b"", 0, 0, 0, 5)
    data = encoder.job(job, 1)
    job.events = job_history.EVENT.pack(7, kind, 1)
    recovery = replay(b"salt", data, encoder.expire_reservation(job, 2))
    recovery.settle(9)
    assert (recovery.jobs[1].state, job_history.unpack(recovery.jobs[1].events)) == (READY, [])


@given(SALTS, jobs())
def test_delete_round_trip(salt: bytes, job: Job) -> None:
    delete = Encoder(salt).delete(job.id, 2)
    assert len(delete) == record.DELETE_SIZE
    recovery = replay(salt, Encoder(salt).job(job, 1, job.events), delete)
    assert not recovery.jobs
    assert recovery.next_id == job.id + 1


@given(SALTS, NAMES, st.integers(1, 2**64 - 1), U64)
def test_pause_round_trip(salt: bytes, name: bytes, until: int, length: int) -> None:
    data = Encoder(salt).pause(name, until, length, 1)
    assert len(data) == record.pause_size(name)
    assert replay(salt, data).pauses == {name: (until, length)}
    assert replay(salt, data, Encoder(salt).pause(name, 0, 0, 2)).pauses == {}


def test_counts_are_limited_to_32_bits() -> None:
    job = Job(1, Tube(b"default", {}), b"", 0, 0, 0, 0)
    encoder = Encoder(b"salt")
    reserve_job(job, 1, 1)
    job.events = job_history.add(b"", job_history.RETURNED, 1, 1)
    for write in (encoder.job, encoder.update, encoder.reserve, encoder.expire_reservation):
        change_counts(job, *[2**32] * 5)
        write(job, 1)
        assert job.reserves == job.kicks == 2**32 - 1


def test_salt_is_part_of_every_record() -> None:
    """So a record of another segment, or a record that a client has forged, is ignored."""
    assert Encoder(b"abcd").delete(1, 1) != Encoder(b"abce").delete(1, 1)
    assert Encoder(b"abcd").delete(1, 1)[4:] != Encoder(b"abce").delete(1, 1)[4:]


@given(salt=SALTS, start=st.binary(max_size=400), body=st.binary(max_size=400))
def test_seal_written_in_c_returns_what_zlib_does(salt: bytes, start: bytes, body: bytes) -> None:
    seal = pytest.importorskip("greenstalk_server.journal._seal", reason="run `make compiled`").seal
    assert seal(salt, start, body) == record.seal_in_python(salt, start, body)


@pytest.mark.parametrize("arguments", [(b"abcd", b""), (b"abc", b"", b""), ("abcd", b"", b""), (b"abcd", None, b"")])
def test_seal_written_in_c_refuses_other_arguments(arguments: tuple[Any, ...]) -> None:
    seal = pytest.importorskip("greenstalk_server.journal._seal", reason="run `make compiled`").seal
    with pytest.raises(TypeError, match="seal needs"):
        seal(*arguments)
