"""API endpoints of jobs: lists, searches and exports, single jobs and bodies, puts, and operations on one job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

from flask import Response
from gevent.lock import BoundedSemaphore
from msgspec import UNSET, Meta, UnsetType, convert
from werkzeug.exceptions import Conflict, Forbidden, ServiceUnavailable

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import DELAYED, READY
from greenstalk_server.core.jobs.job import Job as CoreJob
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.operations import Added, Changes, Operations, Put, to_nanoseconds
from greenstalk_server.web.changes.saved_changes import Recording
from greenstalk_server.web.features.jobs.api.found_jobs import FoundJobs, Shown
from greenstalk_server.web.features.jobs.api.job_bodies import body_in
from greenstalk_server.web.features.jobs.api.job_fields import FieldPaths, parse_fields
from greenstalk_server.web.features.jobs.api.job_tags import TagsRequest, tags_in
from greenstalk_server.web.features.jobs.api.listing import (
    Position,
    SortedPosition,
    begin,
    refuse_other,
    refuse_other_sorted,
)
from greenstalk_server.web.features.jobs.export import Exports, body_file
from greenstalk_server.web.features.jobs.jobs import (
    STATES,
    Encoding,
    Job,
    JobWithEvents,
    job_with_events,
    shows_body,
)
from greenstalk_server.web.features.samples.samples import DEFAULT_PRI, DEFAULT_TTR
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.cursors import DEFAULT_LIMIT, Cursor, Limit, NextCursor, dump, load
from greenstalk_server.web.framework.api.durability import NotDurableYet, wait_before_report, wait_until_durable
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.router import set_location
from greenstalk_server.web.framework.api.values import (
    NOT_FORCED,
    FineDelay,
    FineTtr,
    Force,
    ForceRequest,
    JobId,
    Pri,
    RequestModel,
    ResponseModel,
    State,
    TubeName,
)
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.failures import PutRefused
from greenstalk_server.web.framework.shards import Shards
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.jobs.bodies import load_bodies, load_job_with_body
from greenstalk_server.web.reads.jobs.job_orders import OrderName
from greenstalk_server.web.reads.jobs.matching import read_query
from greenstalk_server.web.reads.jobs.query import MAX_LENGTH, Query, QueryError
from greenstalk_server.web.reads.lookup import find_job

MAX_JOBS_PER_PUT: Final = 1000
"""Maximum number of jobs in one put request."""

MAX_LISTS: Final = 4
"""Lists computed at once. Each one takes a share of the event loop."""

LIST_TIMEOUT: Final = 5.0
"""Seconds that a further list waits for its turn."""

Q = Annotated[
    str,
    Meta(
        max_length=MAX_LENGTH,
        description="A search, as on the search page: `age:>2h body:route -body:~test`. Jobs must match every term.",
        examples=["reserves:>3"],
    ),
]


class JobList(ResponseModel):
    """A page of jobs."""

    jobs: list[Job]
    next_cursor: NextCursor
    warning: Annotated[
        str | UnsetType,
        Meta(
            description="Which of the jobs scanned for this page could not be searched completely, and which ones are"
            " missing because a process of the queue does not answer; absent if none."
        ),
    ] = UNSET


class JobPut(ResponseModel):
    """A job that was put, or the earlier job if the put was a duplicate."""

    id: JobId
    tube: TubeName
    state: Annotated[State | None, Meta(description="Its state; null if the put was a duplicate of a deleted job.")]
    is_duplicate: Annotated[
        bool | UnsetType,
        Meta(
            description="True if no job was added, because the idempotency key is taken or a policy (`unique`) allows"
            " the tube only one job with this body: `id` is the existing job, which may be finished. Otherwise absent."
        ),
    ] = UNSET


class JobSelectionRequest(RequestModel):
    """Selects jobs."""

    tube: TubeName | UnsetType = UNSET
    state: State | UnsetType = UNSET
    q: Q = ""


class SortedJobsRequest(JobSelectionRequest):
    """Selects jobs, and the order of the list."""

    sort: Annotated[
        OrderName | UnsetType,
        Meta(description="The value to sort by: a field of a job, or `buried` for the time since its burial."),
    ] = UNSET
    desc: Annotated[bool, Meta(description="Whether the largest value is first.")] = False


class ListJobsRequest(SortedJobsRequest):
    """Selects jobs, and a page of the list."""

    bodies: Annotated[bool, Meta(description="Include the bodies. Without them a page holds more jobs.")] = True
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = DEFAULT_LIMIT
    fields: FieldPaths = ""


class ExportJobsRequest(JobSelectionRequest):
    """Selects jobs, and a file format."""

    fields: FieldPaths = ""
    format: Annotated[Literal["jsonl", "csv"], Meta(description="One JSON object per line, or CSV.")] = "jsonl"


class PutJobRequest(RequestModel):
    """A job to put."""

    tube: TubeName
    body: str = ""
    encoding: Annotated[Encoding, Meta(description="Encoding of `body`.")] = "utf-8"
    pri: Pri = DEFAULT_PRI
    delay: FineDelay = 0
    ttr: FineTtr = DEFAULT_TTR
    tags: TagsRequest | UnsetType = UNSET


class ChangeJobRequest(RequestModel):
    """Changes to a job. Omitted fields keep their values."""

    pri: Pri | UnsetType = UNSET
    delay: Annotated[
        FineDelay | UnsetType,
        Meta(description="Seconds from now until it becomes ready; for ready and delayed jobs only."),
    ] = UNSET
    ttr: FineTtr | UnsetType = UNSET
    body: str | UnsetType = UNSET
    encoding: Annotated[Encoding, Meta(description="Encoding of `body`.")] = "utf-8"
    renew: Annotated[
        bool, Meta(description="Restart the age of the job, so that it expires as if it had been put now.")
    ] = False
    force: Force = False


class MoveJobRequest(RequestModel):
    """The tube to move a job to."""

    tube: TubeName
    force: Force = False


class CopyJobRequest(RequestModel):
    """Options for the copy of a job."""

    delay: FineDelay = 0


DEFAULT_COPY: Final = CopyJobRequest()

PUT: Final = "jobs.put"
"""Question to the other shards."""

HIDDEN: Final = {403: "The query searches bodies, which are hidden from you."}
NO_JOB: Final = {404: "The job does not exist."}
STATE_CONFLICT: Final = NO_JOB | {
    409: "The state of the job does not allow this, or a client holds the job and `force` was not sent."
}
NO_ROOM: Final = {507: "The disk has no room for the job; nothing was changed."}


class JobsEndpoints:
    """Jobs: list, search, export and put jobs, and change a single job as its page on the dashboard does."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        commit: Callable[[], bool],
        operations: Operations,
        exports: Exports,
        found: FoundJobs,
        shards: Shards,
    ) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit
        self._operations: Operations = operations
        self._exports: Exports = exports
        self._found: FoundJobs = found
        self._lists: BoundedSemaphore = BoundedSemaphore(MAX_LISTS)
        self._shards: Shards = shards
        shards.answer(PUT, self._put_for_another)

    @endpoint("GET", "/jobs", errors=HIDDEN | {503: "Too many lists and searches are running."})
    def list_jobs(self, query: ListJobsRequest) -> JobList:
        """List or search jobs.

        With `tube` and `state`, and without `q`, the first 1000 jobs are in the order of that state: ready jobs in the
        order in which they will be reserved; delayed and reserved jobs by the time at which they become ready; buried
        jobs in the order in which they were buried. Further jobs, and all other lists, are ordered by id, which is the
        order of the puts. With `sort`, all jobs of the list are in this order. Such a list may have at most 20,000
        candidates: the jobs of the tube in the state, or of the server. To sort more jobs, use `POST /searches`.

        A page takes at most half a second and holds about 1 MiB of bodies. So any page may have few jobs or none.
        The list is complete only when `next_cursor` is null. A job that does not change appears exactly once, whatever
        happens to other jobs in the meantime.
        """
        wanted, order = parse_selector(query), parse_order(query)
        shown = Shown(query.bodies, parse_fields(query.fields))
        following: Position | SortedPosition | None
        if order is None:
            position = load(query.cursor, Position) if query.cursor is not UNSET else begin(wanted)
            refuse_other(position, wanted)
            with self._turn():
                jobs, following, warning = self._found.list_by_id(wanted, position, query.limit, shown)
        else:
            after = load(query.cursor, SortedPosition) if query.cursor is not UNSET else None
            if after is not None:
                refuse_other_sorted(after, wanted, order)
            with self._turn():
                jobs, following, warning = self._found.list_sorted(wanted, order, after, query.limit, shown)
        next_cursor = dump(following) if following is not None else None
        return JobList(jobs=jobs, next_cursor=next_cursor, warning=warning or UNSET)

    @endpoint(
        "GET",
        "/jobs/export",
        content=("application/jsonl", "text/csv"),
        errors=HIDDEN | {503: "Too many exports are running."},
    )
    def export_jobs(self, query: ExportJobsRequest) -> Response:
        """Export jobs as a file, oldest first.

        The file is streamed and may have any size. Each line of JSON has the members of a job in `GET /jobs`, except
        `attempts`, `created_at`, `expires_at`, `dead_letter`, `tags`, `held_by` and `moving_to`. In CSV, a value that a
        spreadsheet might run as a formula starts with an apostrophe.
        """
        return self._exports.file(parse_selector(query), query.format, parse_fields(query.fields))

    @endpoint(
        "POST",
        "/jobs",
        role=OPERATOR,
        status=201,
        errors={503: "The server is draining, or the journal cannot be written.", **NO_ROOM},
        has_bodies=True,
    )
    def put_jobs(
        self,
        body: Annotated[
            PutJobRequest | Annotated[list[PutJobRequest], Meta(min_length=1, max_length=MAX_JOBS_PER_PUT)],
            Meta(examples=[{"tube": "mail", "body": "hello"}]),
        ],
    ) -> JobPut | list[JobPut]:
        """Put one job or several.

        The response to a list is a list in the same order. If one job of the list is invalid, none is put. If the
        server has no room left after some of the jobs, or the journal fails, `put` in the problem has the ids of the
        jobs that were put.
        """
        if self._shards.others:
            if isinstance(body, list):
                self._parse_puts(body)  # so that none is put if one is invalid
                return self._put_on_shards(body)
            self._parse_put(body, "")
            [job] = self._put_on_shards([body])
            set_location("get_job", id=job.id)
            return job
        if isinstance(body, PutJobRequest):
            added = self._operations.put(self._parse_put(body, ""))
            set_location("get_job", id=added.id)
            response = self._put_model(added, body)
            wait_until_durable(self._commit, [] if added.is_duplicate else [added.id])
            return response
        return self._put_here(body)

    def _put_on_shards(self, new: list[PutJobRequest]) -> list[JobPut]:
        """Put jobs on the shards of their tubes, one shard after the other. Switches."""
        places: dict[int, list[int]] = {}
        for at, one in enumerate(new):
            places.setdefault(self._shards.of_tube(one.tube.encode()), []).append(at)
        found: dict[int, JobPut] = {}
        for shard, ours in places.items():
            jobs = [new[at] for at in ours]
            try:
                put = self._put_here(jobs) if shard == self._shards.own else self._put_elsewhere(shard, jobs)
            except (PutRefused, NotDurableYet) as error:
                error.ids = [*[job.id for job in found.values() if job.is_duplicate is UNSET], *(error.ids or [])]
                raise
            found |= dict(zip(ours, put, strict=True))
        return [found[at] for at in range(len(new))]

    def _put_elsewhere(self, shard: int, new: list[PutJobRequest]) -> list[JobPut]:
        answer = self._shards.ask(shard, PUT, jobs=new)
        if "why" in answer:
            raise PutRefused(answer["why"], answer["done"], status=answer["status"], ids=answer["ids"])
        if "ids" in answer:
            raise NotDurableYet(answer["ids"])
        return convert(answer["jobs"], list[JobPut])

    def _put_for_another(self, jobs: list[Any]) -> dict[str, Any]:
        """Put jobs of a request that the home process has received."""
        try:
            return {"jobs": self._put_here(convert(jobs, list[PutJobRequest]))}
        except PutRefused as error:
            done = str(error.description).removeprefix(f"{error.why} ")
            return {"why": error.why, "done": done, "status": error.status, "ids": error.ids or []}
        except NotDurableYet as error:
            return {"ids": error.ids or []}

    def _parse_puts(self, new: list[PutJobRequest]) -> list[Put]:
        pace, wanted = Pace(), list[Put]()
        for at, one in enumerate(new):
            wanted.append(self._parse_put(one, f"[{at}]."))
            pace.yield_if_due()
        return wanted

    def _put_here(self, body: list[PutJobRequest]) -> list[JobPut]:
        """Put jobs on this shard; return once they are durable. Switches."""
        wanted = self._parse_puts(body)
        try:
            outcomes = self._operations.put_all(wanted)
        except PutRefused as refused:
            if refused.ids:
                wait_until_durable(self._commit, refused.ids)
            raise
        responses = [self._put_model(added, one) for added, one in zip(outcomes, body, strict=True)]
        wait_until_durable(self._commit, [added.id for added in outcomes if not added.is_duplicate])
        return responses

    @endpoint("GET", "/jobs/{id}", errors=NO_JOB)
    def get_job(self, id: JobId) -> JobWithEvents:
        """Get one job."""
        response = self._job_with_events(self._find(id))
        wait_before_report(self._commit)
        return response

    @endpoint(
        "GET",
        "/jobs/{id}/body",
        content=("application/octet-stream",),
        errors=NO_JOB | {403: "Bodies are hidden from you."},
    )
    def get_job_body(self, id: JobId) -> Response:
        """Get the body of a job, unencoded and of any size."""
        response = body_file(self._broker, lambda: self._find(id))
        wait_before_report(self._commit)
        return response

    @endpoint("PATCH", "/jobs/{id}", role=OPERATOR, errors=STATE_CONFLICT | NO_ROOM, has_bodies=True)
    def change_job(self, id: JobId, body: Annotated[ChangeJobRequest, Meta(examples=[{"pri": 10}])]) -> JobWithEvents:
        """Change the priority, delay, ttr, body and expiry of a job in one step.

        The job keeps its id, age and counts. A worker that holds the job keeps it, with the old body and its remaining
        time.
        """
        job, old = self._find_with_body(id)
        changes = self._changes(job, old, body)
        if changes.names():
            return self._model_when_durable(id, self._operations.edit_job(job, old, changes, body.force))
        return self._model_when_durable(id)

    @endpoint("DELETE", "/jobs/{id}", role=OPERATOR, status=204, errors=STATE_CONFLICT)
    def delete_job(self, id: JobId, query: ForceRequest) -> None:
        """Delete a job.

        `GET /changes` lists the changes of the last day, which can be undone.
        """
        self._operations.delete_job(lambda: self._find(id), lambda _: query.force).close()
        wait_until_durable(self._commit)

    @endpoint("POST", "/jobs/{id}/kick", role=OPERATOR, errors=STATE_CONFLICT)
    def kick_job(self, id: JobId) -> JobWithEvents:
        """Kick a buried or delayed job, so that it becomes ready."""
        return self._model_when_durable(id, self._operations.kick_job(self._find(id)))

    @endpoint("POST", "/jobs/{id}/bury", role=OPERATOR, errors=STATE_CONFLICT)
    def bury_job(self, id: JobId, body: ForceRequest = NOT_FORCED) -> JobWithEvents:
        """Bury a job. It stays buried until it is kicked."""
        return self._model_when_durable(id, self._operations.bury_job(self._find(id), body.force))

    @endpoint("POST", "/jobs/{id}/release", role=OPERATOR, errors=STATE_CONFLICT)
    def release_job(self, id: JobId, body: ForceRequest = NOT_FORCED) -> JobWithEvents:
        """Take a reserved job from the client that holds it, and make it ready. Needs `force`."""
        self._operations.release_job(self._find(id), body.force)
        return self._model_when_durable(id)

    @endpoint(
        "POST",
        "/jobs/{id}/redrive",
        role=OPERATOR,
        errors=STATE_CONFLICT | {507: "The tube that it came from is full, or a limit of the server is reached."},
    )
    def redrive_job(self, id: JobId) -> JobWithEvents:
        """Move a dead letter back to the tube that it came from.

        It is ready there as a new job: its attempts and its age restart.
        """
        return self._model_when_durable(id, self._operations.redrive_job(self._find(id)))

    @endpoint("POST", "/jobs/{id}/move", role=OPERATOR, errors=STATE_CONFLICT | NO_ROOM)
    def move_job(self, id: JobId, body: MoveJobRequest) -> JobWithEvents:
        """Move a job to another tube. It keeps its state."""
        job, job_body = self._find_with_body(id)
        return self._model_when_durable(id, self._operations.move_job(job, job_body, body.tube.encode(), body.force))

    @endpoint("POST", "/jobs/{id}/copy", role=OPERATOR, status=201, errors=NO_JOB | NO_ROOM)
    def copy_job(self, id: JobId, body: CopyJobRequest = DEFAULT_COPY) -> JobPut:
        """Put a copy of a job into its tube, with a new id."""
        job, job_body = self._find_with_body(id)
        copy = self._operations.copy_job(job, job_body, body.delay)
        state: State = "delayed" if body.delay else "ready"
        set_location("get_job", id=copy)
        response = JobPut(id=copy, tube=job.tube.name.decode(), state=state)
        wait_until_durable(self._commit, [copy])
        return response

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold one of the MAX_LISTS slots; raise ServiceUnavailable if none is free in LIST_TIMEOUT. Switches."""
        if not self._lists.acquire(timeout=LIST_TIMEOUT):
            raise ServiceUnavailable(f"{MAX_LISTS} lists and searches are running, the maximum. Try again soon.")
        try:
            yield
        finally:
            self._lists.release()

    def _find(self, id: int) -> CoreJob:
        return find_job(self._broker, {"id": str(id)})

    def _find_with_body(self, id: int) -> tuple[CoreJob, bytes]:
        """Return the job *id* and its body. May switch."""
        return load_job_with_body(self._broker, lambda: self._find(id))

    def _job_with_events(self, job: CoreJob) -> JobWithEvents:
        """Return *job* as it is now. May switch, to read its body back from the disk."""
        body = load_bodies(self._broker, (job,)).get(job.id) if shows_body(job) else None
        return job_with_events(job, self._clock(), body)

    def _model_when_durable(self, id: int, recording: Recording | None = None) -> JobWithEvents:
        """Return the job *id* as it is now, but only once its change and the *recording* are durable. Switches."""
        try:
            response = self._job_with_events(self._find(id))
        finally:
            if recording is not None:
                recording.close()
        wait_until_durable(self._commit)
        return response

    def _put_model(self, added: Added, new: PutJobRequest) -> JobPut:
        job = self._broker.jobs.get(added.id)
        is_delayed = new.delay or (job is not None and job.state == DELAYED)
        state: State | None = "delayed" if is_delayed else "ready"
        if added.is_duplicate:
            state = STATES[job.state] if job is not None else None
        return JobPut(id=added.id, tube=new.tube, state=state, is_duplicate=added.is_duplicate or UNSET)

    def _parse_put(self, new: PutJobRequest, prefix: str) -> Put:
        """Return *new* as a Put. Errors name its fields with *prefix*."""
        body = body_in(new.body, new.encoding, self._broker.max_job_size, f"{prefix}body")
        return Put(new.tube.encode(), new.pri, new.delay, new.ttr, body, tags_in(new.tags, f"{prefix}tags"))

    def _changes(self, job: CoreJob, old: bytes, wanted: ChangeJobRequest) -> Changes:
        """Return the changes that *wanted* makes to *job*, whose body is *old*."""
        if wanted.delay is not UNSET and job.state not in (READY, DELAYED):
            raise Conflict(f"Job {job.id} is neither ready nor delayed, so “delay” cannot be changed.")
        body = None
        if wanted.body is not UNSET:
            if not principal().sees_bodies:
                raise Forbidden("Bodies are hidden from you, so you cannot change them.")
            body = body_in(wanted.body, wanted.encoding, self._broker.max_job_size)
        return Changes(
            pri=wanted.pri if wanted.pri is not UNSET and wanted.pri != job.pri else None,
            delay=to_nanoseconds(wanted.delay) if wanted.delay is not UNSET else None,
            ttr=to_nanoseconds(wanted.ttr)
            if wanted.ttr is not UNSET and to_nanoseconds(wanted.ttr) != job.ttr
            else None,
            body=body if body != old else None,
            is_renewed=wanted.renew,
        )


def parse_selector(selector: JobSelectionRequest) -> Query:
    """Return the query of *selector*; refuse it if it cannot be parsed, or searches hidden bodies."""
    fields = {"q": selector.q}
    if selector.tube is not UNSET:
        fields["tube"] = selector.tube
    if selector.state is not UNSET:
        fields["state"] = selector.state
    try:
        return read_query(fields)
    except QueryError as error:
        refuse("q", f"is not a valid query. {error}".rstrip("."))


def parse_order(selector: SortedJobsRequest) -> Order | None:
    """Return the order of *selector*, or None if it names none; refuse `desc` without `sort`."""
    if selector.sort is UNSET:
        if selector.desc:
            refuse("desc", "needs “sort”")
        return None
    return Order(selector.sort, selector.desc)
