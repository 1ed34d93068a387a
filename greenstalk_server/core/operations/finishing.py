"""The ends of reservations and of jobs: delete, release, bury, and expired TTRs. Pure."""

from __future__ import annotations

from itertools import islice
from typing import Final

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.transitions.enforcing import end_attempt, keep_key
from greenstalk_server.core.transitions.placing import add_buried, add_delayed, add_ready, forget
from greenstalk_server.core.transitions.reservation import remove_reserved
from greenstalk_server.core.transitions.tagging import free_key
from greenstalk_server.core.transitions.waiting import dispatch_freed
from greenstalk_server.core.travel import is_moving
from greenstalk_server.core.tubes.tube import Tube

MAX_CLEAR_SCAN: Final = 4 * SLICE
"""Maximum number of jobs that one slice of a clear looks at."""


def delete(broker: Broker, client: Client | None, id: int, now: int) -> bool:
    """Delete job *id*; return False if there is none, or a client other than *client* holds it."""
    job = broker.jobs.get(id)
    if job is None:
        return False
    tube = job.tube
    if job.state == RESERVED:
        if client is None or job.holder is not client:
            return False
        remove_reserved(broker, job, now)
        client.finished += 1
        tube.processing_times.add(now - job.reserved_at)
        if tube.policy_state is not None:
            keep_key(broker, job, tube.policy_state, now)
    else:
        tube.remove(job)
    tube.cmd_delete += 1
    forget(broker, job, now)
    dispatch_freed(broker, tube, now)
    return True


def release(broker: Broker, client: Client, id: int, pri: int, delay: int, now: int) -> bool:
    """Make the job *id* ready again, or delayed, with a new *pri*; return False unless *client* holds it."""
    job = client.reserved.get(id)
    if job is None:
        return False
    _release(broker, job, pri, delay, client.number, now)
    return True


def bury(broker: Broker, client: Client, id: int, pri: int, now: int) -> bool:
    """Bury the job *id* with a new *pri*; return False unless *client* holds it."""
    job = client.reserved.get(id)
    if job is None:
        return False
    _end_run(broker, job, job_history.BURIED, client.number, now)
    job.pri = pri
    _bury(broker, job, now)
    return True


def bury_job(broker: Broker, id: int, now: int, is_forced: bool = False) -> bool:
    """Bury the ready or delayed job *id* or, if *is_forced*, a reserved one; return False if there is no such job."""
    job = broker.jobs.get(id)
    if job is None or job.state == BURIED or (job.state == RESERVED and not is_forced) or is_moving(job.cold.travel):
        return False
    if job.state == RESERVED:
        _end_run(broker, job, job_history.BURIED, job_history.NOBODY, now)
    else:
        job.tube.remove(job)
        job.events = job_history.add(job.events, job_history.BURIED, now, job_history.NOBODY)
    _bury(broker, job, now)
    return True


def release_job(broker: Broker, id: int, now: int) -> bool:
    """Take the reserved job *id* from its holder and make it ready; return False if there is no such job."""
    job = broker.jobs.get(id)
    if job is None or job.state != RESERVED or is_moving(job.cold.travel):
        return False
    _release(broker, job, job.pri, 0, job_history.NOBODY, now)
    return True


def delete_job(broker: Broker, id: int, now: int, is_forced: bool = False) -> bool:
    """Delete the job *id*, a reserved one only if *is_forced*; return False if there is no such job."""
    job = broker.jobs.get(id)
    if job is None or (job.state == RESERVED and not is_forced) or is_moving(job.cold.travel):
        return False
    if job.tube.policy_state is not None and is_forced:
        job.tube.policy_state.release_key(job)  # else `delete` keeps the key, as if the job were finished
        job.unique_key = b""
    free_key(job)
    return delete(broker, job.holder if is_forced else None, id, now)


def truncate_job(broker: Broker, id: int, now: int) -> bool:
    """Mark the reserved job *id* for deletion when its reservation ends; return False if it is already marked.

    Also return False if there is no such job. If the process ends before the reservation does, the next start deletes
    the job. A move of the job to another tube cancels the deletion.
    """
    job = broker.jobs.get(id)
    if job is None or job.state != RESERVED or job.is_truncated or is_moving(job.cold.travel):
        return False
    job.is_truncated = True
    job.events = job_history.add(job.events, job_history.EDITED, now, job_history.NOBODY)
    broker.journal.move(job, job.tube)
    return True


def clear(broker: Broker, tube: Tube, state: int, bound: int, below: int, now: int) -> int:
    """Delete up to *bound* of the tube's jobs in *state*, READY, DELAYED or BURIED; return how many.

    Only jobs older than the id *below* are deleted: pass `next_id` as of the start of the clear to keep newer jobs.
    A call deletes at most SLICE jobs; the caller repeats the call for the rest. A call looks at up to
    MAX_CLEAR_SCAN jobs. It returns 0 if all of them are newer, even if older jobs follow them.
    """
    scanned = islice(tube.walk(state), MAX_CLEAR_SCAN)
    doomed = list(islice((job.id for job in scanned if broker.ids.is_older(job.id, below)), min(bound, SLICE)))
    for id in doomed:
        delete_job(broker, id, now)
    return len(doomed)


def _end_run(broker: Broker, job: Job, kind: int, by: int, now: int) -> None:
    """Detach the reserved *job* from its holder at the request of client *by*; *kind* is the event to record."""
    assert job.holder is not None
    holder, tube = job.holder, job.tube
    remove_reserved(broker, job, now)
    holder.finished += 1
    tube.processing_times.add(now - job.reserved_at)
    job.events = job_history.add(job.events, job_history.RESERVED, job.reserved_at, holder.number)
    job.events = job_history.add(job.events, kind, now, by)
    job.former_state = job.former_deadline = 0


def _release(broker: Broker, job: Job, pri: int, delay: int, by: int, now: int) -> None:
    tube = job.tube
    _end_run(broker, job, job_history.RELEASED, by, now)
    if job.is_truncated:
        _end_truncated(broker, job, now)
    else:
        tube.total_releases += 1
        job.pri = pri
        job.delay = delay
        job.releases += 1
        if tube.policy_state is not None:
            end_attempt(broker, job, tube.policy_state, delay, True, now)
        else:
            _requeue(broker, job, delay, now)
    dispatch_freed(broker, tube, now)


def _requeue(broker: Broker, job: Job, delay: int, now: int) -> None:
    job.deadline = now + delay
    job.state = DELAYED if delay else READY
    broker.journal.update(job)
    if delay:
        add_delayed(broker, job)
    else:
        add_ready(broker, job, now)


def _bury(broker: Broker, job: Job, now: int) -> None:
    if job.is_truncated:
        _end_truncated(broker, job, now)
    else:
        add_buried(broker, job)
    dispatch_freed(broker, job.tube, now)


def record_expiry(job: Job, kind: int, client: int, now: int) -> None:
    """Record the events of a reservation by *client* that ended without a command."""
    job.events = job_history.add(job.events, job_history.RESERVED, job.reserved_at, client)
    job.events = job_history.add(job.events, kind, now, client)
    job.former_state = job.former_deadline = 0


def expire_reservation(broker: Broker, job: Job, now: int, *, is_attempt: bool = True) -> None:
    """Requeue the detached *job*, whose reservation ended without a command, or delete it if it is truncated.

    *is_attempt*: whether a policy counts the reservation as an attempt.
    """
    tube = job.tube
    if job.is_truncated:
        _end_truncated(broker, job, now)
    elif tube.policy_state is not None and is_attempt:
        end_attempt(broker, job, tube.policy_state, 0, False, now)
    else:
        job.ready_since = now
        broker.journal.expire_reservation(job)
        add_ready(broker, job, now)
    dispatch_freed(broker, tube, now)


def _end_truncated(broker: Broker, job: Job, now: int) -> None:
    """Delete the detached *job*, whose tube was truncated during its reservation.

    The caller must call `dispatch_freed` afterwards.
    """
    job.tube.cmd_delete += 1
    free_key(job)
    forget(broker, job, now)


def time_out(broker: Broker, job: Job, client: Client, now: int) -> None:
    """End the reservation of *job*, whose ttr has passed, and make it ready."""
    remove_reserved(broker, job, now)
    record_expiry(job, job_history.TIMED_OUT, client.number, job.deadline)
    job.timeouts += 1
    job.tube.total_timeouts += 1
    broker.counters.job_timeouts += 1
    for listener in broker.listeners:
        listener.on_reservation_timeout(client, job)
    expire_reservation(broker, job, now)
