"""The work of policies in one tick, and of a reserve that skips tubes whose limits are exhausted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from greenstalk_server.core.broker import SLICE
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import finishing, policy_changes, reserving, ticking
from greenstalk_server.core.policies.policy import PolicySet, parse_policy
from tests.support.policies import put, set_policies
from tests.support.world import Actor, World

JOBS = 3 * SLICE + 10


def moved_by_each_tick(world: World, count: Callable[[], int]) -> list[int]:
    """Tick until nothing is due in the next second; return the change of *count* at each tick."""
    moved = []
    until = world.now + 10**9
    before = count()
    while world.due is not None and world.due <= until:
        world.now = max(world.now, world.due)
        world.due = ticking.tick(world.broker, world.now)
        moved.append(abs(count() - before))
        before = count()
    world.check()
    return moved


@pytest.mark.parametrize("expired_to", ["drop", "dead-letter"])
def test_jobs_that_expire_together_leave_in_slices(expired_to: str) -> None:
    world = World()
    policy = {"tubes": ["mail"], "expire_after": 5, "expired_to": expired_to, "dead_letter": "d"}
    set_policies(world, old=policy)
    with world.in_bulk():
        for _ in range(JOBS):
            put(world)
        world.advance(4.5)
        mail = world.broker.tubes[b"mail"]
        moved = moved_by_each_tick(world, lambda: mail.job_count)
    assert sum(moved) == JOBS and max(moved) <= SLICE
    assert len(world.broker.jobs) == (0 if expired_to == "drop" else JOBS)


def test_buried_jobs_that_expire_together_leave_in_slices() -> None:
    world = World()
    set_policies(world, old={"tubes": ["mail"], "buried_expire_after": 5})
    with world.in_bulk():
        for _ in range(JOBS):
            finishing.bury_job(world.broker, put(world), world.now)
        world.advance(4.5)
        moved = moved_by_each_tick(world, lambda: len(world.broker.jobs))
    assert sum(moved) == JOBS and max(moved) <= SLICE


POLICIES = [
    {"max_attempts": 1, "dead_letter": "d"},
    {"expire_after": 1, "expired_to": "dead-letter", "dead_letter": "d"},
    {"max_jobs": 1, "overflow": "drop-oldest"},
    {"max_jobs": 1, "overflow": "dead-letter-oldest", "dead_letter": "d"},
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: next(iter(policy)))
def test_new_policy_is_applied_in_slices(policy: dict[str, Any]) -> None:
    world = World()
    with world.in_bulk():
        for _ in range(JOBS):
            put(world)
        for job in world.broker.jobs.values():
            job.reserves = 1  # as after one failed attempt each
        world.advance(2)
        mail = world.broker.tubes[b"mail"]
        policy_changes.set_policies(
            world.broker, PolicySet([parse_policy("new", {"tubes": ["mail"], **policy})]), world.now
        )
        moved = moved_by_each_tick(world, lambda: mail.job_count)
    assert sum(moved) >= JOBS - 1 and max(moved) <= SLICE


# Exhausted limits


def calls_of(action: Callable[[], object]) -> int:
    """Return the number of functions, in Python and in C, that *action* calls."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def exhausted(policy: dict[str, Any], tubes: int, jobs: int) -> tuple[World, Actor]:
    """Return a world in which each of *tubes* has *jobs* ready jobs that *policy* holds, and a client that watches."""
    world = World()
    set_policies(world, limit={"tubes": ["t*"], **policy})
    names = [b"t%d" % at for at in range(tubes)]
    worker, other = world.client(watch=names), world.client(watch=names)
    with world.in_bulk():
        for name in names:
            for _ in range(jobs + 1):
                put(world, name)
        while other.reserve(0) != "TIMED_OUT":
            pass
    assert len(other.reserved) == tubes
    assert worker.reserve(0) == "TIMED_OUT"
    return world, worker


@pytest.mark.pure
@pytest.mark.parametrize("policy", [{"max_reserved": 1}, {"rate": 0.001}], ids=["max_reserved", "rate"])
@pytest.mark.parametrize("tubes", [1, 40], ids=["one tube", "tube set"])
def test_jobs_behind_an_exhausted_limit_cost_a_reserve_nothing(policy: dict[str, Any], tubes: int) -> None:
    """A reserve makes no more calls with more jobs or, in a tube set, more tubes. Compiled code hides its calls."""
    counts = set()
    for size in (1, 200):
        world, worker = exhausted(policy, tubes, size)
        counts.add(calls_of(lambda: reserving.reserve(world.broker, worker.client, world.now)))  # noqa: B023  called at once
    assert len(counts) == 1
    if tubes > 1:
        world, worker = exhausted(policy, tubes + 20, 1)
        counts.add(calls_of(lambda: reserving.reserve(world.broker, worker.client, world.now)))
        assert len(counts) == 1


def test_new_policies_arm_the_timers_of_many_tubes_in_slices() -> None:
    world = World()
    with world.in_bulk():
        for number in range(JOBS):
            put(world, b"tube-%d" % number)
        policy_changes.set_policies(
            world.broker, PolicySet([parse_policy("old", {"tubes": ["*"], "expire_after": 60})]), world.now
        )
        moved = moved_by_each_tick(world, lambda: len(world.broker.sweep.tubes))
    assert sum(moved) == 2 * JOBS and max(moved) <= SLICE


def test_tube_that_has_starts_left_is_not_due_before_its_burst_is_full() -> None:
    world = World()
    set_policies(world, mail={"tubes": ["mail"], "rate": 10, "rate_burst": 100})
    worker = world.client(watch=[b"mail"])
    for _ in range(50):
        put(world)
        assert reserving.reserve(world.broker, worker.client, world.now) is not None
    due = ticking.tick(world.broker, world.now + SECOND)  # the first start has armed a timer for its own end
    assert due is not None and due >= world.now + 5 * SECOND
