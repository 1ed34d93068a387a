"""The ids of a shard: their home, their order, and that no two shards assign the same id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.jobs.id_sequence import ID_END, MAX_SHARDS, ONE_SHARD, IdSequence

SHARDS = st.sampled_from([1, 2, 3, 16, MAX_SHARDS]) | st.integers(1, MAX_SHARDS)
BASES = st.just(0) | st.integers(0, 5000) | st.integers(0, ID_END - 1)


@st.composite
def sequences(draw: st.DrawFn) -> IdSequence:
    shards = draw(SHARDS)
    return IdSequence(draw(BASES), shards, draw(st.integers(0, shards - 1)))


@given(sequences(), st.integers(0, ID_END - 1))
def test_next_id_is_the_smallest_own_id_above(ids: IdSequence, id: int) -> None:
    found = ids.next_after(id)
    assert found > id and found >= ids.base and ids.home(found) == ids.shard and ids.owns(found)
    assert not any(ids.owns(one) for one in range(max(id + 1, ids.base), found))


@given(sequences(), st.integers(0, 3000))
def test_id_is_that_of_its_local_number(ids: IdSequence, local: int) -> None:
    id = ids.base + local * ids.shards + ids.shard
    assert ids.home(id) == ids.shard
    assert ids.next_after(id) == id + ids.shards


@given(sequences(), st.integers(1, ID_END - 1))
def test_each_id_has_one_home(ids: IdSequence, id: int) -> None:
    homes = [shard for shard in range(ids.shards) if IdSequence(ids.base, ids.shards, shard).owns(id)]
    assert homes == [ids.home(id)]
    assert ids.home(id) == 0 or id >= ids.base


def test_shards_assign_all_ids_from_the_base_on() -> None:
    shards = [IdSequence(100, 3, shard) for shard in range(3)]
    assert sorted(id for ids in shards for id in (ids.next_after(0), ids.next_after(102))) == [*range(100, 106)]


def test_queue_of_one_shard_assigns_consecutive_ids() -> None:
    assert [ONE_SHARD.next_after(id) for id in range(3)] == [1, 2, 3]
    assert IdSequence(0, 3, 0).next_after(0) == 3


def test_foreign_id_counts_as_older() -> None:
    ids = IdSequence(base=10, shards=2, shard=1)
    assert ids.is_older(11, next_id=13) and not ids.is_older(13, next_id=13)
    assert ids.is_older(14, next_id=13) and ids.is_older(9, next_id=13)


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        (IdSequence(ID_END - 1, MAX_SHARDS, MAX_SHARDS - 1), ""),
        (IdSequence(shards=0), "0 shards: must be 1 to 1024"),
        (IdSequence(shards=1025), "1025 shards: must be 1 to 1024"),
        (IdSequence(0, 3, 3), "shard 3: must be 0 to 2, since the queue has 3 shards"),
        (IdSequence(base=-1), "base -1: must be 0 to 9007199254740991, since ids are below 2^53"),
        (IdSequence(base=2**53), "base 9007199254740992: must be 0 to 9007199254740991, since ids are below 2^53"),
    ],
)
def test_impossible_sequence_is_named(ids: IdSequence, problem: str) -> None:
    assert ids.find_problem() == problem
