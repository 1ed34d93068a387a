"""JobHeap against a sorted list: order, walks, removal from the middle, and the bound on dead entries."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.job import Job
from greenstalk_server.core.job_heap import JobHeap
from greenstalk_server.core.tube import Tube


class Counting(dict[int, Job]):
    """A table of jobs that counts how often it is asked."""

    lookups = 0

    def get(self, *args: object) -> Job | None:  # type: ignore[override]
        Counting.lookups += 1
        return super().get(*args)  # type: ignore[call-overload, no-any-return]


class Shelf:
    """A heap of jobs of one tube, and the ranks that should be in it."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = Counting()
        self.tube = Tube(b"t", self.jobs)
        self.heap: JobHeap = self.tube.delayed
        self.ranks: dict[int, int] = {}

    def push(self, id: int, rank: int) -> None:
        if id not in self.jobs:
            self.jobs[id] = Job(id, self.tube, b"", 0, 0, 0, 0)
        self.heap.push(self.jobs[id], rank)
        self.ranks[id] = rank

    def remove(self, id: int) -> None:
        self.heap.remove(self.jobs[id])
        del self.ranks[id]

    def expected(self) -> list[int]:
        return [id for _, id in sorted((rank, id) for id, rank in self.ranks.items())]

    def check(self) -> None:
        expected, first = self.expected(), self.heap.first()
        assert [job.id for job in self.heap.walk()] == expected
        assert (first.id if first is not None else None) == (expected[0] if expected else None)
        self.heap.check([self.jobs[id] for id in expected])


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3) | st.none()), max_size=300))
def test_any_pushes_and_removals_keep_the_order(steps: list[tuple[int, int | None]]) -> None:
    """A step moves a job to a rank, or out; a rank left comes back, so that its dead entry might seem to live."""
    shelf = Shelf()
    for id, rank in steps:
        if id in shelf.ranks:
            shelf.remove(id)
        if rank is not None:
            shelf.push(id, rank)
        shelf.check()


def test_an_empty_heap_has_no_first_and_an_empty_walk() -> None:
    shelf = Shelf()
    shelf.check()


def test_dead_entries_are_swept_when_they_outnumber_the_live() -> None:
    shelf = Shelf()
    for id in range(1, 2001):
        shelf.push(id, rank=id % 7)
    for id in reversed(shelf.expected()[1:]):  # from the end, where none is popped
        shelf.remove(id)
        assert shelf.heap.size <= 2 * shelf.heap.count + shelf.heap.SLACK
    shelf.check()


def test_a_large_heap_is_swept_a_few_entries_at_a_time() -> None:
    """Each removal stays short: no lookup but those of its step, and what a pop drops."""
    shelf = Shelf()
    for id in range(1, 20_001):
        shelf.push(id, rank=id % 7)
    for id in list(shelf.heap.ids()):
        if id % 3:
            Counting.lookups = 0
            shelf.remove(id)
            assert Counting.lookups <= shelf.heap.STEP
        if id % 1000 == 0:
            shelf.check()
    shelf.check()


def test_jobs_that_return_to_a_large_heap_leave_few_dead_entries() -> None:
    shelf = Shelf()
    for id in range(1, 5001):
        shelf.push(id, rank=1)
    for turn in range(12):
        for id in range(2, 5001, 2):
            shelf.remove(id)
            shelf.push(id, rank=1 + turn % 3)
            assert shelf.heap.size <= 3 * shelf.heap.count + 2 * shelf.heap.SLACK
    shelf.check()


def test_endless_moves_of_one_job_leave_few_dead_entries() -> None:
    shelf = Shelf()
    shelf.push(1, rank=0)
    shelf.push(2, rank=5)
    for turn in range(1000):
        shelf.remove(2)
        shelf.push(2, rank=5 + turn % 2)
        shelf.check()


def test_walk_examines_only_the_entries_that_it_yields() -> None:
    """The first k of n cost O(k log k): of a heap of a hundred thousand, ten are had at once."""
    shelf = Shelf()
    for id in range(1, 100_001):
        shelf.push(id, rank=100_001 - id)
    Counting.lookups = 0
    assert [job.id for job in islice(shelf.heap.walk(), 10)] == list(range(100_000, 99_990, -1))
    assert Counting.lookups <= 20


def test_a_deleted_jobs_entry_is_dead() -> None:
    shelf = Shelf()
    shelf.push(1, rank=0)
    shelf.push(2, rank=1)
    shelf.push(3, rank=2)
    shelf.remove(2)
    del shelf.jobs[2]
    shelf.check()


def test_entry_of_a_job_in_another_tube_is_dead() -> None:
    """The same job, rank and id in another tube, as no command can make it, is not this tube's."""
    shelf = Shelf()
    shelf.push(1, rank=0)
    shelf.jobs[1].tube = Tube(b"other", shelf.jobs)
    assert shelf.heap.first() is None
