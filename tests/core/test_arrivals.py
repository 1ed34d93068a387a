"""The job of a tube that has been ready for longest, compared with a search of all jobs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY
from greenstalk_server.core.transitions import SLICE
from greenstalk_server.core.tubes.tube import Tube
from tests.support.world import Actor, World


class RandomOperations:
    """A world in which random operations run, each at a different time."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311
        self.world = World()
        self.clients: list[Actor] = [self.world.client() for _ in range(3)]
        self.tube: Tube = self.world.broker.tubes[b"default"]

    def verbs(self) -> list[Callable[[], object]]:
        frequent = [self.put, self.put, self.put, self.reserve, self.reserve]
        return [
            *frequent,
            self.delete,
            self.release,
            self.bury,
            self.kick,
            self.edit,
            self.move,
            self.move_back,
            self.reconnect,
        ]

    def put(self) -> None:
        delay = self.random.choice((0, 0, 0, 1, 5))
        self.client().put(self.random.randrange(50), delay=delay, ttr=self.random.choice((1, 3, 1000)))

    def reserve(self) -> None:
        self.client().reserve(0)

    def delete(self) -> None:
        self.world.broker.delete(None, self.any_id(), self.world.now)

    def release(self) -> None:
        self.world.release_job(self.any_id())

    def bury(self) -> None:
        self.world.bury_job(self.any_id(), is_forced=True)

    def kick(self) -> None:
        self.client().kick(self.random.choice((BURIED, DELAYED)), self.random.randrange(4))

    def edit(self) -> None:
        pri = self.random.choice((None, self.random.randrange(50)))
        self.world.edit(self.any_id(), pri=pri, delay=self.random.choice((None, 0, 2)), is_forced=True)

    def move(self) -> None:
        self.world.edit(self.any_id(), tube=b"other", is_forced=True)

    def move_back(self) -> None:
        self.world.edit(self.any_id(), tube=b"default", is_forced=True)

    def reconnect(self) -> None:
        number = self.random.randrange(len(self.clients))
        self.clients[number].disconnect()
        self.clients[number] = self.world.client()

    def client(self) -> Actor:
        return self.random.choice(self.clients)

    def any_id(self) -> int:
        return self.random.choice([*self.world.broker.jobs, 10**9])

    def step(self) -> None:
        self.world.advance(self.random.choice((0.001, 0.001, 0.5)))
        self.random.choice(self.verbs())()

    def compare(self) -> None:
        ready = [job for job in self.world.broker.jobs.values() if job.tube is self.tube and job.state == READY]
        since = min([job.deadline for job in ready], default=None)
        oldest = self.tube.oldest_ready()
        assert (oldest.deadline if oldest is not None else None) == since
        assert oldest is None or (oldest in ready and self.world.broker.jobs[oldest.id] is oldest)


@pytest.mark.parametrize("seed", range(4))
def test_oldest_is_the_job_that_has_been_ready_for_longest(seed: int) -> None:
    operations = RandomOperations(seed)
    with operations.world.in_bulk():
        for step in range(3000):
            operations.step()
            operations.compare()
            if step % 50 == 0:
                operations.world.broker.check()
    while operations.tube.ready.count:
        operations.reserve()
        operations.compare()


def test_empty_tube_has_no_oldest_job(world: World) -> None:
    assert world.broker.tubes[b"default"].oldest_ready() is None


def test_job_that_ten_thousand_pass_by_stays_the_oldest(world: World) -> None:
    client, tube = world.client(), world.broker.tubes[b"default"]
    with world.in_bulk():
        old = client.put(pri=9)
        for _ in range(10_000):
            id = client.put(pri=1)
            assert client.reserve(0) == id
            client.delete(id)
        tube.ready.check(list(tube.ready.walk()))
        oldest = tube.oldest_ready()
        assert oldest is not None and oldest.id == old


def test_edits_of_a_later_job_leave_the_oldest(world: World) -> None:
    client, tube = world.client(), world.broker.tubes[b"default"]
    first, second = client.put(), client.put()
    for number in range(500):
        world.advance(0.001)
        world.edit(second, pri=number)
    world.advance(0.001)
    oldest = tube.oldest_ready()
    assert oldest is not None and oldest.id == first
    world.edit(first, pri=1)
    oldest = tube.oldest_ready()
    assert oldest is not None and oldest.id == second


def test_jobs_of_a_disconnected_client_become_ready_at_the_disconnect(world: World) -> None:
    client, other = world.client(), world.client()
    with world.in_bulk():
        for _ in range(SLICE + 5):
            client.put()
        client.take(SLICE + 5)
    world.advance(1)
    waiting = other.put()
    world.advance(1)
    client.disconnect()
    world.advance(1)
    oldest = world.broker.tubes[b"default"].oldest_ready()
    assert oldest is not None and oldest.id == waiting


def test_oldest_is_exact_after_many_removals_from_the_middle(world: World) -> None:
    """Two thirds of ten thousand jobs are removed from the middle, while others are added."""
    client, tube = world.client(), world.broker.tubes[b"default"]
    with world.in_bulk():
        ids = []
        for _ in range(10_000):
            world.advance(0.001)
            ids.append(client.put(pri=5))
        for turn, id in enumerate([id for id in ids[1:] if id % 3]):
            world.advance(0.001)
            assert client.reserve_job(id)
            if turn % 5 == 0:
                client.put(pri=5)
            if turn % 500 == 0:
                world.broker.check()
            oldest = tube.oldest_ready()
            assert oldest is not None and oldest.id == ids[0]
