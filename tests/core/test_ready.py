"""ReadyQueue compared with a sorted list: order, walks, the oldest job, removals, and freed jobs."""

from __future__ import annotations

import gc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.jobs.job_index import JobIndex
from greenstalk_server.core.operations import finishing
from greenstalk_server.core.tubes.ready_queue import MAX_CHUNK, MAX_RUNS, ReadyQueue
from greenstalk_server.core.tubes.tube import Tube
from tests.support.world import World


class CheckedQueue:
    """A ReadyQueue of one tube, and the jobs that it should contain: `present`."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.tube = Tube(b"t", self.jobs)
        self.queue: ReadyQueue = self.tube.ready
        self.present: dict[int, Job] = {}
        self.now = 0

    def add(self, id: int, pri: int = 0) -> None:
        """Add job *id*, which may have been removed before."""
        self.now += 1
        job = self.jobs.setdefault(id, Job(id, self.tube, b"", 0, 0, 0, 0))
        job.pri, job.deadline = pri, self.now
        self.queue.add(job)
        self.present[id] = job

    def remove(self, id: int) -> None:
        self.queue.remove(self.present.pop(id))

    def check(self) -> None:
        expected = sorted(self.present.values(), key=lambda job: (job.pri, job.id))
        assert self.queue.first() is (expected[0] if expected else None)
        assert list(self.queue.walk()) == expected
        assert self.queue.oldest() is min(self.present.values(), key=lambda job: job.deadline, default=None)
        assert self.queue.count == len(expected)
        assert sorted(self.queue.ids()) == sorted(self.present)
        self.queue.check(expected)


def out_of_order(queue: ReadyQueue) -> list[int]:
    """Return the ids of the jobs that are in no run."""
    index: JobIndex | None = queue._out_of_order
    return index.ids() if index is not None else []


def run_random_steps(seed: int, pris: int, share_from_front: float) -> None:
    """Add jobs, mostly in order, remove them from the front or anywhere, and add removed jobs again."""
    random, checked, next_id = Random(seed), CheckedQueue(), 1  # noqa: S311
    removed: list[int] = []
    for step in range(6 * MAX_CHUNK):
        if checked.present and random.random() < 0.4:
            first = checked.queue.first()
            assert first is not None
            id = first.id if random.random() < share_from_front else random.choice(list(checked.present))
            checked.remove(id)
            removed.append(id)
        elif removed and random.random() < 0.2:
            checked.add(removed.pop(random.randrange(len(removed))), random.randrange(pris))
        else:
            checked.add(next_id, random.randrange(pris))
            next_id += 1
        if step % 16 == 0:
            checked.check()
    for id in list(checked.present):
        checked.remove(id)
    checked.check()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pris", [1, 3, MAX_RUNS, 3 * MAX_RUNS, 10**6])
@pytest.mark.parametrize("share_from_front", [0.0, 0.5, 1.0])
def test_queue_keeps_the_order_and_finds_the_oldest(seed: int, pris: int, share_from_front: float) -> None:
    run_random_steps(seed, pris, share_from_front)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, MAX_RUNS + 2) | st.none()), max_size=300))
def test_any_additions_and_removals_keep_the_order(steps: list[tuple[int, int | None]]) -> None:
    """A step adds a job with a priority, or only removes it."""
    checked = CheckedQueue()
    for id, pri in steps:
        if id in checked.present:
            checked.remove(id)
        if pri is not None:
            checked.add(id, pri)
        checked.check()


def test_jobs_added_in_order_are_in_a_run() -> None:
    checked = CheckedQueue()
    for id in range(1, 5 * MAX_CHUNK):
        checked.add(id, pri=id % MAX_RUNS)
    assert out_of_order(checked.queue) == []
    checked.check()


def test_empty_run_is_replaced_by_another_priority() -> None:
    checked = CheckedQueue()
    for id in range(1, MAX_RUNS + 1):
        checked.add(id, pri=id)
    checked.add(MAX_RUNS + 1, pri=MAX_RUNS + 1)
    assert out_of_order(checked.queue) == [MAX_RUNS + 1]
    checked.remove(3)
    checked.add(MAX_RUNS + 2, pri=MAX_RUNS + 2)
    assert out_of_order(checked.queue) == [MAX_RUNS + 1]
    checked.check()


@pytest.mark.parametrize("removed", [range(1, 1001), range(1000, 0, -1), range(1, 1001, 2)])
def test_removed_job_is_freed(world: World, removed: range) -> None:
    """The job is freed immediately, from any position in the queue."""
    client = world.client()
    with world.in_bulk():
        for _ in range(1000):
            client.put()
        for id in removed:
            finishing.delete(world.broker, None, id, world.now)
    tube = world.broker.tubes[b"default"]
    kept = [item for item in gc.get_objects() if isinstance(item, Job) and item.tube is tube and item.id in removed]
    assert kept == [] and tube.ready.count == 1000 - len(removed)
