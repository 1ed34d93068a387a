"""The places of a job: ready, delayed, buried, or none before its put and after its deletion. Pure.

A job is *detached* between two moves: it is in no place of its tube, and no client holds it.
"""

from __future__ import annotations

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.moves import Moves
from greenstalk_server.core.outcomes import WaitOutcome
from greenstalk_server.core.policies.tube_policy_state import TubePolicyState, buried_at
from greenstalk_server.core.tags.tags import NO_DEADLINE, TaggedJob
from greenstalk_server.core.timers import AT_ONCE, NEVER
from greenstalk_server.core.transitions.reservation import update_throttle
from greenstalk_server.core.transitions.tagging import attach_tags, change_scope, detach_tags
from greenstalk_server.core.transitions.waiting import (
    deliver,
    dispatch_freed,
    end_blind_waits,
    end_job_waits,
    offer,
    wait_cost,
)
from greenstalk_server.core.travel import NOWHERE, Location, Travel
from greenstalk_server.core.tubes.tube import Tube


def add_ready(broker: Broker, job: Job, now: int) -> None:
    """Make the detached *job* ready, or reserve it for the client that has waited longest."""
    tube = job.tube
    waiter = tube.first_waiter() if (tube.waiters or tube.tube_sets) and tube.throttled_until <= now else None
    must_wait = isinstance(job, TaggedJob) and job.must_queue
    if waiter is None or must_wait or (tube.policy_state is not None and tube.policy_state.expiry_of(job) <= now):
        queue_ready(broker, job)
    elif tube.ready.count or broker.dependents.targets or waiter.takes_offers or wait_cost(waiter) > 1:
        # There are ready jobs if a pause or limit has just ended, or a slice was too short. Dependents may have a
        # better job. An offer leaves the job ready.
        queue_ready(broker, job)
        offer(broker, tube, 1, now)
    else:
        deliver(broker, job, waiter, now)


def queue_ready(broker: Broker, job: Job) -> None:
    """Add the detached *job* to the ready jobs of its tube."""
    tube = job.tube
    tube.add_ready(job)
    if tube.policy_state is not None:
        arm_waiting(broker, job, tube.policy_state)


def add_delayed(broker: Broker, job: Job) -> None:
    """Make the detached *job* delayed until its deadline, or until the group for which it waits is empty."""
    tube = job.tube
    tube.add_delayed(job)
    if job.deadline == NO_DEADLINE:
        _await_group(broker, job)
    else:
        broker.arm(tube, job.deadline)
    if tube.policy_state is not None:
        arm_waiting(broker, job, tube.policy_state)


def _await_group(broker: Broker, job: Job) -> None:
    """Make the delayed *job* wait for the group that its tag `after` names."""
    tags = job.more_tags if isinstance(job, TaggedJob) else None
    assert tags is not None
    tags.awaited = broker.group(job.tube.scope, tags.after)
    tags.awaited.add_waiting(job)


def arm_waiting(broker: Broker, job: Job, policy_state: TubePolicyState) -> None:
    """Arm a timer for the time when the waiting *job* expires, or for the next tick if its tube is above its caps."""
    tube = job.tube
    expiry = AT_ONCE if policy_state.must_evict(tube.job_count, tube.body_bytes) else policy_state.expiry_of(job)
    if expiry < NEVER:
        broker.arm(tube, expiry)


def add_buried(broker: Broker, job: Job) -> None:
    """Bury the detached *job*."""
    job.tube.total_buries += 1
    job.buries += 1
    broker.burials += 1
    job.burial_number = broker.burials
    job.tube.add_buried(job)
    broker.journal.update(job)
    if broker.job_waiters:
        end_job_waits(broker, job.id, WaitOutcome.BURIED)
    if job.tube.policy_state is not None:
        arm_burial_expiry(broker, job.tube, job.tube.policy_state)


def arm_burial_expiry(broker: Broker, tube: Tube, policy_state: TubePolicyState) -> None:
    """Arm a timer for the time when the first buried job of *tube* expires."""
    job = tube.first_buried() if policy_state.policy.buried_expire_after else None
    if job is not None:
        broker.arm(tube, buried_at(job) + policy_state.policy.buried_expire_after)


def insert(broker: Broker, job: Job, now: int) -> None:
    """Add *job*, which is new or returns after its deletion, to its tube, in its state. The caller has recorded it."""
    tube = job.tube
    broker.jobs.set(job)
    if broker.bodies is not None:
        broker.bodies.add(job)
    tube.body_bytes += job.size
    tube.total_jobs += 1
    broker.counters.total_jobs += 1
    if broker.quotas is not None:
        broker.quotas.body_bytes += job.size
    if tube.policy_state is not None:
        tube.policy_state.claim_key(job)
    if isinstance(job, TaggedJob):
        attach_tags(broker, job)
    if job.state == READY:
        add_ready(broker, job, now)
    elif job.state == DELAYED:
        add_delayed(broker, job)
    else:
        tube.add_buried(job)
        if tube.policy_state is not None:
            arm_burial_expiry(broker, tube, tube.policy_state)


def forget(broker: Broker, job: Job, now: int) -> None:
    """Remove the detached *job* from the tables, and record its deletion."""
    tube = job.tube
    remove_from_tables(broker, job, now)
    if broker.moves is not None and job.cold.travel:
        record_departure(broker, broker.moves, job)
    else:
        broker.journal.delete(job)
    if broker.job_waiters:
        end_job_waits(broker, job.id, WaitOutcome.DELETED)
    if not tube.using and not tube.watching:
        broker.drop_if_unneeded(tube)


def remove_from_tables(broker: Broker, job: Job, now: int) -> None:
    """Remove the detached *job* from the tables. The caller must record this."""
    tube = job.tube
    if isinstance(job, TaggedJob):
        detach_tags(broker, job, now)
    broker.jobs.remove(job.id)
    if broker.bodies is not None:
        broker.bodies.remove(job)
    tube.body_bytes -= job.size
    if broker.quotas is not None:
        broker.quotas.body_bytes -= job.size
    if tube.policy_state is not None:
        tube.policy_state.release_key(job)


def record_departure(broker: Broker, moves: Moves, job: Job, shard: int = NOWHERE) -> None:
    """Record that *job*, which is no longer in the tables, was deleted or has moved to *shard*.

    Its location is kept if other shards have to know it.
    """
    travel = Travel.unpack(job.travel)
    location = Location(shard, travel.hops if shard == NOWHERE else travel.hops + 1, travel.source)
    moves.note_departed(job.id, location)
    if moves.note_untold(job.id, location):
        moves.locations[job.id] = location
        broker.journal.depart(job, location)
    else:
        broker.journal.delete(job)


def replace(broker: Broker, old: Job, new: Job, now: int) -> None:
    """Replace *old* by *new*, which takes its place if *old* is reserved, or if both are buried in the same tube."""
    broker.jobs.set(new)
    if broker.bodies is not None:
        broker.bodies.remove(old)
        broker.bodies.add(new)
    old.tube.body_bytes -= old.size
    new.tube.body_bytes += new.size
    if broker.quotas is not None:
        broker.quotas.body_bytes += new.size - old.size
    old.tube.release_key(old, broker.jobs)
    new.tube.claim_key(new)
    if old.tube.policy_state is not None:
        old.tube.policy_state.release_key(old)
    if new.tube.policy_state is not None:
        new.tube.policy_state.claim_key(new)
    if new.holder is not None:
        old.holder = None
        new.holder.reserved[new.id] = new
        change_scope(broker, new, old.tube)
        old.tube.reserved_count -= 1
        new.tube.reserved_count += 1
        update_throttle(old.tube, now)
        update_throttle(new.tube, now)
        dispatch_freed(broker, old.tube, now)
    elif new.state == BURIED and old.state == BURIED and new.tube is old.tube:
        new.tube.buried[new.id] = new
    else:
        old.tube.remove(old)
        change_scope(broker, new, old.tube)
        if new.state == READY:
            add_ready(broker, new, now)
        elif new.state == DELAYED:
            add_delayed(broker, new)
        else:
            new.tube.add_buried(new)
    if broker.job_waiters and new.tube is not old.tube:
        end_blind_waits(broker, new)
    if new.tube.policy_state is not None:
        broker.arm(new.tube, AT_ONCE)  # the job may have expired, or the tube may be above its caps


def set_priority(broker: Broker, job: Job, pri: int, now: int) -> None:
    """Change the priority of *job*, which no client holds; a buried job keeps its place."""
    job.events = job_history.add(job.events, job_history.EDITED, now, job_history.NOBODY)
    if job.state == BURIED:
        job.pri = pri
        broker.journal.update(job)
        return
    job.tube.remove(job)
    job.pri = pri
    if job.state == DELAYED:
        broker.journal.update(job)
        add_delayed(broker, job)
    else:
        job.ready_since = now  # `ReadyQueue.add` takes jobs in the order of `ready_since`
        broker.journal.update(job)
        add_ready(broker, job, now)


def raise_priority(broker: Broker, id: int, pri: int, now: int) -> bool:
    """Give the job *id* the priority *pri* if that is more urgent than its own, and no client holds the job.

    Return whether the priority has changed.
    """
    job = broker.jobs.get(id)
    if job is None or pri >= job.pri or job.state == RESERVED:
        return False
    set_priority(broker, job, pri, now)
    return True
