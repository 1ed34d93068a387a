"""Delays, TTRs, touch, and DEADLINE_SOON."""

from __future__ import annotations

import pytest

from greenstalk_server.core.client import MAX_SCANNED
from greenstalk_server.core.jobs.job import SECOND
from tests.support.world import World

INSTANT = 1 / SECOND


@pytest.mark.parametrize("held", [1, MAX_SCANNED, MAX_SCANNED + 1, 3 * MAX_SCANNED])
def test_each_of_many_jobs_keeps_its_own_deadline(world: World, held: int) -> None:
    """A client finds the soonest deadline of a few jobs by a scan, and of many by a heap."""
    client = world.client()
    ids = [client.put(ttr=2 + n) for n in range(held)]
    assert client.take(held) == ids
    client.touch(ids[0])
    for n in range(held):
        world.advance(2 if n == 0 else 1)
        assert client.reserved == ids[n + 1 :]


def test_many_touches_of_many_jobs_expire_each_job_once(world: World) -> None:
    client = world.client()
    ids = [client.put(ttr=10) for _ in range(2 * MAX_SCANNED)]
    client.take(len(ids))
    for _ in range(20):
        world.advance(1)
        for id in ids:
            client.touch(id)
    world.advance(9)
    assert client.reserved == ids
    world.advance(1)
    assert client.reserved == []
    assert world.stats().job_timeouts == len(ids)


@pytest.mark.parametrize("held", [3, MAX_SCANNED, MAX_SCANNED + 1, 2 * MAX_SCANNED])
def test_touched_or_deleted_job_no_longer_has_the_soonest_deadline(world: World, held: int) -> None:
    client = world.client()
    ids = [client.put(ttr=10 + n) for n in range(held)]
    client.take(held)
    assert client.reserve(0) == "TIMED_OUT"  # the client has searched for the soonest deadline
    world.advance(5)
    client.touch(ids[0])
    client.delete(ids[1])
    assert client.reserve() == "WAITING"
    world.advance(6 - INSTANT)
    assert client.is_waiting
    world.advance(INSTANT)
    assert client.ended == ["DEADLINE_SOON"]


def test_touched_jobs_leave_no_former_deadlines(world: World) -> None:
    client = world.client()
    for _ in range(MAX_SCANNED + 1):
        client.put()
    ids = client.take(MAX_SCANNED + 1)
    for second in range(3):
        world.advance(1)
        for id in ids:
            assert client.touch(id)
        deadlines = client.client._deadlines
        assert deadlines is not None and deadlines.count == len(ids), second
    for id in ids:
        assert client.delete(id)
        assert deadlines.count == len(client.client.reserved)


def test_late_tick_processes_everything_that_is_due(world: World) -> None:
    client = world.client()
    soon, later = client.put(ttr=2), client.put(delay=3)
    client.reserve()
    world.now += 60 * SECOND
    assert client.touch(soon)  # no tick has processed the deadline, so the client still holds the job
    world.advance(0)
    assert (world.state(soon), world.state(later)) == ("reserved", "ready")


# DEADLINE_SOON
