"""Tubes: creation, drop, use, watch, ignore and pause."""

from __future__ import annotations

import pytest

from greenstalk_server.core.jobs.job import BURIED, SECOND
from greenstalk_server.core.transitions import MAX_EMPTY_PAUSED, SLICE
from tests.support.world import World

INSTANT = 1 / SECOND


def test_default_tube_always_exists(world: World) -> None:
    assert world.tubes() == [b"default"]
    client = world.client(use=b"a", watch=[b"a"])
    assert world.tubes() == [b"default", b"a"]
    client.disconnect()
    assert world.tubes() == [b"default"]


def test_tubes_are_listed_in_the_order_of_creation(world: World) -> None:
    world.client(use=b"b", watch=[b"a"])
    assert world.tubes() == [b"default", b"b", b"a"]


@pytest.mark.parametrize("why", ["used", "watched", "ready", "delayed", "buried", "reserved"])
def test_tube_exists_while_it_is_needed(world: World, why: str) -> None:
    client = world.client()
    if why == "watched":
        client.watch(b"a")
    else:
        client.use(b"a")
    if why not in ("used", "watched"):
        id = client.put(delay=9 if why == "delayed" else 0)
        if why in ("buried", "reserved"):
            client.reserve_job(id)
        if why == "buried":
            client.bury(id)
        client.use(b"default")
    assert world.tubes() == [b"default", b"a"]
    match why:
        case "used":
            client.use(b"default")
        case "watched":
            client.ignore(b"a")
        case _:
            client.delete(id)
    assert world.tubes() == [b"default"]


def test_dropped_tube_loses_its_counters(world: World) -> None:
    client = world.client(use=b"a")
    client.put()
    client.delete(1)
    assert world.stats_tube(b"a").cmd_delete == 1
    client.use(b"default")
    client.use(b"a")
    assert (world.stats_tube(b"a").total_jobs, world.stats_tube(b"a").cmd_delete) == (0, 0)


def test_empty_tube_keeps_its_pause_until_the_pause_ends(world: World) -> None:
    client = world.client(use=b"a", watch=[b"a"])
    client.put()
    client.pause_tube(b"a", 60)
    client.delete(1)
    client.disconnect()
    world.advance(20)
    assert (world.stats_tube(b"a").pause, world.stats_tube(b"a").pause_time_left) == (60, 39)
    other = world.client(use=b"a", watch=[b"a"])
    other.put()
    assert other.reserve(0) == "TIMED_OUT"
    other.disconnect()
    world.delete_job(2)
    world.advance(40 - INSTANT)
    assert world.tubes() == [b"default", b"a"]
    world.advance(INSTANT)
    assert world.tubes() == [b"default"]
    assert world.broker.tick(world.now) is None


def test_end_of_its_pause_drops_an_empty_tube(world: World) -> None:
    client = world.client(use=b"a")
    client.pause_tube(b"a", 60)
    client.use(b"default")
    assert world.tubes() == [b"default", b"a"]
    assert client.pause_tube(b"a", 0)
    assert world.tubes() == [b"default"]
    assert not client.pause_tube(b"a", 60)


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


def test_using_the_used_tube_again_keeps_it(world: World) -> None:
    client = world.client(use=b"a")
    client.pause_tube(b"a", 60)
    client.use(b"a")
    assert world.stats_tube(b"a").pause == 60


def test_job_stays_in_its_tube_when_its_producer_uses_another(world: World) -> None:
    client = world.client(use=b"a")
    client.put()
    client.use(b"b")
    assert world.ready(b"a") == [1]


def test_tube_with_a_job_of_a_disconnected_client_exists(world: World) -> None:
    client = world.client(use=b"a", watch=[b"a"])
    id = client.put()
    client.reserve()
    client.disconnect()
    assert world.ready(b"a") == [id]


def test_watching_a_tube_twice_counts_once(world: World) -> None:
    client = world.client()
    assert client.watch(b"a") == 2
    assert client.watch(b"a") == 2
    assert client.ignore(b"a") == 1


def test_ignoring_an_unwatched_tube_changes_nothing(world: World) -> None:
    client = world.client()
    assert client.ignore(b"missing") == 1
    assert world.tubes() == [b"default"]


def test_only_watched_tube_cannot_be_ignored(world: World) -> None:
    client = world.client()
    assert client.ignore(b"default") == 0
    assert list(client.client.watched) == [b"default"]


def test_tube_counts_the_clients_that_use_and_watch_it(world: World) -> None:
    client, other = world.client(use=b"a", watch=[b"a", b"b"]), world.client(watch=[b"default", b"b"])
    counted = [(stats.current_using, stats.current_watching) for stats in map(world.stats_tube, world.tubes())]
    assert (world.tubes(), counted) == ([b"default", b"a", b"b"], [(1, 1), (1, 1), (0, 2)])
    client.disconnect()
    other.disconnect()
    assert world.stats_tube().current_using == world.stats_tube().current_watching == 0


# Pause


def test_paused_tube_gives_no_job_until_the_pause_ends(world: World) -> None:
    client = world.client()
    id = client.put()
    assert client.pause_tube(b"default", 5)
    assert client.reserve(0) == "TIMED_OUT"
    world.advance(5 - INSTANT)
    assert client.reserve(0) == "TIMED_OUT"
    world.advance(INSTANT)
    assert client.reserve(0) == id


def test_end_of_a_pause_serves_waiting_clients_in_order(world: World) -> None:
    producer, first, second, third = (world.client() for _ in range(4))
    producer.pause_tube(b"default", 5)
    first.reserve()
    second.reserve(10)
    third.reserve(3)
    late, early = producer.put(pri=2), producer.put(pri=1)
    assert world.ready() == [early, late]
    world.advance(5)
    assert (first.ended, second.ended, third.ended) == ([early], [late], ["TIMED_OUT"])


def test_pause_of_zero_ends_the_pause_and_serves_waiting_clients(world: World) -> None:
    producer, worker = world.client(), world.client()
    producer.pause_tube(b"default", 5)
    worker.reserve()
    id = producer.put()
    assert producer.pause_tube(b"default", 0)
    assert worker.ended == [id]
    assert (world.stats_tube().pause, world.stats_tube().pause_time_left) == (0, 0)


@pytest.mark.parametrize(("first", "second"), [(5, 20), (20, 5)])
def test_new_pause_replaces_the_old_one(world: World, first: float, second: float) -> None:
    client = world.client()
    id = client.put()
    client.pause_tube(b"default", first)
    world.advance(1)
    client.pause_tube(b"default", second)
    assert client.reserve() == "WAITING"
    world.advance(second - INSTANT)
    assert client.is_waiting
    world.advance(INSTANT)
    assert client.ended == [id]


def test_pause_time_left_is_rounded_down_to_seconds(world: World) -> None:
    world.client().pause_tube(b"default", 5)
    for seconds, left in ((0.5, 4), (1, 3), (3, 0)):
        world.advance(seconds)
        assert (world.stats_tube().pause, world.stats_tube().pause_time_left) == (5, left)
    world.advance(0.5)
    assert (world.stats_tube().pause, world.stats_tube().pause_time_left) == (0, 0)


def test_pause_does_not_affect_other_tubes(world: World) -> None:
    producer, worker = world.client(), world.client(watch=[b"a", b"b"])
    for name, pri in ((b"a", 0), (b"b", 9)):
        producer.use(name)
        producer.put(pri)
    producer.pause_tube(b"a", 5)
    assert worker.reserve() == 2


@pytest.mark.parametrize("operation", ["put", "release", "kick", "timeout", "delay"])
def test_job_that_becomes_ready_in_a_paused_tube_is_not_reserved(world: World, operation: str) -> None:
    holder, worker = world.client(), world.client()
    id = holder.put(ttr=5, delay=5 if operation == "delay" else 0)
    if operation in ("release", "kick", "timeout"):
        holder.reserve()
    holder.pause_tube(b"default", 60)
    worker.reserve()
    match operation:
        case "release":
            holder.release(id)
        case "kick":
            holder.bury(id)
            holder.kick(BURIED, 1)
        case "timeout" | "delay":
            world.advance(5)
    assert world.ready() == [id]
    assert worker.is_waiting


def test_delays_and_ttrs_run_during_a_pause(world: World) -> None:
    client = world.client()
    delayed, reserved = client.put(delay=5), client.put(ttr=5)
    client.reserve()
    client.pause_tube(b"default", 60)
    world.advance(5)
    assert world.ready() == [delayed, reserved]


def test_pausing_a_missing_tube_is_refused(world: World) -> None:
    assert not world.client().pause_tube(b"missing", 5)
    assert world.tubes() == [b"default"]


def test_tubes_of_a_disconnected_client_are_dropped_slice_by_slice(world: World) -> None:
    client = world.client()
    with world.in_bulk():
        for number in range(3 * SLICE):
            client.watch(b"tube-%d" % number)
    client.disconnect()
    world.broker.check()
    assert len(world.broker.tubes) == 2 * SLICE + 2  # `default` is in the first slice
    ticks = 0
    while len(world.broker.tubes) > 1:
        world.broker.tick(world.now)
        world.broker.check()
        ticks += 1
    assert ticks <= 4
    assert world.broker.tick(world.now) is None
