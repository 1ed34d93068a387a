"""The search page: a task scans a snapshot of the job ids for a query, and the page shows the matches so far.

The page shows each job in its current state, and omits jobs that no longer exist. Pages that request the same search
share one task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from flask import Flask, Response, make_response, render_template, request
from werkzeug.exceptions import NotFound

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import STATE_NAMES, Job
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web import fields, text
from greenstalk_server.web.auth.access import visitor
from greenstalk_server.web.jobs.job_list import body_preview
from greenstalk_server.web.jobs.matching import JobMatcher, candidate_ids, read_query
from greenstalk_server.web.jobs.query import MAX_SEARCHED, Query, QueryError
from greenstalk_server.web.live.hub import LiveHub, State
from greenstalk_server.web.operations.tasks import Task, Tasks, live_state, progress_texts

MAX_MATCHES: Final = 1000
"""Matches that one search lists, over all its pages. The others are only counted."""

PAGE_SIZE: Final = 100
"""Matches per page: about 4 ms of rendering."""

INITIAL_WAIT: Final = 0.5
"""Seconds that a request waits for its task before the page shows the progress so far."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of matches, after the id; *key* is its CSS class."""

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
"""The last column, for visitors who may see bodies."""


class Search:
    """A query, and the ids of its first MAX_MATCHES matches so far."""

    def __init__(self, query: Query) -> None:
        self.query: Query = query
        self.ids: list[int] = []


class Searches:
    """The search page of one broker's dashboard."""

    def __init__(self, broker: Broker, clock: Clock, tasks: Tasks) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._tasks: Tasks = tasks

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add the page to *app*, and register it with *live* for live updates."""
        app.add_url_rule("/search", "search", self.page)
        live.register("search", self.live)

    def page(self) -> Response:
        """Serve `/search`: show the search of `task`, or else start or join the one for `q`, `tube` and `state`.

        May switch.
        """
        given = request.args.get("q", "").strip()
        try:
            query = read_query(request.args)
        except QueryError as error:
            return make_response(
                render_template("search.html", q=given, error=str(error), task=None, longest=text.size(MAX_SEARCHED)),
                400,
            )
        if request.args.get("task"):
            task = self._tasks.find(request.args)
        elif query.terms:
            task = self.start(query)
        else:
            return make_response(
                render_template("search.html", q="", error="", task=None, longest=text.size(MAX_SEARCHED))
            )
        task.wait(INITIAL_WAIT)
        return make_response(render_template("search.html", error="", **self._shown(task, _begin(request.args))))

    def live(self, args: fields.Fields, now: int) -> State:
        """Return the live state of `/search?task=&from=`."""
        task = self._tasks.find(args)
        return live_state(task, now) | {"rows": {"matches": self._rows(search_of(task), _begin(args), now)}}

    def start(self, query: Query) -> Task:
        """Start the search for *query*, or return the running task with the same query. Does not switch.

        Visitors share a task only if they may see the same tubes.
        """
        who = visitor()

        def is_same(task: Task) -> bool:
            subject = task.subject
            return isinstance(subject, Search) and subject.query == query and task.who.shares_rights_with(who)

        if (running := self._tasks.running(is_same)) is not None:
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
        """Scan every job that existed at the start. Switches."""
        task.total, ids = candidate_ids(self._broker, search.query)
        matcher = JobMatcher(self._broker, search.query, self._clock(), task.checkpoint)
        for id, job, _ in matcher.match(ids):
            if job is not None:
                task.matched += 1
                if len(search.ids) < MAX_MATCHES:
                    search.ids.append(id)
            task.scanned += 1
        task.total = task.scanned  # jobs may be deleted before the scan reaches them
        task.message = matcher.warning

    def _shown(self, task: Task, begin: int) -> dict[str, Any]:
        search, now = search_of(task), self._clock()
        following = begin + PAGE_SIZE if begin + PAGE_SIZE < len(search.ids) else 0
        return {
            "q": str(search.query),
            "query": search.query,
            "task": task,
            "texts": progress_texts(task, now),
            "columns": visible_columns(),
            "rows": self._rows(search, begin, now),
            "begin": begin,
            "following": following,
            "found_at_most": MAX_MATCHES,
            "longest": text.size(MAX_SEARCHED),
            "max_number": fields.MAX_NUMBER,
            "live_args": urlencode({"task": task.id, "from": begin}),
        }

    def _rows(self, search: Search, begin: int, now: int) -> list[list[str]]:
        return match_rows(self._broker, search.ids[begin : begin + PAGE_SIZE], now)


def visible_columns() -> tuple[Column, ...]:
    """Return the columns that the visitor may see."""
    return (*COLUMNS, BODY) if visitor().sees_bodies else COLUMNS


def match_rows(broker: Broker, ids: list[int], now: int) -> list[list[str]]:
    """Return a row for each of the jobs *ids* that still exists, and that the visitor may see: the id, the columns."""
    columns, sees = visible_columns(), visitor().sees
    jobs = [job for id in ids if (job := broker.jobs.get(id)) is not None and sees(job.tube.name)]
    return [[str(job.id), *[column.text(job, now) for column in columns]] for job in jobs]


def search_of(task: Task) -> Search:
    """Return the search that *task* runs; raise NotFound if it is not a search."""
    if not isinstance(task.subject, Search):
        raise NotFound("This task is not a search.")
    return task.subject


def _begin(given: fields.Fields) -> int:
    return fields.number(given, "from", 0, MAX_MATCHES) if given.get("from") else 0
