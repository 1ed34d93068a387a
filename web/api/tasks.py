"""The tasks of the API: searches and changes of many jobs, which go on by themselves and tell how far they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from greenstalk_server.core.broker import Broker
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.api.cursors import DEFAULT_LIMIT, Cursor, Limit, dump, load
from greenstalk_server.web.api.framework.endpoint import endpoint
from greenstalk_server.web.api.framework.problems import refuse
from greenstalk_server.web.api.framework.router import located
from greenstalk_server.web.api.jobs import HIDDEN, JobList, Which, rows_of, wanted_by
from greenstalk_server.web.api.values import Asked, Count, Delay, Instant, JobId, Pri, Told, TubeName, instant
from greenstalk_server.web.jobs.bodies import iter_with_bodies
from greenstalk_server.web.operations.bulk import ACTIONS, MAX_TICKED, Bulk, Change, Plan, plan_of
from greenstalk_server.web.operations.tasks import Task as Work
from greenstalk_server.web.operations.tasks import Tasks as Running
from greenstalk_server.web.pages.search import INITIAL_WAIT, MAX_MATCHES, Search, Searches, search_of

TaskId = Annotated[str, Meta(description="The id of a task.", max_length=64, examples=["8f14e45fceea167a"])]

Kind = Literal["search", "dry-run", "change"]
Action = Literal["kick", "bury", "delete", "move", "pri", "delay"]
Progress = Literal["running", "done", "cancelled", "failed"]

_ACTIONS: Final[Mapping[str, Action]] = {action: action for action in get_args(Action)}
_STATES: Final[Mapping[str, Progress]] = {state: state for state in get_args(Progress)}
"""By the words of greenstalk_server.web.operations.bulk and greenstalk_server.web.operations.tasks, which are the same; a test compares them."""


class Counted(Told):
    """What a dry run has counted so far, and what came of it."""

    action: Action
    would_change: Annotated[Count, Meta(description="Jobs that it would change.")]
    held: Annotated[Count, Meta(description="Jobs that clients hold: it would change them too with `force`.")]
    as_they_are: Annotated[Count, Meta(description="Jobs that match, and that it would not change.")]
    sample: Annotated[list[JobId], Meta(description="Some of those that it would change.")]
    run: Annotated[str | None, Meta(description="The task that carries it out; null if none does yet.")]


class Task(Told):
    """A piece of long work, and how far it is."""

    id: TaskId
    kind: Kind
    title: Annotated[str, Meta(description="What it does, for people.")]
    state: Progress
    started_at: Instant
    ended_at: Instant | None
    total: Annotated[Count, Meta(description="Jobs to look at.")]
    scanned: Annotated[Count, Meta(description="Jobs looked at so far.")]
    matched: Annotated[Count, Meta(description="Those of them that it is about.")]
    changed: Annotated[Count, Meta(description="Those of them that it has changed.")]
    message: Annotated[str, Meta(description="Why it ended before its time, if it did.")]
    counted: Annotated[Counted | None, Meta(description="Of a dry run alone.")]


class TaskList(Told):
    """Tasks, the newest first."""

    tasks: list[Task]


class NewSearch(Which):
    """What to search for."""


class BulkChange(Which, kw_only=True):
    """What to do, to which jobs: all that match `tube`, `state` and `q`; only to those of `ids`, if they are given."""

    action: Annotated[Action, Meta(description="`pri` and `delay` set that.")]
    all: Annotated[bool, Meta(description="Needed if neither `ids` nor `tube`, `state` or `q` say which jobs.")] = False
    ids: Annotated[list[JobId], Meta(min_length=1, max_length=MAX_TICKED)] | UnsetType = UNSET
    to: Annotated[TubeName | UnsetType, Meta(description="The tube, for `move`.")] = UNSET
    pri: Annotated[Pri | UnsetType, Meta(description="The priority, for `pri`.")] = UNSET
    delay: Annotated[Delay | UnsetType, Meta(description="Seconds from now, for `delay`.")] = UNSET
    force: Annotated[bool, Meta(description="To jobs that clients hold, too.")] = False
    dry_run: Annotated[bool, Meta(description="Only count. It has to be turned off to change anything.")] = True


class CarryOut(Asked):
    """How to carry out a dry run."""

    force: Annotated[bool, Meta(description="To jobs that clients hold, too.")] = False


UNFORCED: Final = CarryOut()


class Found(Asked):
    """Which of the jobs that were found."""

    bodies: Annotated[bool, Meta(description="With their bodies.")] = True
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = DEFAULT_LIMIT


class _Place(Struct, array_like=True):
    """Where a list of what was found goes on."""

    task: str
    at: int


NO_TASK: Final = {404: "There is no such task. The last 50 of a kind are kept, and none longer than the server runs."}
BUSY: Final = {503: "The server drains, or as much is under way as may be at once."}


class Tasks:
    """Long work: searches, and changes of many jobs. A task goes on by itself, and tells how far it is."""

    def __init__(self, broker: Broker, clock: Clock, tasks: Running, searches: Searches, bulk: Bulk) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._tasks: Running = tasks
        self._searches: Searches = searches
        self._bulk: Bulk = bulk

    @endpoint("POST", "/searches", status=202, errors=HIDDEN | BUSY, is_change=False)
    def search_jobs(self, body: NewSearch) -> Task:
        """Search all jobs, as a task.

        It counts every match, and keeps the first 1000 for `/tasks/{task}/jobs`. The answer comes within half a second,
        with the task as far as it is by then. To page through all matches instead, ask for `/jobs` with `q`.
        """
        task = self._searches.start(wanted_by(body))
        return self._started(task)

    @endpoint("POST", "/bulk", status=202, errors=HIDDEN | BUSY)
    def change_jobs(
        self, body: Annotated[BulkChange, Meta(examples=[{"action": "kick", "tube": "mail", "state": "buried"}])]
    ) -> Task:
        """Change many jobs, or count which would be changed, as a task.

        A dry run, which is what this does unless `dry_run` is false, counts and changes nothing; then
        `/tasks/{task}/run` carries out just what it has counted. A change spares jobs that are put after it began.
        """
        plan = self._plan(body)
        task = self._bulk.dry_run(plan) if body.dry_run else self._bulk.carry_out(plan, body.force)
        return self._started(task)

    @endpoint("GET", "/tasks")
    def list_tasks(self) -> TaskList:
        """List the last tasks."""
        return TaskList(tasks=[_told(task) for task in self._tasks.all()])

    @endpoint("GET", "/tasks/{task}", errors=NO_TASK | {403: "It is about bodies, and those are hidden from you."})
    def get_task(self, task: TaskId) -> Task:
        """See how far a task is."""
        return _told(self._find(task))

    @endpoint("DELETE", "/tasks/{task}", errors=NO_TASK)
    def cancel_task(self, task: TaskId) -> Task:
        """Cancel a task. What it has done so far stays done."""
        found = self._find(task)
        self._tasks.stop(found)
        return _told(found)

    @endpoint("POST", "/tasks/{task}/run", status=202, errors=NO_TASK | BUSY | {409: "The dry run has not ended."})
    def run_task(self, task: TaskId, body: CarryOut = UNFORCED) -> Task:
        """Carry out a dry run.

        It is done once, however often it is asked for: to jobs that match as they did then, and none newer.
        """
        dry_run = self._find(task)
        plan = plan_of(dry_run)
        if plan.run is None:
            self._bulk.refuse_unfinished(dry_run)
        return self._started(self._bulk.carry_out(plan, body.force))

    @endpoint("GET", "/tasks/{task}/jobs", errors=NO_TASK | {403: "It is about bodies, and those are hidden from you."})
    def list_found(self, task: TaskId, query: Found) -> JobList:
        """List the jobs that a search has found so far, as they are now; those that are gone are left out."""
        found = self._find(task)
        ids, now = search_of(found).ids, self._clock()
        rows = rows_of(query.limit, now, has_bodies=query.bodies)
        at = _at(query, found)
        for _, job, body in iter_with_bodies(self._broker, ids[at:], rows.wants_body, rows.rest):
            if rows.is_full:
                break
            at += 1
            if job is not None:
                rows.add(job, body)
        return JobList(jobs=rows.rows, next_cursor=dump(_Place(found.id, at)) if at < len(ids) else None)

    def _find(self, id: str) -> Work:
        return self._tasks.find({"task": id})

    def _started(self, task: Work) -> Task:
        located("get_task", task=task.id)
        task.wait(INITIAL_WAIT)
        return _told(task)

    def _plan(self, body: BulkChange) -> Plan:
        query = wanted_by(body)
        if not query.terms and body.ids is UNSET and not body.all:
            refuse("all", "must be true to change every job there is; else say which by ids, tube, state or q")
        ids = None if body.ids is UNSET else tuple(dict.fromkeys(body.ids))
        return self._bulk.plan(_change(body), query, ids)


def _change(body: BulkChange) -> Change:
    asks = ACTIONS[body.action].asks
    for name in ("to", "pri", "delay"):
        is_given = getattr(body, name) is not UNSET
        if is_given and name != asks:
            refuse(name, f"does not go with the action {body.action}")
        if name == asks and not is_given:
            refuse(name, f"is missing: the action {body.action} needs it")
    if body.action == "move" and body.to is not UNSET:
        return Change("move", body.to.encode())
    return Change(body.action, getattr(body, asks) if asks else 0)


def _at(query: Found, task: Work) -> int:
    if query.cursor is UNSET:
        return 0
    place = load(query.cursor, _Place)
    if place.task != task.id or not 0 <= place.at <= MAX_MATCHES:
        refuse("cursor", "is of another list")
    return place.at


def _told(task: Work) -> Task:
    subject = task.subject
    is_dry_run = isinstance(subject, Plan) and subject.run is not task
    kind: Kind = "search" if isinstance(subject, Search) else "dry-run" if is_dry_run else "change"
    return Task(
        id=task.id,
        kind=kind,
        title=task.title,
        state=_STATES[task.state],
        started_at=instant(task.started_at),
        ended_at=instant(task.ended_at) if task.ended_at else None,
        total=task.total,
        scanned=task.scanned,
        matched=task.matched,
        changed=task.done,
        message=task.message,
        counted=_counted(subject) if isinstance(subject, Plan) and is_dry_run else None,
    )


def _counted(plan: Plan) -> Counted:
    return Counted(
        action=_ACTIONS[plan.change.key],
        would_change=plan.hit,
        held=plan.held,
        as_they_are=plan.others,
        sample=list(plan.sample),
        run=plan.run.id if plan.run is not None else None,
    )
