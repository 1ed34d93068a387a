"""The search: a task scans a snapshot of the job ids for a query. Requests for the same search share one task."""

from __future__ import annotations

from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.tasks import Task, Tasks
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.jobs.job_orders import BY_ID, FirstJobs, order_text
from greenstalk_server.web.reads.jobs.matching import JobMatcher, candidate_ids
from greenstalk_server.web.reads.jobs.query import Query

MAX_MATCHES: Final = 1000
"""Matches that one search lists, over all its pages. The others are only counted."""


class Search:
    """A query, and the ids of its first MAX_MATCHES matches so far in *order*."""

    def __init__(self, query: Query, order: Order = BY_ID) -> None:
        self.query: Query = query
        self.order: Order = order
        self._first: FirstJobs = FirstJobs(order, MAX_MATCHES)

    @property
    def ids(self) -> list[int]:
        """The ids of the listed matches, in order."""
        return [id for _, id in self._first.keys]

    @property
    def title(self) -> str:
        """The query, and its order unless that is by id."""
        return f"{self.query}" if self.order == BY_ID else f"{self.query}, {order_text(self.order)}"

    def add(self, job: Job) -> None:
        """Add the match *job*; drop the last one if there are too many."""
        self._first.add(job)


def is_search(task: Task, query: Query, order: Order) -> bool:
    """Return whether *task* is a search for *query* in *order*."""
    subject = task.subject
    return isinstance(subject, Search) and subject.query == query and subject.order == order


class Searches:
    """The searches of one broker."""

    def __init__(self, broker: Broker, clock: Clock, tasks: Tasks) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._tasks: Tasks = tasks

    def start(self, query: Query, order: Order = BY_ID) -> Task:
        """Start the search for *query*, or return the running task with the same query and order. Does not switch.

        Principals share a task only if they may see the same tubes.
        """
        who = principal()

        def is_same(task: Task) -> bool:
            return is_search(task, query, order) and task.who.shares_rights_with(who)

        if (running := self._tasks.running(is_same)) is not None:
            return running
        search = Search(query, order)
        return self._tasks.start(
            f"Search for {search.title}",
            search,
            lambda task: self._work(task, search),
            kind="search",
            endpoint="search",
            needs_bodies=query.needs_bodies,
        )

    def _work(self, task: Task, search: Search) -> None:
        """Scan every job that existed at the start. Switches."""
        task.total, ids = candidate_ids(self._broker, search.query)
        matcher = JobMatcher(self._broker, search.query, self._clock(), task.checkpoint)
        for _, job, _ in matcher.match(ids):
            if job is not None:
                task.matched += 1
                search.add(job)
            task.scanned += 1
        task.total = task.scanned  # jobs may be deleted before the scan reaches them
        task.message = matcher.warning
