"""Remote clients whose link is lost keep their jobs until they are resumed, or their front has ended."""

from __future__ import annotations

import pytest

from greenstalk_server.core.broker import SLICE
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.operations import suspending
from tests.support.policies import set_policies
from tests.support.world import Actor, World


@pytest.fixture
def producer(world: World) -> Actor:
    return world.client()


@pytest.fixture
def worker(world: World) -> Actor:
    return world.remote(session=1)


def end(world: World, session: int = 1) -> None:
    suspending.end(world.broker, "front", session, world.now)
    world.check()


def events(world: World, id: int) -> list[int]:
    return [event.kind for event in job_history.unpack(world.broker.jobs[id].events)]


def test_suspended_client_keeps_its_jobs_beyond_their_ttr(world: World, producer: Actor, worker: Actor) -> None:
    id = producer.put(ttr=1)
    assert worker.claim() == id
    worker.suspend()
    world.advance(10)
    assert world.state(id) == "reserved"
    assert producer.reserve(0) == "TIMED_OUT"


def test_suspension_ends_the_wait_and_declines_the_offer(world: World, producer: Actor, worker: Actor) -> None:
    held = producer.put()
    assert worker.claim() == held
    assert worker.await_offer() == "WAITING"
    offered = producer.put()
    assert worker.offered == offered
    worker.suspend()
    assert producer.reserve(0) == offered


def test_client_without_jobs_is_disconnected(world: World, producer: Actor, worker: Actor) -> None:
    worker.suspend()
    assert worker.client.is_closed and not world.broker.suspended
    assert world.broker.remote_count == 0


def test_resumed_session_has_its_jobs_for_their_whole_ttr(world: World, producer: Actor, worker: Actor) -> None:
    first, second = producer.put(ttr=2), producer.put(ttr=5)
    assert worker.claim() == first and worker.claim() == second
    worker.suspend()
    world.advance(4)
    again = world.remote(session=1)
    again.resume(2)
    assert again.reserved == [first, second] and not world.broker.suspended
    assert again.client.number == worker.client.number
    world.advance(1.9)
    assert again.touch(first)
    world.advance(2.1)
    assert world.state(first) == "ready" and world.state(second) == "reserved"
    assert again.release(second)


def test_reservation_that_the_front_does_not_know_of_ends_uncounted(
    world: World, producer: Actor, worker: Actor
) -> None:
    known, unknown = producer.put(), producer.put()
    assert worker.claim() == known and worker.claim() == unknown
    worker.suspend()
    again = world.remote(session=1)
    again.resume(1)
    assert again.reserved == [known]
    assert world.state(unknown) == "ready"
    assert world.stats_job(unknown).reserves == 0
    assert again.claim() == unknown
    again.suspend()
    last = world.remote(session=1)
    last.resume(2)
    assert last.reserved == [known, unknown]


def test_uncounted_reservation_is_no_attempt(world: World, producer: Actor, worker: Actor) -> None:
    set_policies(world, rule={"tubes": ["default"], "max_attempts": 1, "dead_letter": "dead"})
    id = producer.put()
    assert worker.claim() == id
    worker.suspend()
    world.remote(session=1).resume(0)
    assert world.ready() == [id]


def test_session_of_another_front_or_number_gets_no_job(world: World, producer: Actor, worker: Actor) -> None:
    id = producer.put()
    assert worker.claim() == id
    worker.suspend()
    world.remote(session=2).resume(1)
    world.remote(front="other", session=1).resume(1)
    assert world.state(id) == "reserved" and worker.reserved == [id]


def test_end_of_the_session_makes_its_jobs_ready(world: World, producer: Actor, worker: Actor) -> None:
    ids = [producer.put() for _ in range(2)]
    assert [worker.claim(), worker.claim()] == ids
    worker.suspend()
    end(world)
    assert world.ready() == ids and not world.broker.suspended
    assert events(world, ids[0]) == [job_history.RESERVED, job_history.RETURNED]
    end(world)  # it has ended already


def test_jobs_of_an_ended_session_become_ready_in_slices(world: World, producer: Actor, worker: Actor) -> None:
    with world.in_bulk():
        for _ in range(SLICE + 1):
            producer.put()
        while worker.claim() != "TIMED_OUT":
            pass
    worker.suspend()
    end(world)
    assert len(world.ready()) == SLICE
    world.advance(0)
    assert len(world.ready()) == SLICE + 1


def test_operator_takes_a_job_of_a_suspended_client(world: World, producer: Actor, worker: Actor) -> None:
    released, deleted, kept = [producer.put() for _ in range(3)]
    for _ in range(3):
        worker.claim()
    worker.suspend()
    assert world.release_job(released) and world.delete_job(deleted, is_forced=True)
    again = world.remote(session=1)
    again.resume(3)
    assert again.reserved == [kept]
    assert again.claim() == released


def test_limits_count_the_jobs_of_suspended_clients(world: World, producer: Actor, worker: Actor) -> None:
    set_policies(world, rule={"tubes": ["default"], "max_reserved": 1})
    held, waiting = producer.put(), producer.put()
    assert worker.claim() == held
    worker.suspend()
    assert producer.reserve(0) == "TIMED_OUT"
    end(world)
    assert producer.reserve(0) == held
    assert world.state(waiting) == "ready"


def test_stopping_server_leaves_the_jobs_to_the_next_start(world: World, producer: Actor, worker: Actor) -> None:
    id = producer.put()
    assert worker.claim() == id
    world.broker.is_stopping = True
    worker.suspend()
    assert world.state(id) == "reserved"
