"""Counters of tubes, wait and run times of jobs, and listeners for dropped tubes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.counters import ServerFacts
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.jobs.job import READY, SECOND, Job
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.operations import connecting, finishing, restoring, ticking
from greenstalk_server.core.operations.connecting import MAX_RECENT_WORKERS
from greenstalk_server.core.tubes.tube import Tube
from tests.support import invariants
from tests.support.world import START, Actor, DroppedTubes, FullJournal, World


def tube(world: World, name: bytes = b"default") -> Tube:
    return world.broker.tubes[name]


# Waits


# Runs


# Counts


# Listeners


def by_delete(world: World, client: Actor) -> None:
    id = client.put()
    client.use(b"default")
    assert client.delete(id)


def by_clear(world: World, client: Actor) -> None:
    client.put()
    client.use(b"default")
    finishing.clear(world.broker, tube(world, b"going"), READY, 10, world.broker.next_id, world.now)


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
    restoring.restore(broker, 1, START)
    invariants.check(broker)
    assert dropped.names == []
    ticking.tick(broker, START + SECOND)
    invariants.check(broker)
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
        connecting.note_worker(world.broker, client.client)
    client.disconnect()
    return client.client.number


# A restart


def test_restored_broker_numbers_clients_above_those_in_events(facts: ServerFacts) -> None:
    broker = Broker(facts)
    for id, number in ((1, 4), (2, 90), (3, job_history.FIRST_OF_FRONT), (4, 12)):
        job = broker.jobs[id] = Job(id, broker.tube(b"default"), b"", 0, 0, SECOND, START)
        job.events = job_history.add(b"", job_history.RETURNED, START, number)
    restoring.restore(broker, 5, START)
    invariants.check(broker)
    assert [connecting.connect(broker, lambda: None).number for _ in range(2)] == [91, 92]


@pytest.mark.parametrize(
    ("last", "following"),
    [
        (7, [8, 11]),
        (job_history.FIRST_OF_FRONT - 6, [job_history.FIRST_OF_FRONT - 3, 2]),
        (job_history.FIRST_OF_FRONT, [job_history.FIRST_OF_FRONT + 1, job_history.FIRST_OF_FRONT + 2]),
        (job_history.LAST_CLIENT - 1, [job_history.LAST_CLIENT, job_history.FIRST_OF_FRONT]),
    ],
)
def test_numbers_of_clients_name_the_shard_or_are_those_of_a_front(
    facts: ServerFacts, last: int, following: list[int]
) -> None:
    broker = Broker(facts, ids=IdSequence(0, 3, 2))
    broker.last_client = last
    assert [connecting.connect(broker, lambda: None).number for _ in range(2)] == following


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
