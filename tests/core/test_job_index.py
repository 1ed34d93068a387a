"""JobIndex against a sorted list: order, walks, removal from anywhere, and the keys that an operation examines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.jobs.job import DELAYED, SECOND, Job
from greenstalk_server.core.jobs.job_index import JobIndex
from greenstalk_server.core.operations import connecting, finishing, kicking, putting, ticking
from greenstalk_server.core.sorted_keys import MAX_CHUNK, MIN_CHUNK
from greenstalk_server.core.tubes.tube import Tube
from tests.support import invariants
from tests.support.examples import examples
from tests.support.world import START, make_broker

MANY: Final = 8 * MAX_CHUNK


class CountingTable(dict[int, Job]):
    """A table of jobs that counts its lookups."""

    def __init__(self) -> None:
        super().__init__()
        self.lookups = 0

    def get(self, *args: object) -> Job | None:  # type: ignore[override]
        self.lookups += 1
        return super().get(*args)  # type: ignore[call-overload, no-any-return]

    def __getitem__(self, id: int) -> Job:
        self.lookups += 1
        return super().__getitem__(id)


class Shelf:
    """An index of jobs of one tube, and the ranks that should be in it."""

    def __init__(self) -> None:
        self.jobs = CountingTable()
        self.tube = Tube(b"t", self.jobs)
        self.index: JobIndex = self.tube.delayed
        self.ranks: dict[int, int] = {}

    def add(self, id: int, rank: int) -> None:
        if id not in self.jobs:
            self.jobs[id] = Job(id, self.tube, b"", 0, 0, 0, 0)
        self.index.add(self.jobs[id], rank)
        self.ranks[id] = rank

    def remove(self, id: int) -> None:
        assert self.index.remove(self.jobs[id], self.ranks.pop(id))

    def expected(self) -> list[int]:
        return [id for _, id in sorted((rank, id) for id, rank in self.ranks.items())]

    def check(self) -> None:
        expected, first = self.expected(), self.index.first()
        assert [job.id for job in self.index.walk()] == expected == self.index.ids()
        assert (first.id if first is not None else None) == (expected[0] if expected else None)
        self.index.check([self.jobs[id] for id in expected])


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3) | st.none()), max_size=300))
def test_any_additions_and_removals_keep_the_order(steps: list[tuple[int, int | None]]) -> None:
    """A step moves a job to a rank, or removes it."""
    shelf = Shelf()
    for id, rank in steps:
        if id in shelf.ranks:
            shelf.remove(id)
        if rank is not None:
            shelf.add(id, rank)
        shelf.check()


BATCH = st.tuples(
    st.booleans(), st.integers(1, MANY), st.integers(1, MANY // 2), st.integers(1, 9), st.integers(0, 2**32)
)
"""Whether to add, the lowest id, the number of ids, the step between them, and a seed of their order and ranks."""


@settings(max_examples=examples(50))
@given(st.lists(BATCH, max_size=8))
def test_batches_of_additions_and_removals_keep_the_order(batches: list[tuple[bool, int, int, int, int]]) -> None:
    """Batches are large enough to split, empty and merge chunks."""
    shelf = Shelf()
    for is_add, lowest, count, step, seed in batches:
        random, ids = Random(seed), list(range(lowest, lowest + count * step, step))  # noqa: S311
        if seed % 3:
            random.shuffle(ids)
        for id in ids:
            if id in shelf.ranks:
                if not is_add:
                    shelf.remove(id)
            elif is_add:
                shelf.add(id, random.randrange(1 + seed % 1000))
        shelf.check()


def test_empty_index_has_no_first_and_an_empty_walk() -> None:
    shelf = Shelf()
    shelf.check()
    shelf.add(1, rank=5)
    shelf.remove(1)
    shelf.check()


def test_remove_refuses_a_job_that_is_not_in_the_index() -> None:
    shelf = Shelf()
    absent = Job(7, shelf.tube, b"", 0, 0, 0, 0)
    assert not shelf.index.remove(absent, 0)
    for id in (1, 2, 3):
        shelf.add(id, rank=5)
    assert not shelf.index.remove(absent, 5)
    assert not shelf.index.remove(absent, 0)
    assert not shelf.index.remove(shelf.jobs[2], 4)
    shelf.check()


def test_first_job_of_each_chunk_can_return() -> None:
    """The key of the job equals the bound between its chunk and the previous one."""
    shelf = Shelf()
    for id in range(1, MANY + 1):
        shelf.add(id, rank=0)
    for id in range(1, MANY + 1, MAX_CHUNK):
        shelf.remove(id)
        shelf.add(id, rank=0)
        shelf.check()
    for id in range(1, MANY + 1, MAX_CHUNK):
        shelf.remove(id)
    shelf.check()


@pytest.mark.parametrize("removed_first", [False, True])
def test_chunks_that_become_small_are_merged(removed_first: bool) -> None:
    """All jobs but one of each chunk are removed: the remaining chunks have at least MIN_CHUNK / 2 keys on average."""
    shelf = Shelf()
    for id in range(1, MANY + 1):
        shelf.add(id, rank=0)
    removed = [id for id in range(1, MANY + 1) if id % 16]
    for id in removed if removed_first else reversed(removed):
        shelf.remove(id)
    shelf.check()
    assert len(shelf.index.ids()) == MANY // 16 and chunk_count(shelf.index) <= 2 + 2 * MANY // 16 // MIN_CHUNK


def chunk_count(index: JobIndex) -> int:
    chunks: list[list[int]] = index._chunks
    return len(chunks)


def test_first_looks_up_one_job_after_removals_from_the_middle() -> None:
    shelf = Shelf()
    for id in range(1, MANY + 1):
        shelf.add(id, rank=id)
    for id in range(2, MANY // 2):
        shelf.remove(id)
    shelf.remove(1)
    shelf.jobs.lookups = 0
    first = shelf.index.first()
    assert first is not None and first.id == MANY // 2
    assert shelf.jobs.lookups == 1


def test_walk_looks_up_only_the_jobs_that_it_yields() -> None:
    shelf = Shelf()
    for id in range(1, MANY + 1):
        shelf.add(id, rank=MANY - id)
    for id in range(MANY - 1, MANY // 2, -1):
        shelf.remove(id)
    shelf.jobs.lookups = 0
    walk = shelf.index.walk()
    assert [next(walk).id for _ in range(10)] == [MANY, *range(MANY // 2, MANY // 2 - 9, -1)]
    assert shelf.jobs.lookups == 10


def calls_of(function: Callable[[Broker], object], broker: Broker) -> int:
    """Return how many functions *function* calls, directly or not. Calls of compiled functions do not count."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function(broker)
    finally:
        sys.setprofile(None)
    return calls


def broker_with_delayed_jobs(delays: range) -> Broker:
    """Return a broker with one job for each of *delays*, in seconds."""
    broker = make_broker()
    client = connecting.connect(broker, lambda: None)
    for delay in delays:
        assert putting.put(broker, client, broker.allocate_id(), 0, delay * SECOND, SECOND, b"", START) > 0
    return broker


def clear(broker: Broker) -> None:
    assert finishing.clear(broker, broker.default_tube, DELAYED, SLICE, broker.next_id, START) == SLICE


def kick(broker: Broker) -> None:
    assert kicking.kick(broker, broker.default_tube, DELAYED, 2, START) == 2


def tick(broker: Broker) -> None:
    assert ticking.tick(broker, START + 2 * MANY * SECOND) is not None


def delete_and_peek(broker: Broker) -> None:
    first = broker.default_tube.delayed.first()
    assert first is not None and finishing.delete(broker, None, first.id, START)
    assert broker.default_tube.delayed.first() is not None


@pytest.mark.parametrize("work", [clear, kick, tick, delete_and_peek])
def test_jobs_deleted_from_the_middle_cost_later_work_nothing(work: Callable[[Broker], object]) -> None:
    broker = broker_with_delayed_jobs(range(1, 2 * MANY))
    for id in range(2, MANY):
        assert finishing.delete(broker, None, id, START)
    pristine = broker_with_delayed_jobs(range(MANY, 2 * MANY + 1))
    assert broker.default_tube.delayed.count == pristine.default_tube.delayed.count == MANY + 1
    assert calls_of(work, broker) <= 2 * calls_of(work, pristine)
    invariants.check(broker)
