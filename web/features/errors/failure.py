"""The failure of one job, as one model for its page and the API: error, stack trace, attempts and error group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta
from werkzeug.exceptions import ServiceUnavailable

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job_attributes import DeadLetter
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, RESERVED, STATE_NAMES, Job
from greenstalk_server.web.features.errors.errors import TubeErrors
from greenstalk_server.web.features.errors.groups import ErrorGroups
from greenstalk_server.web.framework.api.values import Count, Instant, ResponseModel, instant, model_of
from greenstalk_server.web.reads.connections import ActorRef, resolve_actors
from greenstalk_server.web.reads.jobs.body_terms import ERROR, FieldMatch
from greenstalk_server.web.reads.jobs.events import events_of
from greenstalk_server.web.reads.jobs.job_errors import error_text, normalized
from greenstalk_server.web.reads.jobs.job_list import REASONS, Reason
from greenstalk_server.web.reads.jobs.job_traces import MAX_LINES, trace_lines
from greenstalk_server.web.reads.jobs.query import Query, Term

GROUP_WAIT: Final = 0.1
"""Maximum seconds to wait for the number of jobs in the error group."""

Outcome = Literal["released", "buried", "timed out", "returned", "dead-lettered"]

OUTCOMES: Final[Mapping[int, Outcome]] = {
    job_history.RELEASED: "released",
    job_history.BURIED: "buried",
    job_history.TIMED_OUT: "timed out",
    job_history.RETURNED: "returned",
    job_history.DEAD_LETTERED: "dead-lettered",
}
"""Events that end a reservation."""


class Worker(ResponseModel):
    """The connection that held a job."""

    number: int
    address: Annotated[str, Meta(description="Empty if it is no longer known.")]
    name: Annotated[
        str, Meta(description="The name that the client has set; empty if none, or if it has disconnected.")
    ]
    is_connected: bool


class Attempt(ResponseModel):
    """A reservation of a job."""

    number: Annotated[Count, Meta(description="Number of the reservation, from 1.")]
    worker: Worker
    started_at: Instant
    ended_at: Annotated[Instant | None, Meta(description="Null if it has not ended, or if its end is not known.")]
    outcome: Annotated[
        Outcome | None,
        Meta(description="`returned`: the worker disconnected, or the server stopped. Null if `ended_at` is null."),
    ]


class FailureGroup(ResponseModel):
    """The failed jobs of the same tube with the same error."""

    error: Annotated[str, Meta(description="The normalised error.")]
    jobs: Annotated[
        Count | None,
        Meta(description="Number of jobs; null if they are still being counted, or if the error is a rare one."),
    ]
    q: Annotated[
        str, Meta(description="The search that finds these jobs.", examples=['tube:mail state:buried error:"no route"'])
    ]


class Failure(ResponseModel):
    """The known reasons for the failure of a job."""

    error: Annotated[str, Meta(description="The error in the body, on one line; empty if there is none, or if hidden.")]
    reason: Annotated[Reason | None, Meta(description="Reason why the job is a dead letter; null if it is not.")]
    trace: Annotated[list[str], Meta(description=f"Lines of the stack trace in the body, at most {MAX_LINES}.")]
    attempts: Annotated[list[Attempt], Meta(description="The last reservations, oldest first.")]
    earlier_attempts: Annotated[Count, Meta(description="Number of earlier reservations, whose times are unknown.")]
    group: Annotated[
        FailureGroup | None,
        Meta(description="Null if the job has no error, or is neither buried nor a dead letter."),
    ]


def has_failed(job: Job) -> bool:
    """Return whether *job* is buried or a dead letter, or was released, buried or timed out before."""
    return job.state == BURIED or bool(job.dead_letter or job.releases or job.timeouts or job.buries)


def failure_of(broker: Broker, errors: TubeErrors, job: Job, body: bytes | None) -> Failure | None:
    """Return why *job* failed; None if it has not failed. Switches for at most GROUP_WAIT.

    *body* is None if it is hidden from the principal, or cannot be read.
    """
    if not has_failed(job):
        return None
    attempts = attempts_of(broker, job)
    error = error_text(body) if body is not None else ""
    return Failure(
        error=error,
        reason=REASONS[DeadLetter.unpack(job.dead_letter).reason] if job.dead_letter else None,
        trace=trace_lines(body) if body is not None else [],
        attempts=attempts,
        earlier_attempts=max(0, job.reserves - len(attempts)),
        group=_group(errors, job, normalized(error)) if error else None,
    )


def attempts_of(broker: Broker, job: Job) -> list[Attempt]:
    """Return the reservations of *job* in its history, oldest first."""
    events = events_of(job)
    runs = reservations_in(events)
    known = resolve_actors(broker, {start.client for start, _ in runs})
    first = max(1, job.reserves - len(runs) + 1)
    return [_attempt(first + at, start, end, known[start.client]) for at, (start, end) in enumerate(runs)]


def reservations_in(events: list[job_history.Event]) -> list[tuple[job_history.Event, job_history.Event | None]]:
    """Return each reservation in *events*, and the event that ended it, or None if that is unknown."""
    runs = list[tuple[job_history.Event, job_history.Event | None]]()
    for event in events:
        if event.kind == job_history.RESERVED:
            runs.append((event, None))
        elif event.kind in OUTCOMES and runs and runs[-1][1] is None:
            runs[-1] = runs[-1][0], event
    return runs


def _attempt(number: int, start: job_history.Event, end: job_history.Event | None, worker: ActorRef) -> Attempt:
    return Attempt(
        number=number,
        worker=model_of(Worker, worker, number=start.client),
        started_at=instant(start.at),
        ended_at=instant(end.at) if end is not None else None,
        outcome=OUTCOMES[end.kind] if end is not None else None,
    )


def _group(errors: TubeErrors, job: Job, error: str) -> FailureGroup | None:
    """Return the group of *job* with the normalised *error*. Switches for at most GROUP_WAIT."""
    if job.state == RESERVED or not (job.state == BURIED or job.dead_letter):
        return None
    try:
        task = errors.start(job.tube, 0, ())
    except ServiceUnavailable:  # too many tasks run
        return None
    found = task.subject_as(ErrorGroups)
    if found.query.state not in ("", STATE_NAMES[job.state]):  # the job is a dead letter outside of a dead-letter tube
        return None
    task.wait(GROUP_WAIT)
    query = Query((*found.query.terms, Term(ERROR, FieldMatch(error, is_quoted=True))))
    return FailureGroup(
        error=error, jobs=next((group.jobs for group in found.groups if group.error == error), None), q=str(query)
    )
