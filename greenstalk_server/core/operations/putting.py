"""The operations of producers: puts, with and without tags. Pure."""

from __future__ import annotations

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client, ignore_call
from greenstalk_server.core.jobs.job import DELAYED, Job
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.core.tags.idempotency import scope_of
from greenstalk_server.core.tags.tags import DELETED, Duplicate, TaggedJob, Tags
from greenstalk_server.core.transitions.enforcing import admit
from greenstalk_server.core.transitions.placing import insert, raise_priority
from greenstalk_server.core.transitions.tagging import delay_for_group
from greenstalk_server.core.tubes.tube import Tube


def put(broker: Broker, client: Client, id: int, pri: int, delay: int, ttr: int, body: bytes, now: int) -> int:
    """Add a job with the allocated *id* to the tube that *client* uses.

    *delay* and *ttr* are in nanoseconds. Return *id*, or the id of an earlier job if a policy makes the new one its
    duplicate, or a Refusal, which is negative. A refused put changes nothing.
    """
    return _add_job(broker, Job(id, client.used, body, pri, delay, ttr, now), client, now)


def put_in_tube(
    broker: Broker, client: Client, name: bytes, id: int, pri: int, delay: int, ttr: int, body: bytes, now: int
) -> int:
    """Like `put`, but add the job to the tube *name*, created if it does not exist."""
    refusal = broker.refuse_tube(name, client)
    if refusal:
        return refusal
    tube = broker.tube(name)
    result = _add_job(broker, Job(id, tube, body, pri, delay, ttr, now), client, now)
    broker.drop_if_unneeded(tube)  # it may be empty: the put was refused, or was a duplicate of a finished job
    return result


def put_tagged(
    broker: Broker,
    client: Client,
    name: bytes,
    id: int,
    pri: int,
    delay: int,
    ttr: int,
    body: bytes,
    tags: Tags,
    now: int,
) -> int | Duplicate:
    """Add a job with *tags* to the tube *name*, or to the one that *client* uses if *name* is empty.

    Return a Duplicate if the idempotency key is taken, else what `put` returns. The broker takes ownership of *tags*.
    """
    tube = client.used
    if name:
        refusal = broker.refuse_tube(name, client)
        if refusal:
            return refusal
        tube = broker.tube(name)
    result: int | Duplicate
    key = tags.idempotency_key
    duplicate = _find_duplicate(broker, tube, key, pri, now) if key else None
    if duplicate is not None:
        result = duplicate
    else:
        packed = tags.packed()
        if packed:
            job = TaggedJob(id, tube, body, pri, delay, ttr, now, packed)
            if not delay:
                delay_for_group(broker, job)
            result = _add_job(broker, job, client, now)
        else:
            result = _add_job(broker, Job(id, tube, body, pri, delay, ttr, now), client, now)
    if name:
        broker.drop_if_unneeded(tube)
    return result


def put_into(
    broker: Broker, name: bytes, pri: int, delay: int, ttr: int, body: bytes, now: int, tags: Tags | None = None
) -> int:
    """Add a job to the tube *name* for an operator; return what `put` returns.

    If the idempotency key of *tags* is taken, return the id of the job that has the key.
    """
    refusal = broker.refuse_elsewhere(name)
    if refusal:
        return refusal
    client, id = Client(broker.default_tube, ignore_call), broker.allocate_id()
    if tags is None:
        return put_in_tube(broker, client, name, id, pri, delay, ttr, body, now)
    result = put_tagged(broker, client, name, id, pri, delay, ttr, body, tags, now)
    return result.id if isinstance(result, Duplicate) else result


def _add_job(broker: Broker, job: Job, client: Client, now: int) -> int:
    """Check, record and insert the new *job* of *client*; return what `put` returns."""
    tube = job.tube
    if broker.bodies is not None and not broker.bodies.admit(job.size):
        return Refusal.MEMORY
    if broker.quotas is not None:
        refusal = broker.quotas.refuse_job(tube, job.size, len(broker.jobs))
        if refusal:
            return broker.refuse(refusal, client, tube.name)
    if job.delay:
        job.state = DELAYED
        job.deadline = now + job.delay
    if tube.policy_state is not None:
        result = admit(broker, job, tube.policy_state, now)
        if result:
            return result
    elif not broker.journal.put(job):
        return Refusal.JOURNAL
    insert(broker, job, now)
    return job.id


def _find_duplicate(broker: Broker, tube: Tube, key: bytes, pri: int, now: int) -> Duplicate | None:
    """Return the duplicate if the idempotency *key* is taken in *tube*; None if the key is free.

    The job with the key gets the priority *pri* if that is more urgent and no client holds the job.
    """
    holder = tube.idempotency.holders.get(key) if tube.idempotency is not None else None
    if holder is not None:
        is_raised = raise_priority(broker, holder.id, pri, now)
        return Duplicate(holder.id, holder.state, pri if is_raised else -1)
    id = broker.retained_keys.find(scope_of(tube.name), key, now)
    return Duplicate(id, DELETED, -1) if id else None
