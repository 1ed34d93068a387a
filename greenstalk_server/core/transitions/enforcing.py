"""The effects of a tube's policy: checks of puts, delays of failed attempts, expiry, and moves to other tubes. Pure.

The other modules call these functions only if `tube.policy_state` is not None. Every change that a policy makes is
recorded in the journal like the change of a command, so a restart never repeats a decision.
"""

from __future__ import annotations

from itertools import islice

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.job_attributes import DeadLetter, DeadLetterReason
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, Job
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.core.policies.policy import Overflow, UniqueFor
from greenstalk_server.core.policies.tube_policy_state import TubePolicyState, buried_at, key_of
from greenstalk_server.core.timers import NEVER
from greenstalk_server.core.transitions.departing import begin_move
from greenstalk_server.core.transitions.placing import (
    add_buried,
    add_delayed,
    add_ready,
    arm_burial_expiry,
    forget,
    insert,
    raise_priority,
)
from greenstalk_server.core.transitions.tagging import change_scope
from greenstalk_server.core.transitions.waiting import end_blind_waits
from greenstalk_server.core.tubes.tube import Tube


def admit(broker: Broker, job: Job, policy_state: TubePolicyState, now: int) -> int:
    """Apply the policy to the new *job*, and record it with its copies.

    Return 0 if the caller must insert the job. Otherwise nothing was recorded: return the id of the job that is
    its duplicate, or a Refusal, which is negative.
    """
    tube, policy = job.tube, policy_state.policy
    duplicate = duplicate_of(broker, job, policy_state, now)
    if duplicate:
        tube.counts().duplicates += 1
        raise_priority(broker, duplicate, job.pri, now)
        return duplicate
    group = [job]
    refusal = _refuse_put(broker, job, policy_state)
    for name in policy.copy_to:
        if not refusal:
            refusal = _plan_copy(broker, job, name, group, now)
    if not refusal and not (broker.journal.put(job) if len(group) == 1 else broker.journal.put_group(group)):
        refusal = Refusal.JOURNAL
    if refusal:
        for copy in group[1:]:
            broker.drop_if_unneeded(copy.tube)
        tube.counts().refused += refusal in (Refusal.TUBE_FULL, Refusal.TOO_BIG)
        return refusal
    tubes = [member.tube for member in group]
    for each in tubes:
        each.using += 1  # no eviction may drop the tube
    for copy in group[1:]:
        tube.counts().copied += 1
        make_room(broker, copy.tube, copy.size, now)
        insert(broker, copy, now)
    make_room(broker, tube, job.size, now)
    for each in tubes:
        each.using -= 1
    for each in tubes[1:]:
        broker.drop_if_unneeded(each)  # its copy may have been evicted already
    return 0


def _plan_copy(broker: Broker, job: Job, name: bytes, group: list[Job], now: int) -> int:
    """Append to *group* the copy of *job* for the tube *name*, unless it is a duplicate there.

    Return 0, or why the copy is refused; the caller then drops the tubes of *group* that are not needed.
    """
    refusal = broker.refuse_elsewhere(name)
    if refusal:
        return refusal
    if broker.quotas is not None:
        refusal = 0 if name in broker.tubes else broker.quotas.refuse_tube(len(broker.tubes))
        if refusal:
            return refusal
    target = broker.tube(name)
    copy = Job(broker.allocate_id(), target, job.body or b"", job.pri, job.delay, job.ttr, now)
    if job.delay:  # a job without a delay waits because of its tags, which copies do not have
        copy.state, copy.deadline = job.state, job.deadline
    group.append(copy)
    if broker.quotas is not None:
        refusal = broker.quotas.refuse_job(target, job.size, len(broker.jobs) + len(group) - 1)
        if refusal:
            return refusal
    if target.policy_state is not None:
        if duplicate_of(broker, copy, target.policy_state, now):
            target.counts().duplicates += 1
            group.pop()
            broker.drop_if_unneeded(target)
            return 0
        return _refuse_put(broker, copy, target.policy_state)
    return 0


def duplicate_of(broker: Broker, job: Job, policy_state: TubePolicyState, now: int) -> int:
    """Return the id of the job that makes the new *job* a duplicate, or 0; set the key of *job*."""
    if policy_state.keys is None:
        return 0
    key = job.unique_key = key_of(job.body or b"")
    other = policy_state.keys.get(key)
    if policy_state.policy.unique_for != UniqueFor.TIME:
        return other or 0
    if other is not None:
        before = broker.jobs.get(other)
        if before is not None and now < before.created_at + policy_state.policy.unique_time:
            return other
    return broker.retained_keys.find(job.tube.name, key, now)


def _refuse_put(broker: Broker, job: Job, policy_state: TubePolicyState) -> int:
    """Clamp the ttr of the new *job*; return the Refusal by the policy, or 0."""
    policy = policy_state.policy
    if policy.ttr_min and job.ttr < policy.ttr_min:
        job.ttr = policy.ttr_min
    if policy.ttr_max and job.ttr > policy.ttr_max:
        job.ttr = policy.ttr_max
    if policy.max_job_size and job.size > policy.max_job_size:
        return Refusal.TOO_BIG
    return _choose_evicted(broker, job.tube, policy_state, 1, job.size, [])


def make_room(broker: Broker, tube: Tube, size: int, now: int) -> None:
    """Evict jobs of *tube* until one more of *size* bytes fits. Evict none if that is impossible."""
    evicted = list[Job]()
    if tube.policy_state is not None and not _choose_evicted(broker, tube, tube.policy_state, 1, size, evicted):
        for old in evicted:
            _evict(broker, old, now)


def _choose_evicted(
    broker: Broker, tube: Tube, policy_state: TubePolicyState, jobs: int, bytes: int, evicted: list[Job]
) -> int:
    """Append to *evicted* the oldest jobs of *tube* until *jobs* more, of *bytes* in total, would fit.

    Return 0, or a Refusal if they cannot fit: no job may be evicted, or the dead-letter tube has no room for the
    evicted jobs.
    """
    policy = policy_state.policy
    jobs = tube.job_count + jobs - policy.max_jobs if policy.max_jobs else 0
    bytes = tube.body_bytes + bytes - policy.max_bytes if policy.max_bytes else 0
    if jobs <= 0 and bytes <= 0:
        return 0
    if policy.overflow != Overflow.REFUSE and policy_state.waiting is not None:
        size = 0
        for old in islice(policy_state.waiting.walk(), SLICE):
            evicted.append(old)
            size += old.size
            jobs -= 1
            bytes -= old.size
            if jobs <= 0 and bytes <= 0:
                if policy.overflow == Overflow.DROP_OLDEST:
                    return 0
                target = policy_state.dead_letter
                is_refused = not target or broker.refuse_elsewhere(target)
                is_refused = is_refused or refuse_move(broker, target, len(evicted), size)
                return Refusal.TUBE_FULL if is_refused else 0
    return Refusal.TUBE_FULL


def _evict(broker: Broker, job: Job, now: int) -> None:
    """Drop the waiting *job* of a full tube, or move it to the dead-letter tube."""
    tube, policy_state = job.tube, job.tube.policy_state
    assert policy_state is not None
    tube.remove(job)
    if policy_state.policy.overflow == Overflow.DEAD_LETTER_OLDEST:
        dead_letter(broker, job, DeadLetterReason.OVERFLOW, now)
    else:
        tube.counts().dropped += 1
        forget(broker, job, now)


def keep_key(broker: Broker, job: Job, policy_state: TubePolicyState, now: int) -> None:
    """Keep the key of the finished *job* for the rest of `unique_time`."""
    if policy_state.policy.unique_for != UniqueFor.TIME or not job.unique_key:
        return
    tube, key, until = job.tube.name, job.unique_key, job.created_at + policy_state.policy.unique_time
    if broker.retained_keys.keep(tube, key, job.id, until, now):
        broker.journal.key(tube, key, job.id, until)
        broker.arm(broker.retained_keys, until)


def expire(broker: Broker, job: Job, now: int) -> None:
    """Drop the detached *job*, which is too old, or move it to the dead-letter tube."""
    tube, policy_state = job.tube, job.tube.policy_state
    assert policy_state is not None
    if policy_state.policy.expires_to_dead_letter:
        is_buried = job.state == BURIED
        dead_letter(broker, job, DeadLetterReason.BURIED_EXPIRED if is_buried else DeadLetterReason.EXPIRED, now)
    else:
        tube.counts().expired += 1
        forget(broker, job, now)


def _expire_first(broker: Broker, tube: Tube, policy_state: TubePolicyState, now: int) -> bool:
    """Expire one waiting or one buried job of *tube* if it is due; return whether another may be due."""
    if policy_state.next_expiry() <= now and policy_state.waiting is not None:
        job = policy_state.waiting.first()
        assert job is not None
        tube.remove(job)
        expire(broker, job, now)
        return True
    buried = tube.first_buried() if policy_state.policy.buried_expire_after else None
    if buried is not None and buried_at(buried) + policy_state.policy.buried_expire_after <= now:
        tube.remove(buried)
        expire(broker, buried, now)
        return True
    return False


def dead_letter(broker: Broker, job: Job, reason: int, now: int) -> None:
    """Move the detached *job* to the dead-letter tube of its tube; bury it if no such tube can take it."""
    tube, policy_state = job.tube, job.tube.policy_state
    name = policy_state.dead_letter if policy_state is not None else b""
    if name and _move_dead(broker, job, name, reason, now):
        return
    tube.counts().buried += 1
    job.events = job_history.add(job.events, job_history.BURIED, now, job_history.NOBODY)
    add_buried(broker, job)


def _move_dead(broker: Broker, job: Job, name: bytes, reason: int, now: int) -> bool:
    """Move the detached *job* to the dead-letter tube *name*; return False if that tube cannot take the job."""
    source = job.tube
    if broker.is_elsewhere(name) and reason != DeadLetterReason.OVERFLOW:
        begin_move(broker, job, name, job_history.DEAD_LETTERED, reason, now)
        return True
    if broker.refuse_elsewhere(name) or refuse_move(broker, name, 1, job.size):
        return False
    first_at = DeadLetter.unpack(job.dead_letter).first_at if job.dead_letter else now
    job.dead_letter = DeadLetter(reason, source.name, job.attempts, first_at, now).pack()
    source.counts().dead_lettered += 1
    target = broker.tube(name)
    target.counts().received += 1
    move(broker, job, target, job_history.DEAD_LETTERED, now)
    return True


def refuse_move(broker: Broker, name: bytes, jobs: int, bytes: int) -> int:
    """Return why *jobs* jobs of *bytes* in total may not move to the tube *name*, or 0."""
    if broker.is_elsewhere(name):
        return 0  # the other shard decides
    target, refusal = broker.tubes.get(name), 0
    if target is None:
        target = Tube(name, broker.jobs, broker.totals)  # stands for the tube that the move would create
        target.policy_state = broker.new_policy_state(target)
        refusal = broker.quotas.refuse_tube(len(broker.tubes)) if broker.quotas is not None else 0
    if not refusal and broker.quotas is not None:
        refusal = broker.quotas.refuse_move(target, jobs, bytes)
    if not refusal and target.policy_state is not None:
        refusal = _choose_evicted(broker, target, target.policy_state, jobs, bytes, [])
    return refusal


def move(broker: Broker, job: Job, target: Tube, kind: int, now: int) -> None:
    """Make the detached *job* ready in *target*, with a new count of attempts; *kind* is the event to record."""
    source = job.tube
    if target is not source:
        target.using += 1  # no eviction may drop the tube
        make_room(broker, target, job.size, now)
        target.using -= 1
    if source.policy_state is not None:
        source.policy_state.release_key(job)
    source.release_key(job, broker.jobs)
    source.body_bytes -= job.size
    target.body_bytes += job.size
    job.tube = target
    target.claim_key(job)
    change_scope(broker, job, source)
    if target.policy_state is not None:
        target.policy_state.restore_key(job)
    job.attempts_base = job.reserves
    job.state = READY
    job.ready_since = now
    job.events = job_history.add(job.events, kind, now, job_history.NOBODY)
    broker.journal.move(job, source)
    if broker.job_waiters:
        end_blind_waits(broker, job)
    add_ready(broker, job, now)
    broker.drop_if_unneeded(source)


def policy_due(broker: Broker, tube: Tube, policy_state: TubePolicyState, now: int) -> None:
    """Apply to *tube* what its policy requires at *now*: one expiry or eviction, and the end of a throttling."""
    if policy_state.full_at <= now:
        policy_state.full_at = 0
    oldest = policy_state.waiting.first() if policy_state.waiting is not None else None
    if _expire_first(broker, tube, policy_state, now):
        broker.arm(tube, now)
    elif oldest is not None and policy_state.must_evict(tube.job_count, tube.body_bytes):
        _evict(broker, oldest, now)
        broker.arm(tube, now)
    else:
        _arm_policy(broker, tube, policy_state, now)


def _arm_policy(broker: Broker, tube: Tube, policy_state: TubePolicyState, now: int) -> None:
    """Arm timers for the next times at which the policy of *tube* requires an action."""
    expiry = policy_state.next_expiry()
    if expiry < NEVER:
        broker.arm(tube, expiry)
    arm_burial_expiry(broker, tube, policy_state)
    if now < tube.throttled_until <= policy_state.full_at:
        broker.arm(tube, tube.throttled_until)


def end_attempt(
    broker: Broker, job: Job, policy_state: TubePolicyState, delay: int, is_command: bool, now: int
) -> None:
    """Decide by the policy where the detached *job* goes after a failed attempt, and record it.

    *delay* is the delay in nanoseconds that a release asked for. With *is_command*, a reply waits for the record.
    """
    is_expired = policy_state.expiry_of(job) <= now
    if is_expired or policy_state.has_failed(job):
        job.state = READY
        job.ready_since = now
        _record_end(broker, job, is_command)  # now, as a record has only the last event and the next change adds one
        if is_expired:
            expire(broker, job, now)
        else:
            dead_letter(broker, job, DeadLetterReason.ATTEMPTS, now)
        return
    if not delay:
        delay = policy_state.retry_delay(job, broker.random())
        if delay:
            job.delay = delay
            job.tube.counts().retried += 1
    job.deadline = now + delay
    job.state = DELAYED if delay else READY
    _record_end(broker, job, is_command or delay > 0)
    if delay:
        add_delayed(broker, job)
    else:
        add_ready(broker, job, now)


def _record_end(broker: Broker, job: Job, is_update: bool) -> None:
    """Record the state of *job* after its reservation; without *is_update*, only that the reservation expired."""
    if is_update:
        broker.journal.update(job)
    else:
        broker.journal.expire_reservation(job)
