"""Counters of tubes, wait and run times of jobs, and listeners for dropped tubes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.counters import ServerFacts
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, READY, SECOND, Job
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.transitions import MAX_RECENT_WORKERS
from greenstalk_server.core.tubes.tube import Tube
from tests.support.world import START, Actor, DroppedTubes, FullJournal, World


def lengths(*seconds: float) -> dict[int, int]:
    """Return the histogram of *seconds* by their bit length in nanoseconds."""
    found: dict[int, int] = {}
    for second in seconds:
        length = round(second * SECOND).bit_length()
        found[length] = found.get(length, 0) + 1
    return found


def tube(world: World, name: bytes = b"default") -> Tube:
    return world.broker.tubes[name]


# Waits


def test_wait_is_the_time_from_ready_to_reserved(world: World) -> None:
    client = world.client()
    client.put()
    delayed = client.put(delay=2)
    world.advance(5)
    client.take(2)
    assert tube(world).wait_counts() == lengths(5, 3)
    assert tube(world).wait_time == 8 * SECOND
    client.release(delayed, delay=1)
    world.advance(4)
    client.take(1)
    assert tube(world).wait_counts() == lengths(5, 3, 3)


def test_job_for_a_waiting_client_has_a_wait_of_zero(world: World) -> None:
    worker, client = world.client(), world.client()
    worker.reserve()
    world.advance(5)
    client.put()
    assert (tube(world).wait_counts(), tube(world).wait_time) == ({0: 1}, 0)


@pytest.mark.parametrize("state", ["delayed", "buried"])
def test_job_that_was_not_ready_has_a_wait_of_zero(world: World, state: str) -> None:
    client = world.client()
    id = client.put(delay=60 if state == "delayed" else 0)
    if state == "buried":
        world.bury_job(id)
    world.advance(5)
    client.reserve_job(id)
    assert tube(world).wait_counts() == {0: 1}


def test_returned_job_starts_a_new_wait(world: World) -> None:
    client, other = world.client(), world.client()
    id = client.put(ttr=3)
    client.reserve()
    world.advance(3 + 2)
    client.reserve()
    world.advance(1)
    client.disconnect()
    world.advance(1)
    other.reserve()
    other.bury(id)
    world.advance(1)
    other.kick_job(id)
    world.advance(0.5)
    other.reserve()
    assert tube(world).wait_counts() == lengths(0, 2, 1, 0.5)
    assert tube(world).total_reserves == 4


def test_wait_includes_a_pause(world: World) -> None:
    client, worker = world.client(), world.client()
    client.pause_tube(b"default", 5)
    worker.reserve()
    client.put()
    world.advance(5)
    assert tube(world).wait_counts() == lengths(5)


# Runs


@pytest.mark.parametrize("end", [Actor.delete, Actor.release, Actor.bury])
def test_reservation_ended_by_its_client_is_a_run(world: World, end: Callable[[Actor, int], bool]) -> None:
    client = world.client()
    id = client.put()
    client.reserve()
    world.advance(4)
    client.touch(id)
    world.advance(3)
    assert end(client, id)
    assert (tube(world).run_counts(), tube(world).run_time) == (lengths(7), 7 * SECOND)


def test_lapsed_reservation_is_not_a_run(world: World) -> None:
    client = world.client()
    client.put(ttr=3)
    client.reserve()
    world.advance(3)
    client.reserve()
    world.advance(1)
    client.disconnect()
    assert (tube(world).run_counts(), tube(world).run_time) == ({}, 0)


def test_delete_of_an_unreserved_job_is_not_a_run(world: World) -> None:
    client = world.client()
    for delay in (0, 60):
        client.delete(client.put(delay=delay))
    id = client.put()
    world.bury_job(id)
    client.delete(id)
    assert tube(world).run_counts() == {}
    assert tube(world).cmd_delete == 3


def test_forced_operation_on_a_reserved_job_ends_a_run(world: World) -> None:
    client = world.client()
    for take in (world.delete_job, world.bury_job):
        id = client.put()
        client.reserve_job(id)
        world.advance(2)
        assert take(id, is_forced=True)
    id = client.put()
    client.reserve_job(id)
    world.advance(2)
    assert world.release_job(id)
    assert tube(world).run_counts() == lengths(2, 2, 2)


def test_moved_job_has_its_wait_in_the_old_tube_and_its_run_in_the_new_one(world: World) -> None:
    client = world.client(use=b"other")
    client.use(b"default")
    id = client.put()
    client.reserve()
    world.edit(id, tube=b"other", is_forced=True)
    world.advance(2)
    client.release(id)
    here, there = tube(world), tube(world, b"other")
    assert (here.wait_counts(), here.run_counts(), there.wait_counts(), there.run_counts()) == (
        {0: 1},
        {},
        {},
        lengths(2),
    )
    assert (here.total_reserves, here.total_releases, there.total_releases) == (1, 0, 1)


# Counts


def test_tube_counts_the_operations_on_its_jobs(world: World) -> None:
    client = world.client()
    id = client.put(ttr=3)
    client.reserve()
    client.release(id)
    client.reserve()
    client.bury(id)
    client.kick(BURIED, 1)
    world.bury_job(id)
    client.kick_job(id)
    client.reserve()
    world.advance(3)
    found = tube(world)
    counts = (found.total_reserves, found.total_releases, found.total_buries, found.total_kicks, found.total_timeouts)
    assert counts == (3, 1, 2, 2, 1)
    assert (found.total_jobs, found.cmd_delete) == (1, 0)


def test_move_is_counted_by_neither_tube(world: World) -> None:
    client = world.client()
    id = client.put()
    world.edit(id, tube=b"other")
    assert (tube(world).total_jobs, tube(world, b"other").total_jobs, world.stats().total_jobs) == (1, 0, 1)
    assert (tube(world).cmd_delete, tube(world, b"other").cmd_delete) == (0, 0)


# Listeners


def by_delete(world: World, client: Actor) -> None:
    id = client.put()
    client.use(b"default")
    assert client.delete(id)


def by_clear(world: World, client: Actor) -> None:
    client.put()
    client.use(b"default")
    world.broker.clear(tube(world, b"going"), READY, 10, world.broker.next_id, world.now)


def by_use(world: World, client: Actor) -> None:
    client.use(b"default")


def by_disconnect(world: World, client: Actor) -> None:
    client.disconnect()


def by_move(world: World, client: Actor) -> None:
    id = client.put()
    client.use(b"default")
    world.edit(id, tube=b"default")


@pytest.mark.parametrize("how", [by_delete, by_clear, by_use, by_disconnect, by_move])
def test_every_listener_gets_a_dropped_tube_once_with_its_counters(
    world: World, how: Callable[[World, Actor], None]
) -> None:
    client = world.client(use=b"going")
    client.delete(client.put())
    first, second = DroppedTubes(world.broker), DroppedTubes(world.broker)
    how(world, client)
    world.check()
    deletes = 1 + (how in (by_delete, by_clear))
    for dropped in (first, second):
        assert [(tube.name, tube.cmd_delete) for tube in dropped.tubes] == [(b"going", deletes)]
    assert b"going" not in world.broker.tubes


def test_listener_gets_a_tube_that_was_created_for_a_refused_edit(world: World) -> None:
    dropped = DroppedTubes(world.broker)
    id = world.client().put()
    world.broker.journal = FullJournal()
    assert world.edit(id, tube=b"new") == "NO_ROOM"
    assert [(tube.name, tube.total_jobs) for tube in dropped.tubes] == [(b"new", 0)]


def test_listener_gets_a_tube_whose_restored_pause_ends(facts: ServerFacts) -> None:
    broker = Broker(facts)
    dropped = DroppedTubes(broker)
    paused = broker.tube(b"paused")
    paused.paused_until, paused.pause = START + SECOND, SECOND
    broker.restore(1, START)
    broker.check()
    assert dropped.names == []
    broker.tick(START + SECOND)
    broker.check()
    assert dropped.names == [b"paused"]


# Recent workers


def test_addresses_of_recent_workers_are_kept_up_to_a_limit(world: World) -> None:
    with world.in_bulk():
        numbers = [connect_and_disconnect(world, is_worker=True) for _ in range(MAX_RECENT_WORKERS + 5)]
    assert list(world.broker.recent_workers) == numbers[5:]
    assert world.broker.recent_workers[numbers[-1]] == f"address of {numbers[-1]}"


def test_address_of_a_client_that_never_reserved_is_not_kept(world: World) -> None:
    connect_and_disconnect(world, is_worker=False)
    assert not world.broker.recent_workers


def connect_and_disconnect(world: World, is_worker: bool) -> int:
    """Connect and disconnect a client; return its number."""
    client = world.client()
    client.client.address = f"address of {client.client.number}"
    if is_worker:
        world.broker.note_worker(client.client)
    client.disconnect()
    return client.client.number


# A restart


def test_restored_broker_numbers_clients_above_those_in_events(facts: ServerFacts) -> None:
    broker = Broker(facts)
    for id, number in ((1, 4), (2, 90), (3, 12)):
        job = broker.jobs[id] = Job(id, broker.tube(b"default"), b"", 0, 0, SECOND, START)
        job.events = job_history.add(b"", job_history.RETURNED, START, number)
    broker.restore(4, START)
    broker.check()
    assert [broker.connect(lambda: None).number for _ in range(2)] == [91, 92]


# Pauses


class Pauses(BrokerListener):
    """Records the pauses of tubes, in seconds; 0 for the end of one."""

    def __init__(self, broker: Broker) -> None:
        self.found: list[tuple[bytes, int]] = []
        broker.subscribe(self)

    def on_tube_paused(self, tube: Tube) -> None:
        self.found.append((tube.name, tube.pause // SECOND))


def test_listener_is_notified_of_pauses_and_of_their_ends(world: World) -> None:
    client, pauses = world.client(use=b"mail", watch=(b"mail",)), Pauses(world.broker)
    client.put()
    client.pause_tube(b"mail", 60)
    client.pause_tube(b"mail", 5)
    client.pause_tube(b"mail", 0)
    client.pause_tube(b"mail", 0)
    assert not client.pause_tube(b"nowhere", 9)
    assert pauses.found == [(b"mail", 60), (b"mail", 5), (b"mail", 0)]


def test_pause_that_expires_is_not_notified_again(world: World) -> None:
    client, pauses = world.client(use=b"mail", watch=(b"mail",)), Pauses(world.broker)
    client.put()
    client.pause_tube(b"mail", 5)
    world.advance(6)
    client.pause_tube(b"mail", 0)
    assert pauses.found == [(b"mail", 5)]
