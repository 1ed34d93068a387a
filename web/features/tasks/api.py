"""API endpoints of tasks: searches and bulk changes, which run on the server and report progress."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from greenstalk_server.config.tables.roles import OPERATOR, VIEWER
from greenstalk_server.web.changes.bulk import ACTIONS, MAX_TICKED, ActionName, Bulk, Change, Plan
from greenstalk_server.web.changes.task_model import BUSY, Task, TaskId, started_task, task_model
from greenstalk_server.web.changes.tasks import Task as RunningTask
from greenstalk_server.web.changes.tasks import Tasks as TaskManager
from greenstalk_server.web.changes.tube_changes import TubeChanges, TubePlan
from greenstalk_server.web.features.jobs.api.found_jobs import FoundJobs, Shown
from greenstalk_server.web.features.jobs.api.jobs import (
    HIDDEN,
    JobList,
    JobSelectionRequest,
    SortedJobsRequest,
    parse_order,
    parse_selector,
)
from greenstalk_server.web.features.search.search import MAX_MATCHES, Search, Searches
from greenstalk_server.web.features.tasks.listed import ListedTasks
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Cursor, Limit, dump, load
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import (
    Delay,
    JobId,
    Pri,
    RequestModel,
    ResponseModel,
    TubeName,
    checked_id,
)
from greenstalk_server.web.reads.jobs.job_orders import BY_ID
from greenstalk_server.web.reads.jobs.query import Query

MIN_RATE: Final = 0.001
MAX_RATE: Final = 1_000_000.0
"""Bounds of the rate of a change, in jobs per second."""


class TaskList(ResponseModel):
    """All tasks that are kept, newest first."""

    tasks: list[Task]


class SearchJobsRequest(SortedJobsRequest):
    """The jobs to search for, and the order in which the first of them are listed: by default by id."""


class ChangeSelectionRequest(JobSelectionRequest, kw_only=True):
    """All jobs that match `tube`, `state` and `q`, limited to `ids` if given, and the maximum rate of the change."""

    all: Annotated[
        bool, Meta(description="Must be true to change every job, without `ids`, `tube`, `state` and `q`.")
    ] = False
    ids: Annotated[list[JobId], Meta(min_length=1, max_length=MAX_TICKED)] | UnsetType = UNSET
    rate: Annotated[
        Annotated[float, Meta(ge=MIN_RATE, le=MAX_RATE)] | UnsetType,
        Meta(description="Maximum number of jobs to change per second; no limit if absent."),
    ] = UNSET


class RedriveJobsRequest(ChangeSelectionRequest):
    """The dead letters to move back: those that match `tube`, `state` and `q`, limited to `ids` if given."""


class ChangeJobsRequest(ChangeSelectionRequest, kw_only=True):
    """A change to all jobs that match `tube`, `state` and `q`, limited to `ids` if given."""

    action: Annotated[
        ActionName,
        Meta(
            description="The change. `pri` and `delay` set the field of that name. `redrive` moves dead letters back to"
            " the tubes that they came from."
        ),
    ]
    to: Annotated[TubeName | UnsetType, Meta(description="The target tube, for `move`.")] = UNSET
    pri: Annotated[Pri | UnsetType, Meta(description="The new priority, for `pri`.")] = UNSET
    delay: Annotated[
        Delay | UnsetType,
        Meta(description="The new delay, for `delay`: seconds from the change until the job is ready."),
    ] = UNSET
    force: Annotated[bool, Meta(description="Also change jobs that clients hold.")] = False
    dry_run: Annotated[bool, Meta(description="Only count. Must be false to change anything.")] = True


class RunTaskRequest(RequestModel):
    """Options for carrying out a dry run."""

    force: Annotated[bool, Meta(description="Also change jobs that clients hold.")] = False


DEFAULT_RUN: Final = RunTaskRequest()


class ListFoundJobsRequest(RequestModel):
    """A page of the jobs found."""

    bodies: Annotated[bool, Meta(description="Include the bodies.")] = True
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = DEFAULT_LIMIT


class _FoundPosition(Struct, array_like=True):
    """A position in the list of the jobs found."""

    task: str
    at: int


NO_TASK: Final = {404: "The task does not exist. The server keeps the last 50 of each kind until it stops."}


class TasksEndpoints:
    """Tasks: searches, bulk changes and dry runs, which run on the server and report progress."""

    def __init__(
        self,
        tasks: TaskManager,
        searches: Searches,
        bulk: Bulk,
        tube_changes: TubeChanges,
        listed: ListedTasks,
        found: FoundJobs,
    ) -> None:
        self._tasks: TaskManager = tasks
        self._searches: Searches = searches
        self._bulk: Bulk = bulk
        self._tube_changes: TubeChanges = tube_changes
        self._listed: ListedTasks = listed
        self._found: FoundJobs = found

    @endpoint("POST", "/searches", role=VIEWER, status=202, errors=HIDDEN | BUSY)
    def search_jobs(self, body: SearchJobsRequest) -> Task:
        """Search all jobs, as a task.

        The task counts every match, and keeps the first 1000 in the order of `sort` for `/tasks/{task}/jobs`. The
        response comes within half a second, with the progress so far. To page through all matches, use `GET /jobs` with
        `q` instead.
        """
        task = self._searches.start(parse_selector(body), parse_order(body) or BY_ID)
        return started_task(task)

    @endpoint("POST", "/bulk", role=OPERATOR, status=202, errors=HIDDEN | BUSY)
    def change_jobs(
        self, body: Annotated[ChangeJobsRequest, Meta(examples=[{"action": "kick", "tube": "mail", "state": "buried"}])]
    ) -> Task:
        """Change many jobs, or count the jobs that a change would affect, as a task.

        Unless `dry_run` is false, this is a dry run: it counts and changes nothing. `/tasks/{task}/run` carries it out.
        A change never affects jobs put after it has started.
        """
        plan = self._plan(body, _change(body))
        task = self._bulk.dry_run(plan) if body.dry_run else self._bulk.start_run(plan, body.force)
        return started_task(task)

    @endpoint("POST", "/redrive", role=OPERATOR, status=202, errors=HIDDEN | BUSY)
    def redrive_jobs(
        self, body: Annotated[RedriveJobsRequest, Meta(examples=[{"tube": "mail.failed", "rate": 10.0}])]
    ) -> Task:
        """Move dead letters back to the tubes that they came from, as a task.

        Each is ready there as a new job: its attempts and its age restart. Jobs that are not dead letters, and jobs
        that clients hold, stay. `skipped` counts the jobs whose original tube is full. To count first,
        use `/bulk`.
        """
        return started_task(self._bulk.start_run(self._plan(body, Change("redrive")), is_forced=False))

    @endpoint("GET", "/tasks")
    def list_tasks(self) -> TaskList:
        """List the tasks that are kept."""
        return TaskList(tasks=self._listed.models())

    @endpoint("GET", "/tasks/{task}", errors=NO_TASK | {403: "The task searches bodies, which are hidden from you."})
    def get_task(self, task: TaskId) -> Task:
        """Get a task and its progress."""
        return task_model(self._find(task))

    @endpoint("DELETE", "/tasks/{task}", role=OPERATOR, errors=NO_TASK)
    def cancel_task(self, task: TaskId) -> Task:
        """Cancel a task. Changes that it has already made stay."""
        found = self._find(task)
        self._tasks.stop(found)
        return task_model(found)

    @endpoint(
        "POST",
        "/tasks/{task}/run",
        role=OPERATOR,
        status=202,
        errors=NO_TASK | BUSY | {409: "The dry run did not finish."},
    )
    def run_task(self, task: TaskId, body: RunTaskRequest = DEFAULT_RUN) -> Task:
        """Carry out a dry run: make the change that it counted.

        The change is made at most once, to the jobs that now match the same query and were put before the dry run, or
        to the tubes that the dry run found.
        """
        dry_run = self._find(task)
        if isinstance(dry_run.subject, TubePlan):
            return started_task(self._tube_changes.start_run(dry_run))
        plan = self._bulk.runnable_plan(dry_run)
        if not plan.run:
            self._bulk.refuse_unfinished(dry_run)
        return started_task(self._bulk.start_run(plan, body.force))

    @endpoint(
        "GET", "/tasks/{task}/jobs", errors=NO_TASK | {403: "The task searches bodies, which are hidden from you."}
    )
    def list_found(self, task: TaskId, query: ListFoundJobsRequest) -> JobList:
        """List the jobs that a search has found so far, as they are now. Deleted jobs are left out."""
        found = self._find(task)
        places, at = found.subject_as(Search).places, _at(query, found)
        page = self._found.page(dict(islice(places.items(), at, at + query.limit)), Shown(query.bodies), Query())
        at += page.looked_at
        return JobList(jobs=page.jobs, next_cursor=dump(_FoundPosition(found.id, at)) if at < len(places) else None)

    def _find(self, id: str) -> RunningTask:
        return self._tasks.find({"task": id})

    def _plan(self, body: ChangeSelectionRequest, change: Change) -> Plan:
        query = parse_selector(body)
        if not query.terms and body.ids is UNSET and not body.all:
            refuse("all", "must be true to change every job; otherwise select jobs by ids, tube, state or q")
        ids = None if body.ids is UNSET else tuple(dict.fromkeys(checked_id("ids", id) for id in body.ids))
        return self._bulk.plan(change, query, ids, 0.0 if body.rate is UNSET else body.rate)


def _change(body: ChangeJobsRequest) -> Change:
    field_name = ACTIONS[body.action].field_name
    for name in ("to", "pri", "delay"):
        is_given = getattr(body, name) is not UNSET
        if is_given and name != field_name:
            refuse(name, f"is not used by the action {body.action}")
        if name == field_name and not is_given:
            refuse(name, f"is missing: the action {body.action} needs it")
    if body.action == "move" and body.to is not UNSET:
        return Change("move", body.to.encode())
    return Change(body.action, getattr(body, field_name) if field_name else 0)


def _at(query: ListFoundJobsRequest, task: RunningTask) -> int:
    if query.cursor is UNSET:
        return 0
    position = load(query.cursor, _FoundPosition)
    if position.task != task.id or not 0 <= position.at <= MAX_MATCHES:
        refuse("cursor", "belongs to another list")
    return position.at
