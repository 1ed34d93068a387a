"""Kick: number, state and tube of the kicked jobs, and the limit per call."""

from __future__ import annotations

import pytest

from greenstalk_server.core.jobs.job import BURIED, DELAYED
from greenstalk_server.core.transitions import SLICE
from tests.support.world import Actor, World


def bury(client: Actor, count: int) -> list[int]:
    """Put and bury *count* jobs."""
    ids = [client.put() for _ in range(count)]
    for id in ids:
        client.reserve_job(id)
        client.bury(id)
    return ids


@pytest.mark.parametrize(
    ("present", "bound", "kicked"), [(3, 0, 0), (3, 2, 2), (3, 3, 3), (3, 2**32 - 1, 3), (0, 5, 0)]
)
@pytest.mark.parametrize("state", [BURIED, DELAYED])
def test_kick_moves_up_to_its_bound(world: World, state: int, present: int, bound: int, kicked: int) -> None:
    client = world.client()
    ids = bury(client, present) if state == BURIED else [client.put(delay=60) for _ in range(present)]
    assert client.kick(state, bound) == kicked
    assert world.ready() == ids[:kicked]
    assert (world.buried() or world.delayed()) == ids[kicked:]


def test_kick_moves_at_most_a_slice_per_call(world: World) -> None:
    client = world.client()
    with world.in_bulk():
        for _ in range(2 * SLICE + 1):
            client.put(delay=60)
    assert [client.kick(DELAYED, 2**32 - 1) for _ in range(4)] == [SLICE, SLICE, 1, 0]


def test_kick_moves_only_jobs_in_the_given_state(world: World) -> None:
    client = world.client()
    delayed = client.put(delay=60)
    (buried,) = bury(client, 1)
    assert client.kick(BURIED, 9) == 1
    assert (world.ready(), world.delayed()) == ([buried], [delayed])


def test_kick_moves_only_jobs_of_the_used_tube(world: World) -> None:
    client = world.client(use=b"a")
    bury(client, 1)
    client.use(b"b")
    assert client.kick(BURIED, 1) == 0
    client.use(b"a")
    assert client.kick(BURIED, 1) == 1


def test_kicks_of_a_job_do_not_count_the_end_of_its_delay(world: World) -> None:
    client = world.client()
    kicked, delayed = client.put(delay=5), client.put(delay=6)
    client.kick(DELAYED, 1)
    world.advance(6)
    assert [world.stats_job(id).kicks for id in (kicked, delayed)] == [1, 0]


def test_kicked_job_keeps_the_delay_of_its_put(world: World) -> None:
    client = world.client()
    id = client.put(delay=5)
    client.kick_job(id)
    assert world.stats_job(id).delay == 5
    world.advance(10)
    assert world.state(id) == "ready"
