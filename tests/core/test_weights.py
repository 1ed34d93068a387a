"""Weighted reserves: the share of each tube, and the cases in which weights have no effect."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from random import Random

import pytest

from greenstalk_server.core.tubes.tube_set import MANY_TUBES
from greenstalk_server.core.tubes.weighting import FIFO, MAX_RUN_RATIO, WEIGHTED, WEIGHTED_FAIR
from tests.support.world import Actor, World

DRAWS = 4000


def worker(world: World, weights: dict[bytes, int], mode: int = WEIGHTED) -> Actor:
    client = world.client(watch=list(weights))
    for name, weight in weights.items():
        world.broker.set_weight(client.client, name, weight)
    world.broker.set_reserve_mode(client.client, mode)
    return client


def shares(world: World, client: Actor, draws: int = DRAWS) -> Counter[bytes]:
    """Reserve and release *draws* times; return how often each tube was chosen."""
    source = Random(7)  # noqa: S311
    world.broker.random = source.random
    found: Counter[bytes] = Counter()
    with world.in_bulk():
        for _ in range(draws):
            job = world.broker.reserve(client.client, world.now)
            assert job is not None
            found[job.tube.name] += 1
            world.broker.release(client.client, job.id, job.pri, 0, world.now)
    return found


def run(world: World, name: bytes, seconds: float) -> None:
    """Have one job of the tube *name* take *seconds*."""
    other = world.client(use=name, watch=[name])
    other.put(pri=1, ttr=10**6)
    id = other.reserve(0)
    world.advance(seconds)
    assert isinstance(id, int) and other.delete(id)
    other.disconnect()


def test_tubes_are_chosen_in_proportion_to_their_weights(world: World) -> None:
    client = worker(world, {b"a": 1, b"b": 2, b"c": 6})
    for name in (b"a", b"b", b"c"):
        client.put_in_tube(name)
    found = shares(world, client)
    for name, weight in {b"a": 1, b"b": 2, b"c": 6}.items():
        assert found[name] / DRAWS == pytest.approx(weight / 9, rel=0.15)


def test_fifo_ignores_weights(world: World) -> None:
    client = worker(world, {b"a": 9999, b"b": 1}, FIFO)
    client.put_in_tube(b"a", pri=5)
    client.put_in_tube(b"b", pri=4)
    assert shares(world, client, 20) == {b"b": 20}


def test_the_best_job_of_the_chosen_tube_is_reserved(world: World) -> None:
    client = worker(world, {b"a": 1, b"b": 9999})
    client.put_in_tube(b"a", pri=0)
    ids = [client.put_in_tube(b"b", pri=pri) for pri in (7, 5, 6)]
    assert [client.reserve(0) for _ in range(3)] == [ids[1], ids[2], ids[0]]


def test_every_tube_with_a_job_is_chosen(world: World) -> None:
    """The smallest share at the end and at the start of the sum."""
    for order in ({b"a": 9999, b"b": 1}, {b"b": 1, b"a": 9999}):
        client = worker(world, order)
        client.put_in_tube(b"a")
        client.put_in_tube(b"b")
        found = set()
        for point in (0.0, 0.99999):
            world.broker.random = partial(float, point)
            job = world.broker.reserve(client.client, world.now)
            assert job is not None
            found.add(job.tube.name)
            assert client.release(job.id)
        assert found == {b"a", b"b"}
        for id in list(world.broker.jobs):
            assert client.delete(id)


def test_paused_and_empty_tubes_have_no_share(world: World) -> None:
    client = worker(world, {b"a": 9999, b"b": 1, b"c": 9999})
    client.put_in_tube(b"a")
    client.put_in_tube(b"b")
    client.pause_tube(b"a", 9)
    assert shares(world, client, 50) == {b"b": 50}
    world.advance(9)
    assert shares(world, client, 50)[b"a"] > 40


@pytest.mark.parametrize("count", [2, MANY_TUBES, 4 * MANY_TUBES])
def test_weights_hold_for_any_number_of_tubes(world: World, count: int) -> None:
    names = [b"t%d" % number for number in range(count)]
    client = worker(world, {name: 1 + (name == b"t1") * (count - 1) for name in names})
    for name in names:
        client.put_in_tube(name)
    found = shares(world, client)
    assert found[b"t1"] / DRAWS == pytest.approx(count / (2 * count - 1), rel=0.1)
    assert set(found) == set(names)
    client.pause_tube(b"t1", 9)
    assert b"t1" not in shares(world, client, 50)
    world.advance(9)
    assert shares(world, client)[b"t1"] / DRAWS == pytest.approx(count / (2 * count - 1), rel=0.1)


def fair_shares(client: Actor) -> Counter[bytes]:
    """Return how often each tube is chosen, without a reserve: a reservation would count as a processing time."""
    weighting, source = client.client.weighting, Random(7)  # noqa: S311
    assert weighting is not None
    found: Counter[bytes] = Counter()
    for _ in range(DRAWS):
        job = weighting.choose(client.client.watched.values(), source.random(), client.world.now)
        assert job is not None
        found[job.tube.name] += 1
    return found


def test_fair_shares_follow_processing_times(world: World) -> None:
    client = worker(world, {b"slow": 1, b"fast": 1, b"new": 1}, WEIGHTED_FAIR)
    run(world, b"slow", 10)
    run(world, b"fast", 0.5)
    for name in (b"slow", b"fast"):
        client.put_in_tube(name)
    assert fair_shares(client)[b"slow"] / DRAWS == pytest.approx(1 / 21, rel=0.2)
    client.put_in_tube(b"new")
    parts = {b"slow": 1 / 10, b"fast": 1 / 0.5, b"new": 1 / 5.25}  # a new tube counts like the average of the others
    found = fair_shares(client)
    for name, part in parts.items():
        assert found[name] / DRAWS == pytest.approx(part / sum(parts.values()), rel=0.2)


def test_fair_shares_of_tubes_without_processing_times_are_the_weights(world: World) -> None:
    client = worker(world, {b"a": 1, b"b": 3}, WEIGHTED_FAIR)
    client.put_in_tube(b"a")
    client.put_in_tube(b"b")
    assert fair_shares(client)[b"b"] / DRAWS == pytest.approx(3 / 4, rel=0.05)


def test_no_tube_is_slower_than_the_limit(world: World) -> None:
    client = worker(world, {b"slow": 1, b"fast": 1}, WEIGHTED_FAIR)
    run(world, b"slow", 10**6)
    run(world, b"fast", 0.000001)
    client.put_in_tube(b"slow")
    client.put_in_tube(b"fast")
    world.broker.random = lambda: 0.5 / (MAX_RUN_RATIO + 1)
    job = world.broker.reserve(client.client, world.now)
    assert job is not None and job.tube.name == b"slow"


def test_ignore_and_a_watch_without_weight_reset_the_weight(world: World) -> None:
    client = worker(world, {b"a": 9999, b"b": 1})
    client.put_in_tube(b"a")
    client.put_in_tube(b"b")
    client.ignore(b"a")
    client.watch(b"a")
    assert shares(world, client)[b"a"] / DRAWS == pytest.approx(1 / 2, rel=0.1)


def test_waiting_client_gets_the_first_job_that_becomes_ready(world: World) -> None:
    client = worker(world, {b"a": 1, b"b": 9999})
    assert client.reserve() == "WAITING"
    other = world.client()
    first = other.put_in_tube(b"a")
    other.put_in_tube(b"b")
    assert client.ended == [first]


def test_weighted_reserve_of_many_tubes_is_bounded(world: World) -> None:
    """A reserve from 8000 tubes takes a few milliseconds, and its cost ends the slice of the session."""
    names = [b"t%d" % number for number in range(8000)]
    client = world.client()
    with world.in_bulk():
        for name in names:
            client.watch(name)
            client.put_in_tube(name)
        world.broker.set_reserve_mode(client.client, WEIGHTED_FAIR)
        assert isinstance(client.reserve(0), int)
        started_at = time.process_time()
        for _ in range(20):
            assert isinstance(client.reserve(0), int)
        assert (time.process_time() - started_at) / 20 < 0.05
