"""The search page: a task scans a snapshot of the job ids for a query, and the page shows the matches so far.

The page shows each job in its current state, and omits jobs that no longer exist. Pages that request the same search
share one task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from flask import Flask, Response, make_response, render_template, request
from werkzeug.exceptions import NotFound

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, STATE_NAMES, Job
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.tasks import Task, Tasks, live_state, progress_texts
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.access import visitor
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.live.hub import LiveHub, State
from greenstalk_server.web.reads.jobs.job_list import body_preview, error_preview, field_cell, suggested_paths
from greenstalk_server.web.reads.jobs.json_fields import Path, columns_text
from greenstalk_server.web.reads.jobs.matching import JobMatcher, candidate_ids, read_query
from greenstalk_server.web.reads.jobs.query import MAX_SEARCHED, Query, QueryError, suggested_terms

MAX_MATCHES: Final = 1000
"""Matches that one search lists, over all its pages. The others are only counted."""

PAGE_SIZE: Final = 100
"""Matches per page: about 4 ms of rendering."""

INITIAL_WAIT: Final = 0.5
"""Seconds that a request waits for its task before the page shows the progress so far."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of matches, after the id; *key* is its CSS class.

    is_long         a cell may be cut at its end, so it shows its whole text on hover.
    """

    label: str
    key: str
    text: Callable[[Job, int], str]
    is_long: bool = False


COLUMNS: Final = (
    Column("Tube", "tube", lambda job, _: job.tube.name.decode()),
    Column("State", "state", lambda job, _: STATE_NAMES[job.state]),
    Column("Priority", "pri", lambda job, _: str(job.pri)),
    Column("Age", "age", lambda job, now: text.duration((now - job.created_at) // 1_000_000_000)),
    Column("Reserves", "reserves", lambda job, _: text.number(job.reserves)),
    Column("Bytes", "size", lambda job, _: text.number(job.size)),
)
BODY: Final = Column("Error or body", "body", lambda job, _: _error_or_body(job), is_long=True)
"""The last column, for visitors who may see bodies: the error of a buried job or dead letter, else the body."""


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
            return make_response(_form(given, str(error)), 400)
        if request.args.get("task"):
            task = self._tasks.find(request.args)
        elif query.terms:
            task = self.start(query)
        else:
            return make_response(_form("", ""))
        task.wait(INITIAL_WAIT)
        return make_response(render_template("search.html", error="", **self._shown(task, request.args)))

    def live(self, args: fields.Fields, now: int) -> State:
        """Return the live state of `/search?task=&from=`."""
        task = self._tasks.find(args)
        columns = visible_columns(fields.columns(args))
        return live_state(task, now) | {"rows": {"matches": self._rows(search_of(task), _begin(args), now, columns)}}

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

    def _shown(self, task: Task, args: fields.Fields) -> dict[str, Any]:
        search, now, begin, paths = search_of(task), self._clock(), _begin(args), fields.columns(args)
        columns = visible_columns(paths)
        rows = self._rows(search, begin, now, columns)
        following = begin + PAGE_SIZE if begin + PAGE_SIZE < len(search.ids) else 0
        return {
            "q": str(search.query),
            "query": search.query,
            "task": task,
            "texts": progress_texts(task, now),
            "columns": columns,
            "rows": rows,
            "cols": columns_text(paths),
            "paths": suggested_paths(self._broker, rows),
            "begin": begin,
            "following": following,
            "found_at_most": MAX_MATCHES,
            "longest": text.size(MAX_SEARCHED),
            "terms": suggested_terms(is_of_tube=False, sees_bodies=visitor().sees_bodies),
            "max_number": fields.MAX_NUMBER,
            "live_args": urlencode({"task": task.id, "from": begin} | ({"cols": columns_text(paths)} if paths else {})),
        }

    def _rows(self, search: Search, begin: int, now: int, columns: Iterable[Column]) -> list[list[str]]:
        return match_rows(self._broker, search.ids[begin : begin + PAGE_SIZE], now, columns)


def _form(q: str, error: str) -> str:
    """Return the page without a search; *error* explains why the query *q* is invalid."""
    return render_template(
        "search.html",
        q=q,
        error=error,
        task=None,
        paths=(),
        terms=suggested_terms(is_of_tube=False, sees_bodies=visitor().sees_bodies),
        longest=text.size(MAX_SEARCHED),
    )


def visible_columns(paths: Iterable[Path] = ()) -> tuple[Column, ...]:
    """Return the columns that the visitor may see, with the fields *paths* of bodies."""
    return (*COLUMNS, *map(_field_column, paths), BODY) if visitor().sees_bodies else COLUMNS


def match_rows(broker: Broker, ids: list[int], now: int, columns: Iterable[Column]) -> list[list[str]]:
    """Return a row for each of the jobs *ids* that exists and is visible: the id, then the *columns*. May switch."""
    sees, pace, rows = visitor().sees, Pace(), list[list[str]]()
    for id in ids:
        job = broker.jobs.get(id)
        if job is not None and sees(job.tube.name):
            rows.append([str(id)])
            for column in columns:
                rows[-1].append(column.text(job, now))
                pace.yield_if_due()  # a field of a body may take several ms
    return rows


def _field_column(path: Path) -> Column:
    return Column(".".join(path), "json", lambda job, _: field_cell(job, path), is_long=True)


def _error_or_body(job: Job) -> str:
    return error_preview(job) if job.state == BURIED or job.dead_letter else body_preview(job)


def search_of(task: Task) -> Search:
    """Return the search that *task* runs; raise NotFound if it is not a search."""
    if not isinstance(task.subject, Search):
        raise NotFound("This task is not a search.")
    return task.subject


def _begin(given: fields.Fields) -> int:
    return fields.number(given, "from", 0, MAX_MATCHES) if given.get("from") else 0
