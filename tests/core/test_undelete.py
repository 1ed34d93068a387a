"""The return of deleted jobs: what comes back, and what is refused."""

from __future__ import annotations

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.operations import policy_changes
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.core.policies.policy import PolicySet, parse_policy
from greenstalk_server.core.tags.tags import tags_of
from tests.support.world import World


def deleted(world: World, id: int) -> Job:
    """Delete job *id*, and return a copy from before."""
    copy = world.snapshot(id)
    assert world.delete_job(id, is_forced=True)
    return copy


def apply(world: World, policy: dict[str, object]) -> None:
    policies = PolicySet([parse_policy("p", {"tubes": ["*"], **policy})])
    policy_changes.set_policies(world.broker, policies, world.now)
    world.advance(1)


def test_job_returns_with_its_id_priority_ttr_body_age_and_counts() -> None:
    world = World()
    actor = world.client()
    id = actor.put(7, 0, 30)
    assert actor.reserve(0) == id
    actor.release(id, 9, 0)
    before = world.stats_job(id)
    copy = deleted(world, id)
    assert world.undelete(copy) == 0
    assert world.stats_job(id) == before
    assert actor.put(0, 0, 30) == id + 1


def test_delay_continues_as_if_the_job_had_not_been_deleted() -> None:
    world = World()
    first, second = world.client().put(0, 10, 30), world.client().put(0, 60, 30)
    copies = [deleted(world, first), deleted(world, second)]
    world.advance(20)
    assert [world.undelete(copy) for copy in copies] == [0, 0]
    assert (world.state(first), world.state(second)) == ("ready", "delayed")
    assert world.stats_job(second).time_left == 39
    world.advance(40)
    assert world.state(second) == "ready"


def test_buried_job_returns_as_the_last_buried_one() -> None:
    world = World()
    ids = [world.client().put(0, 0, 30) for _ in range(2)]
    for id in ids:
        world.bury_job(id)
    assert world.undelete(deleted(world, ids[0])) == 0
    assert world.buried() == [ids[1], ids[0]]


def test_reserved_job_returns_ready() -> None:
    world = World()
    actor = world.client()
    id = actor.put(0, 0, 30)
    assert actor.reserve(0) == id
    copy = deleted(world, id)
    assert world.undelete(copy) == 0
    assert actor.reserve(0) == id


def test_waiting_client_gets_a_job_that_returns() -> None:
    world = World()
    actor = world.client()
    id = actor.put(0, 0, 30)
    copy = deleted(world, id)
    actor.reserve(None)
    assert world.undelete(copy) == 0
    assert actor.ended == [id]


def test_existing_and_unassigned_ids_are_refused() -> None:
    world = World()
    id = world.client().put(0, 0, 30)
    copy = world.snapshot(id)
    assert world.undelete(copy) == Refusal.ID_TAKEN
    assert World().undelete(copy) == Refusal.ID_TAKEN
    assert list(world.broker.jobs) == [id]


def test_tags_return_and_a_taken_idempotency_key_is_refused() -> None:
    world = World()
    actor = world.client()
    id = int(str(actor.put_tagged("idp:k grp:g con:c:2")))
    copy = deleted(world, id)
    other = int(str(actor.put_tagged("idp:k")))
    assert world.undelete(copy) == Refusal.KEY_TAKEN
    assert world.delete_job(other)
    assert world.undelete(copy) == 0
    tags = tags_of(world.broker.jobs[id])
    assert (tags.idempotency_key, tags.group, tags.concurrency_key, tags.concurrency_limit) == (b"k", b"g", b"c", 2)
    assert world.broker.groups[b"g"].members == 1


def test_limits_of_the_server_refuse() -> None:
    world = World(Limits(jobs=1))
    copy = deleted(world, world.client().put(0, 0, 30))
    world.client().put(0, 0, 30)
    assert world.undelete(copy) == Refusal.JOBS


def test_refused_return_leaves_no_tube() -> None:
    world = World(Limits(jobs=1))
    actor = world.client()
    copy = deleted(world, actor.put_in_tube(b"gone", 0, 0, 30))
    actor.put(0, 0, 30)
    assert world.undelete(copy) == Refusal.JOBS
    assert world.tubes() == [b"default"]


def test_cap_of_the_policy_refuses_and_evicts_nothing() -> None:
    world = World()
    apply(world, {"max_jobs": 1, "overflow": "drop-oldest"})
    copy = deleted(world, world.client().put(0, 0, 30))
    kept = world.client().put(0, 0, 30)
    assert world.undelete(copy) == Refusal.TUBE_FULL
    assert list(world.broker.jobs) == [kept]


def test_unique_body_that_is_taken_is_refused() -> None:
    world = World()
    apply(world, {"unique": "body"})
    copy = deleted(world, world.client().put(0, 0, 30))
    other = world.client().put(0, 0, 30)
    assert world.undelete(copy) == Refusal.KEY_TAKEN
    assert world.delete_job(other)
    assert world.undelete(copy) == 0
