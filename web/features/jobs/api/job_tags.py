"""The tags of jobs in the API: in the representation of a job, and in a put."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.tags.tags import TaggedJob, Tags, tags_of
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import Count, RequestModel, ResponseModel, TubeName

MAX_SECONDS = 2**32 - 1


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


class TagsRequest(RequestModel):
    """Tags of a job to put. `group` and `after` must differ."""

    idempotency_key: Annotated[
        TubeName | UnsetType, Meta(description="If a job of the tube has this key, no job is added.")
    ] = UNSET
    idempotency_ttl: Annotated[
        int, Meta(ge=0, le=MAX_SECONDS, description="Seconds that the key stays taken after the job is deleted.")
    ] = 0
    group: Annotated[TubeName | UnsetType, Meta(description="The group that the job belongs to.")] = UNSET
    after: Annotated[
        TubeName | UnsetType, Meta(description="The group that must be empty before the job becomes ready.")
    ] = UNSET
    concurrency_key: Annotated[
        TubeName | UnsetType, Meta(description="Key that limits how many jobs are reserved at a time.")
    ] = UNSET
    concurrency_limit: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_SECONDS,
            description="Maximum number of reserved jobs with the key; the smallest limit of its jobs applies.",
        ),
    ] = 1


def tags_out(job: Job) -> JobTags | None:
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


def tags_in(wanted: TagsRequest | UnsetType, field: str) -> Tags | None:
    """Return the tags in *wanted*, the value of *field*; None if it is unset."""
    if wanted is UNSET:
        return None
    if wanted.group is not UNSET and wanted.group == wanted.after:
        refuse(f"{field}.after", "must differ from the group of the job")
    key = _bytes(wanted.idempotency_key)
    limiter = _bytes(wanted.concurrency_key)
    return Tags(
        idempotency_key=key,
        idempotency_ttl=wanted.idempotency_ttl * SECOND if key else 0,
        group=_bytes(wanted.group),
        after=_bytes(wanted.after),
        concurrency_key=limiter,
        concurrency_limit=wanted.concurrency_limit if limiter else 0,
    )


def _bytes(name: str | UnsetType) -> bytes:
    return b"" if name is UNSET else name.encode()
