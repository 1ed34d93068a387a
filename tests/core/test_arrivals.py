"""The job of a tube that has been ready for longest, compared with a search of all jobs."""

from __future__ import annotations

from greenstalk_server.core.broker import SLICE
from tests.support import invariants
from tests.support.world import World


def test_job_that_ten_thousand_pass_by_stays_the_oldest(world: World) -> None:
    client, tube = world.client(), world.broker.tubes[b"default"]
    with world.in_bulk():
        old = client.put(pri=9)
        for _ in range(10_000):
            id = client.put(pri=1)
            assert client.reserve(0) == id
            client.delete(id)
        tube.ready.check(list(tube.ready.walk()))
        oldest = tube.oldest_ready()
        assert oldest is not None and oldest.id == old


def test_jobs_of_a_disconnected_client_become_ready_at_the_disconnect(world: World) -> None:
    client, other = world.client(), world.client()
    with world.in_bulk():
        for _ in range(SLICE + 5):
            client.put()
        client.take(SLICE + 5)
    world.advance(1)
    waiting = other.put()
    world.advance(1)
    client.disconnect()
    world.advance(1)
    oldest = world.broker.tubes[b"default"].oldest_ready()
    assert oldest is not None and oldest.id == waiting


def test_oldest_is_exact_after_many_removals_from_the_middle(world: World) -> None:
    """Two thirds of ten thousand jobs are removed from the middle, while others are added."""
    client, tube = world.client(), world.broker.tubes[b"default"]
    with world.in_bulk():
        ids = []
        for _ in range(10_000):
            world.advance(0.001)
            ids.append(client.put(pri=5))
        for turn, id in enumerate([id for id in ids[1:] if id % 3]):
            world.advance(0.001)
            assert client.reserve_job(id)
            if turn % 5 == 0:
                client.put(pri=5)
            if turn % 500 == 0:
                invariants.check(world.broker)
            oldest = tube.oldest_ready()
            assert oldest is not None and oldest.id == ids[0]
