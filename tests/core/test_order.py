"""The order of ready, delayed and buried jobs, in one tube and in several."""

from __future__ import annotations

import itertools

import pytest

from greenstalk_server.core.jobs.job import BURIED, DELAYED
from greenstalk_server.core.transitions import SLICE
from tests.support.world import World


def test_ready_jobs_are_ordered_by_priority_then_id(world: World) -> None:
    client = world.client()
    late, urgent, later, least = client.put(pri=5), client.put(pri=0), client.put(pri=5), client.put(pri=2**32 - 1)
    assert client.take(4) == [urgent, late, later, least]


def test_order_of_arrival_does_not_change_the_order_of_priority(world: World) -> None:
    client = world.client()
    for pris in itertools.permutations(range(4)):
        by_pri = {pri: client.put(pri) for pri in pris}
        assert client.take(4) == [by_pri[pri] for pri in range(4)]


def test_jobs_are_ordered_by_id_not_by_arrival_of_the_body(world: World) -> None:
    client = world.client()
    first = world.broker.allocate_id()
    second = client.put()
    world.broker.put(client.client, first, 0, 0, 60, b"", world.now)
    assert client.take(2) == [first, second]


@pytest.mark.parametrize("watch", list(itertools.permutations([b"a", b"b", b"c"])))
def test_reserve_takes_the_first_job_of_all_watched_tubes(world: World, watch: tuple[bytes, ...]) -> None:
    producer, worker = world.client(), world.client(watch=watch)
    ids = []
    for tube, pri in ((b"a", 7), (b"b", 7), (b"c", 3), (b"a", 3), (b"b", 0)):
        producer.use(tube)
        ids.append(producer.put(pri))
    assert worker.take(5) == [ids[4], ids[2], ids[3], ids[0], ids[1]]


def test_reserve_ignores_tubes_that_are_not_watched(world: World) -> None:
    producer, worker = world.client(use=b"a"), world.client()
    producer.put()
    assert worker.reserve(0) == "TIMED_OUT"
    worker.watch(b"a")
    assert worker.reserve(0) == 1


@pytest.mark.parametrize("returned_by", ["release", "kick", "kick-job", "timeout", "disconnect", "delay"])
def test_returned_job_is_ordered_by_its_id(world: World, returned_by: str) -> None:
    """It does not go to the end of the queue."""
    producer, worker = world.client(), world.client()
    first = producer.put(ttr=5)
    assert worker.reserve() == first
    second = producer.put()
    match returned_by:
        case "release":
            worker.release(first)
        case "kick":
            worker.bury(first)
            worker.kick(BURIED, 1)
        case "kick-job":
            worker.bury(first)
            worker.kick_job(first)
        case "timeout":
            world.advance(5)
        case "disconnect":
            worker.disconnect()
        case "delay":
            worker.release(first, delay=3)
            world.advance(3)
    assert world.ready() == [first, second]


def test_release_and_bury_set_a_new_priority(world: World) -> None:
    client = world.client()
    a, b, c = client.put(1), client.put(2), client.put(3)
    assert client.take(3) == [a, b, c]
    client.release(a, pri=9)
    client.bury(b, pri=8)
    client.release(c, pri=7)
    client.kick_job(b)
    assert world.ready() == [c, b, a]


def test_delayed_jobs_are_ordered_by_deadline_then_id(world: World) -> None:
    client = world.client()
    slow, quick, quick_too = client.put(delay=9), client.put(delay=2), client.put(delay=2)
    assert world.delayed() == [quick, quick_too, slow]
    world.advance(2)
    assert world.delayed() == [slow]
    assert world.ready() == [quick, quick_too]


def test_delayed_jobs_are_kicked_by_deadline_and_not_by_priority(world: World) -> None:
    client = world.client()
    slow, quick = client.put(pri=0, delay=9), client.put(pri=5, delay=2)
    assert client.kick(DELAYED, 1) == 1
    assert world.ready() == [quick]
    assert world.delayed() == [slow]


def test_first_buried_job_is_kicked_and_peeked_first(world: World) -> None:
    client = world.client()
    a, b, c = client.put(), client.put(), client.put()
    assert client.take(3) == [a, b, c]
    for id in (b, c, a):
        client.bury(id, pri=id)
    assert world.buried() == [b, c, a]
    first = client.client.used.first_buried()
    assert first is not None and first.id == b
    assert client.kick(BURIED, 2) == 2
    assert world.buried() == [a]
    assert world.ready() == [b, c]


def test_job_buried_again_is_last(world: World) -> None:
    client = world.client()
    for id in (client.put(), client.put()):
        client.reserve()
        client.bury(id)
    client.reserve_job(1)
    client.bury(1)
    assert world.buried() == [2, 1]


def test_released_job_is_in_the_queue_once(world: World) -> None:
    client = world.client()
    ids = [client.put(pri=10) for _ in range(5)]
    for pri in (3, 10, 3, 20, 10):
        assert client.reserve_job(ids[2])
        client.release(ids[2], pri=pri)
    assert world.ready() == ids
    client.reserve_job(ids[2])
    client.release(ids[2], pri=20)
    assert client.take(5) == [ids[0], ids[1], ids[3], ids[4], ids[2]]
    assert client.reserve(0) == "TIMED_OUT"


def test_jobs_of_a_disconnected_client_are_handed_out_in_the_order_of_reservation(world: World) -> None:
    producer, holder = world.client(), world.client()
    least, middle, most = producer.put(pri=3), producer.put(pri=2), producer.put(pri=1)
    for id in (middle, least, most):
        holder.reserve_job(id)
    holder.touch(middle)  # does not change the order
    waiters = [world.client() for _ in range(3)]
    for waiter in waiters:
        assert waiter.reserve() == "WAITING"
    holder.disconnect()
    assert [waiter.ended for waiter in waiters] == [[middle], [least], [most]]


def test_jobs_of_a_disconnected_client_return_slice_by_slice_in_order(world: World) -> None:
    producer, holder = world.client(), world.client()
    with world.in_bulk():
        ids = [producer.put() for _ in range(3 * SLICE)]
        assert holder.take(len(ids)) == ids
        waiters = [world.client() for _ in ids]
        assert {waiter.reserve() for waiter in waiters} == {"WAITING"}
    holder.disconnect()
    assert [waiter.ended for waiter in waiters] == [[id] for id in ids[:SLICE]] + [[]] * 2 * SLICE
    world.advance(0)
    assert [waiter.ended for waiter in waiters] == [[id] for id in ids]
