"""The operations that are allowed on a job, by its state and holder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from greenstalk_server.core.jobs.job import RESERVED, SECOND
from tests.support.world import START, Actor, World, make_broker

OPERATIONS: dict[str, Callable[[Actor, int], bool]] = {
    "delete": lambda actor, id: actor.delete(id),
    "release": lambda actor, id: actor.release(id),
    "bury": lambda actor, id: actor.bury(id),
    "touch": lambda actor, id: actor.touch(id),
    "kick-job": lambda actor, id: actor.kick_job(id),
    "reserve-job": lambda actor, id: actor.reserve_job(id),
}

ALLOWED = {
    "ready": {"delete", "reserve-job"},
    "delayed": {"delete", "reserve-job", "kick-job"},
    "buried": {"delete", "reserve-job", "kick-job"},
    "reserved by me": {"delete", "release", "bury", "touch"},
    "reserved by another": set(),
    "reserved by a disconnected client": {"delete", "reserve-job"},
    "timed out": {"delete", "reserve-job"},
    "deleted": set(),
    "never put": set(),
}


def prepare(world: World, me: Actor, situation: str) -> int:
    """Put a job into the tube `elsewhere`, which *me* neither uses nor watches, in *situation*; return its id."""
    other = world.client(use=b"elsewhere", watch=[b"elsewhere"])
    if situation == "never put":
        return 99
    id = other.put(delay=10 if situation == "delayed" else 0, ttr=5)
    match situation:
        case "buried":
            other.reserve()
            other.bury(id)
        case "reserved by another":
            other.reserve()
        case "reserved by a disconnected client":
            other.reserve()
            other.disconnect()
        case "reserved by me":
            me.reserve_job(id)
        case "timed out":
            me.reserve_job(id)
            world.advance(5)
        case "deleted":
            other.delete(id)
    return id


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("situation", ALLOWED)
def test_operation_depends_on_state_and_holder(world: World, situation: str, operation: str) -> None:
    me = world.client()
    id = prepare(world, me, situation)
    before = world.state(id)
    done = OPERATIONS[operation](me, id)
    assert done == (operation in ALLOWED[situation])
    if not done:
        assert world.state(id) == before


def test_reserved_job_cannot_be_deleted_without_a_client(world: World) -> None:
    client = world.client()
    reserved, ready = client.put(), client.put()
    client.reserve()
    assert not world.broker.delete(None, reserved, world.now)
    assert world.broker.delete(None, ready, world.now)


@pytest.mark.parametrize("situation", ["ready", "delayed", "buried"])
def test_reserve_job_takes_from_a_paused_tube(world: World, situation: str) -> None:
    me = world.client()
    id = prepare(world, me, situation)
    me.pause_tube(b"elsewhere", 60)
    assert me.reserve_job(id)
    assert me.reserved == [id]


def test_reserve_job_inside_the_safety_margin_gets_the_job(world: World) -> None:
    me = world.client()
    me.put(ttr=1)
    other = me.put()
    me.reserve()
    assert me.reserve_job(other)


def test_delayed_job_reserved_by_id_stays_reserved_when_its_delay_ends(world: World) -> None:
    me = world.client()
    id = me.put(delay=2, ttr=60)
    me.reserve_job(id)
    world.advance(2)
    assert world.state(id) == "reserved"
    me.release(id, delay=5)
    world.advance(4)
    assert world.state(id) == "delayed"
    world.advance(1)
    assert world.state(id) == "ready"


def test_ids_increase_and_are_never_reused(world: World) -> None:
    client = world.client()
    first = client.put()
    world.broker.allocate_id()
    third = client.put()
    client.delete(third)
    assert (first, third, client.put()) == (1, 3, 4)


def test_invariants_hold_when_clients_disconnect_while_the_server_stops() -> None:
    broker = make_broker()
    worker = broker.connect(lambda: None)
    broker.watch(worker, b"mail")
    broker.use(worker, b"mail")
    id = broker.allocate_id()
    assert broker.put(worker, id, 0, 0, SECOND, b"body", START) > 0
    assert broker.reserve(worker, START) is not None
    broker.stop()
    broker.disconnect(worker, START)
    broker.check()
    broker.tick(START + 2 * SECOND)
    broker.check()
    assert broker.jobs[id].state == RESERVED
