"""The tags of a job: its group, its concurrency key and its idempotency key, from its put to its deletion. Pure.

A job without tags costs one type check per transition.
"""

from __future__ import annotations

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import DELAYED, Job
from greenstalk_server.core.tags.concurrency import ConcurrencyKey
from greenstalk_server.core.tags.idempotency import scope_of
from greenstalk_server.core.tags.tags import NO_DEADLINE, TaggedJob, Tags
from greenstalk_server.core.tubes.tube import Tube


def attach_tags(broker: Broker, job: TaggedJob) -> None:
    """Add the new or restored *job* to its group, its concurrency key, and its tube's idempotency keys."""
    job.tube.claim_key(job)
    tags = job.more_tags
    if tags is not None:
        _enter(broker, job.tube.scope, tags)


def change_scope(broker: Broker, job: Job, source: Tube) -> None:
    """Count *job*, which is reserved or detached and was in *source*, in the group and the key of its tube's scope."""
    if job.tube.scope == source.scope or not isinstance(job, TaggedJob) or job.more_tags is None:
        return
    if job.holder is not None:
        job.count_reserved(-1)
    _leave(broker, job.more_tags)
    _enter(broker, job.tube.scope, job.more_tags)
    if job.holder is not None:
        job.count_reserved(1)


def _enter(broker: Broker, scope: bytes, tags: Tags) -> None:
    """Add a job with *tags* to its group and its concurrency key in *scope*."""
    if tags.group:
        group = tags.member_of = broker.group(scope, tags.group)
        group.members += 1
        tags.group = group.name  # one object for all members
    if tags.concurrency_key:
        limiter = broker.concurrency_keys.get(scope + tags.concurrency_key)
        if limiter is None:
            limiter = ConcurrencyKey(tags.concurrency_key, scope, broker.dependents)
            broker.concurrency_keys[scope + limiter.name] = limiter
        limiter.add_job(tags.concurrency_limit)
        tags.limiter, tags.concurrency_key = limiter, limiter.name


def _leave(broker: Broker, tags: Tags) -> None:
    """Undo `_enter`."""
    if tags.member_of is not None:
        tags.member_of.remove_member()
        tags.member_of = None
    limiter, tags.limiter = tags.limiter, None
    if limiter is not None:
        limiter.remove_job(tags.concurrency_limit)
        if not limiter.jobs:
            del broker.concurrency_keys[limiter.scope + limiter.name]
            broker.timers.disarm(limiter)


def detach_tags(broker: Broker, job: TaggedJob, now: int) -> None:
    """Undo `attach_tags` for the detached *job*, which is being deleted; keep the idempotency key for the key's ttl."""
    tube = job.tube
    tube.release_key(job, broker.jobs)
    tags = job.more_tags
    if tags is None:
        return
    if tags.idempotency_ttl and not tags.is_key_freed:
        scope, until = scope_of(tube.name), now + tags.idempotency_ttl
        if broker.retained_keys.keep(scope, tags.idempotency_key, job.id, until, now):
            broker.journal.key(scope, tags.idempotency_key, job.id, until)
            broker.arm(broker.retained_keys, until)
    _leave(broker, tags)


def free_key(job: Job) -> None:
    """Make the idempotency key of *job*, which an operator deletes, free when the job is deleted."""
    if isinstance(job, TaggedJob) and job.more_tags is not None:
        job.more_tags.is_key_freed = True


def delay_for_group(broker: Broker, job: TaggedJob) -> bool:
    """Return whether the group of the tag `after` has members; if so, delay the detached *job* without a deadline."""
    tags = job.more_tags
    if tags is None or not job.may_await:
        return False
    group = broker.groups.get(job.tube.scope + tags.after)
    if group is None or not group.members:
        return False
    job.state = DELAYED
    job.deadline = NO_DEADLINE
    return True
