"""The tags of a job to put, as the API receives them."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.tags.tags import Tags
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import RequestModel, TubeName

MAX_SECONDS = 2**32 - 1


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
