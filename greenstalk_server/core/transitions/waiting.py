"""The ends of waits: ready jobs for the clients that wait for them, and outcomes without a job. Pure.

A client that waits at several servers at once must not get a job from each. So its wait ends with an *offer*
instead: the job stays ready, in its place, and no reserve takes it for at most OFFER_TIME. The client either claims it,
which is a reserve, or declines. An offer is not counted, and not recorded.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.outcomes import WaitOutcome
from greenstalk_server.core.transitions.reservation import add_reserved
from greenstalk_server.core.tubes.tube import Tube

SAFETY_MARGIN: Final = SECOND
"""A client does not wait during the last second of a job that it holds (protocol.txt, "reserve")."""

OFFER_TIME: Final = SECOND // 20
"""Nanoseconds for which a job is withheld from all but the client to which it is offered."""

WAITED_TUBES: Final = 64
"""Removing a client from the waiting clients of this number of tubes takes as long as handing out a job."""


def offer(broker: Broker, tube: Tube, limit: int, now: int) -> int:
    """Hand out jobs of *tube* as `dispatch` does, or add *tube* to the dependents if there are any; return the cost."""
    if broker.dependents.targets:
        broker.dependents.add(tube)
        return 0
    return dispatch(broker, tube, limit, now)


def dispatch_best(broker: Broker, tubes: list[Tube], limit: int, now: int) -> int:
    """Hand out jobs of *tubes* as `dispatch` does, the best job of all these tubes first; return the cost."""
    firsts = [(tube, tube.ready.first()) for tube in tubes]
    queue = [(job.pri, job.id, tube) for tube, job in firsts if job is not None]
    heapify(queue)
    done = 0
    while queue and done < limit:
        pri, id, tube = heappop(queue)
        job = tube.ready.first()
        if job is not None and job.id == id and job.pri == pri:
            cost = dispatch(broker, tube, 1, now)
            done += cost
            job = tube.ready.first() if cost else None
        if job is not None:
            heappush(queue, (job.pri, job.id, tube))
    for _, _, tube in queue:
        broker.arm(tube, now)
    return done


def dispatch(broker: Broker, tube: Tube, limit: int, now: int) -> int:
    """Reserve ready jobs of *tube* for the clients that wait for them, longest waiting first, until it is throttled.

    Return the sum of their `wait_cost`, at most *limit*; ticks, which pass a *limit* of SLICE, hand out the rest.
    A tick also removes expired jobs.
    """
    done = 0
    while True:
        waiter, job = tube.first_waiter(), tube.ready.first()
        if waiter is None or job is None or tube.throttled_until > now:
            return done
        cost = wait_cost(waiter)
        if done + cost > limit or (tube.policy_state is not None and tube.policy_state.next_expiry() <= now):
            broker.arm(tube, now)
            return done
        done += cost
        if waiter.takes_offers:
            add_offer(broker, job, waiter, now)
            end_wait(broker, waiter, WaitOutcome.OFFERED)
        else:
            tube.remove_ready(job)
            deliver(broker, job, waiter, now)


def dispatch_freed(broker: Broker, tube: Tube, now: int) -> None:
    """Hand out ready jobs of *tube* if the end of a reservation may have ended its throttling."""
    if tube.policy_state is not None and tube.throttled_until <= now and tube.ready.count:
        offer(broker, tube, 1, now)


def deliver(broker: Broker, job: Job, client: Client, now: int) -> None:
    """End the wait of *client* with the detached *job*."""
    add_reserved(broker, job, client, now)
    end_wait(broker, client, job)


def add_offer(broker: Broker, job: Job, client: Client, now: int) -> None:
    """Offer *job*, the first ready job of its tube, to the remote *client*, which has no other offer."""
    job.tube.ready.withhold(job, client)
    if job.tube.head_watch is not None:
        job.tube.head_watch.note(job.tube)
    client.offered = job
    client.offered_until = now + OFFER_TIME
    broker.arm(client, client.offered_until)


def end_offer(client: Client) -> Tube | None:
    """End the offer to *client*, if there is one; return the tube if its job may be reserved again.

    The caller must hand out the jobs of that tube, unless *client* reserves the job.
    """
    job, client.offered, client.offered_until = client.offered, None, 0
    if job is None or not job.tube.ready.end_offer(job, client):
        return None
    if job.tube.head_watch is not None:
        job.tube.head_watch.note(job.tube)
    for tube_set in job.tube.tube_sets:
        tube_set.note(job)
    return job.tube


def decline_offer(broker: Broker, client: Client, now: int) -> None:
    """End the offer to *client*, if there is one, and hand out the job to another client that waits."""
    tube = end_offer(client)
    if tube is not None:
        offer(broker, tube, 1, now)


def end_wait(broker: Broker, client: Client, outcome: Job | int) -> None:
    """End the wait of *client* with a job, or with a WaitOutcome, and wake it."""
    cancel_wait(broker, client)
    client.outcome = outcome
    client.wake()


def end_job_waits(broker: Broker, id: int, outcome: int) -> None:
    """End the waits for the job *id* with a WaitOutcome."""
    for client in list(broker.job_waiters.get(id, ())):
        end_wait(broker, client, outcome)


def end_blind_waits(broker: Broker, job: Job) -> None:
    """End the waits for *job* of clients that may not look at the tube to which it has moved."""
    for client in list(broker.job_waiters.get(job.id, ())):
        if client.may_inspect is not None and job.holder is not client and not client.may_inspect(job.tube.name):
            end_wait(broker, client, WaitOutcome.NOT_FOUND)


def cancel_wait(broker: Broker, client: Client) -> None:
    """End *client*'s wait, if it waits, without an outcome and without waking it."""
    if client.is_waiting and client.awaited_id:
        client.is_waiting = False
        waiters = broker.job_waiters[client.awaited_id]
        del waiters[client]
        if not waiters:
            del broker.job_waiters[client.awaited_id]
        client.awaited_id = 0
    elif client.is_waiting:
        client.is_waiting = False
        broker.waiting_count -= not client.takes_offers
        if client.tube_set is not None:
            del client.tube_set.waiters[client]
        else:
            for tube in client.watched.values():
                del tube.waiters[client]


def wait_cost(client: Client) -> int:
    """Return the cost of the end of *client*'s wait: 1, and more if it waits in many tubes without a tube set."""
    return 1 if client.tube_set is not None else min(1 + len(client.watched) // WAITED_TUBES, SLICE)
