"""The recorded events of a job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED
from greenstalk_server.core.jobs.job_history import Event
from tests.support.world import START, World

EVENTS = st.lists(
    st.builds(
        Event,
        st.integers(0, 2**64 - 1),
        st.integers(1, len(job_history.KINDS) - 1),
        st.integers(0, job_history.LAST_CLIENT),
    ),
    max_size=40,
)


def packed(events: list[Event]) -> bytes:
    found = b""
    for event in events:
        found = job_history.add(found, event.kind, event.at, event.client)
    return found


def events_of(world: World, id: int) -> list[tuple[str, float, int]]:
    """Return the events of job *id*: kind, seconds since START, number of the client."""
    events = job_history.unpack(world.broker.jobs[id].events)
    return [(job_history.KINDS[event.kind], (event.at - START) / 10**9, event.client) for event in events]


# The codec


@given(EVENTS)
def test_newest_events_are_kept(events: list[Event]) -> None:
    found = packed(events)
    assert job_history.unpack(found) == events[-job_history.MAX_EVENTS :]
    assert len(found) in job_history.SIZES
    if events:
        assert job_history.last(found) == events[-1]
        assert job_history.is_reserved(found) == (events[-1].kind == job_history.RESERVED)
    assert job_history.highest_client(found) == max(
        [event.client for event in events[-job_history.MAX_EVENTS :]], default=job_history.NOBODY
    )


@given(EVENTS, st.integers(0, 300))
def test_newest_returns_as_many_events_as_fit(events: list[Event], size: int) -> None:
    found = packed(events)
    newest = job_history.newest(found, size)
    assert len(newest) == min(size // job_history.EVENT.size * job_history.EVENT.size, len(found))
    assert found.endswith(newest)


@given(st.binary(max_size=250))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    for event in job_history.unpack(data):
        assert job_history.KINDS[event.kind]


def test_new_job_has_no_events() -> None:
    assert job_history.unpack(b"") == []
    assert not job_history.is_reserved(b"")


# Recorded events


def test_put_reserve_touch_and_delete_record_no_event(world: World) -> None:
    client = world.client()
    id = client.put(delay=1)
    world.advance(1)
    client.reserve()
    client.touch(id)
    job = world.broker.jobs[id]
    client.delete(id)
    assert job.events == b""


def test_commands_of_a_client_are_recorded(world: World) -> None:
    first, second = world.client(), world.client()
    id = first.put()
    world.advance(1)
    second.reserve()
    world.advance(1)
    second.release(id)
    first.reserve()
    world.advance(1)
    first.bury(id)
    world.advance(1)
    second.kick_job(id)
    assert events_of(world, id) == [
        ("reserved", 1, 2),
        ("released", 2, 2),
        ("reserved", 2, 1),
        ("buried", 3, 1),
        ("kicked", 4, 0),
    ]


def test_lapsed_reservations_are_recorded(world: World) -> None:
    first, second = world.client(), world.client()
    id = first.put(ttr=3)
    first.reserve()
    world.advance(3)
    world.advance(1)
    second.reserve()
    world.advance(1)
    second.disconnect()
    assert events_of(world, id) == [("reserved", 0, 1), ("timed out", 3, 1), ("reserved", 4, 2), ("returned", 5, 2)]


def test_timeout_of_a_touched_job_is_recorded_at_its_deadline(world: World) -> None:
    client = world.client()
    id = client.put(ttr=3)
    client.reserve()
    world.advance(2)
    client.touch(id)
    world.advance(3)
    assert events_of(world, id) == [("reserved", 0, 1), ("timed out", 5, 1)]


def test_operations_of_an_operator_are_recorded(world: World) -> None:
    client = world.client()
    id = client.put()
    world.bury_job(id)
    client.kick(BURIED, 1)
    world.edit(id, pri=4)
    world.edit(id, delay=9)
    world.edit(id, tube=b"other")
    client.reserve_job(id)
    world.advance(1)
    world.release_job(id)
    client.reserve_job(id)
    world.bury_job(id, is_forced=True)
    assert events_of(world, id) == [
        ("buried", 0, 0),
        ("kicked", 0, 0),
        ("edited", 0, 0),
        ("edited", 0, 0),
        ("moved", 0, 0),
        ("reserved", 0, 1),
        ("released", 1, 0),
        ("reserved", 1, 1),
        ("buried", 1, 0),
    ]


def test_edit_of_a_reserved_job_is_recorded_before_its_reservation(world: World) -> None:
    client = world.client()
    id = client.put()
    client.reserve()
    world.advance(1)
    world.edit(id, body=b"new", is_forced=True)
    world.advance(1)
    client.release(id)
    assert events_of(world, id) == [("edited", 1, 0), ("reserved", 0, 1), ("released", 2, 1)]


def test_kick_of_a_delayed_job_is_recorded_and_the_end_of_a_delay_is_not(world: World) -> None:
    client = world.client()
    kicked, other = client.put(delay=3), client.put(delay=5)
    client.kick(DELAYED, 1)
    world.advance(6)
    assert (events_of(world, kicked), events_of(world, other)) == ([("kicked", 0, 0)], [])


def test_oldest_events_are_dropped(world: World) -> None:
    client = world.client()
    id = client.put()
    for _ in range(20):
        client.reserve()
        world.advance(1)
        client.release(id)
    found = events_of(world, id)
    assert len(found) == job_history.MAX_EVENTS
    assert found[-2:] == [("reserved", 19, 1), ("released", 20, 1)]
    assert found[0] == ("reserved", 12, 1)


@pytest.mark.parametrize("connected", [0, 5])
def test_clients_are_numbered_in_the_order_of_connection(world: World, connected: int) -> None:
    for _ in range(connected):
        world.client().disconnect()
    assert [world.client().client.number for _ in range(3)] == [connected + 1, connected + 2, connected + 3]
