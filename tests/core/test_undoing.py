"""The undo of deletions and changes of jobs: what comes back, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from greenstalk_server.core.job_attributes import DeadLetter, DeadLetterReason
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.operations import editing, policy_changes
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.core.policies.policy import PolicySet, parse_policy
from greenstalk_server.core.policies.tube_policy_state import buried_at
from greenstalk_server.core.tags.tags import tags_of
from tests.support import invariants
from tests.support.world import FullJournal, World


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


# Changes


def changed(world: World, id: int, change: Callable[[], object]) -> tuple[Job, Job]:
    """Make *change* to job *id*; return copies from before and after."""
    before = world.snapshot(id)
    change()
    return before, world.snapshot(id)


def facts(job: Job) -> tuple[object, ...]:
    """Return all that an undo restores, except the place among jobs in the same state."""
    return (
        (job.tube.name, job.state, job.pri, job.delay, job.ttr, job.body, job.created_at, job.events, job.reserves),
        (job.buries, job.kicks, job.releases, job.timeouts, job.attempts_base, job.expires_from, job.dead_letter),
    )


CHANGES: dict[str, Callable[[World, int], object]] = {
    "kick": lambda world, id: world.kick_job(id),
    "bury": lambda world, id: world.bury_job(id),
    "move": lambda world, id: world.edit(id, tube=b"other"),
    "pri": lambda world, id: world.edit(id, pri=9),
    "delay": lambda world, id: world.edit(id, delay=50),
    "ttr and body": lambda world, id: world.edit(id, ttr=7, body=b"longer body"),
}


@pytest.mark.parametrize("state", ["ready", "delayed", "buried"])
@pytest.mark.parametrize("name", CHANGES)
def test_changed_job_gets_its_former_fields_and_history_back(name: str, state: str) -> None:
    world = World()
    actor = world.client()
    id = actor.put(5, 0, 30)
    assert actor.reserve(0) == id
    actor.bury(id, 6) if state == "buried" else actor.release(id, 6, 100 if state == "delayed" else 0)
    world.advance(1)
    before, after = changed(world, id, lambda: CHANGES[name](world, id))
    world.advance(1)
    assert world.revert(before, after) == 0
    assert facts(world.broker.jobs[id]) == facts(before)
    if state == "delayed":
        assert world.broker.jobs[id].deadline == before.deadline
    assert world.tubes() == [b"default"]


def test_kicked_job_is_buried_again_with_its_burial_time() -> None:
    world = World()
    ids = [world.client().put(0, 0, 30) for _ in range(2)]
    for id in ids:
        world.bury_job(id)
        world.advance(1)
    burial = buried_at(world.broker.jobs[ids[0]])
    before, after = changed(world, ids[0], lambda: world.kick_job(ids[0]))
    assert world.revert(before, after) == 0
    assert buried_at(world.broker.jobs[ids[0]]) == burial
    assert world.buried() == [ids[1], ids[0]]


def test_buried_job_keeps_its_place_if_its_priority_returns() -> None:
    world = World()
    ids = [world.client().put(0, 0, 30) for _ in range(2)]
    for id in ids:
        world.bury_job(id)
    before, after = changed(world, ids[0], lambda: world.edit(ids[0], pri=3))
    assert world.revert(before, after) == 0
    assert world.buried() == ids


def test_job_whose_former_delay_is_over_returns_ready() -> None:
    world = World()
    id = world.client().put(0, 10, 30)
    before, after = changed(world, id, lambda: world.bury_job(id))
    world.advance(20)
    assert world.revert(before, after) == 0
    assert world.state(id) == "ready"


def test_change_is_undone_after_the_delay_that_it_set() -> None:
    world = World()
    id = world.client().put(0, 0, 30)
    before, after = changed(world, id, lambda: world.edit(id, delay=10))
    world.advance(20)
    assert world.state(id) == "ready"
    assert world.revert(before, after) == 0
    assert world.broker.jobs[id].delay == 0


def test_redriven_job_returns_as_a_dead_letter() -> None:
    world = World()
    id = world.client().put(0, 0, 30)
    world.broker.jobs[id].dead_letter = DeadLetter(DeadLetterReason.ATTEMPTS, b"source", 3, 1, 2).pack()
    before, after = changed(world, id, lambda: world.checked(editing.redrive(world.broker, id, world.now)))
    assert world.broker.jobs[id].tube.name == b"source"
    assert world.revert(before, after) == 0
    assert facts(world.broker.jobs[id]) == facts(before)
    assert world.tubes() == [b"default"]


def test_deleted_reserved_and_changed_jobs_stay_as_they_are() -> None:
    world = World()
    actor = world.client()
    id = actor.put(0, 0, 30)
    before, after = changed(world, id, lambda: world.edit(id, pri=3))
    assert actor.reserve(0) == id
    assert world.revert(before, after) == Refusal.RESERVED
    actor.release(id, 3, 0)
    assert world.revert(before, after) == Refusal.CHANGED
    assert world.delete_job(id)
    assert world.revert(before, after) == Refusal.DELETED


def test_job_that_was_changed_twice_is_undone_from_the_last_change() -> None:
    world = World()
    id = world.client().put(0, 0, 30)
    first = changed(world, id, lambda: world.edit(id, pri=3))
    second = changed(world, id, lambda: world.edit(id, tube=b"other"))
    assert world.revert(*first) == Refusal.CHANGED
    assert world.revert(*second) == 0
    assert world.revert(*first) == 0
    assert (world.broker.jobs[id].pri, world.broker.jobs[id].tube.name) == (0, b"default")


def test_move_back_is_refused_by_caps_limits_and_keys() -> None:
    world = World(Limits(tube_jobs=1))
    actor = world.client()
    id = actor.put(0, 0, 30)
    moved = changed(world, id, lambda: world.edit(id, tube=b"other"))
    other = actor.put(0, 0, 30)
    assert world.revert(*moved) == Refusal.TUBE_JOBS
    assert world.delete_job(other)
    assert world.revert(*moved) == 0

    world = World()
    actor = world.client()
    apply(world, {"max_jobs": 1, "overflow": "drop-oldest"})
    id = actor.put(0, 0, 30)
    moved = changed(world, id, lambda: world.edit(id, tube=b"other"))
    kept = actor.put(0, 0, 30)
    assert world.revert(*moved) == Refusal.TUBE_FULL
    assert list(world.broker.jobs) == [id, kept]

    world = World()
    actor = world.client()
    id = int(str(actor.put_tagged("idp:k")))
    moved = changed(world, id, lambda: world.edit(id, tube=b"other"))
    actor.put_tagged("idp:k")
    assert world.revert(*moved) == Refusal.KEY_TAKEN


def test_full_journal_refuses_and_leaves_no_tube() -> None:
    world = World()
    id = world.client().put_in_tube(b"gone", 0, 0, 30)
    moved = changed(world, id, lambda: world.edit(id, tube=b"other"))
    world.broker.journal = FullJournal()
    assert world.revert(*moved) == Refusal.JOURNAL
    assert world.tubes() == [b"default", b"other"]


def test_tags_stay_in_force_and_a_job_waits_for_its_group_again() -> None:
    world = World()
    actor = world.client()
    member = int(str(actor.put_tagged("grp:g")))
    id = int(str(actor.put_tagged("aft:g grp:h con:c")))
    before, after = changed(world, id, lambda: world.kick_job(id))
    assert world.revert(before, after) == 0
    assert world.state(id) == "delayed"
    assert world.broker.groups[b"h"].members == 1
    assert world.delete_job(member)
    world.advance(1)
    assert world.state(id) == "ready"
    invariants.check(world.broker)


def test_wait_for_a_job_ends_when_the_job_is_buried_again() -> None:
    world = World()
    id = world.client().put(0, 0, 30)
    world.bury_job(id)
    before, after = changed(world, id, lambda: world.kick_job(id))
    waiter = world.client()
    waiter.wait_for_job(id)
    assert world.revert(before, after) == 0
    assert waiter.ended == ["BURIED"]
