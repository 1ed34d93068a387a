"""The events in the life of a job. Pure."""

from __future__ import annotations

from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.travel import is_moving


def events_of(job: Job) -> list[job_history.Event]:
    """Return the events of *job*, oldest first, with the current reservation by a client."""
    events = job_history.unpack(job.events)
    if job.holder is not None and not is_moving(job.travel):
        events.append(job_history.Event(job.reserved_at, job_history.RESERVED, job.holder.number))
    # The stored events need sorting: a reservation is recorded when it ends, but with its start time, so it is stored
    # after events that happened during it.
    return sorted(events, key=lambda event: event.at)
