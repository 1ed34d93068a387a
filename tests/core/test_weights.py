"""Weighted reserves: the share of each tube, and the cases in which weights have no effect."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from greenstalk_server.core.operations import connecting, finishing, reserving
from greenstalk_server.core.tubes.tube_set import MANY_TUBES
from greenstalk_server.core.tubes.weighting import MAX_PROCESSING_RATIO, WEIGHTED, WEIGHTED_FAIR
from tests.support.world import Actor, World

DRAWS = 4000


def worker(world: World, weights: dict[bytes, int], mode: int = WEIGHTED) -> Actor:
    client = world.client(watch=list(weights))
    for name, weight in weights.items():
        connecting.set_weight(client.client, name, weight)
    connecting.set_reserve_mode(world.broker, client.client, mode)
    return client


def shares(world: World, client: Actor, draws: int = DRAWS) -> Counter[bytes]:
    """Reserve and release *draws* times; return how often each tube was chosen."""
    source = Random(7)  # noqa: S311
    world.broker.random = source.random
    found: Counter[bytes] = Counter()
    with world.in_bulk():
        for _ in range(draws):
            job = reserving.reserve(world.broker, client.client, world.now)
            assert job is not None
            found[job.tube.name] += 1
            finishing.release(world.broker, client.client, job.id, job.pri, 0, world.now)
    return found


def run(world: World, name: bytes, seconds: float) -> None:
    """Have one job of the tube *name* take *seconds*."""
    other = world.client(use=name, watch=[name])
    other.put(pri=1, ttr=10**6)
    id = other.reserve(0)
    world.advance(seconds)
    assert isinstance(id, int) and other.delete(id)
    other.disconnect()


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


def test_no_tube_is_slower_than_the_limit(world: World) -> None:
    client = worker(world, {b"slow": 1, b"fast": 1}, WEIGHTED_FAIR)
    run(world, b"slow", 10**6)
    run(world, b"fast", 0.000001)
    client.put_in_tube(b"slow")
    client.put_in_tube(b"fast")
    world.broker.random = lambda: 0.5 / (MAX_PROCESSING_RATIO + 1)
    job = reserving.reserve(world.broker, client.client, world.now)
    assert job is not None and job.tube.name == b"slow"
