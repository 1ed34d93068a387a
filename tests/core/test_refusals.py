"""Refusals by limits, memory and the journal: the reason returned, and the counters of limits that were hit."""

from __future__ import annotations

import pytest

from greenstalk_server.core.jobs.body_cache import BODY_COST, JOB_COST, Bodies
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.limits import LIMIT_NAMES, Limits, job_quotas
from greenstalk_server.core.operations import putting
from greenstalk_server.core.outcomes import Refusal
from tests.support.world import FullJournal, World

BODY = b"x" * 40


def put(world: World, tube: bytes = b"mail") -> int:
    return world.checked(putting.put_into(world.broker, tube, 0, 0, 60 * SECOND, BODY, world.now))


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        (Limits(jobs=1), Refusal.JOBS),
        (Limits(bytes=79), Refusal.BYTES),
        (Limits(tube_jobs=1), Refusal.TUBE_JOBS),
        (Limits(tube_bytes=79), Refusal.TUBE_BYTES),
    ],
)
def test_put_returns_the_limit_that_refused_it(world: World, limits: Limits, refusal: int) -> None:
    world.broker.quotas = job_quotas(limits)
    assert put(world) == 1
    assert put(world) == refusal
    counts = world.broker.limit_counters.counts()
    assert {limit: count for limit, count in counts.items() if count} == {LIMIT_NAMES[refusal]: 1}


def test_put_into_a_tube_beyond_the_limit_of_tubes_is_refused(world: World) -> None:
    world.broker.quotas = job_quotas(Limits(tubes=2))
    assert put(world) == 1
    assert put(world, b"other") == Refusal.TUBES
    assert put(world) == 3


def test_put_without_memory_is_refused_and_counts_no_limit(world: World) -> None:
    world.broker.bodies = Bodies(JOB_COST + BODY_COST + len(BODY), can_evict=False)
    assert put(world) == 1
    assert put(world) == Refusal.MEMORY
    assert not any(world.broker.limit_counters.counts().values())


def test_put_without_room_in_the_journal_is_refused(world: World) -> None:
    world.broker.journal = FullJournal()
    assert put(world) == Refusal.JOURNAL


def test_watch_returns_the_limit_that_refused_it(world: World) -> None:
    client = world.client()
    world.broker.max_watched = 2
    world.broker.quotas = job_quotas(Limits(tubes=2))
    assert client.watch(b"first") == 2
    assert client.watch(b"second") == Refusal.WATCHED
    world.broker.max_watched = 0
    assert client.watch(b"second") == Refusal.TUBES
    assert client.watch(b"first") == 2


def test_query_for_room_changes_nothing() -> None:
    """The dashboard queries for room. Only a put may reset `is_exhausted`."""
    bodies = Bodies(10_000, can_evict=True)
    bodies.is_exhausted = True
    assert bodies.has_room(0) and bodies.is_exhausted
    assert bodies.admit(0) and not bodies.is_exhausted
