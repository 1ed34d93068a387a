"""Delays, TTRs, touch, and DEADLINE_SOON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from greenstalk_server.core.client import MAX_SCANNED
from greenstalk_server.core.jobs.job import DELAYED, SECOND
from greenstalk_server.core.transitions import SLICE, WAITED_TUBES
from greenstalk_server.core.tubes.tube_set import MANY_TUBES, MAX_TUBE_SETS
from tests.support.world import World

INSTANT = 1 / SECOND


def test_delay_ends_exactly_at_its_deadline(world: World) -> None:
    id = world.client().put(delay=3)
    world.advance(3 - INSTANT)
    assert world.state(id) == "delayed"
    world.advance(INSTANT)
    assert world.state(id) == "ready"


def test_job_whose_delay_ends_goes_to_a_waiting_client(world: World) -> None:
    producer, worker = world.client(), world.client()
    id = producer.put(delay=3)
    assert worker.reserve() == "WAITING"
    world.advance(3)
    assert worker.ended == [id]


def test_ttr_ends_exactly_at_its_deadline(world: World) -> None:
    client = world.client()
    id = client.put(ttr=3)
    client.reserve()
    world.advance(3 - INSTANT)
    assert world.state(id) == "reserved"
    world.advance(INSTANT)
    assert world.state(id) == "ready"
    stats = world.stats_job(id)
    assert (stats.timeouts, stats.releases, world.stats().job_timeouts) == (1, 0, 1)


def test_job_whose_ttr_ends_goes_to_a_waiting_client(world: World) -> None:
    holder, worker = world.client(), world.client()
    id = holder.put(ttr=3)
    holder.reserve()
    worker.reserve()
    world.advance(3)
    assert worker.ended == [id]
    assert holder.reserved == []


def test_each_reservation_has_the_full_ttr(world: World) -> None:
    client = world.client()
    id = client.put(ttr=10)
    client.reserve()
    world.advance(6)
    client.release(id)
    client.reserve()
    world.advance(8.5)
    assert world.stats_job(id).time_left == 1
    world.advance(1.5)
    assert world.state(id) == "ready"


def test_touch_restarts_the_ttr(world: World) -> None:
    client = world.client()
    id = client.put(ttr=10)
    client.reserve()
    for _ in range(3):
        world.advance(9)
        assert client.touch(id)
    world.advance(0.5)
    assert world.stats_job(id).time_left == 9
    world.advance(9.5)
    assert world.state(id) == "ready"
    assert world.stats_job(id).timeouts == 1


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


def test_many_deadlines_take_several_ticks(world: World) -> None:
    producer, worker = world.client(use=b"delayed"), world.client()
    with world.in_bulk():
        for _ in range(2 * SLICE):
            producer.put(delay=5)
            worker.put(ttr=5)
        worker.take(2 * SLICE)
    world.now += 5 * SECOND
    due = world.broker.tick(world.now)
    assert due is not None and due <= world.now
    assert world.stats().current_jobs_ready <= SLICE
    with world.in_bulk():
        world.advance(0)
    assert world.stats().current_jobs_ready == 4 * SLICE


def test_tick_requeues_at_most_a_slice_of_the_jobs_of_a_disconnected_client(world: World) -> None:
    producer, worker = world.client(), world.client()
    with world.in_bulk():
        for _ in range(4 * SLICE):
            producer.put()
        worker.take(4 * SLICE)
    worker.disconnect()
    assert world.stats().current_jobs_ready == SLICE
    world.broker.tick(world.now)
    world.broker.check()
    assert world.stats().current_jobs_ready <= 2 * SLICE
    world.advance(0)
    assert world.stats().current_jobs_ready == 4 * SLICE


def test_tick_hands_out_at_most_a_slice_of_jobs_of_many_tubes(world: World) -> None:
    names = [b"tube-%d" % number for number in range(4)]
    with world.in_bulk():
        for name in names:
            world.client(use=name).put()
            assert world.broker.pause_tube(name, SECOND, world.now)
            for _ in range(SLICE):
                world.client(watch=[name]).reserve()
                world.client(use=name).put()
        world.now += SECOND
        handed_out = []
        while (reserved := world.stats().current_jobs_reserved) < 4 * SLICE:
            world.broker.tick(world.now)
            handed_out.append(world.stats().current_jobs_reserved - reserved)
    assert max(handed_out) <= SLICE


def test_command_leaves_the_end_of_a_costly_wait_to_the_next_tick(world: World) -> None:
    """Waits in many tubes without a tube set: the end of each takes as long as that of many waits in one tube."""
    for other in range(MAX_TUBE_SETS):
        world.client(watch=[b"%d-%d" % (other, number) for number in range(MANY_TUBES)]).reserve()
    worker = world.client(watch=[b"%d" % number for number in range(2 * WAITED_TUBES)])
    producer = world.client(use=b"1")
    assert worker.reserve() == "WAITING" and worker.client.tube_set is None
    id = world.broker.put(producer.client, world.broker.allocate_id(), 0, 0, SECOND, b"", world.now)
    assert worker.client.is_waiting
    world.broker.check()
    world.advance(0)
    assert worker.ended == [id]


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


class Counted(dict[Any, Any]):
    """A dict that counts how often it is iterated."""

    iterations = 0

    def __iter__(self) -> Iterator[Any]:
        self.iterations += 1
        return super().__iter__()

    def values(self) -> Any:
        self.iterations += 1
        return super().values()


def test_jobs_and_watches_of_a_disconnected_client_are_iterated_once(world: World) -> None:
    """Each iteration over a dict passes the entries that were deleted, so repeated ones take quadratic time."""
    producer, worker = world.client(), world.client()
    with world.in_bulk():
        for number in range(4 * SLICE):
            producer.put()
            worker.watch(b"tube-%d" % number)
        worker.take(4 * SLICE)
        client = worker.client
        reserved = client.reserved = Counted(client.reserved)
        watched = client.watched = Counted(client.watched)
        worker.disconnect()
        world.advance(0)
    assert not reserved and not watched
    assert (reserved.iterations, watched.iterations) == (1, 1)


def test_no_tick_is_due_without_deadlines(world: World) -> None:
    client = world.client()
    client.put()
    client.reserve(0)
    client.delete(1)
    client.put(delay=5)
    client.kick(DELAYED, 1)
    world.advance(100)
    assert world.broker.tick(world.now) is None


def test_late_tick_processes_everything_that_is_due(world: World) -> None:
    client = world.client()
    soon, later = client.put(ttr=2), client.put(delay=3)
    client.reserve()
    world.now += 60 * SECOND
    assert client.touch(soon)  # no tick has processed the deadline, so the client still holds the job
    world.advance(0)
    assert (world.state(soon), world.state(later)) == ("reserved", "ready")


# DEADLINE_SOON


@pytest.mark.parametrize("timeout", [None, 0, 5])
def test_reserve_inside_the_safety_margin_gets_deadline_soon(world: World, timeout: float | None) -> None:
    client = world.client()
    client.put(ttr=5)
    client.reserve()
    world.advance(4 - INSTANT)
    assert client.reserve(0) == "TIMED_OUT"
    world.advance(INSTANT)
    assert client.reserve(timeout) == "DEADLINE_SOON"


def test_wait_ends_when_the_safety_margin_begins(world: World) -> None:
    client = world.client()
    id = client.put(ttr=5)
    client.reserve()
    assert client.reserve() == "WAITING"
    world.advance(4 - INSTANT)
    assert client.is_waiting
    world.advance(INSTANT)
    assert client.ended == ["DEADLINE_SOON"]
    assert world.state(id) == "reserved"
    world.advance(1)
    assert world.state(id) == "ready"


def test_wait_ends_before_the_soonest_deadline_of_the_client(world: World) -> None:
    client, other = world.client(), world.client()
    other.put(ttr=3)
    other.reserve()
    other.pause_tube(b"default", 60)
    for ttr in (30, 10, 20):
        client.reserve_job(client.put(ttr=ttr))
    assert client.reserve(25) == "WAITING"
    world.advance(9 - INSTANT)
    assert client.is_waiting
    world.advance(INSTANT)
    assert client.ended == ["DEADLINE_SOON"]


@pytest.mark.parametrize(("timeout", "outcome"), [(3, "TIMED_OUT"), (5, "DEADLINE_SOON")])
def test_timeout_before_the_safety_margin_is_timed_out(world: World, timeout: float, outcome: str) -> None:
    client = world.client()
    client.put(ttr=5)
    client.reserve()
    assert client.reserve(timeout) == "WAITING"
    world.advance(5)
    assert client.ended == [outcome]


def test_job_with_a_ttr_of_one_second_is_always_inside_the_safety_margin(world: World) -> None:
    client = world.client()
    client.put(ttr=1)
    client.reserve()
    assert client.reserve() == "DEADLINE_SOON"


def test_ready_job_is_reserved_inside_the_safety_margin(world: World) -> None:
    client = world.client()
    client.put(ttr=1)
    client.reserve()
    id = client.put()
    assert client.reserve() == id


def test_ready_jobs_of_paused_tubes_do_not_prevent_deadline_soon(world: World) -> None:
    client = world.client()
    client.put(ttr=1)
    client.reserve()
    client.put()
    client.pause_tube(b"default", 60)
    assert client.reserve() == "DEADLINE_SOON"


def test_touch_and_delete_postpone_deadline_soon(world: World) -> None:
    client = world.client()
    id = client.put(ttr=5)
    client.reserve()
    world.advance(4)
    client.touch(id)
    assert client.reserve(0) == "TIMED_OUT"
    world.advance(4)
    client.delete(id)
    assert client.reserve(0) == "TIMED_OUT"


def test_deadline_of_another_client_does_not_end_a_wait(world: World) -> None:
    holder, worker = world.client(), world.client()
    id = holder.put(ttr=1)
    holder.reserve()
    assert worker.reserve() == "WAITING"
    world.advance(1)
    assert worker.ended == [id]
