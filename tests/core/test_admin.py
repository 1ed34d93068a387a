"""Operations of an operator that are not commands: bury an unreserved job, put into any tube, clear a tube."""

from __future__ import annotations

import pytest

from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, SECOND
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.core.transitions import SLICE
from tests.support.world import FullJournal, World


def test_bury_job_buries_a_ready_or_delayed_job(world: World) -> None:
    client = world.client()
    ready, delayed = client.put(), client.put(delay=5)
    assert [world.bury_job(id) for id in (delayed, ready)] == [True, True]
    assert world.buried() == [delayed, ready]
    world.advance(10)
    assert world.buried() == [delayed, ready]
    assert world.stats_job(ready).buries == 1


def test_bury_job_refuses_a_reserved_buried_or_unknown_job(world: World) -> None:
    client = world.client()
    held, buried = client.put(), client.put()
    client.reserve_job(held)
    assert world.bury_job(buried)
    assert [world.bury_job(id) for id in (held, buried, 99)] == [False] * 3
    assert (world.state(held), world.state(buried)) == ("reserved", "buried")


def test_bury_job_appends_the_job_to_the_buried_jobs(world: World) -> None:
    client = world.client()
    first, second, third = client.put(), client.put(), client.put()
    for id in (third, first):
        client.reserve_job(id)
        client.bury(id)
        world.bury_job(second)
    assert world.buried() == [third, second, first]


def test_put_into_creates_a_tube_that_no_client_uses(world: World) -> None:
    id = world.broker.put_into(b"new", 7, 0, 60 * SECOND, b"body", world.now)
    world.check()
    assert world.ready(b"new") == [id]
    assert (world.broker.tubes[b"new"].using, world.broker.counters.total_connections) == (0, 0)
    assert world.checked(world.broker.delete(None, id, world.now))
    assert b"new" not in world.broker.tubes


def test_put_into_gives_the_job_to_a_waiting_client(world: World) -> None:
    worker = world.client(watch=[b"new"])
    assert worker.reserve() == "WAITING"
    id = world.broker.put_into(b"new", 7, 0, 60 * SECOND, b"body", world.now)
    world.check()
    assert world.state(id) == "reserved"


def test_refused_put_into_leaves_no_tube(world: World) -> None:
    world.broker.journal = FullJournal()
    assert world.checked(world.broker.put_into(b"new", 7, 0, SECOND, b"", world.now)) == Refusal.JOURNAL
    assert b"new" not in world.broker.tubes


@pytest.mark.parametrize("state", [READY, DELAYED, BURIED])
def test_clear_deletes_a_slice_of_one_state_and_no_newer_job(world: World, state: int) -> None:
    client = world.client()

    def put() -> int:
        id = client.put(delay=60 if state == DELAYED else 0)
        if state == BURIED:
            world.bury_job(id)
        return id

    with world.in_bulk():
        for _ in range(SLICE + 3):
            put()
    others = [client.put(delay=60) if state == READY else client.put(delay=0)]
    tube, below = world.broker.tubes[b"default"], world.broker.next_id
    newer = put()
    assert [world.checked(world.broker.clear(tube, state, 10**9, below, world.now)) for _ in range(3)] == [SLICE, 3, 0]
    assert sorted(world.broker.jobs) == [*others, newer]


def test_clear_stops_at_its_bound(world: World) -> None:
    client = world.client()
    ids = [client.put() for _ in range(5)]
    tube = world.broker.tubes[b"default"]
    assert world.checked(world.broker.clear(tube, READY, 2, world.broker.next_id, world.now)) == 2
    assert world.ready() == ids[2:]


def test_clear_drops_an_unneeded_tube(world: World) -> None:
    world.broker.put_into(b"new", 7, 0, SECOND, b"", world.now)
    assert world.broker.clear(world.broker.tubes[b"new"], READY, 1, world.broker.next_id, world.now) == 1
    world.check()
    assert b"new" not in world.broker.tubes
