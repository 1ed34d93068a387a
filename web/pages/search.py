"""Search: the jobs that a query matches, found by a task that passes over a snapshot of the ids, and shown as it goes.

What is shown of a job is always its newest state; those that are gone by then are left out. The same search asked for
by several pages is one task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final
from urllib.parse import urlencode

from flask import Flask, Response, make_response, render_template, request
from werkzeug.exceptions import Forbidden, NotFound

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import STATE_NAMES, Job
from greenstalk_server.core.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web import fields, text
from greenstalk_server.web.auth.access import visitor
from greenstalk_server.web.jobs.bodies import LOT, LOT_BYTES, Seen, each, none, read
from greenstalk_server.web.jobs.job_list import (
    DEEPEST,
    JobList,
    body_preview,
    count,
    in_order,
    job_columns,
    job_rows,
    list_jobs,
)
from greenstalk_server.web.jobs.query import LOOKED_THROUGH, BodyTest, Query, QueryError, Test, parse
from greenstalk_server.web.live.hub import LiveHub, State
from greenstalk_server.web.operations.tasks import Task, Tasks, live_state, progress_texts

FOUND_AT_MOST: Final = 1000
"""Matches that can be looked at; all are counted."""

PAGE: Final = 100
"""Of these on a page, about 4 ms."""

FIRST_WAIT: Final = 0.5
"""Seconds that a page waits for its search, before it is shown as far as that has got."""

SMALL_TUBE: Final = 5000
"""Jobs of a tube that is looked through by itself, since its ids can be told in about a millisecond."""


AT_LEAST: Final = 8
"""Jobs that such a look goes by, however long that takes."""

LOOK: Final = 0.002
"""Seconds that the list of a tube's page may be looked through; a body of a MiB takes half of it."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the matches, after the id; *key* is its name in styles."""

    label: str
    key: str
    text: Callable[[Job, int], str]


COLUMNS: Final = (
    Column("Tube", "tube", lambda job, _: job.tube.name.decode()),
    Column("State", "state", lambda job, _: STATE_NAMES[job.state]),
    Column("Priority", "pri", lambda job, _: str(job.pri)),
    Column("Age", "age", lambda job, now: text.duration((now - job.created_at) // 1_000_000_000)),
    Column("Reserves", "reserves", lambda job, _: text.number(job.reserves)),
    Column("Bytes", "size", lambda job, _: text.number(job.size)),
)
BODY: Final = Column("Body", "body", lambda job, _: body_preview(job))
"""The last column, for those who may see it."""


class Search:
    """A query, and the ids of what it has matched so far, the first FOUND_AT_MOST."""

    def __init__(self, query: Query) -> None:
        self.query: Query = query
        self.ids: list[int] = []


class Searches:
    """The searches of one broker's dashboard."""

    def __init__(self, broker: Broker, clock: Clock, tasks: Tasks) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._tasks: Tasks = tasks

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add the page to *app*, and have *live* keep it live."""
        app.add_url_rule("/search", "search", self.page)
        live.register("search", self.live)

    def page(self) -> Response:
        """`/search?q=&tube=&state=` starts a search or joins it; with `task` and `from`, shows one. May switch."""
        given = request.args.get("q", "").strip()
        try:
            query = asked(request.args)
        except QueryError as error:
            return make_response(
                render_template("search.html", q=given, error=str(error), task=None, longest=text.size(LOOKED_THROUGH)),
                400,
            )
        if request.args.get("task"):
            task = self._tasks.find(request.args)
        elif query.terms:
            task = self.start(query)
        else:
            return make_response(
                render_template("search.html", q="", error="", task=None, longest=text.size(LOOKED_THROUGH))
            )
        task.wait(FIRST_WAIT)
        return make_response(render_template("search.html", error="", **self._shown(task, _begin(request.args))))

    def live(self, args: fields.Fields, now: int) -> State:
        """The live state of `/search?task=&from=`."""
        task = self._tasks.find(args)
        return live_state(task, now) | {"rows": {"matches": self._rows(search_of(task), _begin(args), now)}}

    def start(self, query: Query) -> Task:
        """Search for *query*, or join the search for it that is running. Does not switch."""
        running = self._tasks.running(lambda subject: isinstance(subject, Search) and subject.query == query)
        if running is not None:
            return running
        search = Search(query)
        return self._tasks.start(
            f"Search for {query}",
            search,
            lambda task: self._work(task, search),
            endpoint="search",
            needs_bodies=query.needs_bodies,
        )

    def _work(self, task: Task, search: Search) -> None:
        """Pass over every job there is at the beginning. Switches."""
        task.total, ids = candidates(self._broker, search.query)
        matches = Matches(self._broker, search.query, self._clock(), task.rest)
        for id, job, _ in matches.among(ids):
            if job is not None:
                task.matched += 1
                if len(search.ids) < FOUND_AT_MOST:
                    search.ids.append(id)
            task.scanned += 1
        task.total = task.scanned  # some may have gone before their turn
        task.message = matches.not_looked_at

    def _shown(self, task: Task, begin: int) -> dict[str, Any]:
        search, now = search_of(task), self._clock()
        following = begin + PAGE if begin + PAGE < len(search.ids) else 0
        return {
            "q": str(search.query),
            "query": search.query,
            "task": task,
            "texts": progress_texts(task, now),
            "columns": columns(),
            "rows": self._rows(search, begin, now),
            "begin": begin,
            "following": following,
            "found_at_most": FOUND_AT_MOST,
            "longest": text.size(LOOKED_THROUGH),
            "max_number": fields.MAX_NUMBER,
            "live_args": urlencode({"task": task.id, "from": begin}),
        }

    def _rows(self, search: Search, begin: int, now: int) -> list[list[str]]:
        return rows(self._broker, search.ids[begin : begin + PAGE], now)


class Matches:
    """Tells which jobs match *query* as of the time *at*; calls *rest* between two.

    The body comes with those for which *wants_body* of the job is true, or the query asks for it.
    """

    def __init__(
        self,
        broker: Broker,
        query: Query,
        at: int,
        rest: Callable[[], None],
        wants_body: Callable[[Job], bool] = none,
    ) -> None:
        self._broker: Broker = broker
        self._at: int = at
        self._rest: Callable[[], None] = rest
        self._is_match: Test = query.test()
        self._body_test: BodyTest | None = query.body_test()
        self._wants_body: Callable[[Job], bool] = wants_body
        self._lost: int = 0

    def among(self, ids: Iterable[int]) -> Iterator[Seen]:
        """Each of *ids*, with its job as it is now if that matches, and its body. Switches."""
        is_match, body_test, at = self._is_match, self._body_test, self._at
        for id, job, body in each(self._broker, ids, self._is_wanted, self._rest):
            if job is None or not is_match(job, at):
                yield id, None, None
            elif body_test is None or (body is not None and body_test(body)):
                yield id, job, body
            else:
                self._lost += body is None
                yield id, None, None

    @property
    def not_looked_at(self) -> str:
        """What could not be told, for people; empty if all could."""
        if not self._lost:
            return ""
        whose = text.counted(self._lost, "job")
        return f"It was not looked into {whose}: what is in there cannot be read back from the disk."

    def _is_wanted(self, job: Job) -> bool:
        return (self._body_test is not None or self._wants_body(job)) and self._is_match(job, self._at)


def asked(given: fields.Fields) -> Query:
    """The query in the fields `q`, `tube`, `state`; raise QueryError if it is none, Forbidden if it is not allowed."""
    query = parse(given.get("q", ""))
    if query.needs_bodies and not visitor().sees_bodies:
        raise Forbidden("The bodies of jobs are not shown to you, so they cannot be searched either. Nothing was done.")
    tube = fields.tube_name(given).decode() if given.get("tube") else ""
    state = STATE_NAMES[fields.state(given)] if given.get("state") else ""
    return query.within(tube, state)


def columns() -> tuple[Column, ...]:
    """The columns that the current visitor may see."""
    return (*COLUMNS, BODY) if visitor().sees_bodies else COLUMNS


def rows(broker: Broker, ids: list[int], now: int) -> list[list[str]]:
    """A row each for those of the jobs *ids* that are still there: the id, then the columns."""
    shown, jobs = columns(), [job for id in ids if (job := broker.jobs.get(id)) is not None]
    return [[str(job.id), *[column.text(job, now) for column in shown]] for job in jobs]


def job_list(broker: Broker, tube: Tube, state: int, args: fields.Fields, now: int) -> dict[str, Any]:
    """What the page of *tube* shows of its jobs in *state*: `jobs`, `columns`, and the query `q` or its `q_error`."""
    shown: dict[str, Any] = {
        "q": args.get("q", "").strip(),
        "q_error": "",
        "columns": job_columns(state, visitor().sees_bodies),
    }
    try:
        query = asked({"q": shown["q"]})
    except QueryError as error:
        query, shown["q_error"] = Query(), str(error)
    if query.terms:
        return shown | {"jobs": list_matching(broker, tube, state, query, now)}
    return shown | {"jobs": list_jobs(broker, tube, state, fields.cursor(args), now, visitor().sees_bodies)}


def list_matching(broker: Broker, tube: Tube, state: int, query: Query, now: int) -> JobList:
    """The first of the tube's jobs in *state* that match *query*, of as many as a bounded look goes by. May switch."""
    until = time.perf_counter() + LOOK
    is_match, body_test, looked_at = query.test(), query.body_test(), 0
    found, on_disk, size = list[Job](), list[Job](), 0
    for job in in_order(broker, tube, state):
        if looked_at == DEEPEST or len(found) - len(on_disk) == PAGE:
            break
        if looked_at >= AT_LEAST and time.perf_counter() > until:
            break
        if len(on_disk) == LOT or size >= LOT_BYTES:
            break
        looked_at += 1
        if not is_match(job, now):
            continue
        if body_test is not None and job.body is None:
            on_disk.append(job)
            size += job.size
        elif body_test is not None and job.body is not None and not body_test(job.body):
            continue
        found.append(job)
    if body_test is not None and on_disk:
        bodies = read(broker, on_disk)
        away = {job.id for job in on_disk if job.id not in bodies or not body_test(bodies[job.id])}
        still = [job for job in found if broker.jobs.get(job.id) is job and job.state == state]
        found = [job for job in still if job.id not in away]
    present, shown = count(tube, state), job_columns(state, visitor().sees_bodies)
    of = f"all {text.number(present)}" if looked_at >= present else f"the first {text.number(looked_at)} of {present:,}"
    return JobList(
        state=STATE_NAMES[state],
        rows=job_rows(found, shown, now),
        summary=f"{text.number(len(found))} that match among {of}",
        following="",
        is_first=True,
        is_deepest=False,
    )


def candidates(broker: Broker, query: Query, above: int = 0) -> tuple[int, Iterable[int]]:
    """How many jobs *query* may match now at most, and the ids of those over *above*, each once, in rising order.

    They may be taken over many turns.

    Those of a small tube are told from its places. A large one is not worth it: to part its heaps' live entries from
    the dead would take longer than to pass over the jobs of other tubes.
    """
    if query.id is not None:
        return 1, [query.id] if query.id > above else []
    above = max(above, query.least_id - 1)
    tube = broker.tubes.get(query.tube.encode())
    if query.tube and tube is None:
        return 0, []
    if tube is None or _entries(tube) + sum([len(client.reserved) for client in broker.clients]) > SMALL_TUBE:
        below = broker.next_id
        return len(broker.jobs), (id for id in broker.jobs.ids_above(above) if id < below)
    entries = set(chain(tube.ready.ids(), tube.delayed.ids()))
    held = chain.from_iterable([client.reserved for client in broker.clients])
    ids = sorted(id for id in entries.union(tube.buried, held) if id > above)
    return len(ids), ids


def _entries(tube: Tube) -> int:
    return tube.ready.size + tube.delayed.size + len(tube.buried)


def search_of(task: Task) -> Search:
    """What *task* searches for; raise NotFound if it is no search."""
    if not isinstance(task.subject, Search):
        raise NotFound("That task is no search.")
    return task.subject


def _begin(given: fields.Fields) -> int:
    return fields.number(given, "from", 0, FOUND_AT_MOST) if given.get("from") else 0
