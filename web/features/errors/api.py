"""The failed jobs of a tube grouped by their error, as the API returns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

from msgspec import UNSET, Meta, UnsetType

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job_attributes import REASON_NAMES
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY
from greenstalk_server.web.changes.tasks import INITIAL_WAIT
from greenstalk_server.web.features.errors.errors import TubeErrors, groups_of, retry_action
from greenstalk_server.web.features.errors.groups import MAX_GROUPS, ErrorGroups
from greenstalk_server.web.features.errors.groups import ErrorGroup as CoreGroup
from greenstalk_server.web.features.jobs.api.jobs import Reason
from greenstalk_server.web.features.tasks.api import BUSY, Progress, TaskId, progress_of
from greenstalk_server.web.features.tubes.api.tubes import NO_TUBE
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import Count, Instant, JobId, ResponseModel, TubeRequest, instant
from greenstalk_server.web.reads.jobs.json_fields import MAX_PATH, PathError, parse_path
from greenstalk_server.web.reads.lookup import tube_of

FailedState = Literal["buried", "ready", "delayed"]
Retry = Literal["kick", "redrive"]

_STATES: Final[Mapping[str, int]] = {"buried": BURIED, "ready": READY, "delayed": DELAYED}
_REASONS: Final[Mapping[str, Reason]] = {reason: reason for reason in get_args(Reason)}
_RETRIES: Final[Mapping[str, Retry]] = {action: action for action in get_args(Retry)}


class ErrorGroup(ResponseModel):
    """The failed jobs with one error."""

    error: Annotated[
        str | None,
        Meta(
            description="The normalised error: numbers and ids are `#`, the contents of quotes `…`. Null if the jobs"
            " have no error."
        ),
    ]
    reason: Annotated[
        Reason | None,
        Meta(description="Without an error, why the jobs are dead letters; null if they are not."),
    ]
    jobs: Annotated[Count, Meta(description="Number of jobs.")]
    first_at: Annotated[Instant, Meta(description="When the first of these jobs failed.")]
    last_at: Annotated[Instant, Meta(description="When the last of these jobs failed.")]
    sample: Annotated[JobId, Meta(description="The job that failed last.")]
    sample_error: Annotated[str, Meta(description="The error in its body, shortened; empty if there is none.")]
    q: Annotated[
        str,
        Meta(
            description="The search that finds exactly these jobs, for `GET /jobs`, `/jobs/export` and `POST /bulk`.",
            examples=['tube:mail state:buried error:"no route to #"'],
        ),
    ]
    retry: Annotated[
        Retry | None,
        Meta(description="The action for `POST /bulk` that makes these jobs ready; null if they are ready."),
    ]


class ErrorList(ResponseModel):
    """The failed jobs of a tube by their error, as of the end of a task."""

    task: TaskId
    state: Progress
    scanned: Annotated[Count, Meta(description="Jobs scanned so far.")]
    total: Annotated[Count, Meta(description="Jobs to scan.")]
    jobs: Annotated[Count, Meta(description="Failed jobs found so far.")]
    groups: Annotated[
        list[ErrorGroup],
        Meta(description=f"The {MAX_GROUPS} most common errors, the most common first; empty while the task runs."),
    ]
    others: Annotated[Count, Meta(description="Failed jobs with other errors.")]
    unread: Annotated[Count, Meta(description="Failed jobs whose bodies cannot be read back from the disk.")]


class ListErrorsRequest(TubeRequest):
    """Selects the jobs of a tube, and the field of their bodies that has the error."""

    state: Annotated[
        FailedState | UnsetType,
        Meta(description="By default buried jobs, and for a dead-letter tube all except reserved jobs."),
    ] = UNSET
    field: Annotated[
        str,
        Meta(
            max_length=MAX_PATH,
            description="Path of the field with the error; by default it is found as docs/dashboard.md describes.",
            examples=["job.reason"],
        ),
    ] = ""
    refresh: Annotated[bool, Meta(description="Group again, even if there is a recent result.")] = False


class Errors:
    """The failed jobs of a tube, grouped by their error."""

    def __init__(self, broker: Broker, errors: TubeErrors) -> None:
        self._broker: Broker = broker
        self._errors: TubeErrors = errors

    @endpoint(
        "GET",
        "/tube/errors",
        errors=NO_TUBE | BUSY | {403: "Bodies are hidden from you, so you cannot see their errors."},
    )
    def list_errors(self, query: ListErrorsRequest) -> ErrorList:
        """Group the failed jobs of a tube by their error, the most common first.

        A task reads the jobs. The response takes at most half a second. If `state` is `running`, repeat the request
        without `refresh`. Requests for the same jobs share a task, whose result is reused for ten times as long as the
        task took.
        """
        try:
            path = parse_path(query.field) if query.field else ()
        except PathError as error:
            refuse("field", f"is invalid: {error}".rstrip("."))
        state = 0 if query.state is UNSET else _STATES[query.state]
        task = self._errors.start(tube_of(self._broker, query.tube), state, path, query.refresh)
        task.wait(INITIAL_WAIT)
        found = groups_of(task)
        return ErrorList(
            task=task.id,
            state=progress_of(task),
            scanned=task.scanned,
            total=task.total,
            jobs=found.total,
            groups=[_group(found, group) for group in found.groups],
            others=found.others,
            unread=found.unread,
        )


def _group(found: ErrorGroups, group: CoreGroup) -> ErrorGroup:
    return ErrorGroup(
        error=group.error or None,
        reason=_REASONS.get(REASON_NAMES[group.reason]),
        jobs=group.count,
        first_at=instant(group.first_at),
        last_at=instant(group.last_at),
        sample=group.sample_id,
        sample_error=group.sample,
        q=str(found.query_of(group)),
        retry=_RETRIES.get(retry_action(group)),
    )
