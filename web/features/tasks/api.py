"""The tasks of the API: searches and bulk changes, which run on the server and report progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from greenstalk_server.config.tables.roles import OPERATOR, VIEWER
from greenstalk_server.core.broker import Broker
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.bulk import ACTIONS, MAX_TICKED, Bulk, Change, Plan
from greenstalk_server.web.changes.tasks import INITIAL_WAIT
from greenstalk_server.web.changes.tasks import Task as CoreTask
from greenstalk_server.web.changes.tasks import Tasks as TaskManager
from greenstalk_server.web.changes.tube_changes import SAMPLE_SIZE, TubeChanges, TubePlan
from greenstalk_server.web.features.errors.groups import ErrorGroups
from greenstalk_server.web.features.jobs.api.jobs import HIDDEN, JobList, JobSelectionRequest, job_rows, parse_selector
from greenstalk_server.web.features.policies.changes import Effect
from greenstalk_server.web.features.search.search import MAX_MATCHES, Search, Searches, search_of
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Cursor, Limit, dump, load
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.router import set_location
from greenstalk_server.web.framework.api.values import (
    Count,
    Delay,
    Instant,
    JobId,
    Pri,
    RequestModel,
    ResponseModel,
    TubeName,
    instant,
    model_of,
)
from greenstalk_server.web.reads.jobs.bodies import iter_with_bodies

MIN_RATE: Final = 0.001
MAX_RATE: Final = 1_000_000.0
"""Bounds of the rate of a change, in jobs per second."""

TaskId = Annotated[str, Meta(description="The id of a task.", max_length=64, examples=["8f14e45fceea167a"])]

Kind = Literal["search", "dry-run", "change", "policy-dry-run", "tubes-dry-run", "tubes-change", "errors"]
Action = Literal["kick", "bury", "delete", "move", "pri", "delay", "redrive"]
TubeAction = Literal["pause", "resume", "kick"]
Progress = Literal["running", "done", "cancelled", "failed"]

_ACTIONS: Final[Mapping[str, Action]] = {action: action for action in get_args(Action)}
_TUBE_ACTIONS: Final[Mapping[str, TubeAction]] = {action: action for action in get_args(TubeAction)}
_STATES: Final[Mapping[str, Progress]] = {state: state for state in get_args(Progress)}
"""The words of changes.bulk and changes.tasks; a test compares them."""


class Counted(ResponseModel):
    """The counts of a dry run so far, and the task that carries it out."""

    action: Action
    would_change: Annotated[Count, Meta(description="Jobs that the change would change.")]
    held: Annotated[Count, Meta(description="Jobs held by clients; the change would change them only with `force`.")]
    as_they_are: Annotated[Count, Meta(description="Matching jobs that the change would not change.")]
    sample: Annotated[list[JobId], Meta(description="Some of the jobs that the change would change.")]
    run: Annotated[str | None, Meta(description="Id of the task that makes the change; null if it has not started.")]


class PolicyEffect(ResponseModel):
    """The effects that a policy would have at once on existing jobs. The counts are complete when the task is done.

    The counts assume that dead-letter tubes have room; a job for which there is no room would be buried.
    """

    policy: Annotated[str, Meta(description="The name of the policy.")]
    tubes: Annotated[Count, Meta(description="Existing tubes that the policy matches.")]
    changed_tubes: Annotated[Count, Meta(description="Existing tubes whose effective settings would change.")]
    sample: Annotated[list[TubeName], Meta(description="Some of the tubes counted in `tubes` or `changed_tubes`.")]
    jobs: Annotated[Count, Meta(description="Jobs of these tubes.")]
    expired: Annotated[Count, Meta(description="Jobs that would be dropped because they are too old.")]
    dead_lettered: Annotated[Count, Meta(description="Jobs that would move to a dead-letter tube.")]
    buried: Annotated[Count, Meta(description="Jobs that would be buried, because their tube has no dead-letter tube.")]
    evicted: Annotated[Count, Meta(description="Jobs that would be dropped because their tube is above a cap.")]
    over_cap: Annotated[Count, Meta(description="Jobs above a cap that makes their tube refuse puts.")]
    held: Annotated[Count, Meta(description="Ready jobs that would wait because of `max_reserved` or `rate`.")]
    warnings: Annotated[list[str], Meta(description="Loops of dead letters that the policy would cause.")]


class AffectedTube(ResponseModel):
    """A tube that a change affects."""

    tube: TubeName
    jobs: Annotated[Count, Meta(description="Its jobs: those to kick, otherwise the ready ones.")]


class CountedTubes(ResponseModel):
    """The tubes that a change of many tubes affects, and the task that makes the change."""

    action: TubeAction
    pattern: str
    matched: Annotated[Count, Meta(description="Tubes that match the pattern and that you may operate.")]
    tubes: Annotated[Count, Meta(description="Tubes that the change would affect.")]
    jobs: Annotated[Count, Meta(description="The jobs of these tubes: those to kick, otherwise the ready ones.")]
    sample: Annotated[list[AffectedTube], Meta(description=f"Up to {SAMPLE_SIZE} of them, most jobs first.")]
    run: Annotated[str | None, Meta(description="Id of the task that makes the change; null if it has not started.")]


class Task(ResponseModel):
    """A long operation, and its progress. A change of many tubes scans tubes instead of jobs."""

    id: TaskId
    kind: Kind
    title: Annotated[str, Meta(description="A short description.")]
    state: Progress
    started_at: Instant
    ended_at: Instant | None
    total: Annotated[Count, Meta(description="Jobs to scan.")]
    scanned: Annotated[Count, Meta(description="Jobs scanned so far.")]
    matched: Annotated[Count, Meta(description="Jobs that matched so far.")]
    changed: Annotated[Count, Meta(description="Jobs changed so far.")]
    skipped: Annotated[Count, Meta(description="Jobs skipped so far, because the change was not possible.")]
    message: Annotated[str, Meta(description="Why the task ended early, or which jobs it skipped.")]
    counted: Annotated[Counted | None, Meta(description="The counts of a dry run; null for other tasks.")]
    effect: Annotated[PolicyEffect | None, Meta(description="The counts of a policy's dry run; null for other tasks.")]
    tubes: Annotated[
        CountedTubes | None, Meta(description="The counts of a change of many tubes; null for other tasks.")
    ]


class TaskList(ResponseModel):
    """All tasks that are kept, newest first."""

    tasks: list[Task]


class SearchJobsRequest(JobSelectionRequest):
    """The jobs to search for."""


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
        Action,
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


class _FoundPlace(Struct, array_like=True):
    """A position in the list of the jobs found."""

    task: str
    at: int


NO_TASK: Final = {404: "The task does not exist. The server keeps the last 50 of each kind until it stops."}
BUSY: Final = {503: "The server is draining, or the maximum number of tasks is running."}


class Tasks:
    """Tasks: searches, bulk changes and dry runs, which run on the server and report progress."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        tasks: TaskManager,
        searches: Searches,
        bulk: Bulk,
        tube_changes: TubeChanges,
    ) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._tasks: TaskManager = tasks
        self._searches: Searches = searches
        self._bulk: Bulk = bulk
        self._tube_changes: TubeChanges = tube_changes

    @endpoint("POST", "/searches", role=VIEWER, status=202, errors=HIDDEN | BUSY)
    def search_jobs(self, body: SearchJobsRequest) -> Task:
        """Search all jobs, as a task.

        The task counts every match, and keeps the first 1000 for `/tasks/{task}/jobs`. The response comes within half a
        second, with the progress so far. To page through all matches, use `GET /jobs` with `q` instead.
        """
        task = self._searches.start(parse_selector(body))
        return self._started(task)

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
        return self._started(task)

    @endpoint("POST", "/redrive", role=OPERATOR, status=202, errors=HIDDEN | BUSY)
    def redrive_jobs(
        self, body: Annotated[RedriveJobsRequest, Meta(examples=[{"tube": "mail.failed", "rate": 10.0}])]
    ) -> Task:
        """Move dead letters back to the tubes that they came from, as a task.

        Each is ready there as a new job: its attempts and its age restart. Jobs that are not dead letters, and jobs
        that clients hold, stay. `skipped` counts the jobs for which the tube that they came from is full. To count
        first, use `/bulk`.
        """
        return self._started(self._bulk.start_run(self._plan(body, Change("redrive")), is_forced=False))

    @endpoint("GET", "/tasks")
    def list_tasks(self) -> TaskList:
        """List the tasks that are kept."""
        return TaskList(tasks=[task_model(task) for task in self._tasks.all()])

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
            return self._started(self._tube_changes.start_run(dry_run))
        plan = self._bulk.runnable_plan(dry_run)
        if plan.run is None:
            self._bulk.refuse_unfinished(dry_run)
        return self._started(self._bulk.start_run(plan, body.force))

    @endpoint(
        "GET", "/tasks/{task}/jobs", errors=NO_TASK | {403: "The task searches bodies, which are hidden from you."}
    )
    def list_found(self, task: TaskId, query: ListFoundJobsRequest) -> JobList:
        """List the jobs that a search has found so far, as they are now. Deleted jobs are left out."""
        found = self._find(task)
        ids, now, sees = search_of(found).ids, self._clock(), principal().sees
        rows = job_rows(query.limit, now, has_bodies=query.bodies)
        at = _at(query, found)
        for _, job, body in iter_with_bodies(self._broker, ids[at:], rows.wants_body, rows.yield_if_due):
            if rows.is_full:
                break
            at += 1
            if job is not None and sees(job.tube.name):
                rows.add(job, body)
        return JobList(jobs=rows.rows, next_cursor=dump(_FoundPlace(found.id, at)) if at < len(ids) else None)

    def _find(self, id: str) -> CoreTask:
        return self._tasks.find({"task": id})

    def _started(self, task: CoreTask) -> Task:
        set_location("get_task", task=task.id)
        task.wait(INITIAL_WAIT)
        return task_model(task)

    def _plan(self, body: ChangeSelectionRequest, change: Change) -> Plan:
        query = parse_selector(body)
        if not query.terms and body.ids is UNSET and not body.all:
            refuse("all", "must be true to change every job; otherwise select jobs by ids, tube, state or q")
        ids = None if body.ids is UNSET else tuple(dict.fromkeys(body.ids))
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


def _at(query: ListFoundJobsRequest, task: CoreTask) -> int:
    if query.cursor is UNSET:
        return 0
    place = load(query.cursor, _FoundPlace)
    if place.task != task.id or not 0 <= place.at <= MAX_MATCHES:
        refuse("cursor", "belongs to another list")
    return place.at


def task_model(task: CoreTask) -> Task:
    """Return *task* as the API shows it."""
    subject = task.subject
    is_dry_run = isinstance(subject, Plan) and subject.run is not task
    kind: Kind = "dry-run" if is_dry_run else "change"
    if isinstance(subject, Search | Effect):
        kind = "search" if isinstance(subject, Search) else "policy-dry-run"
    if isinstance(subject, ErrorGroups):
        kind = "errors"
    if isinstance(subject, TubePlan):
        kind = "tubes-change" if subject.run is task else "tubes-dry-run"
    return model_of(
        Task,
        task,
        kind=kind,
        state=progress_of(task),
        started_at=instant(task.started_at),
        ended_at=instant(task.ended_at) if task.ended_at else None,
        changed=task.done,
        counted=_counted(subject) if isinstance(subject, Plan) and is_dry_run else None,
        effect=_effect(subject) if isinstance(subject, Effect) else None,
        tubes=_counted_tubes(subject) if isinstance(subject, TubePlan) else None,
    )


def progress_of(task: CoreTask) -> Progress:
    """Return the state of *task* as the API names it."""
    return _STATES[task.state]


def _counted(plan: Plan) -> Counted:
    return Counted(
        action=_ACTIONS[plan.change.key],
        would_change=plan.hit,
        held=plan.held,
        as_they_are=plan.others,
        sample=list(plan.sample),
        run=plan.run.id if plan.run is not None else None,
    )


def _counted_tubes(plan: TubePlan) -> CountedTubes:
    sample = sorted(plan.sample, key=lambda one: (-one[0], one[1]))
    return CountedTubes(
        action=_TUBE_ACTIONS[plan.change.key],
        pattern=plan.pattern,
        matched=plan.matched,
        tubes=len(plan.tubes),
        jobs=plan.jobs,
        sample=[AffectedTube(tube=name.decode(), jobs=jobs) for jobs, name in sample if principal().sees(name)],
        run=plan.run.id if plan.run is not None else None,
    )


def _effect(found: Effect) -> PolicyEffect:
    sample, warnings = list(found.sample), list(found.warnings)
    return model_of(PolicyEffect, found, policy=found.policy.name, sample=sample, warnings=warnings)
