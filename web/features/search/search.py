"""The search: a task scans a snapshot of the job ids for a query. Requests for the same search share one task.

A search that names no tube has a part on each shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.task_parts import TaskParts
from greenstalk_server.web.changes.tasks import Task, Tasks
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.jobs.job_orders import BY_ID, FirstJobs, SortKey, merged_keys, order_text
from greenstalk_server.web.reads.jobs.matching import JobMatcher, candidate_ids
from greenstalk_server.web.reads.jobs.query import Query, parse

SEARCH: Final = "search"
"""The kind of the parts of a search of all shards."""

MAX_MATCHES: Final = 1000
"""Matches that one search lists, over all its pages. The others are only counted."""


class Search:
    """A query, and its first MAX_MATCHES matches so far in *order*, of *shard* or of all shards."""

    def __init__(self, query: Query, order: Order, shard: int) -> None:
        self.query: Query = query
        self.order: Order = order
        self._shard: int = shard
        self._first: FirstJobs = FirstJobs(order, MAX_MATCHES)
        self._merged: dict[int, int] | None = None

    @property
    def keys(self) -> list[SortKey]:
        """The sort keys of the first matches on *shard*, in order."""
        return self._first.keys

    @property
    def places(self) -> dict[int, int]:
        """The ids of the listed matches, in order, and the shards on which they were found."""
        return self._merged if self._merged is not None else {id: self._shard for _, id in self.keys}

    @property
    def ids(self) -> list[int]:
        """The ids of the listed matches, in order."""
        return list(self.places)

    @property
    def title(self) -> str:
        """The query, and its order unless that is by id."""
        return f"{self.query}" if self.order == BY_ID else f"{self.query}, {order_text(self.order)}"

    def add(self, job: Job) -> None:
        """Add the match *job*; drop the last one if there are too many."""
        self._first.add(job)

    def merge(self, keys: Mapping[int, list[SortKey]]) -> None:
        """List the first of the matches with *keys*, by shard, instead of the former ones."""
        places = dict[int, int]()
        for _, id, shard in merged_keys(keys, self.order):
            if len(places) == MAX_MATCHES:
                break
            places.setdefault(id, shard)  # a job that moves may be found twice
        self._merged = places


def is_search(task: Task, query: Query, order: Order) -> bool:
    """Return whether *task* is a search for *query* in *order*."""
    subject = task.subject
    return isinstance(subject, Search) and subject.query == query and subject.order == order


class Searches:
    """Searches of the jobs of one tube, or of all shards."""

    def __init__(self, broker: Broker, clock: Clock, tasks: Tasks, parts: TaskParts) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._tasks: Tasks = tasks
        self._parts: TaskParts = parts
        parts.register(SEARCH, self._start_part, lambda task: task.subject_as(Search).keys)

    def start(self, query: Query, order: Order = BY_ID) -> Task:
        """Start the search for *query*, or return the running task with the same query and order. Does not switch.

        Principals share a task only if they may see the same tubes.
        """
        who = principal()

        def is_same(task: Task) -> bool:
            return is_search(task, query, order) and task.who.shares_rights_with(who)

        if (running := self._tasks.running(is_same)) is not None:
            return running
        search = Search(query, order, self._broker.ids.shard)
        return self._tasks.start(
            f"Search for {search.title}",
            search,
            self._work_of(search),
            kind="search",
            endpoint="search",
            needs_bodies=query.needs_bodies,
        )

    def _work_of(self, search: Search) -> Callable[[Task], None]:
        if not self._parts.spans(search.query.tube):
            return lambda task: self._work(task, search)
        order = [search.order.key, search.order.is_descending]
        return self._parts.work(SEARCH, self._parts.everywhere(q=str(search.query), order=order), search.merge)

    def _start_part(self, q: str, order: tuple[str, bool]) -> Task:
        search = Search(parse(q), Order(*order), self._broker.ids.shard)
        return self._tasks.start("", search, lambda task: self._work(task, search), is_part=True)

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
