"""Kicks: buried and delayed jobs become ready. Pure."""

from __future__ import annotations

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, Job
from greenstalk_server.core.transitions.placing import add_ready
from greenstalk_server.core.tubes.tube import Tube


def kick(broker: Broker, tube: Tube, state: int, bound: int, now: int) -> int:
    """Make ready up to *bound* jobs of *tube* that are in *state*, BURIED or DELAYED; return how many.

    A call moves at most SLICE jobs; the caller repeats the call for the rest.
    """
    first = tube.first_buried if state == BURIED else tube.delayed.first
    kicked = 0
    while kicked < min(bound, SLICE):
        job = first()
        if job is None:
            break
        _kick(broker, job, now)
        kicked += 1
    return kicked


def kick_job(broker: Broker, id: int, now: int) -> bool:
    """Make the buried or delayed job *id* ready; return False if there is no such job."""
    job = broker.jobs.get(id)
    if job is None or job.state not in (BURIED, DELAYED):
        return False
    _kick(broker, job, now)
    return True


def _kick(broker: Broker, job: Job, now: int) -> None:
    job.tube.remove(job)
    job.tube.total_kicks += 1
    job.kicks += 1
    job.attempts_base = job.reserves
    job.expires_from = now
    job.ready_since = now
    job.events = job_history.add(job.events, job_history.KICKED, now, job_history.NOBODY)
    job.state = READY
    broker.journal.update(job)
    add_ready(broker, job, now)
