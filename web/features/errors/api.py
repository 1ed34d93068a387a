"""The failed jobs of a tube grouped by their error, as the API returns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType
from werkzeug.exceptions import NotFound

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY
from greenstalk_server.web.changes.task_model import BUSY, TaskId
from greenstalk_server.web.changes.tasks import INITIAL_WAIT, Progress, Task
from greenstalk_server.web.features.errors.errors import ALL_BURIED, ALL_DEAD_LETTERS, TubeErrors
from greenstalk_server.web.features.errors.failure import Failure, failure_of
from greenstalk_server.web.features.errors.groups import MAX_GROUPS, ErrorGroup, ErrorGroups
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import NO_TUBE, Count, JobId, RequestModel, ResponseModel, TubeRequest
from greenstalk_server.web.reads.jobs.bodies import load_bodies
from greenstalk_server.web.reads.jobs.json_fields import MAX_PATH, PathError, parse_path
from greenstalk_server.web.reads.lookup import find_job, tube_of

FailedState = Literal["buried", "ready", "delayed"]

_STATES: Final[Mapping[str, int]] = {"buried": BURIED, "ready": READY, "delayed": DELAYED}


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


class ListAllErrorsRequest(RequestModel):
    """Selects the failed jobs of all tubes."""

    jobs: Annotated[
        Literal["buried", "dead_letters"], Meta(description="Buried jobs, or dead letters that are not reserved.")
    ] = "buried"
    refresh: Annotated[bool, Meta(description="Group again, even if there is a recent result.")] = False


class ErrorsEndpoints:
    """The failed jobs of a tube, or of all tubes, grouped by their error."""

    def __init__(self, broker: Broker, errors: TubeErrors) -> None:
        self._broker: Broker = broker
        self._errors: TubeErrors = errors

    @endpoint("GET", "/jobs/{id}/failure", errors={404: "The job does not exist, or has not failed."})
    def get_failure(self, id: JobId) -> Failure:
        """Get the reason why a job failed: its error, stack trace, attempts, and the number of jobs with the error.

        A task counts the jobs, as for `GET /tube/errors`. Repeat the request if `jobs` of the group is null.
        """
        job = find_job(self._broker, {"id": str(id)})
        body = load_bodies(self._broker, (job,)).get(id) if principal().sees_bodies else None
        failure = failure_of(self._broker, self._errors, find_job(self._broker, {"id": str(id)}), body)
        if failure is None:
            raise NotFound(f"Job {id} has not failed: it was never buried or released, and never timed out.")
        return failure

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
        return _listed(self._errors.start(tube_of(self._broker, query.tube), state, path, query.refresh))

    @endpoint("GET", "/errors", errors=BUSY | {403: "Bodies are hidden from you, so you cannot see their errors."})
    def list_all_errors(self, query: ListAllErrorsRequest) -> ErrorList:
        """Group the failed jobs of all tubes that you may see by their error, the most common first.

        The task and its result have the same form as for `GET /tube/errors`.
        """
        jobs = ALL_DEAD_LETTERS if query.jobs == "dead_letters" else ALL_BURIED
        return _listed(self._errors.start_all(jobs, query.refresh))


def _listed(task: Task) -> ErrorList:
    """Return the groups of *task*, after a short wait for its end. Switches."""
    task.wait(INITIAL_WAIT)
    found = task.subject_as(ErrorGroups)
    return ErrorList(
        task=task.id,
        state=task.state,
        scanned=task.scanned,
        total=task.total,
        jobs=found.total,
        groups=found.groups,
        others=found.others,
        unread=found.unread,
    )
