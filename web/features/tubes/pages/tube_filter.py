"""The filter of the list of jobs on a tube's page: it examines all jobs of the tube in one state.

A list that is short enough is examined for each view, so its matches are always current. For a longer list, the page
starts the same task as the search page, and shows the matches so far.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from flask import url_for
from werkzeug.exceptions import ServiceUnavailable

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import STATE_NAMES
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.changes.tasks import Task, Tasks
from greenstalk_server.web.features.search.search import MAX_MATCHES, Search, Searches, is_search
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.fields import Fields
from greenstalk_server.web.framework.sorting import Head, Heads, Order, order_args
from greenstalk_server.web.reads.jobs.job_list import (
    MAX_LISTED,
    PAGE_SIZE,
    JobColumn,
    JobList,
    count_jobs,
    job_columns,
    job_heads,
    job_rows,
    list_jobs,
    list_summary,
)
from greenstalk_server.web.reads.jobs.job_orders import DEFAULT_ORDERS, is_indexed, order_text, sorted_jobs
from greenstalk_server.web.reads.jobs.json_fields import columns_text
from greenstalk_server.web.reads.jobs.matching import list_matching, read_columns, read_query
from greenstalk_server.web.reads.jobs.query import Query, QueryError, suggested_terms

INITIAL_WAIT: Final = 0.2
"""Maximum seconds that a page waits for the task; then it shows the matches so far."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """A page of a list of jobs, which may have a filter.

    task            the task that finds the matches; None if the list is short or has no filter, or too many tasks run.
    warning         reason why only some of the jobs were examined; empty if all were or will be.
    here            URL of this page, with the task.
    pages           links to the first and to the next page: label and URL.
    """

    jobs: JobList
    task: Task | None = None
    warning: str = ""
    here: str = ""
    pages: tuple[tuple[str, str], ...] = ()


class TubeFilter:
    """Finds the jobs of one broker's tubes that match a filter."""

    def __init__(self, broker: Broker, tasks: Tasks, searches: Searches) -> None:
        self._broker: Broker = broker
        self._tasks: Tasks = tasks
        self._searches: Searches = searches

    def values(
        self, tube: Tube, state: int, args: Fields, now: int, order: Order, groups: Collection[str], *, may_start: bool
    ) -> dict[str, Any]:
        """Return the values of tube_jobs.html. May switch.

        The field `q` is the filter, and `cols` names fields of the bodies that are columns. The field `task` names a
        task to continue, and `from` is the index of the first match to show. *groups* names the
        columns that policies and tags add.

        A task sorts a long list in an *order* that the tube has no index for.

        may_start       start a task if the list is long. A live update must not start one.
        """
        paths, sees_bodies = read_columns(args), principal().sees_bodies
        columns = job_columns(state, sees_bodies, groups, paths)
        shown: dict[str, Any] = {
            "q": args.get("q", "").strip(),
            "q_error": "",
            "columns": columns,
            "heads": self._heads(tube, state, args, order, columns),
            "order_args": order_args(order, DEFAULT_ORDERS[state]),
            "cols": columns_text(paths),
            "terms": suggested_terms(is_of_tube=True, sees_bodies=sees_bodies),
        }
        try:
            query = read_query({"q": shown["q"]})
        except QueryError as error:
            query, shown["q_error"] = Query(), str(error)
        if query.terms or not (is_indexed(order, state) or count_jobs(tube, state) <= MAX_LISTED):
            filtered = self._find(tube, state, query, order, args, now, columns, may_start)
        else:
            filtered = Filtered(list_jobs(self._broker, tube, state, order, fields.cursor(args), now, columns))
        return shown | {"jobs": filtered.jobs, "filtered": filtered}

    def _heads(self, tube: Tube, state: int, args: Fields, order: Order, columns: Collection[JobColumn]) -> list[Head]:
        """Return the column headings of the table; each links to the whole list sorted by its column."""
        kept = {name: args.get(name, "") for name in ("q", "span")} | {"cols": columns_text(read_columns(args))}
        here = {"tube": tube.name.decode(), "state": STATE_NAMES[state]} | {k: v for k, v in kept.items() if v}
        page = url_for("tube")
        heads = Heads(order, DEFAULT_ORDERS[state], lambda sorting: f"{page}?{urlencode(here | sorting)}")
        return job_heads(heads, columns)

    def _find(
        self,
        tube: Tube,
        state: int,
        given: Query,
        order: Order,
        args: Fields,
        now: int,
        columns: Collection[JobColumn],
        may_start: bool,
    ) -> Filtered:
        query = given.within(tube.name.decode(), STATE_NAMES[state])
        task = self._kept(args, query, order)
        if task is None:
            found = list_matching(self._broker, tube, state, order, given, now, columns)
            if found.is_complete or not may_start:
                return Filtered(found)
            try:
                task = self._searches.start(query, order)
            except ServiceUnavailable as error:
                return Filtered(found, warning=f"Only the first jobs were examined. {error.description}")
        if may_start:
            task.wait(INITIAL_WAIT)
        return self._page(task, tube, state, args, now, columns)

    def _kept(self, args: Fields, query: Query, order: Order) -> Task | None:
        """Return the task that the field `task` names if it is a search for *query* in *order*, or None."""
        if not self._tasks.has(args.get("task", "")):
            return None
        task = self._tasks.find(args)
        return task if is_search(task, query, order) else None

    def _page(
        self, task: Task, tube: Tube, state: int, args: Fields, now: int, columns: Collection[JobColumn]
    ) -> Filtered:
        begin = fields.number(args, "from", 0, MAX_MATCHES) if args.get("from") else 0
        search = task.subject_as(Search)
        found = [job for id in search.ids if (job := self._broker.jobs.get(id)) is not None]
        listed = sorted_jobs([job for job in found if job.tube is tube and job.state == state], search.order)
        page = listed[begin : begin + PAGE_SIZE]
        url = _urls(task, tube, state, args)
        pages: tuple[tuple[str, str], ...] = (("First page", url(0)),) if begin else ()
        if len(listed) > begin + PAGE_SIZE:
            pages += (("Next", url(begin + PAGE_SIZE)),)
        jobs = JobList(
            state=STATE_NAMES[state],
            rows=job_rows(page, columns, now),
            summary=_summary(task, begin, len(page), tube, state),
            following="",
            is_first=begin == 0,
            is_truncated=task.matched > MAX_MATCHES and len(listed) <= begin + PAGE_SIZE,
        )
        return Filtered(jobs, task, here=url(begin), pages=pages)


def _urls(task: Task, tube: Tube, state: int, args: Fields) -> Callable[[int], str]:
    """Return a function from the index of a match to the URL of the page that begins with it."""
    here = {"tube": tube.name.decode(), "state": STATE_NAMES[state], "task": task.id}
    kept = {name: args.get(name, "") for name in ("q", "span")} | {"cols": columns_text(read_columns(args))}
    here |= {name: value for name, value in kept.items() if value}
    here |= order_args(task.subject_as(Search).order, DEFAULT_ORDERS[state])
    page = url_for("tube")
    return lambda begin: f"{page}?{urlencode(here | ({'from': str(begin)} if begin else {}))}"


def _summary(task: Task, begin: int, shown: int, tube: Tube, state: int) -> str:
    """Return a text with the range of the shown matches, their total, and their order."""
    search, present = task.subject_as(Search), count_jobs(tube, state)
    order = order_text(search.order, state)
    if search.query == Query().within(tube.name.decode(), STATE_NAMES[state]):
        return list_summary(begin, begin + shown, present, order)
    matched = f"{text.number(task.matched)} matching"
    which = f"{text.number(begin + 1)} to {text.number(begin + shown)} of " if begin and shown else ""
    if not begin and shown < task.matched:
        which = f"first {shown} of "
    among = f", among all {text.number(present)}" if task.state == "done" and not which else ""
    return f"{which}{matched}{among}, {order}"
