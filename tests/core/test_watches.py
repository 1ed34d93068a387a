"""Tube sets of clients that watch many tubes, compared with a search of each tube: first job, order of waits."""

from __future__ import annotations

from random import Random

import pytest

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.operations import connecting, editing, finishing, reserving
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.core.tubes.tube_set import MANY_TUBES, MAX_TUBE_SETS, SWEEP_SLACK, TubeSet
from tests.support import invariants
from tests.support.world import Actor, World

NAMES = [b"tube-%d" % number for number in range(3 * (MANY_TUBES - 1))]


def watching(world: World, names: list[bytes] = NAMES) -> Actor:
    """Return a client that watches only the tubes *names*."""
    actor = world.client()
    for name in names:
        connecting.watch(world.broker, actor.client, name)
    connecting.ignore(world.broker, actor.client, b"default")
    return actor


@pytest.mark.parametrize("seed", range(2))
def test_job_goes_to_the_client_that_has_waited_longest(seed: int) -> None:
    """Clients with few tubes wait in each tube. Most others wait in a tube set, up to the maximum number of sets."""
    random, world = Random(seed), World()  # noqa: S311
    broker, producer, names = world.broker, world.client(), NAMES[: (MANY_TUBES - 1) + MAX_TUBE_SETS + 4]
    watched = [names[: MANY_TUBES + number] for number in range(MAX_TUBE_SETS + 4)]
    watched += [names[:1], names[1:4], names[2:4], names]
    workers = [watching(world, some) for some in watched]
    waiters: list[Actor] = []
    ready: dict[bytes, list[int]] = {name: [] for name in names}
    paused: set[bytes] = set()

    def hand_out(name: bytes) -> None:
        for worker in [worker for worker in waiters if name in worker.client.watched]:
            if ready[name] and name not in paused:
                waiters.remove(worker)
                assert worker.ended == ready[name][:1]
                finishing.delete(broker, worker.client, ready[name].pop(0), world.now)
                worker.ended.clear()

    with world.in_bulk():
        for step in range(3000):
            verb, name = random.random(), random.choice(names[:6] + names[-2:])
            number = random.randrange(len(workers))
            worker = workers[number]
            if verb < 0.35:
                connecting.use(broker, producer.client, name)
                ready[name].append(producer.put())
                hand_out(name)
            elif verb < 0.85 and not worker.is_waiting:
                served = worker.client.watched.keys() - paused
                candidates = [ids[0] for name, ids in ready.items() if ids and name in served]
                outcome = worker.reserve()
                assert outcome == min(candidates, default="WAITING")
                if isinstance(outcome, int):
                    ready[broker.jobs[outcome].tube.name].remove(outcome)
                    finishing.delete(broker, worker.client, outcome, world.now)
                else:
                    waiters.append(worker)
            elif verb < 0.9 and worker.is_waiting:
                worker.cancel_wait()
                waiters.remove(worker)
            elif verb < 0.93:
                workers[number] = watching(world, watched[number])
                worker.disconnect()
                waiters = [other for other in waiters if other is not worker]
            elif verb < 0.96:
                editing.pause_tube(broker, name, 10**9, world.now)
                paused.add(name)
            else:
                paused.discard(name)
                editing.pause_tube(broker, name, 0, world.now)
                hand_out(name)
            assert not any(worker.ended for worker in workers)
            assert {worker for worker in workers if worker.is_waiting} == set(waiters)
            waiting = sum(name in worker.client.watched for worker in waiters)
            assert world.stats_tube(name).current_waiting == waiting
            if step % 100 == 0:
                invariants.check(broker)


def test_client_that_watches_many_tubes_waits_in_one_tube_set() -> None:
    """So a wait and a wake cost the same as with one tube."""
    world = World()
    worker, few = watching(world), watching(world, NAMES[:1])
    assert worker.reserve() == few.reserve() == "WAITING"
    tubes = world.broker.tubes
    assert [name for name in NAMES if tubes[name].waiters] == NAMES[:1]
    assert [world.stats_tube(name).current_waiting for name in NAMES[:3]] == [2, 1, 1]
    worker.disconnect()
    assert [world.stats_tube(NAMES[0]).current_waiting, world.stats().current_waiting] == [1, 1]


def test_clients_that_watch_the_same_tubes_share_a_tube_set() -> None:
    world = World()
    first, second = watching(world), watching(world, NAMES[::-1])
    assert (
        reserving.reserve(world.broker, first.client, world.now)
        is reserving.reserve(world.broker, second.client, world.now)
        is None
    )
    assert first.client.tube_set is second.client.tube_set is not None
    connecting.ignore(world.broker, first.client, NAMES[0])
    assert first.client.tube_set is None and second.client.tube_set is not None
    second.disconnect()
    assert not world.broker.tube_sets
    assert not any(tube.tube_sets for tube in world.broker.tubes.values())


def test_number_of_tube_sets_is_bounded() -> None:
    world = World()
    workers = [watching(world, NAMES[: MANY_TUBES + number]) for number in range(MAX_TUBE_SETS + 3)]
    ids = []
    for worker in workers:
        connecting.use(world.broker, worker.client, NAMES[0])
        ids.append(worker.put())
    taken = [reserving.reserve(world.broker, worker.client, world.now) for worker in workers]
    assert [job and job.id for job in taken] == ids
    assert len(world.broker.tube_sets) == MAX_TUBE_SETS
    invariants.check(world.broker)


def test_dead_entries_of_a_job_that_is_often_first_are_bounded() -> None:
    """More urgent jobs are added and removed in turn, while there are many other dead entries."""
    jobs: dict[int, Job] = {}
    tubes = [Tube(name, jobs) for name in NAMES]
    tube_set = TubeSet(frozenset(tubes))

    def add(tube: Tube, pri: int) -> Job:
        job = Job(len(jobs) + 1, tube, b"", pri, 0, 1, 0)
        jobs[job.id] = job
        tube.add_ready(job)
        return job

    others, least = [add(tube, 1) for tube in tubes[1:]], add(tubes[0], 2)
    for _ in range(SWEEP_SLACK + 2 * (MANY_TUBES - 1)):
        tubes[0].remove_ready(add(tubes[0], 0))
        assert tube_set.first(0) is others[0]
    for other in others:
        other.tube.remove_ready(other)
    assert tube_set.first(0) is least
    add(tubes[1], 3)
    assert len(tube_set._entries) <= 2 * len(tube_set._keys) + SWEEP_SLACK


def test_dead_entries_of_a_tube_whose_first_job_often_changes_are_bounded() -> None:
    jobs: dict[int, Job] = {}
    tubes = [Tube(name, jobs) for name in NAMES]
    tube_set = TubeSet(frozenset(tubes))
    for id in range(1, 5000):
        jobs[id] = Job(id, tubes[id % 5], b"", 5000 - id, 0, 1, id)
        tubes[id % 5].add_ready(jobs[id])
        assert len(tube_set._entries) <= 2 * len(tube_set._keys) + SWEEP_SLACK
    assert tube_set.first(0) is jobs[4999]
