"""The return of deleted jobs, for an operator who undoes a deletion. Pure."""

from __future__ import annotations

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.core.policies.policy import UniqueFor
from greenstalk_server.core.policies.tube_policy_state import TubePolicyState, key_of
from greenstalk_server.core.tags.idempotency import scope_of
from greenstalk_server.core.tags.tags import NO_DEADLINE, TaggedJob
from greenstalk_server.core.transitions.enforcing import duplicate_of
from greenstalk_server.core.transitions.placing import insert
from greenstalk_server.core.transitions.tagging import delay_for_group
from greenstalk_server.core.tubes.tube import Tube


def undelete(broker: Broker, deleted: Job, now: int) -> int:
    """Add a copy of the *deleted* job to the tube of the same name; return 0 or a Refusal.

    No client may hold *deleted*, and its body must be in memory. Its fields are those before the deletion.

    The job keeps its id, priority, ttr, tags, age, counts and history. A job that was reserved becomes ready, as does a
    job whose delay is over, or whose group is empty. A buried job becomes the last one of its tube. Unlike a put, the
    return makes no copies, and evicts no other job: the caps of the tube's policy refuse it. A refusal changes nothing.
    """
    if deleted.id in broker.jobs or deleted.id >= broker.next_id:
        return Refusal.ID_TAKEN
    name = deleted.tube.name
    if name not in broker.tubes and broker.quotas is not None:
        refusal = broker.quotas.refuse_tube(len(broker.tubes))
        if refusal:
            return refusal
    tube = broker.tube(name)
    refusal = _undelete_in(broker, deleted, tube, now)
    broker.drop_if_unneeded(tube)
    return refusal


def _undelete_in(broker: Broker, deleted: Job, tube: Tube, now: int) -> int:
    assert deleted.body is not None
    job = deleted.copy_with(tube, deleted.body)
    _update_state(broker, job, now)
    job.unique_key = b""
    refusal = _refuse(broker, job, now)
    if refusal:
        return refusal
    if job.state == BURIED:
        broker.burials += 1
        job.burial_number = broker.burials
    if not broker.journal.undelete(job):
        return Refusal.JOURNAL
    insert(broker, job, now)
    return 0


def _update_state(broker: Broker, job: Job, now: int) -> None:
    """Set the state that the detached *job* has at *now*."""
    if isinstance(job, TaggedJob) and job.more_tags is not None:
        job.more_tags.is_key_freed = False
    job.former_state = job.former_deadline = 0
    job.is_truncated = False
    is_due = job.state == DELAYED and not now < job.deadline < NO_DEADLINE
    if is_due and isinstance(job, TaggedJob) and delay_for_group(broker, job):
        return
    if is_due or job.state in (READY, RESERVED):
        job.state = READY
        job.ready_since = now  # `ReadyQueue.add` takes jobs in the order of `ready_since`


def _refuse(broker: Broker, job: Job, now: int) -> int:
    """Return why the detached *job* may not return to its tube, or 0. Set its unique key."""
    tube = job.tube
    if broker.bodies is not None and not broker.bodies.admit(job.size):
        return Refusal.MEMORY
    if broker.quotas is not None:
        refusal = broker.quotas.refuse_job(tube, job.size, len(broker.jobs))
        if refusal:
            return refusal
    if isinstance(job, TaggedJob) and job.idempotency_key:
        key = job.idempotency_key
        is_held = tube.idempotency is not None and key in tube.idempotency.holders
        if is_held or broker.retained_keys.find(scope_of(tube.name), key, now):
            return Refusal.KEY_TAKEN
    return _refuse_by_policy(broker, job, tube.policy_state, now) if tube.policy_state is not None else 0


def _refuse_by_policy(broker: Broker, job: Job, policy_state: TubePolicyState, now: int) -> int:
    """Return the Refusal by the policy, or 0. Set the unique key of *job*."""
    tube, policy = job.tube, policy_state.policy
    if 0 < policy.max_jobs <= tube.job_count or 0 < policy.max_bytes < tube.body_bytes + job.size:
        return Refusal.TUBE_FULL
    if policy.unique_for == UniqueFor.WAITING and job.state == BURIED:  # only waiting jobs exclude each other
        job.unique_key = key_of(job.body or b"")
        return 0
    return Refusal.KEY_TAKEN if duplicate_of(broker, job, policy_state, now) else 0
