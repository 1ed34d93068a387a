"""The binary encoding of job attributes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core import job_attributes
from greenstalk_server.core.job_attributes import DeadLetter
from greenstalk_server.core.jobs.job import DEFAULT_COLD_STATE, SECOND, Job
from greenstalk_server.core.tubes.tube import Tube

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
LETTERS = st.builds(DeadLetter, st.integers(1, 4), st.sampled_from([b"a", b"mail.in", b"t" * 200]), U32, U64, U64)


def job() -> Job:
    return Job(1, Tube(b"default", {}), b"", 0, 0, SECOND, 0)


def attributes(of: Job) -> tuple[int, int, bytes, bytes]:
    return of.attempts_base, of.expires_from, of.unique_key, of.dead_letter


@given(U32, U64, st.binary(max_size=64), st.none() | LETTERS)
def test_attributes_round_trip(base: int, expires_from: int, key: bytes, letter: DeadLetter | None) -> None:
    before, after = job(), job()
    before.attempts_base, before.expires_from, before.unique_key = base, expires_from, key
    before.dead_letter = letter.pack() if letter is not None else b""
    job_attributes.decode_into(after, job_attributes.encode(before))
    assert attributes(after) == attributes(before)
    if letter is not None:
        assert DeadLetter.unpack(after.dead_letter) == letter
    assert attributes(before.copy_with(before.tube, b"other")) == attributes(before)


def test_job_without_attributes_has_no_bytes_and_no_cold_state() -> None:
    plain = job()
    assert job_attributes.encode(plain) == b""
    job_attributes.decode_into(plain, b"")
    assert plain.cold is DEFAULT_COLD_STATE


def test_decoding_replaces_all_former_attributes() -> None:
    changed, former = job(), job()
    former.attempts_base = 3
    changed.expires_from, changed.unique_key = 5, b"key"
    job_attributes.decode_into(changed, job_attributes.encode(former))
    assert attributes(changed) == (3, 0, b"", b"")


@given(st.binary(max_size=400))
def test_any_bytes_decode_to_attributes_that_can_be_encoded(data: bytes) -> None:
    found, again = job(), job()
    job_attributes.decode_into(found, data)
    if found.dead_letter:
        assert DeadLetter.unpack(found.dead_letter).pack() == found.dead_letter
    job_attributes.decode_into(again, job_attributes.encode(found))
    assert attributes(again) == attributes(found)


@given(st.integers(5, 255), st.binary(max_size=255))
def test_unknown_tags_are_skipped(tag: int, value: bytes) -> None:
    known = job()
    known.attempts_base, known.unique_key = 7, b"key"
    found = job()
    job_attributes.decode_into(found, bytes((tag, len(value))) + value + job_attributes.encode(known))
    assert attributes(found) == attributes(known)


def test_counts_beyond_their_field_are_limited() -> None:
    many, found = job(), job()
    many.attempts_base = 2**32 + 5
    job_attributes.decode_into(found, job_attributes.encode(many))
    assert found.attempts_base == 2**32 - 1
    assert DeadLetter.unpack(DeadLetter(1, b"a", 2**40, 2**65, 1).pack()) == DeadLetter(
        1, b"a", 2**32 - 1, 2**64 - 1, 1
    )
