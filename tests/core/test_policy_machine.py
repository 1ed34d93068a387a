"""Random commands under random policies: the broker and a plain model of it agree after each step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from greenstalk_server.core.job_attributes import REASON_NAMES, DeadLetter
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.operations import connecting, editing, policy_changes, putting
from greenstalk_server.core.policies.policy import PolicySet, parse_policy
from greenstalk_server.core.policies.policy_counts import PolicyCounts
from tests.core.model import Tie
from tests.core.policy_model import ModelLimits, PolicyModel
from tests.core.test_machine import (
    CLIENTS,
    COUNTED,
    DELAYS,
    JOBS,
    MAYBE,
    PICKS,
    PRIS,
    TTRS,
    BrokerMachine,
    WithTubeSets,
)
from tests.support.examples import examples
from tests.support.world import EDITS, START, FullJournal, World, slots

TUBES = st.sampled_from(["default", "a", "b", "d"])
BODIES = st.sampled_from([b"", b"x", b"yy", b"zzzzz"])
POLICY_COUNTED = slots(PolicyCounts())
SWEEP = 10
"""Nanoseconds in which policies are applied to a few tubes and jobs: one nanosecond per slice."""

NAMES = st.sampled_from(["one", "two", "three"])
PATTERNS = st.sampled_from([["*"], ["*"], ["default"], ["a"], ["d"], ["a", "b"], ["d*"]])
CHOICES: dict[str, list[Any]] = {
    "max_attempts": [0, 1, 2],
    "dead_letter": ["d", "d", "a", "b", ""],
    "retry_delay": [0.5, 2.25],
    "retry_delay_max": [3],
    "retry_factor": [1, 3],
    "retry_jitter": [0, 0.5, 1],
    "expire_after": [3.5, 7.5, 0],
    "buried_expire_after": [2.5, 9.5],
    "expired_to": ["drop", "dead-letter", "dead-letter"],
    "max_jobs": [1, 2, 3],
    "max_bytes": [6],
    "overflow": ["refuse", "drop-oldest", "dead-letter-oldest", "dead-letter-oldest"],
    "max_reserved": [1, 2],
    "rate": [0.4, 3],
    "rate_burst": [1, 2, 3],
    "unique": ["body", "body", "nothing"],
    "unique_for": ["waiting", "unfinished", 6.5],
    "copy_to": [["a", "b"], ["d"], ["default", "d"]],
    "ttr_min": [2],
    "ttr_max": [3],
    "max_job_size": [4],
}
FAMILIES = [
    ("max_attempts", "dead_letter"),
    ("max_attempts", "retry_delay", "retry_delay_max", "retry_factor", "retry_jitter"),
    ("expire_after", "expired_to", "dead_letter"),
    ("buried_expire_after", "expired_to", "dead_letter"),
    ("max_jobs", "overflow", "dead_letter"),
    ("max_jobs", "max_bytes", "overflow", "dead_letter"),
    ("max_reserved",),
    ("rate", "rate_burst"),
    ("rate", "expire_after"),
    ("unique", "unique_for"),
    ("copy_to",),
    ("ttr_min", "max_job_size"),
    ("ttr_max",),
    ("dead_letter",),
]
"""Settings that are useful together."""


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the document of a policy."""
    document: dict[str, Any] = {"tubes": draw(PATTERNS), "priority": draw(st.integers(0, 1))}
    for family in draw(st.lists(st.sampled_from(FAMILIES), min_size=1, max_size=4)):
        for key in family:
            document[key] = draw(st.sampled_from(CHOICES[key]))
    return document


def random_at(now: int) -> float:
    """Return the random number that the jitter uses at *now*."""
    return now // 1000 % 997 / 997


class PolicyMachine(BrokerMachine):
    """All rules of BrokerMachine, with policies, bodies, and limits of the server."""

    limits = ModelLimits()

    def __init__(self) -> None:
        super().__init__()
        limits = self.limits
        self.world = World(Limits(jobs=limits.jobs, tube_jobs=limits.tube_jobs, tubes=limits.tubes))
        self.world.broker.random = lambda: random_at(self.world.now)
        self.policy_model = self.model = PolicyModel(START, random_at, limits)

    @initialize(
        watched=st.lists(st.sets(TUBES), min_size=4, max_size=CLIENTS),
        jobs=JOBS,
        policies=st.dictionaries(NAMES, documents(), min_size=1),
    )
    def connect_first(
        self, watched: list[set[str]], jobs: list[tuple[int, int, int]], policies: dict[str, dict[str, Any]]
    ) -> None:
        self.apply(policies)
        super().connect_first(watched, jobs)

    # Policies

    @rule(name=NAMES, document=documents())
    def set_policy(self, name: str, document: dict[str, Any]) -> None:
        self.apply(self.policy_model.policies | {name: document})

    @precondition(lambda self: self.model.policies)
    @rule(pick=PICKS)
    def remove_policy(self, pick: int) -> None:
        policies = dict(self.policy_model.policies)
        del policies[list(policies)[pick % len(policies)]]
        self.apply(policies)

    @precondition(lambda self: self.model.policies)
    @rule(pick=PICKS, data=st.data())
    def change_setting(self, pick: int, data: st.DataObject) -> None:
        policies = dict(self.policy_model.policies)
        name = list(policies)[pick % len(policies)]
        keys = sorted(policies[name].keys() & CHOICES.keys())
        key = keys[pick // 8 % len(keys)]
        policies[name] = policies[name] | {key: data.draw(st.sampled_from(CHOICES[key]))}
        self.apply(policies)

    def apply(self, policies: dict[str, dict[str, Any]]) -> None:
        self.begin_command()
        try:
            self.policy_model.set_policies(policies)
            self.policy_model.advance_to(self.world.now + SWEEP)
        except Tie:
            assume(False)
        parsed = [parse_policy(name, document) for name, document in policies.items()]
        policy_changes.set_policies(self.world.broker, PolicySet(parsed), self.world.now)
        self.world.advance_to(self.world.now + SWEEP)
        assert not self.world.broker.is_sweeping
        self.adopt_times()

    def adopt_times(self) -> None:
        """Copy the times, up to SWEEP apart, when slices applied the policies."""
        assert self.world.broker.jobs.keys() == self.policy_model.jobs.keys()
        for id, job in self.policy_model.jobs.items():
            real = self.world.broker.jobs[id]
            events = job_history.unpack(real.events)
            if job.state == "ready":
                job.since = near(job.since, real.ready_since)
            elif job.state == "reserved":
                job.reserved_at = near(job.reserved_at, real.reserved_at)
                job.since = near(job.since, job.since)
            if job.state in ("reserved", "delayed"):
                job.deadline = near(job.deadline, real.deadline)
            if len(events) == len(job.events):
                job.events = [
                    (near(at, event.at), kind, by) for (at, kind, by), event in zip(job.events, events, strict=True)
                ]
            if job.dead is not None and real.dead_letter:
                dead = DeadLetter.unpack(real.dead_letter)
                job.dead = (*job.dead[:3], near(job.dead[3], dead.first_at), near(job.dead[4], dead.last_at))
            if job.state == "buried" and job.events:
                job.buried_at = next(
                    (at for at, kind, _ in job.events[::-1] if abs(at - job.buried_at) <= SWEEP), job.buried_at
                )

    # Jobs

    @rule(pick=PICKS, tube=TUBES, jobs=JOBS, body=BODIES)
    def put(self, pick: int, tube: str, jobs: list[tuple[int, int, int]], body: bytes = b"") -> None:
        number = self.pick_idle(pick)[0]
        self.use(pick, tube)
        for at, (pri, delay, ttr) in enumerate(jobs):
            self.begin_command()
            self.put_once(number, pri, delay, ttr, body + bytes([at % 2]) * (len(body) % 2), pick % 8 == 3)

    def put_once(self, number: int, pri: int, delay: int, ttr: int, body: bytes, is_journal_full: bool) -> None:
        world, core = self.world, self.world.broker
        id, client = core.allocate_id(), self.actors[number].client
        exact_ttr = ttr * SECOND + id
        journal = core.journal
        if is_journal_full:
            core.journal = FullJournal()
        found = putting.put(core, client, id, pri, delay * SECOND, exact_ttr, body, world.now)
        core.journal = journal
        world.check()
        tube = self.policy_model.clients[number].used
        answer = self.policy_model.put_body(
            tube, id, pri, delay * SECOND, exact_ttr, body, found, is_journal_full=is_journal_full
        )
        assert answer == max(found, -1)

    @rule(tube=TUBES, job=JOBS, body=BODIES)
    def put_into(self, tube: str, job: list[tuple[int, int, int]], body: bytes) -> None:
        self.begin_command()
        pri, delay, ttr = job[0]
        id = self.world.broker.next_id
        exact_ttr = ttr * SECOND + id
        found = putting.put_into(self.world.broker, tube.encode(), pri, delay * SECOND, exact_ttr, body, self.world.now)
        self.world.check()
        answer = self.policy_model.put_body(tube, id, pri, delay * SECOND, exact_ttr, body, found, False)
        assert answer == max(found, -1)

    @rule(pick=PICKS, tube=TUBES, pri=PRIS, delay=DELAYS, ttr=TTRS)
    def put_in_tube(self, pick: int, tube: str, pri: int, delay: int, ttr: int) -> None:
        self.begin_command()
        id = self.world.broker.next_id
        found = self.pick_idle(pick)[1].put_in_tube(tube.encode(), pri, delay, ttr + id / SECOND)
        answer = self.policy_model.put_body(tube, id, pri, delay * SECOND, ttr * SECOND + id, b"", found, False)
        assert answer == max(found, -1)

    @rule(pick=PICKS, tube=TUBES)
    def use(self, pick: int, tube: str) -> None:
        number, actor = self.pick_idle(pick)
        is_allowed = self.policy_model.is_tube_allowed(tube)
        if is_allowed:
            self.model.use(number, tube)
        assert self.world.checked(connecting.use(self.world.broker, actor.client, tube.encode())) == is_allowed

    @rule(pick=PICKS, tube=TUBES)
    def watch(self, pick: int, tube: str) -> None:
        number, actor = self.pick_idle(pick)
        if self.policy_model.is_tube_allowed(tube):
            assert actor.watch(tube.encode()) == self.model.watch(number, tube)
        else:
            assert actor.watch(tube.encode()) < 0

    @rule(pick=PICKS, tube=TUBES)
    def ignore(self, pick: int, tube: str) -> None:
        super().ignore(pick, tube)

    @rule(
        pick=PICKS,
        kind=st.sampled_from(["delete", "delete_held", "bury"]),
        pri=PRIS,
    )
    def end_held(self, pick: int, kind: str, pri: int) -> None:
        """End a reservation at a separate time, since waiting clients may then get other jobs."""
        if not self.held():
            return
        self.begin_command()
        if not self.held():
            return
        if kind == "bury":
            self.bury(pick, pri)
        else:
            self.delete_held(pick)

    @precondition(lambda self: len(self.idle()) > 1)
    @rule(
        pick=PICKS,
        tube=TUBES,
        end=st.sampled_from(["release", "wait", "disconnect", "delete"]),
        times=st.integers(1, 4),
    )
    def work(self, pick: int, tube: str, end: str, times: int) -> None:
        """Have one client reserve jobs of *tube*, and end each of its attempts."""
        number, actor = self.pick_idle(pick)
        self.watch(pick, tube)
        for _ in range(times):
            self.begin_command()
            if number in self.model.waiting:
                return
            self.reserve_as(number, 0)
            held = self.model.clients[number].reserved
            if not held:
                continue
            id = held[-1].id
            self.begin_command()
            if end == "release":
                assert actor.release(id, 0, 0) == self.model.release(number, id, 0, 0)
            elif end == "delete":
                assert actor.delete(id) == self.model.delete(number, id)
            elif end == "wait":
                self.advance_by(1_100_000_000 * (1 + pick % 3))
        if end == "disconnect" and len(self.actors) > 2:
            self.model.disconnect(number)
            self.actors.pop(number).disconnect()

    # Operators

    @precondition(lambda self: any(job.dead for job in self.model.jobs.values()))
    @rule(pick=PICKS)
    def redrive(self, pick: int) -> None:
        self.begin_command()
        dead = [job.id for job in self.policy_model.jobs.values() if job.dead]
        id = dead[pick % len(dead)] if dead else 10**6
        expected = self.policy_model.redrive(id)
        assert EDITS[editing.redrive(self.world.broker, id, self.world.now)] == expected
        self.world.check()

    @rule(
        job=PICKS,
        tube=st.none() | TUBES,
        pri=st.none() | PRIS,
        delay=st.none() | DELAYS,
        ttr=st.none() | TTRS,
        body=st.none() | BODIES,
        is_renewed=MAYBE,
    )
    def edit_job(
        self,
        job: int,
        tube: str | None,
        pri: int | None,
        delay: int | None,
        ttr: int | None,
        body: bytes | None = None,
        is_renewed: bool = False,
    ) -> None:
        self.begin_command()
        id = self.pick_job(job, {"ready", "delayed", "buried", "reserved"})
        is_forced = bool(job % 3)
        expected = self.policy_model.edit_with(
            id,
            body,
            is_renewed,
            tube,
            pri=pri,
            delay=None if delay is None else delay * SECOND,
            ttr=None if ttr is None else ttr * SECOND + self.commands,
            is_forced=is_forced,
        )
        found = editing.edit_job(
            self.world.broker,
            id,
            self.world.now,
            tube=None if tube is None else tube.encode(),
            pri=pri,
            delay=None if delay is None else delay * SECOND,
            ttr=None if ttr is None else ttr * SECOND + self.commands,
            body=body,
            is_renewed=is_renewed,
            is_forced=is_forced,
        )
        self.world.check()
        assert EDITS[found] == expected

    # Comparison

    @invariant()
    def figures_of_tubes_agree(self) -> None:
        for name in self.model.tubes():
            tube, counted = self.world.broker.tubes[name.encode()], self.model.counts(name)
            assert {key: getattr(tube, key) for key in COUNTED} == {key: counted.counts[key] for key in COUNTED}, name
            counts = tube.policy_counts or PolicyCounts()
            expected = {key: counted.counts[key] for key in POLICY_COUNTED}
            assert {key: getattr(counts, key) for key in POLICY_COUNTED} == expected, name
            assert (tube.throttled_until > self.world.now) == self.policy_model.is_held(name), name

    @invariant()
    def jobs_agree(self) -> None:
        jobs = self.world.broker.jobs
        assert set(jobs) == set(self.policy_model.jobs)
        for id, job in self.policy_model.jobs.items():
            real = jobs[id]
            assert real.body == job.body
            assert real.reserves - real.attempts_base == job.reserves - job.base
            assert (real.expires_from or real.created_at) == job.aged_from
            dead = DeadLetter.unpack(real.dead_letter) if real.dead_letter else None
            found = dead and (
                REASON_NAMES[dead.reason], dead.source.decode(), dead.attempts, dead.first_at, dead.last_at
            )  # fmt: skip
            assert found == job.dead
            if job.state in ("reserved", "delayed"):
                assert real.deadline == job.deadline, job
        super().jobs_agree()

    def teardown(self) -> None:
        """Disconnect all clients, end all delays, and let all policies act: a tick is due only for buried jobs."""
        for number, actor in self.actors.items():
            self.model.disconnect(number)
            actor.disconnect()
        self.world.advance(100)


def near(expected: int, found: int) -> int:
    """Return *found*, at most SWEEP from *expected*."""
    assert abs(expected - found) <= SWEEP
    return found


pytestmark = pytest.mark.timeout(600)  # CI runs the pure build at the same time as all other tests, with little CPU

SETTINGS = settings(
    max_examples=examples(15),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much],
)


class TestPolicies(PolicyMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = SETTINGS


class LimitedMachine(PolicyMachine):
    """Limits of the server refuse jobs, and sometimes the dead-letter tube."""

    limits = ModelLimits(jobs=9, tube_jobs=4, tubes=4)


class TestPoliciesWithLimits(LimitedMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = SETTINGS


@pytest.mark.pure
class TestPoliciesWithTubeSets(WithTubeSets, PolicyMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(SETTINGS, max_examples=examples(10))
