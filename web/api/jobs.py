"""The jobs of the API: lists and searches, one job and its body, putting, and all that is done to one job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Final, Literal

from flask import Response
from gevent.lock import BoundedSemaphore
from msgspec import UNSET, Meta, UnsetType
from werkzeug.exceptions import Conflict, Forbidden, ServiceUnavailable

from greenstalk_server.core import job_history
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import BURIED, DELAYED, READY, RESERVED, SECOND
from greenstalk_server.core.job import Job as CoreJob
from greenstalk_server.protocol.stats import job_stats
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.api.cursors import DEFAULT_LIMIT, Cursor, Limit, NextCursor, dump, load
from greenstalk_server.web.api.durability import settle
from greenstalk_server.web.api.framework.endpoint import endpoint
from greenstalk_server.web.api.framework.problems import refuse
from greenstalk_server.web.api.framework.router import located
from greenstalk_server.web.api.listing import Place, Rows, begin, fill, refuse_other
from greenstalk_server.web.api.values import (
    BODY_AT_MOST,
    UNFORCED,
    Asked,
    Count,
    Delay,
    Encoding,
    Force,
    Forced,
    Instant,
    JobId,
    Pri,
    State,
    Told,
    Ttr,
    TubeName,
    body_in,
    body_out,
    instant,
)
from greenstalk_server.web.auth.access import visitor
from greenstalk_server.web.cooperative import Pace
from greenstalk_server.web.jobs.bodies import found, none, read
from greenstalk_server.web.jobs.query import LONGEST, Query, QueryError
from greenstalk_server.web.operations.operations import Deeds, Put
from greenstalk_server.web.pages.actions import find_job
from greenstalk_server.web.pages.details import events_of
from greenstalk_server.web.pages.edit import Changes
from greenstalk_server.web.pages.export import Exports, body_file
from greenstalk_server.web.pages.samples import DEFAULT_PRI, DEFAULT_TTR
from greenstalk_server.web.pages.search import asked

PUT_AT_MOST: Final = 1000
"""Jobs that are put by one request."""

LISTS_AT_MOST: Final = 4
"""Lists that are made at once; each takes a share of the loop."""

TURN_WITHIN: Final = 5.0
"""Seconds that one more waits for its turn."""

Q = Annotated[
    str,
    Meta(
        max_length=LONGEST,
        description="A search, as on the page of it: `age:>2h body:route -body:~test`. All of it has to hold.",
        examples=["reserves:>3"],
    ),
]


class Job(Told):
    """A job as it is now."""

    id: JobId
    tube: TubeName
    state: State
    pri: Pri
    age: Annotated[Count, Meta(description="Seconds since it was put.")]
    delay: Annotated[Count, Meta(description="Seconds that its last put or release asked for.")]
    ttr: Ttr
    time_left: Annotated[
        Count, Meta(description="Seconds until it turns ready, of a delayed or reserved job; 0 of others.")
    ]
    reserves: Annotated[Count, Meta(description="How often a worker took it.")]
    timeouts: Annotated[Count, Meta(description="How often a worker's time ran out.")]
    releases: Annotated[Count, Meta(description="How often it was given back.")]
    buries: Annotated[Count, Meta(description="How often it was buried.")]
    kicks: Annotated[Count, Meta(description="How often it was kicked.")]
    created_at: Annotated[Instant, Meta(description="When it was put.")]
    held_by: Annotated[int | None, Meta(description="Number of the connection that has reserved it.")]
    size: Annotated[Count, Meta(description="Bytes of the body.")]
    encoding: Annotated[Encoding | None, Meta(description="How `body` is given; null if it is not given.")]
    body: Annotated[
        str | None,
        Meta(
            description=f"The body; null if it was not asked for, is hidden from you, has more than {BODY_AT_MOST}"
            " bytes, or cannot be read back from the disk. `/jobs/{id}/body` has any, or tells why not."
        ),
    ]


Kind = Literal["reserved", "released", "buried", "kicked", "timed out", "returned", "edited", "moved"]


class Event(Told):
    """Something that has happened to a job."""

    at: Instant
    kind: Kind
    connection: Annotated[int | None, Meta(description="Number of the connection that did it; null if none did.")]


class JobWithEvents(Job):
    """A job as it is now, and what has happened to it."""

    events: Annotated[
        list[Event], Meta(description=f"The last {job_history.MAX_EVENTS} that were noted, oldest first.")
    ]


class JobList(Told):
    """Some jobs."""

    jobs: list[Job]
    next_cursor: NextCursor


class JobPut(Told):
    """A job that was put."""

    id: JobId
    tube: TubeName
    state: Annotated[Literal["ready", "delayed"], Meta(description="The state that it was put in.")]


class Which(Asked):
    """Which jobs."""

    tube: TubeName | UnsetType = UNSET
    state: State | UnsetType = UNSET
    q: Q = ""


class ListJobs(Which):
    """Which jobs, and how many."""

    bodies: Annotated[bool, Meta(description="With their bodies; without them a page has more.")] = True
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = DEFAULT_LIMIT


class Export(Which):
    """Which jobs, in which format."""

    format: Annotated[Literal["jsonl", "csv"], Meta(description="A line of JSON each, or a table.")] = "jsonl"


class NewJob(Asked):
    """A job to put."""

    tube: TubeName
    body: str = ""
    encoding: Annotated[Encoding, Meta(description="How `body` is given.")] = "utf-8"
    pri: Pri = DEFAULT_PRI
    delay: Delay = 0
    ttr: Ttr = DEFAULT_TTR


class JobChanges(Asked):
    """What to change of a job: what is not given stays."""

    pri: Pri | UnsetType = UNSET
    delay: Annotated[
        Delay | UnsetType, Meta(description="Seconds from now until it turns ready; of a ready or delayed job alone.")
    ] = UNSET
    ttr: Ttr | UnsetType = UNSET
    body: str | UnsetType = UNSET
    encoding: Annotated[Encoding, Meta(description="How `body` is given.")] = "utf-8"
    force: Force = False


class Move(Asked):
    """Where to move a job."""

    tube: TubeName
    force: Force = False


class Copy(Asked):
    """How to copy a job."""

    delay: Delay = 0


AT_ONCE: Final = Copy()

HIDDEN: Final = {403: "The search is about bodies, and those are hidden from you."}
NO_JOB: Final = {404: "There is no such job now."}
NOT_SO: Final = NO_JOB | {
    409: "The job is in a state in which that cannot be done, or a client holds it and `force` was not sent."
}
NO_ROOM: Final = {507: "The disk has no room for it; nothing was changed."}


class Jobs:
    """Jobs: list, search and export them, put new ones, and do to one all that a page does."""

    def __init__(
        self, broker: Broker, clock: Clock, commit: Callable[[], bool], deeds: Deeds, exports: Exports
    ) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit
        self._deeds: Deeds = deeds
        self._exports: Exports = exports
        self._lists: BoundedSemaphore = BoundedSemaphore(LISTS_AT_MOST)

    @endpoint("GET", "/jobs", errors=HIDDEN | {503: "Too many lists and searches are under way."})
    def list_jobs(self, query: ListJobs) -> JobList:
        """List or search jobs.

        With `tube` and `state`, and without `q`, the first 1000 come in the order of that state (ready: as they will be
        reserved; delayed and reserved: the next to turn ready first; buried: as they were buried), and the rest by id.
        All other lists go by id, which is the order in which the jobs were put.

        A page takes half a second at most, and has a MiB of bodies or so; then it ends, perhaps with few jobs or none,
        and `next_cursor` goes on from there. Only where that is null, all jobs have been looked at. A job that stays as
        it is comes exactly once, whatever happens to others meanwhile.
        """
        wanted = wanted_by(query)
        place = load(query.cursor, Place) if query.cursor is not UNSET else begin(wanted)
        refuse_other(place, wanted)
        now = self._clock()
        rows = rows_of(query.limit, now, has_bodies=query.bodies)
        with self._turn():
            following = fill(self._broker, wanted, place, now, rows)
        return JobList(jobs=rows.rows, next_cursor=dump(following) if following is not None else None)

    @endpoint(
        "GET",
        "/jobs/export",
        content=("application/jsonl", "text/csv"),
        errors=HIDDEN | {503: "Too many exports are running."},
    )
    def export_jobs(self, query: Export) -> Response:
        """Export jobs as a file, oldest first.

        It is streamed, so it may have any size. Lines of JSON have what a job has in lists, but for `created_at` and
        `held_by`; of a CSV, an apostrophe stands before what a spreadsheet might take for a formula.
        """
        return self._exports.file(wanted_by(query), query.format)

    @endpoint(
        "POST",
        "/jobs",
        status=201,
        errors={503: "The server drains, or the journal fails.", **NO_ROOM},
        has_bodies=True,
    )
    def put_jobs(
        self,
        body: Annotated[
            NewJob | Annotated[list[NewJob], Meta(min_length=1, max_length=PUT_AT_MOST)],
            Meta(examples=[{"tube": "mail", "body": "hello"}]),
        ],
    ) -> JobPut | list[JobPut]:
        """Put a job, or several.

        For a list, a list comes back, in the same order. If one job of a list is wrong, none is put. If the disk is
        full before all are put, `put` in the problem has the ids of those that were.
        """
        if isinstance(body, NewJob):
            job = self._deeds.put(self._put_of(body, "body"))
            located("get_job", id=job.id)
            settle(self._commit, [job.id])
            return _put(job.id, body)
        pace, wanted = Pace(), list[Put]()
        for at, one in enumerate(body):
            wanted.append(self._put_of(one, f"[{at}].body"))
            pace.rest()
        ids = self._deeds.put_all(wanted)
        settle(self._commit, ids)
        return [_put(id, one) for id, one in zip(ids, body, strict=True)]

    @endpoint("GET", "/jobs/{id}", errors=NO_JOB)
    def get_job(self, id: JobId) -> JobWithEvents:
        """Look at one job."""
        return self._told(self._find(id))

    @endpoint(
        "GET",
        "/jobs/{id}/body",
        content=("application/octet-stream",),
        errors=NO_JOB | {403: "Bodies are hidden from you."},
    )
    def get_job_body(self, id: JobId) -> Response:
        """Get the body of a job as it is, whatever its size."""
        return body_file(self._broker, lambda: self._find(id))

    @endpoint("PATCH", "/jobs/{id}", errors=NOT_SO | NO_ROOM, has_bodies=True)
    def change_job(self, id: JobId, body: Annotated[JobChanges, Meta(examples=[{"pri": 10}])]) -> JobWithEvents:
        """Change a job's priority, delay, ttr or body, all at once.

        Its id, age and counts stay. A worker that holds it keeps it, with the body that it got and the time it has.
        """
        job, old = self._found(id)
        changes = self._changes(job, old, body)
        if changes.names():
            self._deeds.edit_job(job, old, changes, body.force)
        return self._settled(id)

    @endpoint("DELETE", "/jobs/{id}", status=204, errors=NOT_SO)
    def delete_job(self, id: JobId, query: Forced) -> None:
        """Delete a job for good."""
        self._deeds.delete_job(self._find(id), query.force)
        settle(self._commit)

    @endpoint("POST", "/jobs/{id}/kick", errors=NOT_SO)
    def kick_job(self, id: JobId) -> JobWithEvents:
        """Kick a buried or delayed job: it turns ready."""
        self._deeds.kick_job(self._find(id))
        return self._settled(id)

    @endpoint("POST", "/jobs/{id}/bury", errors=NOT_SO)
    def bury_job(self, id: JobId, body: Forced = UNFORCED) -> JobWithEvents:
        """Bury a job: it is set aside until somebody kicks it."""
        self._deeds.bury_job(self._find(id), body.force)
        return self._settled(id)

    @endpoint("POST", "/jobs/{id}/release", errors=NOT_SO)
    def release_job(self, id: JobId, body: Forced = UNFORCED) -> JobWithEvents:
        """Take a reserved job from the client that holds it, by force: it turns ready."""
        self._deeds.release_job(self._find(id), body.force)
        return self._settled(id)

    @endpoint("POST", "/jobs/{id}/move", errors=NOT_SO | NO_ROOM)
    def move_job(self, id: JobId, body: Move) -> JobWithEvents:
        """Move a job to another tube, in the state that it is in."""
        self._deeds.move_job(*self._found(id), body.tube.encode(), body.force)
        return self._settled(id)

    @endpoint("POST", "/jobs/{id}/copy", status=201, errors=NO_JOB | NO_ROOM)
    def copy_job(self, id: JobId, body: Copy = AT_ONCE) -> JobPut:
        """Put a job like this one into its tube, with an id of its own."""
        copy = self._deeds.copy_job(*self._found(id), body.delay)
        told = JobPut(id=copy.id, tube=copy.tube.name.decode(), state="delayed" if body.delay else "ready")
        located("get_job", id=copy.id)
        settle(self._commit, [copy.id])
        return told

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Be one of LISTS_AT_MOST; raise ServiceUnavailable if others are for too long. Switches."""
        if not self._lists.acquire(timeout=TURN_WITHIN):
            raise ServiceUnavailable(f"{LISTS_AT_MOST} lists and searches are under way. Try again soon.")
        try:
            yield
        finally:
            self._lists.release()

    def _find(self, id: int) -> CoreJob:
        return find_job(self._broker, {"id": str(id)})

    def _found(self, id: int) -> tuple[CoreJob, bytes]:
        """The job *id* and its body. May switch."""
        return found(self._broker, lambda: self._find(id))

    def _told(self, job: CoreJob) -> JobWithEvents:
        """*job* as it is now. May switch, while its body is read back."""
        row = row_of(job, self._clock())
        body = read(self._broker, (job,)).get(job.id) if shows_body(job) else None
        if body is not None:
            row.encoding, row.body = body_out(body)
        events = [
            Event(at=instant(event.at), kind=_KINDS[event.kind], connection=event.client or None)
            for event in events_of(job)
        ]
        return JobWithEvents(**{name: getattr(row, name) for name in Job.__struct_fields__}, events=events)

    def _settled(self, id: int) -> JobWithEvents:
        """The job *id*, which was changed just now, once that is safe. Switches."""
        told = self._told(self._find(id))
        settle(self._commit)
        return told

    def _put_of(self, new: NewJob, field: str) -> Put:
        body = body_in(new.body, new.encoding, self._broker.max_job_size, field)
        return Put(new.tube.encode(), new.pri, new.delay, new.ttr, body)

    def _changes(self, job: CoreJob, old: bytes, asked: JobChanges) -> Changes:
        """What *asked* changes of *job*, whose body is *old*."""
        if asked.delay is not UNSET and job.state not in (READY, DELAYED):
            raise Conflict(f"Job {job.id} is neither ready nor delayed, so “delay” cannot be changed.")
        body = None
        if asked.body is not UNSET:
            if not visitor().sees_bodies:
                raise Forbidden("Bodies are hidden from you, so they cannot be changed.")
            body = body_in(asked.body, asked.encoding, self._broker.max_job_size)
        return Changes(
            pri=asked.pri if asked.pri is not UNSET and asked.pri != job.pri else None,
            delay=asked.delay * SECOND if asked.delay is not UNSET else None,
            ttr=asked.ttr * SECOND if asked.ttr is not UNSET and asked.ttr * SECOND != job.ttr else None,
            body=body if body != old else None,
        )


_KINDS: Final[Mapping[int, Kind]] = {
    job_history.RESERVED: "reserved",
    job_history.RELEASED: "released",
    job_history.BURIED: "buried",
    job_history.KICKED: "kicked",
    job_history.TIMED_OUT: "timed out",
    job_history.RETURNED: "returned",
    job_history.EDITED: "edited",
    job_history.MOVED: "moved",
}


_STATES: Final[Mapping[int, State]] = {
    READY: "ready",
    RESERVED: "reserved",
    DELAYED: "delayed",
    BURIED: "buried",
}


def wanted_by(query: Which) -> Query:
    """The search that *query* asks for; refuse it if it cannot be read, or is about what is hidden."""
    given = {"q": query.q}
    if query.tube is not UNSET:
        given["tube"] = query.tube
    if query.state is not UNSET:
        given["state"] = query.state
    try:
        return asked(given)
    except QueryError as error:
        refuse("q", f"cannot be read. {error}".rstrip("."))


def rows_of(limit: int, now: int, *, has_bodies: bool) -> Rows[Job]:
    """The rows of a page of jobs, with those bodies that may be shown if it *has_bodies*."""

    def tell(job: CoreJob, body: bytes | None) -> tuple[Job, int]:
        shown = body if has_bodies and shows_body(job) else None
        return row_of(job, now, shown), 0 if shown is None else len(shown)

    return Rows(limit, tell, shows_body if has_bodies else none)


def shows_body(job: CoreJob) -> bool:
    """Whether JSON has the body of *job* for the current visitor."""
    return job.size <= BODY_AT_MOST and visitor().sees_bodies


def row_of(job: CoreJob, now: int, body: bytes | None = None) -> Job:
    """*job* as it is in lists, with its *body* unless that is None."""
    stats = job_stats(job, now)
    encoding, shown = body_out(body) if body is not None else (None, None)
    return Job(
        id=stats.id,
        tube=stats.tube,
        state=_STATES[job.state],
        pri=stats.pri,
        age=stats.age,
        delay=stats.delay,
        ttr=stats.ttr,
        time_left=stats.time_left,
        reserves=stats.reserves,
        timeouts=stats.timeouts,
        releases=stats.releases,
        buries=stats.buries,
        kicks=stats.kicks,
        created_at=instant(job.created_at),
        held_by=job.holder.number if job.holder is not None else None,
        size=job.size,
        encoding=encoding,
        body=shown,
    )


def _put(id: int, new: NewJob) -> JobPut:
    return JobPut(id=id, tube=new.tube, state="delayed" if new.delay else "ready")
