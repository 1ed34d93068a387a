"""The recorded events of a job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job_history import Event
from tests.support.world import World

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


# The codec


@given(EVENTS)
def test_newest_events_are_kept(events: list[Event]) -> None:
    found = packed(events)
    assert job_history.unpack(found) == events[-job_history.MAX_EVENTS :]
    assert len(found) in job_history.SIZES
    if events:
        assert job_history.last(found) == events[-1]
        assert job_history.is_reserved(found) == (events[-1].kind == job_history.RESERVED)
    kept = [event.client for event in events[-job_history.MAX_EVENTS :]]
    assert job_history.highest_client(found) == max(
        [client for client in kept if client < job_history.FIRST_OF_FRONT], default=job_history.NOBODY
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


@pytest.mark.parametrize("connected", [0, 5])
def test_clients_are_numbered_in_the_order_of_connection(world: World, connected: int) -> None:
    for _ in range(connected):
        world.client().disconnect()
    assert [world.client().client.number for _ in range(3)] == [connected + 1, connected + 2, connected + 3]
