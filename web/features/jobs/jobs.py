"""A job as the API returns it: the model, and the functions that fill it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

from msgspec import UNSET, Meta, UnsetType

from greenstalk_server.core import job_attributes
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND
from greenstalk_server.core.jobs.job import Job as CoreJob
from greenstalk_server.core.tags.tags import TaggedJob, tags_of
from greenstalk_server.core.timers import NEVER
from greenstalk_server.protocol.extended_stats import job_extension
from greenstalk_server.protocol.stats import job_stats
from greenstalk_server.web.features.jobs.export import encode_body
from greenstalk_server.web.framework.access import HIDDEN_TUBE, principal
from greenstalk_server.web.framework.api.values import (
    Count,
    Duration,
    Instant,
    JobId,
    Pri,
    ResponseModel,
    State,
    TubeName,
    duration,
    instant,
    model_of,
)
from greenstalk_server.web.framework.fields import MAX_PUT
from greenstalk_server.web.reads.jobs.events import events_of
from greenstalk_server.web.reads.jobs.frameworks import DecodedJob, decode
from greenstalk_server.web.reads.jobs.job_list import REASONS, Reason
from greenstalk_server.web.reads.jobs.json_fields import MAX_SHOWN
from greenstalk_server.web.reads.jobs.moving import target_of
from greenstalk_server.web.reads.policies import expires_at

Encoding = Literal["utf-8", "base64"]

MAX_JSON_BODY: Final = MAX_PUT
"""Bytes of the largest job body inside JSON. Larger bodies are available at `/jobs/{id}/body` only."""

BodyFields = Annotated[
    dict[str, str | None],
    Meta(
        description="The requested fields of the JSON body by path, as text of at most"
        f" {MAX_SHOWN} characters; null if the body lacks the field. Absent if none was requested."
    ),
]


class JobTags(ResponseModel):
    """The tags of a job."""

    idempotency_key: Annotated[TubeName | None, Meta(description="Key that only one job of its tube may have.")]
    idempotency_ttl: Annotated[Count, Meta(description="Seconds that the idempotency key outlives the job.")]
    group: Annotated[TubeName | None, Meta(description="The group that the job belongs to.")]
    after: Annotated[TubeName | None, Meta(description="The group that must be empty before the job becomes ready.")]
    concurrency_key: Annotated[
        TubeName | None, Meta(description="Key that limits how many jobs are reserved at a time.")
    ]
    concurrency_limit: Annotated[
        int | None, Meta(description="Maximum number of reserved jobs with the concurrency key.")
    ]


class DeadLetter(ResponseModel):
    """The reason and the origin of a dead letter: a job that a policy moved to a dead-letter tube."""

    reason: Annotated[
        Reason,
        Meta(description="It ran out of attempts, expired, expired while buried, or its tube was full (`overflow`)."),
    ]
    source: Annotated[
        str,
        Meta(
            description="The tube that it came from. A redrive moves it back to this tube."
            f" “{HIDDEN_TUBE}” if you may not see it."
        ),
    ]
    attempts: Annotated[Count, Meta(description="Its attempts in that tube.")]
    first_at: Annotated[Instant, Meta(description="Time of its first move to a dead-letter tube.")]
    last_at: Annotated[Instant, Meta(description="Time of its last move to a dead-letter tube.")]


class Job(ResponseModel, kw_only=True):
    """A job as it is now."""

    id: JobId
    tube: TubeName
    state: State
    pri: Pri
    age: Annotated[Count, Meta(description="Seconds since the put.")]
    delay: Annotated[Duration, Meta(description="Delay in seconds of the last put or release.")]
    ttr: Annotated[Duration, Meta(description="Time to run: seconds after which a reserved job becomes ready again.")]
    time_left: Annotated[
        Count, Meta(description="Seconds until a delayed or reserved job becomes ready; 0 for other jobs.")
    ]
    time_reserved: Annotated[Count, Meta(description="Seconds since it was reserved; 0 if it is not reserved.")]
    file: Annotated[Count, Meta(description="Number of the journal's file that holds it; 0 without a journal.")]
    reserves: Annotated[Count, Meta(description="Number of times that a worker has reserved it.")]
    timeouts: Annotated[Count, Meta(description="Number of reservations that timed out.")]
    releases: Annotated[Count, Meta(description="Number of times that it was released.")]
    buries: Annotated[Count, Meta(description="Number of times that it was buried.")]
    kicks: Annotated[Count, Meta(description="Number of times that it was kicked.")]
    attempts: Annotated[
        Count, Meta(description="Reservations since the put, the last kick, or the last move by a policy or a redrive.")
    ]
    created_at: Annotated[Instant, Meta(description="Time of the put.")]
    expires_at: Annotated[
        Instant | None, Meta(description="Time at which it expires if nothing changes; null if it does not expire.")
    ]
    dead_letter: Annotated[DeadLetter | None, Meta(description="Null if it is not a dead letter.")]
    held_by: Annotated[int | None, Meta(description="Number of the connection that holds it; null if none does.")]
    moving_to: Annotated[
        str | None,
        Meta(
            description=f"The tube of another shard to which it is moving, “{HIDDEN_TUBE}” if you may not see it; null"
            " if it is not moving. A job that moves is reserved, and cannot be changed."
        ),
    ]
    tags: Annotated[JobTags | None, Meta(description="Tags of the job; null if it has none.")]
    size: Annotated[Count, Meta(description="Bytes of the body.")]
    encoding: Annotated[Encoding | None, Meta(description="Encoding of `body`; null if `body` is null.")]
    body: Annotated[
        str | None,
        Meta(
            description="The body; null if it was not requested, is hidden from you, has more than"
            f" {MAX_JSON_BODY} bytes, or cannot be read back from the disk. `/jobs/{{id}}/body` returns every body that"
            " can be read, or the reason."
        ),
    ]
    fields: BodyFields | UnsetType = UNSET


EventKind = Literal[
    "reserved", "released", "buried", "kicked", "timed out", "returned", "edited", "moved", "dead-lettered", "redriven",
    "unblocked",
]  # fmt: skip


class Event(ResponseModel):
    """An event in the life of a job."""

    at: Instant
    kind: EventKind
    connection: Annotated[int | None, Meta(description="Number of the connection that caused it; null if none did.")]


class JobWithEvents(Job):
    """A job as it is now, its events, and the message of a job framework in its body."""

    message: Annotated[
        DecodedJob | None,
        Meta(description="Null if the body is null, or is not the message of a known framework."),
    ]
    events: Annotated[list[Event], Meta(description=f"The last {job_history.MAX_EVENTS} events, oldest first.")]


KINDS: Final[Mapping[int, EventKind]] = dict(enumerate(get_args(EventKind), 1))
"""The kinds by number, in the order of job_history.KINDS; a test compares the two."""

STATES: Final[Mapping[int, State]] = {
    READY: "ready",
    RESERVED: "reserved",
    DELAYED: "delayed",
    BURIED: "buried",
}


def shows_body(job: CoreJob) -> bool:
    """Return whether JSON includes the body of *job* for the current principal."""
    return job.size <= MAX_JSON_BODY and principal().sees_bodies


def job_model(job: CoreJob, now: int, body: bytes | None = None) -> Job:
    """Return *job* as lists show it, with *body* unless that is None."""
    stats = job_stats(job, now)
    encoding, shown = _encoded(body) if body is not None else (None, None)
    moving_to = target_of(job)
    return model_of(
        Job,
        stats,
        state=STATES[job.state],
        delay=duration(job.delay),
        ttr=duration(job.ttr),
        time_reserved=job_extension(job, now).time_reserved,
        attempts=job.attempts,
        created_at=instant(job.created_at),
        expires_at=instant(at) if (at := expires_at(job)) != NEVER else None,
        dead_letter=_dead_letter(job),
        held_by=job.holder.number if job.holder is not None and not moving_to else None,
        moving_to=moving_to or None,
        tags=_tags(job),
        size=job.size,
        encoding=encoding,
        body=shown,
        fields=UNSET,
    )


def _dead_letter(job: CoreJob) -> DeadLetter | None:
    if not job.dead_letter:
        return None
    found = job_attributes.DeadLetter.unpack(job.dead_letter)
    return DeadLetter(
        reason=REASONS[found.reason],
        source=principal().name_of(found.source),
        attempts=found.attempts,
        first_at=instant(found.first_at),
        last_at=instant(found.last_at),
    )


def job_with_events(job: CoreJob, now: int, body: bytes | None = None) -> JobWithEvents:
    """Return *job* with its events, and with *body* unless that is None."""
    events = [
        Event(at=instant(event.at), kind=KINDS[event.kind], connection=event.client or None) for event in events_of(job)
    ]
    message = decode(body) if body is not None else None
    return model_of(JobWithEvents, job_model(job, now, body), events=events, message=message)


def _tags(job: CoreJob) -> JobTags | None:
    """Return the tags of *job*; None if it has none."""
    if not isinstance(job, TaggedJob):
        return None
    tags = tags_of(job)
    return JobTags(
        idempotency_key=tags.idempotency_key.decode() or None,
        idempotency_ttl=tags.idempotency_ttl // SECOND,
        group=tags.group.decode() or None,
        after=tags.after.decode() or None,
        concurrency_key=tags.concurrency_key.decode() or None,
        concurrency_limit=tags.concurrency_limit or None,
    )


def _encoded(body: bytes) -> tuple[Encoding, str]:
    """Return the encoding of *body* in JSON, and *body* as text in that encoding."""
    encoding, shown = encode_body(body)
    return ("utf-8" if encoding == "utf-8" else "base64"), shown
