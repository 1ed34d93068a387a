"""The undo of deletions and changes of jobs, for an operator. Pure."""

from __future__ import annotations

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.outcomes import Refusal, WaitOutcome
from greenstalk_server.core.policies.policy import UniqueFor
from greenstalk_server.core.policies.tube_policy_state import TubePolicyState, key_of
from greenstalk_server.core.tags.idempotency import scope_of
from greenstalk_server.core.tags.tags import NO_DEADLINE, TaggedJob
from greenstalk_server.core.transitions.enforcing import duplicate_of
from greenstalk_server.core.transitions.placing import insert, replace
from greenstalk_server.core.transitions.tagging import delay_for_group
from greenstalk_server.core.transitions.waiting import end_job_waits
from greenstalk_server.core.tubes.tube import Tube


def undelete(broker: Broker, deleted: Job, now: int) -> int:
    """Add a copy of the *deleted* job to the tube of the same name; return 0 or a Refusal.

    No client may hold *deleted*, and its body must be in memory. Its fields are the same as before the deletion.

    The job keeps its id, priority, ttr, tags, age, counts and history. A job that was reserved becomes ready, as does a
    job whose delay is over, or whose group is empty. A buried job becomes the last one of its tube. Unlike a put, this
    operation makes no copies and evicts no other job: it is refused if the tube is at a cap of its policy. A refusal
    changes nothing.
    """
    if deleted.id in broker.jobs or not broker.ids.is_older(deleted.id, broker.next_id):
        return Refusal.ID_TAKEN
    if deleted.travel or broker.is_elsewhere(deleted.tube.name):
        return Refusal.OTHER_SHARD
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


def revert(broker: Broker, before: Job, after: Job, body: bytes, now: int) -> int:
    """Give a job its former fields and history, from *before*, and *body*; return 0 or a Refusal.

    *before* and *after* describe the job before and after the change to undo, each in a tube that has only the name.
    The job must be as the change left it, except that its delay may be over. *after* needs only the last of its events,
    and neither tags nor other attributes.

    The job gets the state that `undelete` would give to it, but a job that is buried before and after the change keeps
    its place. If the change moved the job, the undo can be refused for the same reasons as `undelete`; otherwise only
    the journal can refuse it. A refusal changes nothing.
    """
    job = broker.jobs.get(before.id)
    if job is None:
        has_moved = broker.moves is not None and before.id in broker.moves.locations
        return Refusal.OTHER_SHARD if has_moved else Refusal.DELETED
    if job.state == RESERVED:
        return Refusal.RESERVED
    if not _is_as_left(job, after):
        return Refusal.CHANGED
    name = before.tube.name
    if name not in broker.tubes and broker.quotas is not None:
        refusal = broker.quotas.refuse_tube(len(broker.tubes))
        if refusal:
            return refusal
    tube = broker.tube(name)
    refusal = _revert_in(broker, job, before, tube, body, now)
    broker.drop_if_unneeded(tube)
    return refusal


def _is_as_left(job: Job, after: Job) -> bool:
    """Return whether *job*, which no client holds, is as the change left it; its delay may be over."""
    size = job_history.EVENT.size
    return (
        (job.state == after.state or (job.state == READY and after.state == DELAYED))
        and job.events[-size:] == after.events[-size:]
        and job.tube.name == after.tube.name
        and (job.pri, job.delay, job.ttr) == (after.pri, after.delay, after.ttr)
        and (job.reserves, job.timeouts, job.releases) == (after.reserves, after.timeouts, after.releases)
        and (job.buries, job.kicks) == (after.buries, after.kicks)
    )


def _revert_in(broker: Broker, job: Job, before: Job, tube: Tube, body: bytes, now: int) -> int:
    new = job.copy_with(tube, body)
    before.copy_fields_to(new)
    new.pri, new.delay, new.ttr, new.reserved_at = before.pri, before.delay, before.ttr, job.reserved_at
    _update_state(broker, new, now)
    new.unique_key = b""
    if tube is not job.tube:
        refusal = _refuse_move(broker, new, now)
        if refusal:
            return refusal
    elif tube.policy_state is not None and tube.policy_state.keys is not None:
        new.unique_key = key_of(body)
    if new.state == BURIED:
        new.burial_number = job.burial_number
        if job.state != BURIED or tube is not job.tube:
            broker.burials += 1
            new.burial_number = broker.burials
    if not broker.journal.replace(job, new):
        return Refusal.JOURNAL
    replace(broker, job, new, now)
    if new.state == BURIED and job.state != BURIED and broker.job_waiters:
        end_job_waits(broker, job.id, WaitOutcome.BURIED)
    broker.drop_if_unneeded(job.tube)
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
    """Return why the detached *job* may not return after its deletion, or 0. Set its unique key."""
    if broker.bodies is not None and not broker.bodies.admit(job.size):
        return Refusal.MEMORY
    if broker.quotas is not None:
        refusal = broker.quotas.refuse_job(job.tube, job.size, len(broker.jobs))
        if refusal:
            return refusal
    return _refuse_in_tube(broker, job, now)


def _refuse_move(broker: Broker, job: Job, now: int) -> int:
    """Return why the detached *job* may not move back to its former tube, or 0. Set its unique key."""
    if broker.quotas is not None:
        refusal = broker.quotas.refuse_move(job.tube, 1, job.size)
        if refusal:
            return refusal
    return _refuse_in_tube(broker, job, now)


def _refuse_in_tube(broker: Broker, job: Job, now: int) -> int:
    """Return why the tube of the detached *job* refuses it by a key or its policy, or 0. Set its unique key."""
    tube = job.tube
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
