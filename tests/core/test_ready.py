"""ReadyQueue against a sorted list: order, walks, the oldest, removal from anywhere, and what it keeps of jobs gone."""

from __future__ import annotations

import gc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.job import IN_RUN, Job
from greenstalk_server.core.ready_queue import MAX_CHUNK, MAX_RUNS, ReadyQueue
from greenstalk_server.core.tube import Tube
from tests.support.world import World


class Shelf:
    """A queue of jobs of one tube, and the jobs that should be in it."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.tube = Tube(b"t", self.jobs)
        self.queue: ReadyQueue = self.tube.ready
        self.standing: dict[int, Job] = {}
        self.now = 0

    def add(self, id: int, pri: int = 0) -> Job:
        """Have the job *id* come, or come back."""
        self.now += 1
        job = self.jobs.setdefault(id, Job(id, self.tube, b"", 0, 0, 0, 0))
        job.pri, job.deadline = pri, self.now
        self.queue.add(job)
        self.standing[id] = job
        return job

    def remove(self, id: int) -> None:
        self.queue.remove(self.standing.pop(id))

    def check(self) -> None:
        expected = sorted(self.standing.values(), key=lambda job: (job.pri, job.id))
        assert self.queue.first() is (expected[0] if expected else None)
        assert list(self.queue.walk()) == expected
        assert self.queue.oldest() is min(self.standing.values(), key=lambda job: job.deadline, default=None)
        assert self.queue.count == len(expected) <= self.queue.size == len(self.queue.ids())
        assert self.standing.keys() <= set(self.queue.ids())
        self.queue.check(expected)


def walk_at_random(seed: int, pris: int, leaves_first: float) -> None:
    """Jobs come, mostly in order, leave from the front or from anywhere, and come back."""
    random, shelf, next_id = Random(seed), Shelf(), 1  # noqa: S311
    gone: list[int] = []
    for step in range(6 * MAX_CHUNK):
        if shelf.standing and random.random() < 0.4:
            first = shelf.queue.first()
            assert first is not None
            id = first.id if random.random() < leaves_first else random.choice(list(shelf.standing))
            shelf.remove(id)
            gone.append(id)
        elif gone and random.random() < 0.2:
            shelf.add(gone.pop(random.randrange(len(gone))), random.randrange(pris))
        else:
            shelf.add(next_id, random.randrange(pris))
            next_id += 1
        if step % 16 == 0:
            shelf.check()
    for id in list(shelf.standing):
        shelf.remove(id)
    shelf.check()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pris", [1, 3, MAX_RUNS, 3 * MAX_RUNS, 10**6])
@pytest.mark.parametrize("leaves_first", [0.0, 0.5, 1.0])
def test_queue_keeps_the_order_and_finds_the_oldest(seed: int, pris: int, leaves_first: float) -> None:
    walk_at_random(seed, pris, leaves_first)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, MAX_RUNS + 2) | st.none()), max_size=300))
def test_any_additions_and_removals_keep_the_order(steps: list[tuple[int, int | None]]) -> None:
    """A step gives a job a priority, or takes it out; one left comes back."""
    shelf = Shelf()
    for id, pri in steps:
        if id in shelf.standing:
            shelf.remove(id)
        if pri is not None:
            shelf.add(id, pri)
        shelf.check()


def test_jobs_in_order_are_in_a_run() -> None:
    shelf = Shelf()
    for id in range(1, 5 * MAX_CHUNK):
        assert shelf.add(id, pri=id % MAX_RUNS).key == IN_RUN
    shelf.check()


def test_empty_run_is_replaced_by_another_priority() -> None:
    shelf = Shelf()
    for id in range(1, MAX_RUNS + 1):
        shelf.add(id, pri=id)
    assert shelf.add(MAX_RUNS + 1, pri=MAX_RUNS + 1).key != IN_RUN
    shelf.remove(3)
    assert shelf.add(MAX_RUNS + 2, pri=MAX_RUNS + 2).key == IN_RUN
    shelf.check()


@pytest.mark.parametrize("gone", [range(1, 1001), range(1000, 0, -1), range(1, 1001, 2)])
def test_removed_job_is_freed(world: World, gone: range) -> None:
    """Its body is free at once, from wherever it left."""
    client = world.client()
    with world.in_bulk():
        for _ in range(1000):
            client.put()
        for id in gone:
            world.broker.delete(None, id, world.now)
    tube = world.broker.tubes[b"default"]
    kept = [item for item in gc.get_objects() if isinstance(item, Job) and item.tube is tube and item.id in gone]
    assert kept == [] and tube.ready.count == 1000 - len(gone)
