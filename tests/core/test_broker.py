"""Operations, options and limits of the broker that `test_machine.py` does not use."""

from __future__ import annotations

from greenstalk_server.core.broker import MAX_EMPTY_PAUSED
from greenstalk_server.core.jobs.job import READY, RESERVED, SECOND
from greenstalk_server.core.operations import connecting, draining, finishing, putting, reserving, ticking
from greenstalk_server.core.outcomes import Refusal
from tests.support import invariants
from tests.support.world import START, FullJournal, World, make_broker


def test_jobs_are_ordered_by_id_not_by_arrival_of_the_body(world: World) -> None:
    client = world.client()
    first = world.broker.allocate_id()
    second = client.put()
    putting.put(world.broker, client.client, first, 0, 0, 60, b"", world.now)
    assert client.take(2) == [first, second]


def test_ids_increase_and_are_never_reused(world: World) -> None:
    client = world.client()
    first = client.put()
    world.broker.allocate_id()
    third = client.put()
    client.delete(third)
    assert (first, third, client.put()) == (1, 3, 4)


def test_reserved_job_cannot_be_deleted_without_a_client(world: World) -> None:
    client = world.client()
    reserved, ready = client.put(), client.put()
    client.reserve()
    assert not finishing.delete(world.broker, None, reserved, world.now)
    assert finishing.delete(world.broker, None, ready, world.now)


def test_invariants_hold_when_clients_disconnect_while_the_server_stops() -> None:
    broker = make_broker()
    worker = connecting.connect(broker, lambda: None)
    connecting.watch(broker, worker, b"mail")
    connecting.use(broker, worker, b"mail")
    id = broker.allocate_id()
    assert putting.put(broker, worker, id, 0, 0, SECOND, b"body", START) > 0
    assert reserving.reserve(broker, worker, START) is not None
    draining.stop(broker)
    connecting.disconnect(broker, worker, START)
    invariants.check(broker)
    ticking.tick(broker, START + 2 * SECOND)
    invariants.check(broker)
    assert broker.jobs[id].state == RESERVED


def test_tubes_are_listed_in_the_order_of_creation(world: World) -> None:
    world.client(use=b"b", watch=[b"a"])
    assert world.tubes() == [b"default", b"b", b"a"]


def test_empty_tube_loses_its_pause_as_in_beanstalkd(world: World) -> None:
    world.broker.keeps_pauses = False
    client = world.client(use=b"a")
    client.pause_tube(b"a", 60)
    client.use(b"default")
    assert world.tubes() == [b"default"]
    client.use(b"a")
    assert world.stats_tube(b"a").pause == 0


def test_number_of_empty_paused_tubes_is_limited(world: World) -> None:
    client = world.client()
    with world.in_bulk():
        for number in range(MAX_EMPTY_PAUSED + 5):
            name = b"%d" % number
            client.use(name)
            client.pause_tube(name, 10**9)
            if number in (0, 2):
                client.put()
            if number == 10:
                client.use(b"3")  # empty again later than others
        client.use(b"default")
    assert world.tubes()[:5] == [b"default", b"0", b"2", b"3", b"6"]
    assert len(world.tubes()) == 3 + MAX_EMPTY_PAUSED
    world.delete_job(1)
    assert world.tubes()[:5] == [b"default", b"0", b"2", b"3", b"7"]
    assert len(world.tubes()) == 2 + MAX_EMPTY_PAUSED


def test_put_into_creates_a_tube_that_no_client_uses(world: World) -> None:
    id = putting.put_into(world.broker, b"new", 7, 0, 60 * SECOND, b"body", world.now)
    world.check()
    assert world.ready(b"new") == [id]
    assert (world.broker.tubes[b"new"].using, world.broker.counters.total_connections) == (0, 0)
    assert world.checked(finishing.delete(world.broker, None, id, world.now))
    assert b"new" not in world.broker.tubes


def test_put_into_gives_the_job_to_a_waiting_client(world: World) -> None:
    worker = world.client(watch=[b"new"])
    assert worker.reserve() == "WAITING"
    id = putting.put_into(world.broker, b"new", 7, 0, 60 * SECOND, b"body", world.now)
    world.check()
    assert world.state(id) == "reserved"


def test_refused_put_into_leaves_no_tube(world: World) -> None:
    world.broker.journal = FullJournal()
    assert world.checked(putting.put_into(world.broker, b"new", 7, 0, SECOND, b"", world.now)) == Refusal.JOURNAL
    assert b"new" not in world.broker.tubes


def test_clear_stops_at_its_bound(world: World) -> None:
    client = world.client()
    ids = [client.put() for _ in range(5)]
    tube = world.broker.tubes[b"default"]
    assert world.checked(finishing.clear(world.broker, tube, READY, 2, world.broker.next_id, world.now)) == 2
    assert world.ready() == ids[2:]


def test_clear_drops_an_unneeded_tube(world: World) -> None:
    putting.put_into(world.broker, b"new", 7, 0, SECOND, b"", world.now)
    assert finishing.clear(world.broker, world.broker.tubes[b"new"], READY, 1, world.broker.next_id, world.now) == 1
    world.check()
    assert b"new" not in world.broker.tubes
