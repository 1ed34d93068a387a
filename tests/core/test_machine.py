"""Random commands and delays: the broker and a plain model of it agree after each step."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from unittest import TestCase
from unittest.mock import patch

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, SECOND, URGENT_BELOW, Job
from greenstalk_server.core.operations import connecting, reserving, ticking
from greenstalk_server.core.timers import NEVER
from tests.core.model import Model, ModelJob, Tie
from tests.support import invariants
from tests.support.examples import examples
from tests.support.world import START, Actor, World

CLIENTS = 6
COUNTED = (
    "total_jobs",
    "total_reserves",
    "total_releases",
    "total_buries",
    "total_kicks",
    "total_timeouts",
    "cmd_delete",
)
TUBE_NAMES = ("default", "a", "b")
TUBES = st.sampled_from(TUBE_NAMES)
PRIS = st.sampled_from([0, 1, URGENT_BELOW - 1, URGENT_BELOW, 2**32 - 1])
DELAYS = st.sampled_from([0, 0, 0, 1, 3])
TTRS = st.sampled_from([1, 2, 5, 30])
JOBS = st.lists(st.tuples(PRIS, DELAYS, TTRS), min_size=1, max_size=5)
TIMEOUTS = st.sampled_from([None, None, 0, 1, 4])
PAUSES = st.sampled_from([0, 1, 5])
MODES = ("fifo", "weighted", "weighted-fair")
MAYBE = st.booleans()
PICKS = st.integers(0, 2**16)
"""Numbers that select one of the available clients or jobs."""


def summary(durations: list[int]) -> tuple[int, int, int]:
    """Return the shortest and the longest of *durations*, and their exponentially weighted average."""
    average = durations[0] if durations else 0
    for duration in durations:
        average += (duration - average) // 10
    return min(durations, default=NEVER), max(durations, default=0), average


class BrokerMachine(RuleBasedStateMachine):
    """Commands of clients, cancelled waits, disconnects, operations of an operator, and time.

    At least one client does not wait, so that commands are always possible. All commands run at different times, and
    all jobs have different TTRs, so two events are rarely due at the same time. Their order would be undefined, so
    such an example is abandoned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.model = Model(START)
        self.world.broker.random = lambda: self.model.random(self.world.now)
        self.actors: dict[int, Actor] = {}
        self.connected = 0
        self.commands = 0
        self.deleted: list[tuple[Job, ModelJob]] = []
        self.changed: list[tuple[Job, ModelJob, Job, ModelJob]] = []

    # Selection

    def has_tube_sets(self) -> bool:
        """Whether clients that watch all tubes share a tube set."""
        return len(TUBE_NAMES) >= int(vars(reserving)["MANY_TUBES"])

    def begin_command(self) -> None:
        """Advance the time before a command, by a different duration each time."""
        self.commands += 1
        self.advance_by(1000 * self.commands)

    def advance_by(self, nanoseconds: int) -> None:
        until = self.world.now + nanoseconds
        try:
            self.model.advance_to(until)
        except Tie:
            assume(False)
        self.world.advance_to(until)

    def idle(self) -> list[int]:
        return [number for number in self.actors if number not in {*self.model.waiting, *self.model.job_waits}]

    def held(self) -> list[tuple[int, int]]:
        """Return the reserved jobs of clients that do not wait: number of the client, id."""
        return [(number, job.id) for number in self.idle() for job in self.model.clients[number].reserved]

    def pick_idle(self, pick: int) -> tuple[int, Actor]:
        numbers = self.idle()
        number = numbers[pick % len(numbers)]
        return number, self.actors[number]

    def pick_job(self, pick: int, states: set[str]) -> int:
        """Return a job in one of *states*; sometimes any job, or an unknown id."""
        fitting = [job.id for job in self.model.jobs.values() if job.state in states]
        if pick % 8 == 7 or not fitting:
            fitting = [*self.model.jobs, 10**6]
        return fitting[pick // 8 % len(fitting)]

    def pick_held(self, pick: int) -> tuple[int, Actor, int]:
        """Return a client and a job that it holds; sometimes any client and any job."""
        held = self.held()
        if pick % 8 == 7 or not held:
            return *self.pick_idle(pick // 8), self.pick_job(pick // 8, {"reserved"})
        number, id = held[pick // 8 % len(held)]
        return number, self.actors[number], id

    # Clients

    @initialize(watched=st.lists(st.sets(TUBES), min_size=4, max_size=CLIENTS), jobs=JOBS)
    def connect_first(self, watched: list[set[str]], jobs: list[tuple[int, int, int]]) -> None:
        for number, tubes in enumerate(watched):
            self.connect()
            for tube in sorted(tubes):
                self.watch(number, tube)
        self.put(0, "default", jobs)

    @precondition(lambda self: len(self.actors) < CLIENTS)
    @rule()
    def connect(self) -> None:
        self.connected += 1
        self.model.connect(self.connected)
        self.actors[self.connected] = self.world.client()

    @precondition(lambda self: len(self.actors) > 2)
    @rule(pick=PICKS)
    def disconnect(self, pick: int) -> None:
        self.begin_command()
        numbers = [number for number in self.actors if [number] != self.idle()]
        number = numbers[pick % len(numbers)]
        self.model.disconnect(number)
        self.actors.pop(number).disconnect()

    @rule(pick=PICKS, tube=TUBES)
    def use(self, pick: int, tube: str) -> None:
        number, actor = self.pick_idle(pick)
        self.model.use(number, tube)
        actor.use(tube.encode())

    @rule(pick=PICKS, tube=TUBES)
    def watch(self, pick: int, tube: str) -> None:
        number, actor = self.pick_idle(pick)
        assert actor.watch(tube.encode()) == self.model.watch(number, tube)

    @rule(pick=PICKS, tube=TUBES, weight=st.sampled_from([1, 3, 9999]))
    def watch_with_weight(self, pick: int, tube: str, weight: int) -> None:
        number, actor = self.pick_idle(pick)
        assert actor.watch(tube.encode(), weight) == self.model.watch(number, tube, weight)

    @rule(pick=PICKS, mode=st.sampled_from(MODES), point=st.floats(0, 1, exclude_max=True))
    def set_reserve_mode(self, pick: int, mode: str, point: float) -> None:
        assume(mode == "fifo" or not self.has_tube_sets())  # a set gives its tubes in another order than the model
        number, actor = self.pick_idle(pick)
        self.model.point = point
        self.model.clients[number].mode = mode
        connecting.set_reserve_mode(self.world.broker, actor.client, MODES.index(mode))

    @rule(pick=PICKS, tube=TUBES)
    def ignore(self, pick: int, tube: str) -> None:
        number, actor = self.pick_idle(pick)
        assert actor.ignore(tube.encode()) == self.model.ignore(number, tube)

    # Jobs

    @rule(pick=PICKS, tube=TUBES, jobs=JOBS)
    def put(self, pick: int, tube: str, jobs: list[tuple[int, int, int]]) -> None:
        number, actor = self.pick_idle(pick)
        self.use(pick, tube)
        for pri, delay, ttr in jobs:
            self.begin_command()
            distinct = ttr + self.world.broker.next_id / SECOND
            id = actor.put(pri, delay, distinct)
            self.model.put(number, id, pri, delay * SECOND, round(distinct * SECOND))

    @rule(pick=PICKS, tube=TUBES, pri=PRIS, delay=DELAYS, ttr=TTRS)
    def put_in_tube(self, pick: int, tube: str, pri: int, delay: int, ttr: int) -> None:
        self.begin_command()
        number, actor = self.pick_idle(pick)
        distinct = ttr + self.world.broker.next_id / SECOND
        id = actor.put_in_tube(tube.encode(), pri, delay, distinct)
        self.model.put(number, id, pri, delay * SECOND, round(distinct * SECOND), tube)

    @precondition(lambda self: len(self.idle()) > 1)
    @rule(pick=PICKS, timeout=TIMEOUTS)
    def reserve(self, pick: int, timeout: int | None) -> None:
        self.begin_command()
        self.reserve_as(self.pick_idle(pick)[0], timeout)

    @precondition(lambda self: self.held() and len(self.idle()) > 1)
    @rule(pick=PICKS, timeout=TIMEOUTS)
    def reserve_one_more(self, pick: int, timeout: int | None) -> None:
        self.begin_command()
        self.reserve_as(self.pick_held(pick)[0], timeout)

    def reserve_as(self, number: int, timeout: int | None) -> None:
        expected = self.model.reserve(number, None if timeout is None else timeout * SECOND)
        assert self.actors[number].reserve(timeout) == expected

    @precondition(lambda self: len(self.idle()) > 1)
    @rule(pick=PICKS, job=PICKS, timeout=TIMEOUTS)
    def wait_for_job(self, pick: int, job: int, timeout: int | None) -> None:
        self.begin_command()
        number, actor = self.pick_idle(pick)
        id = self.pick_job(job, {"ready", "delayed", "reserved"})
        expected = self.model.wait_for_job(number, id, None if timeout is None else timeout * SECOND)
        assert actor.wait_for_job(id, timeout) == expected

    @precondition(lambda self: self.model.waiting or self.model.job_waits)
    @rule(pick=PICKS)
    def cancel_wait(self, pick: int) -> None:
        waiting = [*self.model.waiting, *self.model.job_waits]
        number = waiting[pick % len(waiting)]
        self.model.cancel_wait(number)
        self.actors[number].cancel_wait()

    @rule(pick=PICKS, job=PICKS)
    def reserve_job(self, pick: int, job: int) -> None:
        self.begin_command()
        number, actor = self.pick_idle(pick)
        id = self.pick_job(job, {"ready", "delayed", "buried"})
        assert actor.reserve_job(id) == self.model.reserve_job(number, id)

    @rule(pick=PICKS, job=PICKS)
    def delete(self, pick: int, job: int) -> None:
        number, actor = self.pick_idle(pick)
        id = self.pick_job(job, {"ready", "delayed", "buried"})
        assert actor.delete(id) == self.model.delete(number, id)

    @precondition(lambda self: bool(self.held()))
    @rule(pick=PICKS, pri=PRIS, delay=DELAYS)
    def release(self, pick: int, pri: int, delay: int) -> None:
        self.begin_command()
        number, actor, id = self.pick_held(pick)
        assert actor.release(id, pri, delay) == self.model.release(number, id, pri, delay * SECOND)

    @precondition(lambda self: bool(self.held()))
    @rule(pick=PICKS, pri=PRIS)
    def bury(self, pick: int, pri: int) -> None:
        number, actor, id = self.pick_held(pick)
        assert actor.bury(id, pri) == self.model.bury(number, id, pri)

    @precondition(lambda self: bool(self.held()))
    @rule(pick=PICKS)
    def delete_held(self, pick: int) -> None:
        number, actor, id = self.pick_held(pick)
        assert actor.delete(id) == self.model.delete(number, id)

    @precondition(lambda self: bool(self.held()))
    @rule(pick=PICKS)
    def touch(self, pick: int) -> None:
        self.begin_command()
        number, actor, id = self.pick_held(pick)
        assert actor.touch(id) == self.model.touch(number, id)

    @rule(pick=PICKS, state=st.sampled_from(["buried", "delayed"]), bound=st.sampled_from([0, 1, 2, 2**32 - 1]))
    def kick(self, pick: int, state: str, bound: int) -> None:
        self.begin_command()
        number, actor = self.pick_idle(pick)
        assert actor.kick(BURIED if state == "buried" else DELAYED, bound) == self.model.kick(number, state, bound)

    @rule(pick=PICKS, job=PICKS)
    def kick_job(self, pick: int, job: int) -> None:
        self.begin_command()
        _, actor = self.pick_idle(pick)
        id = self.pick_job(job, {"delayed", "buried"})
        assert actor.kick_job(id) == self.model.kick_job(id)

    @rule(job=PICKS, pri=PRIS)
    def reprioritize(self, job: int, pri: int) -> None:
        self.begin_command()
        id = self.pick_job(job, {"ready", "delayed", "buried"})
        assert self.world.reprioritize(id, pri) == self.model.reprioritize(id, pri)

    @rule(tube=TUBES)
    def truncate(self, tube: str) -> None:
        self.begin_command()
        assert self.world.truncate(tube.encode()) == self.model.truncate(tube)

    @rule(pick=PICKS, tube=TUBES, delay=PAUSES)
    def pause_tube(self, pick: int, tube: str, delay: int) -> None:
        self.begin_command()
        _, actor = self.pick_idle(pick)
        assert actor.pause_tube(tube.encode(), delay) == self.model.pause_tube(tube, delay * SECOND)

    # Operators

    @rule(job=PICKS, tube=st.none() | TUBES, pri=st.none() | PRIS, delay=st.none() | DELAYS, ttr=st.none() | TTRS)
    def edit_job(self, job: int, tube: str | None, pri: int | None, delay: int | None, ttr: int | None) -> None:
        self.begin_command()
        id = self.pick_job(job, {"ready", "delayed", "buried", "reserved"})
        distinct = None if ttr is None else ttr + self.commands / SECOND
        expected = self.model.edit_job(
            id,
            tube,
            pri,
            None if delay is None else delay * SECOND,
            None if distinct is None else round(distinct * SECOND),
            is_forced=bool(job % 3),
        )
        named = None if tube is None else tube.encode()
        assert self.world.edit(id, tube=named, pri=pri, delay=delay, ttr=distinct, is_forced=bool(job % 3)) == expected

    @rule(job=PICKS, is_forced=MAYBE)
    def bury_job(self, job: int, is_forced: bool) -> None:
        self.begin_command()
        id = self.pick_job(job, {"ready", "delayed", "reserved"})
        assert self.world.bury_job(id, is_forced) == self.model.bury_job(id, is_forced)

    @rule(job=PICKS)
    def release_job(self, job: int) -> None:
        self.begin_command()
        id = self.pick_job(job, {"reserved"})
        assert self.world.release_job(id) == self.model.release_job(id)

    @rule(job=PICKS, is_forced=MAYBE)
    def delete_job(self, job: int, is_forced: bool) -> None:
        self.begin_command()
        id = self.pick_job(job, {"reserved"})
        assert self.world.delete_job(id, is_forced) == self.model.delete_job(id, is_forced)

    @rule(job=PICKS)
    def delete_for_undo(self, job: int) -> None:
        self.begin_command()
        id = self.pick_job(job, {"ready", "delayed", "buried", "reserved"})
        if id in self.model.jobs:
            self.deleted.append((self.world.snapshot(id), replace(self.model.jobs[id])))
        assert self.world.delete_job(id, is_forced=True) == self.model.delete_job(id, is_forced=True)

    @precondition(lambda self: bool(self.deleted))
    @rule(pick=PICKS)
    def undelete(self, pick: int) -> None:
        self.begin_command()
        deleted, model_job = self.deleted[pick % len(self.deleted)]
        assert (self.world.undelete(deleted) == 0) == self.model.undelete(model_job)

    @rule(job=PICKS, change=st.sampled_from(["kick", "bury", "pri", "delay", "tube"]))
    def change_for_undo(self, job: int, change: str) -> None:
        self.begin_command()
        id = self.pick_job(job, {"ready", "delayed", "buried"})
        if id not in self.model.jobs or self.model.jobs[id].state == "reserved":
            return
        before = self.world.snapshot(id), replace(self.model.jobs[id], events=list(self.model.jobs[id].events))
        if change == "kick":
            self.world.kick_job(id)
            self.model.kick_job(id)
        elif change == "bury":
            self.world.bury_job(id)
            self.model.bury_job(id, False)
        else:
            tube, pri, delay = (
                TUBE_NAMES[0] if change == "tube" else None,
                3 if change == "pri" else None,
                20 if change == "delay" else None,
            )
            self.world.edit(id, tube=None if tube is None else tube.encode(), pri=pri, delay=delay)
            self.model.edit_job(id, tube, pri, None if delay is None else delay * SECOND, None, False)
        if id in self.model.jobs:
            after = self.model.jobs[id]
            self.changed.append((*before, self.world.snapshot(id), replace(after, events=list(after.events))))

    @precondition(lambda self: bool(self.changed))
    @rule(pick=PICKS)
    def revert(self, pick: int) -> None:
        self.begin_command()
        before, model_before, after, model_after = self.changed[pick % len(self.changed)]
        assert (self.world.revert(before, after) == 0) == self.model.revert(model_before, model_after)

    # Time

    @rule(seconds=st.sampled_from([0.5, 1, 2, 4, 40]))
    def advance(self, seconds: float) -> None:
        self.advance_by(round(seconds * SECOND))

    # Comparison

    @invariant()
    def broker_keeps_its_own_invariants(self) -> None:
        invariants.check(self.world.broker)

    @invariant()
    def tubes_agree(self) -> None:
        model, world = self.model, self.world
        assert {name.decode() for name in world.tubes()} == model.tubes()
        clients = model.clients.values()
        waiting = [model.clients[number] for number in model.waiting]
        for name in model.tubes():
            tube = name.encode()
            assert world.ready(tube) == ids(model.ready(name))
            assert world.delayed(tube) == ids(model.delayed(name))
            assert world.buried(tube) == ids(model.buried(name))
            stats = world.stats_tube(tube)
            assert stats.current_jobs_reserved == len(model.reserved(name))
            assert stats.current_jobs_urgent == sum(job.pri < URGENT_BELOW for job in model.ready(name))
            assert stats.current_using == sum(client.used == name for client in clients)
            assert stats.current_watching == sum(name in client.watched for client in clients)
            assert stats.current_waiting == sum(name in client.watched for client in waiting)
            assert stats.pause_time_left == model.seconds_to(model.paused.get(name, 0))

    @invariant()
    def figures_of_tubes_agree(self) -> None:
        for name in self.model.tubes():
            tube, counted = self.world.broker.tubes[name.encode()], self.model.counts(name)
            oldest, expected = tube.oldest_ready(), self.model.oldest_ready(name)
            assert (oldest and oldest.deadline) == (expected and expected.since)  # any of several
            assert {key: getattr(tube, key) for key in COUNTED} == {key: counted.counts[key] for key in COUNTED}
            for stats, times in (
                (tube.queue_times, counted.queue_times),
                (tube.processing_times, counted.processing_times),
            ):
                assert stats.total == sum(times)
                assert stats.counts() == Counter(time.bit_length() for time in times)
                assert (stats.shortest, stats.longest, stats.ewma) == summary(times)

    @invariant()
    def clients_agree(self) -> None:
        for number, actor in self.actors.items():
            client = self.model.clients[number]
            assert actor.is_waiting == (number in {*self.model.waiting, *self.model.job_waits})
            assert actor.ended == client.ended
            assert actor.reserved == ids(client.reserved)
            assert actor.client.used.name.decode() == client.used
            assert [name.decode() for name in actor.client.watched] == client.watched

    @invariant()
    def jobs_agree(self) -> None:
        assert list(self.world.broker.jobs) == list(self.model.jobs)
        for id, job in self.model.jobs.items():
            events = job_history.unpack(self.world.broker.jobs[id].events)
            assert [(event.at, job_history.KINDS[event.kind], event.client) for event in events] == job.events
            stats = self.world.stats_job(id)
            has_deadline = job.state in ("reserved", "delayed")
            expected = vars(job) | {
                "time_left": self.model.seconds_to(job.deadline) if has_deadline else 0,
                "delay": job.delay // SECOND,
                "ttr": job.ttr // SECOND,
            }
            names = [field.name for field in fields(stats) if field.name in expected]
            assert {name: getattr(stats, name) for name in names} == {name: expected[name] for name in names}
        server = self.world.stats()
        assert (server.total_jobs, server.job_timeouts) == (self.model.total_jobs, self.model.job_timeouts)

    def teardown(self) -> None:
        """Disconnect all clients and end all delays and pauses: every job that is not buried is ready."""
        for number, actor in self.actors.items():
            self.model.disconnect(number)
            actor.disconnect()
        self.world.advance(1000)
        for job in self.model.jobs.values():
            assert self.world.state(job.id) == ("buried" if job.state == "buried" else "ready")
        assert ticking.tick(self.world.broker, self.world.now) is None


def ids(jobs: list[ModelJob]) -> list[int]:
    return [job.id for job in jobs]


class TestBroker(BrokerMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=examples(40), stateful_step_count=50, deadline=None)


class WithTubeSets(TestCase):
    """Clients that watch two tubes share tube sets. The compiled build inlines MANY_TUBES: mark the test `pure`."""

    def setUp(self) -> None:
        patched = patch.object(reserving, "MANY_TUBES", 2)
        patched.start()
        self.addCleanup(patched.stop)


@pytest.mark.pure
class TestBrokerWithTubeSetsOfTwo(WithTubeSets, BrokerMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=examples(10), stateful_step_count=50, deadline=None)


@pytest.mark.pure
class TestBrokerWithOneTubeSet(TestBrokerWithTubeSetsOfTwo):
    """The broker can have only one tube set. Clients that watch two other tubes search both, and wait in both."""

    def setUp(self) -> None:
        super().setUp()
        patched = patch.object(reserving, "MAX_TUBE_SETS", 1)
        patched.start()
        self.addCleanup(patched.stop)
