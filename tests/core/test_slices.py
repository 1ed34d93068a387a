"""Operations on many jobs, tubes or waits: each call does at most a slice of the work, and later ticks the rest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from greenstalk_server.core.broker import SLICE
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, SECOND, Job
from greenstalk_server.core.operations import connecting, editing, finishing, putting, restoring, ticking
from greenstalk_server.core.operations.restoring import RESTORE_SLICE, SORT_SLICE
from greenstalk_server.core.transitions.waiting import WAITED_TUBES
from greenstalk_server.core.tubes.tube_set import MANY_TUBES, MAX_TUBE_SETS
from tests.support import invariants
from tests.support.world import World, make_broker


def test_jobs_of_a_disconnected_client_return_slice_by_slice_in_order(world: World) -> None:
    producer, holder = world.client(), world.client()
    with world.in_bulk():
        ids = [producer.put() for _ in range(3 * SLICE)]
        assert holder.take(len(ids)) == ids
        waiters = [world.client() for _ in ids]
        assert {waiter.reserve() for waiter in waiters} == {"WAITING"}
    holder.disconnect()
    assert [waiter.ended for waiter in waiters] == [[id] for id in ids[:SLICE]] + [[]] * 2 * SLICE
    world.advance(0)
    assert [waiter.ended for waiter in waiters] == [[id] for id in ids]


def test_restored_jobs_are_sorted_and_added_slice_by_slice(world: World) -> None:
    """A server that takes over a shard restores its jobs while it serves the clients of other shards."""
    client = world.client()
    with world.in_bulk():
        for number in range(2 * SORT_SLICE + 1):
            client.put(delay=1 + number * 7919 % 1000)
    broker, restored = world.broker, make_broker()
    for job in broker.jobs.values():
        restored.jobs[job.id] = Job(job.id, restored.tube(b"default"), b"", 0, SECOND, SECOND, world.now)
        restored.jobs[job.id].state, restored.jobs[job.id].deadline = DELAYED, job.deadline
    added = [restored.totals.delayed for _ in restoring.restore_slices(restored, broker.next_id, world.now)]
    assert added[:4] == [0, 0, 0, RESTORE_SLICE] and added[-1] == 2 * SORT_SLICE + 1
    assert max(after - before for before, after in pairwise(added)) == RESTORE_SLICE
    deadlines = [job.deadline for job in restored.tubes[b"default"].delayed.walk()]
    assert deadlines == sorted(deadlines)


def test_kick_moves_at_most_a_slice_per_call(world: World) -> None:
    client = world.client()
    with world.in_bulk():
        for _ in range(2 * SLICE + 1):
            client.put(delay=60)
    assert [client.kick(DELAYED, 2**32 - 1) for _ in range(4)] == [SLICE, SLICE, 1, 0]


@pytest.mark.parametrize("state", [READY, DELAYED, BURIED])
def test_clear_deletes_a_slice_of_one_state_and_no_newer_job(world: World, state: int) -> None:
    client = world.client()

    def put() -> int:
        id = client.put(delay=60 if state == DELAYED else 0)
        if state == BURIED:
            world.bury_job(id)
        return id

    with world.in_bulk():
        for _ in range(SLICE + 3):
            put()
    others = [client.put(delay=60) if state == READY else client.put(delay=0)]
    tube, below = world.broker.tubes[b"default"], world.broker.next_id
    newer = put()
    assert [world.checked(finishing.clear(world.broker, tube, state, 10**9, below, world.now)) for _ in range(3)] == [
        SLICE,
        3,
        0,
    ]
    assert sorted(world.broker.jobs) == [*others, newer]


def test_tubes_of_a_disconnected_client_are_dropped_slice_by_slice(world: World) -> None:
    client = world.client()
    with world.in_bulk():
        for number in range(3 * SLICE):
            client.watch(b"tube-%d" % number)
    client.disconnect()
    invariants.check(world.broker)
    assert len(world.broker.tubes) == 2 * SLICE + 2  # `default` is in the first slice
    ticks = 0
    while len(world.broker.tubes) > 1:
        ticking.tick(world.broker, world.now)
        invariants.check(world.broker)
        ticks += 1
    assert ticks <= 4
    assert ticking.tick(world.broker, world.now) is None


def test_many_deadlines_take_several_ticks(world: World) -> None:
    producer, worker = world.client(use=b"delayed"), world.client()
    with world.in_bulk():
        for _ in range(2 * SLICE):
            producer.put(delay=5)
            worker.put(ttr=5)
        worker.take(2 * SLICE)
    world.now += 5 * SECOND
    due = ticking.tick(world.broker, world.now)
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
    ticking.tick(world.broker, world.now)
    invariants.check(world.broker)
    assert world.stats().current_jobs_ready <= 2 * SLICE
    world.advance(0)
    assert world.stats().current_jobs_ready == 4 * SLICE


def test_tick_hands_out_at_most_a_slice_of_jobs_of_many_tubes(world: World) -> None:
    names = [b"tube-%d" % number for number in range(4)]
    with world.in_bulk():
        for name in names:
            world.client(use=name).put()
            assert editing.pause_tube(world.broker, name, SECOND, world.now)
            for _ in range(SLICE):
                world.client(watch=[name]).reserve()
                world.client(use=name).put()
        world.now += SECOND
        handed_out = []
        while (reserved := world.stats().current_jobs_reserved) < 4 * SLICE:
            ticking.tick(world.broker, world.now)
            handed_out.append(world.stats().current_jobs_reserved - reserved)
    assert max(handed_out) <= SLICE


def test_command_leaves_the_end_of_a_costly_wait_to_the_next_tick(world: World) -> None:
    """Waits in many tubes without a tube set: the end of one takes as long as the ends of many waits in one tube."""
    for other in range(MAX_TUBE_SETS):
        world.client(watch=[b"%d-%d" % (other, number) for number in range(MANY_TUBES)]).reserve()
    worker = world.client(watch=[b"%d" % number for number in range(2 * WAITED_TUBES)])
    producer = world.client(use=b"1")
    assert worker.reserve() == "WAITING" and worker.client.tube_set is None
    id = putting.put(world.broker, producer.client, world.broker.allocate_id(), 0, 0, SECOND, b"", world.now)
    assert worker.client.is_waiting
    invariants.check(world.broker)
    world.advance(0)
    assert worker.ended == [id]


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
    """Each iteration over a dict passes the entries that were deleted, so repeated iterations take quadratic time."""
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


def test_jobs_of_a_disconnected_client_can_be_edited_and_taken_between_slices(world: World) -> None:
    client = world.client()
    with world.in_bulk():
        ids = client.take(len([client.put() for _ in range(SLICE + 8)]))
    connecting.disconnect(world.broker, client.client, world.now)
    moved, deleted, released, buried, edited, *rest = ids[SLICE:]
    assert {world.state(id) for id in ids[SLICE:]} == {"reserved"}
    assert world.edit(moved, tube=b"other", is_forced=True) == "DONE"
    assert world.edit(edited, body=b"new", is_forced=True) == "DONE"
    assert world.delete_job(deleted, is_forced=True)
    assert world.release_job(released)
    assert world.bury_job(buried, is_forced=True)
    world.advance(1)
    assert {world.state(id) for id in (edited, released, *rest)} == {"ready"}
    assert (world.ready(b"other"), world.buried()) == ([moved], [buried])
    assert ticking.tick(world.broker, world.now) is None
