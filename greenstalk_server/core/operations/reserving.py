"""The operations of workers that get jobs: reserves, and waits. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import BURIED, READY, RESERVED, Job
from greenstalk_server.core.outcomes import WaitOutcome
from greenstalk_server.core.tags.tags import TaggedJob
from greenstalk_server.core.transitions.dependents import wake_dependents
from greenstalk_server.core.transitions.enforcing import expire
from greenstalk_server.core.transitions.reservation import add_reserved
from greenstalk_server.core.transitions.waiting import SAFETY_MARGIN, add_offer, decline_offer, end_offer, offer
from greenstalk_server.core.tubes.ready_queue import is_before
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.core.tubes.tube_set import MANY_TUBES, MAX_TUBE_SETS, TubeSet
from greenstalk_server.core.tubes.weighting import FIFO


def reserve(broker: Broker, client: Client, now: int) -> Job | None:
    """Reserve for *client* the job with the smallest (pri, id) of all tubes it watches, if one is ready.

    In a weighted mode, select one of these tubes at random and reserve its first job. Also return None if a whole slice
    of jobs has expired: the next ticks remove the rest and end the client's wait.
    """
    for _ in range(SLICE + 1):
        wake_dependents(broker, now)
        job = _first_ready(broker, client, now)
        if job is None:
            break
        job.tube.remove_ready(job)
        policy_state = job.tube.policy_state
        if policy_state is None or policy_state.expiry_of(job) > now:
            add_reserved(broker, job, client, now)
            return job
        expire(broker, job, now)
    return None


def claim(broker: Broker, client: Client, now: int) -> Job | None:
    """Reserve for the remote *client* as `reserve` does; the job that is offered to it is one of the ready jobs."""
    tube = end_offer(client)
    job = reserve(broker, client, now)
    if tube is not None:
        offer(broker, tube, 1, now)
    return job


def await_offer(broker: Broker, client: Client, now: int) -> int:
    """Offer a ready job to the remote *client*, or park it until one is ready; decline an earlier offer.

    Return WaitOutcome.OFFERED, WAITING or DEADLINE_SOON. A parked client is woken as by `wait`.
    """
    decline_offer(broker, client, now)
    job = find(broker, client, now)
    if job is None:
        return wait(broker, client, None, now, takes_offers=True)
    add_offer(broker, job, client, now)
    return WaitOutcome.OFFERED


def find(broker: Broker, client: Client, now: int) -> Job | None:
    """Return the job that `reserve` would reserve for *client*, unless it has expired; None if no job is ready."""
    wake_dependents(broker, now)
    return _first_ready(broker, client, now)


def _first_ready(broker: Broker, client: Client, now: int) -> Job | None:
    """Return the job with the smallest (pri, id) of all tubes that *client* watches and that are not throttled.

    In a weighted mode, select one of these tubes at random and return its first job.
    """
    best: Job | None = None
    tubes: Iterable[Tube] = client.watched.values()
    if len(client.watched) >= MANY_TUBES and (client.tube_set is not None or _join_tube_set(broker, client)):
        assert client.tube_set is not None
        best, tubes = client.tube_set.first(now), ()
    for tube in tubes:
        if tube.ready.count and tube.throttled_until <= now:
            job = tube.ready.first()
            if job is not None and (best is None or is_before(job, best)):
                best = job
    if best is not None and client.weighting is not None and client.weighting.mode != FIFO:
        tubes = client.tube_set.ready_tubes() if client.tube_set is not None else client.watched.values()
        return client.weighting.choose(tubes, broker.random(), now)
    return best


def _join_tube_set(broker: Broker, client: Client) -> bool:
    """Have *client* share the set of the tubes that it watches; return False if there are too many sets."""
    tubes = frozenset(client.watched.values())
    tube_set = broker.tube_sets.get(tubes)
    if tube_set is None:
        if len(broker.tube_sets) >= MAX_TUBE_SETS:
            return False
        tube_set = broker.tube_sets[tubes] = TubeSet(client.watched.values())
    tube_set.users += 1
    client.tube_set = tube_set
    return True


def reserve_job(broker: Broker, client: Client, id: int, now: int) -> Job | None:
    """Reserve for *client* the ready, delayed or buried job *id* of any tube.

    Return None if there is no such job, or if its concurrency key has no free slot.
    """
    job = broker.jobs.get(id)
    if job is None or job.state == RESERVED:
        return None
    policy_state = job.tube.policy_state
    is_expired = policy_state is not None and job.state != BURIED and policy_state.expiry_of(job) <= now
    if not is_expired and isinstance(job, TaggedJob) and job.limiter is not None and not job.limiter.is_free:
        return None
    job.tube.remove(job)
    if is_expired:
        expire(broker, job, now)
    else:
        if job.state != READY:
            job.former_state, job.former_deadline = job.state, job.deadline
            job.ready_since = now  # its time in the queue is 0: it was not ready
        add_reserved(broker, job, client, now)
    return None if is_expired else job


def wait(broker: Broker, client: Client, until: int | None, now: int, *, takes_offers: bool = False) -> int:
    """Park *client*, for which `reserve` has just found nothing, until a job is ready or the time is *until*.

    Return WaitOutcome.WAITING: later the broker sets `client.outcome` and calls `client.wake`. If the
    wait would end at once, return TIMED_OUT or DEADLINE_SOON without parking the client.
    """
    wake_at = until
    soonest = client.soonest() if client.reserved else None
    if soonest is not None:
        margin_at = soonest.deadline - SAFETY_MARGIN
        if margin_at <= now:
            return WaitOutcome.DEADLINE_SOON
        if wake_at is None or margin_at < wake_at:
            wake_at = margin_at
    if until is not None and until <= now:
        return WaitOutcome.TIMED_OUT
    client.is_waiting = True
    client.takes_offers = takes_offers
    broker.waits += 1
    client.waiting_since = now
    client.wait_number = broker.waits
    client.wait_until = until
    client.outcome = None
    broker.waiting_count += not takes_offers
    if client.tube_set is not None:
        client.tube_set.waiters[client] = None
    else:
        for tube in client.watched.values():
            tube.waiters[client] = None
    if wake_at is not None:
        broker.arm(client, wake_at)
    return WaitOutcome.WAITING


def wait_for_job(broker: Broker, client: Client, id: int, until: int | None, now: int) -> int:
    """Park *client* until the job *id* is deleted or buried, or the time is *until*; return a WaitOutcome.

    If the job is already buried or does not exist, or if *until* is not in the future, return without parking.
    """
    job = broker.jobs.get(id)
    if job is None:
        return WaitOutcome.NOT_FOUND
    if job.state == BURIED:
        return WaitOutcome.BURIED
    if until is not None and until <= now:
        return WaitOutcome.TIMED_OUT
    client.is_waiting = True
    client.awaited_id = id
    client.waiting_since = now
    client.wait_until = until
    client.outcome = None
    broker.job_waiters.setdefault(id, {})[client] = None
    if until is not None:
        broker.arm(client, until)
    return WaitOutcome.WAITING


def touch(broker: Broker, client: Client, id: int, now: int) -> bool:
    """Restart the ttr of the job *id* at *now*; return False unless *client* holds it."""
    job = client.reserved.get(id)
    if job is None:
        return False
    client.postpone(job, now + job.ttr)
    broker.arm(client, job.deadline)
    return True
