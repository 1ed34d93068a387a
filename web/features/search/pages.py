"""The search page: the matches that a search has found so far.

The page shows each job in its current state, and omits jobs that no longer exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode

from flask import Flask, Response, make_response, redirect, render_template, request, url_for

from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.task_progress import live_state, progress_texts
from greenstalk_server.web.changes.tasks import INITIAL_WAIT, Task, Tasks
from greenstalk_server.web.features.search.search import MAX_MATCHES, Search, Searches
from greenstalk_server.web.features.search.suggestions import Suggestions
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.sorting import Heads, order_args, read_order
from greenstalk_server.web.live.hub import LiveHub, State
from greenstalk_server.web.reads.jobs.job_list import job_heads
from greenstalk_server.web.reads.jobs.job_orders import BY_ID, ORDERS, order_text
from greenstalk_server.web.reads.jobs.json_fields import Path, columns_text
from greenstalk_server.web.reads.jobs.match_table import MatchTable, visible_columns
from greenstalk_server.web.reads.jobs.matching import read_columns, read_query
from greenstalk_server.web.reads.jobs.places import Places
from greenstalk_server.web.reads.jobs.query import MAX_LENGTH, MAX_SEARCHED, QueryError, suggested_terms

PAGE_SIZE: Final = 100
"""Matches per page: about 4 ms of rendering."""

MAX_ID_DIGITS: Final = 20
"""Digits of the largest id, 2⁶⁴-1."""


class SearchPages:
    """The page `/search`."""

    def __init__(
        self, clock: Clock, tasks: Tasks, searches: Searches, table: MatchTable, suggestions: Suggestions
    ) -> None:
        self._clock: Clock = clock
        self._tasks: Tasks = tasks
        self._searches: Searches = searches
        self._table: MatchTable = table
        self._suggestions: Suggestions = suggestions

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add the page to *app*, and register it with *live* for live updates."""
        app.add_url_rule("/search", "search", self.page)
        app.add_url_rule("/find", "find", self.find)
        app.add_url_rule("/suggest", "suggest", self.suggest)
        live.register("search", self.live)

    def page(self) -> Response:
        """Serve `/search`: show the search of `task`, or else start or join the one for `q`, `tube` and `state`.

        `sort` and `desc` are the order of the matches. May switch.
        """
        given = request.args.get("q", "").strip()
        try:
            query = read_query(request.args)
        except QueryError as error:
            return make_response(_form(given, str(error)), 400)
        if request.args.get("task"):
            task = self._tasks.find(request.args)
        elif query.terms:
            task = self._searches.start(query, read_order(request.args, tuple(ORDERS), BY_ID))
        else:
            return make_response(_form("", ""))
        task.wait(INITIAL_WAIT)
        return make_response(render_template("search.html", error="", **self._shown(task, request.args)))

    def find(self) -> Response:
        """Serve `/find?q=`, for the search box of the header: redirect to the job with this id, or else to a search."""
        given = request.args.get("q", "").strip()
        is_id = given.isascii() and given.isdigit() and len(given) <= MAX_ID_DIGITS
        return make_response(redirect(url_for("job", id=given) if is_id else url_for("search", q=given)))

    def suggest(self) -> dict[str, Any]:
        """Serve `/suggest?q=&tube=`: suggestions for the last term of `q`, as JSON. Switches."""
        begin, options = self._suggestions.suggest(request.args.get("q", "")[:MAX_LENGTH], request.args.get("tube", ""))
        return {"begin": begin, "options": [option._asdict() for option in options]}

    def live(self, args: fields.Fields, now: int) -> State:
        """Return the live state of `/search?task=&from=&class=`: the page has the column of classes if `class` is 1."""
        task = self._tasks.find(args)
        places = _page(task.subject_as(Search), _begin(args))
        rows = self._table.rows(places, args.get("class") == "1", read_columns(args))
        return live_state(task, now) | {"rows": {"matches": rows}}

    def _shown(self, task: Task, args: fields.Fields) -> dict[str, Any]:
        search, now, begin, paths = task.subject_as(Search), self._clock(), _begin(args), read_columns(args)
        places = _page(search, begin)
        has_class, suggested = self._table.contents(places)
        columns, rows = visible_columns(has_class, paths), self._table.rows(places, has_class, paths)
        following = begin + PAGE_SIZE if begin + PAGE_SIZE < len(search.ids) else 0
        return {
            "q": str(search.query),
            "query": search.query,
            "task": task,
            "texts": progress_texts(task, now),
            "columns": columns,
            "heads": job_heads(Heads(search.order, BY_ID, _urls(search, paths)), columns),
            "order_args": order_args(search.order, BY_ID),
            "order": order_text(search.order),
            "rows": rows,
            "cols": columns_text(paths),
            "paths": suggested,
            "begin": begin,
            "following": following,
            "found_at_most": MAX_MATCHES,
            "longest": text.size(MAX_SEARCHED),
            "terms": suggested_terms(is_of_tube=False, sees_bodies=principal().sees_bodies),
            "max_number": fields.MAX_NUMBER,
            "live_args": urlencode(
                {"task": task.id, "class": int(has_class), "from": begin}
                | ({"cols": columns_text(paths)} if paths else {})
            ),
        }


def _form(q: str, error: str) -> str:
    """Return the page without a search; *error* explains why the query *q* is invalid."""
    return render_template(
        "search.html",
        q=q,
        error=error,
        task=None,
        paths=(),
        terms=suggested_terms(is_of_tube=False, sees_bodies=principal().sees_bodies),
        longest=text.size(MAX_SEARCHED),
    )


def _urls(search: Search, paths: Iterable[Path]) -> Callable[[dict[str, str]], str]:
    """Return a function from the arguments of an order to the URL of the search for the same query in this order."""
    page, cols = url_for("search"), columns_text(paths)
    here = {"q": str(search.query)} | ({"cols": cols} if cols else {})
    return lambda sorting: f"{page}?{urlencode(here | sorting, safe=':')}"


def _begin(given: fields.Fields) -> int:
    return fields.number(given, "from", 0, MAX_MATCHES) if given.get("from") else 0


def _page(search: Search, begin: int) -> Places:
    """Return the matches of the page that begins with the match at the index *begin*."""
    return dict(islice(search.places.items(), begin, begin + PAGE_SIZE))
