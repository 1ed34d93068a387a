"""Effects of policies on the jobs, tubes and waits of the broker."""

from __future__ import annotations

from typing import Any

import pytest

from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, SECOND, Job
from greenstalk_server.core.jobs.job_attributes import DeadLetter, DeadLetterReason
from greenstalk_server.core.outcomes import EditOutcome, Refusal
from greenstalk_server.core.policies.policy import PolicySet, parse_policy
from tests.support.world import World


def set_policies(world: World, **policies: dict[str, Any]) -> None:
    """Replace the policies by *policies*, and let the broker apply them to existing jobs."""
    world.broker.set_policies(
        PolicySet([parse_policy(name, document) for name, document in policies.items()]), world.now
    )
    world.advance(0.01)
    assert not world.broker.is_sweeping


@pytest.fixture
def world() -> World:
    return World()


def job_of(world: World, id: int) -> Job:
    return world.broker.jobs[id]


def put(world: World, tube: bytes = b"mail", body: bytes = b"hello", pri: int = 0, delay: int = 0) -> int:
    return world.broker.put_into(tube, pri, delay * SECOND, 60 * SECOND, body, world.now)


def fail(world: World, times: int, tube: bytes = b"mail") -> int:
    """Reserve and release a job of *tube* with delay 0, *times* times; return its id."""
    worker = world.client(watch=[tube])
    id = 0
    for _ in range(times):
        job = world.broker.reserve(worker.client, world.now)
        assert job is not None
        id = job.id
        assert world.broker.release(worker.client, id, 0, 0, world.now)
        world.broker.check()
    world.broker.disconnect(worker.client, world.now)
    return id


def test_job_that_fails_max_attempts_times_becomes_a_dead_letter(world: World) -> None:
    set_policies(world, mail={"tubes": ["mail"], "max_attempts": 3, "dead_letter": "mail.failed"})
    id = put(world)
    fail(world, 2)
    assert job_of(world, id).tube.name == b"mail"
    fail(world, 1)
    job = job_of(world, id)
    assert (job.tube.name, job.state, job.body) == (b"mail.failed", READY, b"hello")
    dead = DeadLetter.unpack(job.dead_letter)
    assert dead == DeadLetter(DeadLetterReason.ATTEMPTS, b"mail", 3, world.now, world.now)


def test_job_without_a_dead_letter_tube_is_buried_and_a_kick_starts_a_new_count(world: World) -> None:
    set_policies(world, mail={"tubes": ["mail"], "max_attempts": 2})
    id = put(world)
    fail(world, 2)
    assert job_of(world, id).state == BURIED
    world.broker.kick_job(id, world.now)
    fail(world, 1)
    assert job_of(world, id).state == READY
    fail(world, 1)
    assert job_of(world, id).state == BURIED


def test_retry_delay_grows_up_to_its_maximum(world: World) -> None:
    policy = {"tubes": ["*"], "retry_delay": 10, "retry_delay_max": 35, "retry_jitter": 0}
    set_policies(world, retries=policy)
    id = put(world)
    delays = []
    for _ in range(4):
        fail(world, 1)
        assert job_of(world, id).state == DELAYED
        delays.append((job_of(world, id).deadline - world.now) // SECOND)
        world.advance(40)
    assert delays == [10, 20, 35, 35]


def test_waiting_jobs_expire_and_reserved_ones_when_they_return(world: World) -> None:
    set_policies(world, old={"tubes": ["mail"], "expire_after": 5})
    first, second = put(world), put(world, delay=100)
    worker = world.client(watch=[b"mail"])
    assert world.broker.reserve(worker.client, world.now) is job_of(world, first)
    world.advance(5)
    assert second not in world.broker.jobs
    assert first in world.broker.jobs
    world.broker.release(worker.client, first, 0, 0, world.now)
    assert first not in world.broker.jobs


def test_max_reserved_lets_workers_wait_until_a_slot_is_free(world: World) -> None:
    set_policies(world, few={"tubes": ["mail"], "max_reserved": 1})
    first, second = put(world), put(world)
    one, two = world.client(watch=[b"mail"]), world.client(watch=[b"mail"])
    assert one.reserve() == first
    assert two.reserve() == "WAITING"
    world.broker.delete(one.client, first, world.now)
    assert two.client.outcome is job_of(world, second)


def test_rate_allows_a_burst_and_then_one_start_per_interval(world: World) -> None:
    set_policies(world, slow={"tubes": ["mail"], "rate": 2, "rate_burst": 2})
    ids = [put(world) for _ in range(4)]
    worker = world.client(watch=[b"mail"])
    assert [worker.reserve(), worker.reserve()] == ids[:2]
    assert worker.reserve() == "WAITING"
    world.advance(0.5)
    assert worker.client.outcome is job_of(world, ids[2])


def test_caps_refuse_or_make_room(world: World) -> None:
    set_policies(
        world,
        full={"tubes": ["a"], "max_jobs": 2},
        drop={"tubes": ["b"], "max_jobs": 2, "overflow": "drop-oldest"},
        move={"tubes": ["c"], "max_bytes": 10, "overflow": "dead-letter-oldest", "dead_letter": "late"},
    )
    assert [put(world, b"a") for _ in range(3)][-1] == Refusal.TUBE_FULL
    ids = [put(world, b"b") for _ in range(3)]
    assert ids[0] not in world.broker.jobs and ids[1] in world.broker.jobs
    ids = [put(world, b"c") for _ in range(3)]
    assert [job_of(world, id).tube.name for id in ids] == [b"late", b"c", b"c"]
    assert put(world, b"c", b"x" * 11) == Refusal.TUBE_FULL
    world.broker.check()


def test_unique_put_returns_the_first_job(world: World) -> None:
    set_policies(world, once={"tubes": ["mail"], "unique": "body", "unique_for": "unfinished"})
    first = put(world, pri=10)
    assert put(world, pri=5) == first
    assert job_of(world, first).pri == 5
    assert put(world, body=b"other") != first
    worker = world.client(watch=[b"mail"])
    worker.reserve()
    assert put(world) == first
    world.broker.delete(worker.client, first, world.now)
    assert put(world) > first


def test_unique_key_with_a_time_outlives_the_finished_job(world: World) -> None:
    set_policies(world, once={"tubes": ["mail"], "unique": "body", "unique_for": 10})
    first = put(world)
    worker = world.client(watch=[b"mail"])
    worker.reserve()
    world.broker.delete(worker.client, first, world.now)
    world.advance(9)
    assert put(world) == first
    world.advance(1)
    second = put(world)
    assert second > first
    world.broker.delete(None, second, world.now)
    assert put(world) > second


def test_put_is_copied_to_other_tubes(world: World) -> None:
    set_policies(
        world, fan={"tubes": ["mail"], "copy_to": ["audit", "search"]}, cap={"tubes": ["search"], "max_jobs": 1}
    )
    id = put(world)
    assert sorted(job.tube.name for job in world.broker.jobs.values()) == [b"audit", b"mail", b"search"]
    assert len({job.id for job in world.broker.jobs.values()}) == 3
    assert put(world) == Refusal.TUBE_FULL
    assert len(world.broker.jobs) == 3 and id in world.broker.jobs
    world.broker.check()


def test_redriven_job_returns_to_its_tube(world: World) -> None:
    set_policies(world, mail={"tubes": ["mail"], "max_attempts": 1, "dead_letter": "failed"})
    id = put(world)
    fail(world, 1)
    assert world.broker.redrive(id, world.now) == EditOutcome.DONE
    assert job_of(world, id).tube.name == b"mail" and not job_of(world, id).dead_letter
    assert world.broker.redrive(id, world.now) == EditOutcome.NOT_FOUND


def test_policies_apply_to_existing_jobs(world: World) -> None:
    ids = [put(world) for _ in range(600)]
    fail(world, 3)
    world.advance(20)
    set_policies(world, mail={"tubes": ["mail"], "max_attempts": 2, "dead_letter": "failed", "expire_after": 10})
    world.advance(1)
    assert job_of(world, ids[0]).tube.name == b"failed"
    assert list(world.broker.jobs) == [ids[0]]


def test_tube_that_has_starts_left_is_not_due_before_its_burst_is_full(world: World) -> None:
    set_policies(world, mail={"tubes": ["mail"], "rate": 10, "rate_burst": 100})
    worker = world.client(watch=[b"mail"])
    for _ in range(50):
        put(world)
        assert world.broker.reserve(worker.client, world.now) is not None
    due = world.broker.tick(world.now + SECOND)  # the first start has armed a timer for its own end
    assert due is not None and due >= world.now + 5 * SECOND
