"""Waiting clients: the order in which they are served, and the ends of waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from greenstalk_server.core.jobs.job import BURIED, SECOND
from tests.support.world import Actor, World

INSTANT = 1 / SECOND


def test_client_that_waits_longest_is_served_first(world: World) -> None:
    producer = world.client()
    workers = [world.client() for _ in range(3)]
    for worker in workers:
        assert worker.reserve() == "WAITING"
    ids = [producer.put(pri=9 - n) for n in range(3)]
    assert [worker.ended for worker in workers] == [[id] for id in ids]


def test_client_that_waits_again_is_served_last(world: World) -> None:
    producer, first, second = world.client(), world.client(), world.client()
    first.reserve()
    second.reserve()
    producer.put()
    first.reserve()
    producer.put()
    assert (first.ended, second.ended) == ([1], [2])
    producer.put()
    assert first.ended == [1, 3]


def test_one_job_wakes_one_client(world: World) -> None:
    producer, first, second = world.client(), world.client(), world.client()
    first.reserve()
    second.reserve()
    id = producer.put()
    assert (first.ended, second.ended, second.is_waiting) == ([id], [], True)
    assert first.reserved == [id]


def test_waiting_client_that_watches_several_tubes_gets_one_job(world: World) -> None:
    worker = world.client(watch=[b"a", b"b"])
    worker.reserve()
    a, b = world.client(use=b"a").put(), world.client(use=b"b").put()
    assert worker.ended == [a]
    assert world.ready(b"b") == [b]


def test_job_goes_to_a_waiting_client_that_watches_its_tube(world: World) -> None:
    other, worker = world.client(watch=[b"a"]), world.client(watch=[b"b"])
    other.reserve()
    worker.reserve()
    id = world.client(use=b"b").put()
    assert (other.ended, worker.ended) == ([], [id])


def _put(actor: Actor) -> None:
    actor.put()


def _release(actor: Actor) -> None:
    actor.release(1)


def _kick(actor: Actor) -> None:
    actor.bury(1)
    actor.kick(BURIED, 1)


def _kick_job(actor: Actor) -> None:
    actor.bury(1)
    actor.kick_job(1)


def _disconnect(actor: Actor) -> None:
    actor.disconnect()


@pytest.mark.parametrize("operation", [_put, _release, _kick, _kick_job, _disconnect])
def test_job_that_becomes_ready_goes_to_a_waiting_client(world: World, operation: Callable[[Actor], None]) -> None:
    holder, worker = world.client(), world.client()
    if operation is not _put:
        holder.put()
        holder.reserve()
    worker.reserve()
    operation(holder)
    assert worker.ended == [1]


def test_wait_times_out_exactly_at_its_timeout(world: World) -> None:
    worker = world.client()
    assert worker.reserve(3) == "WAITING"
    world.advance(3 - INSTANT)
    assert worker.is_waiting
    world.advance(INSTANT)
    assert worker.ended == ["TIMED_OUT"]


def test_wait_without_a_timeout_does_not_end(world: World) -> None:
    worker = world.client()
    worker.reserve()
    world.advance(10_000_000)
    assert worker.is_waiting


def test_timeout_of_zero_never_waits(world: World) -> None:
    assert world.client().reserve(0) == "TIMED_OUT"


def test_timer_of_an_earlier_wait_does_not_end_a_later_one(world: World) -> None:
    worker = world.client()
    worker.reserve(3)
    worker.put()
    worker.delete(1)
    assert worker.ended == [1]
    worker.reserve(10)
    world.advance(10 - INSTANT)
    assert worker.is_waiting
    world.advance(INSTANT)
    assert worker.ended == [1, "TIMED_OUT"]


def test_cancelled_wait_ends_without_a_wake_and_gets_no_job(world: World) -> None:
    producer, worker = world.client(), world.client()
    worker.reserve(5)
    worker.cancel_wait()
    id = producer.put()
    world.advance(10)
    assert worker.ended == []
    assert world.ready() == [id]
    worker.cancel_wait()  # no effect: the client does not wait


def test_disconnected_waiting_client_gets_no_job(world: World) -> None:
    producer, worker = world.client(), world.client()
    worker.reserve(5)
    worker.disconnect()
    id = producer.put()
    world.advance(10)
    assert (worker.ended, world.ready()) == ([], [id])
    assert world.stats().current_waiting == 0


def test_job_of_a_client_that_disconnects_before_its_wake_goes_to_the_next(world: World) -> None:
    producer, worker, next_worker = world.client(), world.client(), world.client()
    worker.reserve()
    id = producer.put()
    next_worker.reserve()
    worker.disconnect()
    assert next_worker.ended == [id]


def test_waiting_clients_are_counted_by_the_server_and_by_each_tube(world: World) -> None:
    worker, other = world.client(watch=[b"a", b"default"]), world.client()
    worker.reserve()
    other.reserve(1)
    assert world.stats().current_waiting == 2
    assert [world.stats_tube(name).current_waiting for name in (b"default", b"a")] == [2, 1]
    world.advance(1)
    assert world.stats().current_waiting == 1
    assert [world.stats_tube(name).current_waiting for name in (b"default", b"a")] == [1, 1]
