"""The errors of a tube, or of all tubes of all shards, found by a task that groups the failed jobs by their errors.

Requests for the same jobs share a running task. They also share a finished task for ten times as long as the task took,
so grouping takes at most a tenth of the server's time, however often the page is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from typing import Final

from flask import url_for
from werkzeug.exceptions import Forbidden, ServiceUnavailable

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, STATE_NAMES
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.task_parts import TaskParts
from greenstalk_server.web.changes.tasks import DONE, Task, Tasks
from greenstalk_server.web.features.errors.groups import MAX_GROUPS, MAX_PART_GROUPS, ErrorGroups
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.reads.jobs.json_fields import MAX_PARSED, Path
from greenstalk_server.web.reads.jobs.matching import JobMatcher, candidate_ids
from greenstalk_server.web.reads.jobs.query import ANY, REASON, Query, Term, TextMatch, parse
from greenstalk_server.web.reads.policies import DeadLetterTubes
from greenstalk_server.web.reads.tubes import each_tube

REUSE_FACTOR: Final = 10
"""A finished grouping is reused for this multiple of the time that it took."""

TUBE_BATCH: Final = 32
"""Tubes between two checks of the time slice."""

MAX_BURIED_IDS: Final = 200_000
"""Maximum buried jobs of a tube whose ids are copied in one step, at 2 ms per 100,000.

With more, the ids of all jobs of the server are scanned, at 0.8 s per million.
"""

ERRORS: Final = "errors"
"""The kind of the parts of a grouping of all shards."""

STATES: Final = (BURIED, READY, DELAYED)
"""States that a principal can select for grouping."""

MIN_OVERVIEW_INTERVAL: Final = 60 * SECOND
"""Minimum nanoseconds between two groupings that the overview starts."""

OVERVIEW_REUSE_FACTOR: Final = 100
"""The overview groups again at the earliest after this multiple of the time that the last grouping took."""

NOT_RESERVED: Final = Term("state", TextMatch(STATE_NAMES[RESERVED]), is_negated=True)

ALL_BURIED: Final = Query().within("", STATE_NAMES[BURIED])
ALL_DEAD_LETTERS: Final = Query((Term(REASON, TextMatch(ANY)), NOT_RESERVED))
"""The queries that find the failed jobs of all tubes; both match a dead letter that is buried."""


class TubeErrors:
    """The errors of each tube of one broker, and of all tubes of all shards."""

    def __init__(self, broker: Broker, clock: Clock, tasks: Tasks, parts: TaskParts) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._tasks: Tasks = tasks
        self._dead_letter_tubes: DeadLetterTubes = DeadLetterTubes(broker)
        self._parts: TaskParts = parts
        parts.register(ERRORS, self._start_part, lambda task: task.subject_as(ErrorGroups).part())

    def start(self, tube: Tube, state: int, path: Path, is_fresh: bool = False) -> Task:
        """Group the failed jobs of *tube*, or return the task of the same grouping. Does not switch.

        state       one of STATES, or 0 for the default: buried, and in a dead-letter tube all except reserved.
        path        the field with the error; empty to find the error as job_errors describes.
        is_fresh    do not return a finished task.
        """
        name = tube.name.decode()
        return self._start(
            self._query(tube, state), path, is_fresh, "tube_errors", lambda: url_for("tube_errors", tube=name)
        )

    def start_all(self, query: Query, is_fresh: bool = False) -> Task:
        """Group the jobs of all tubes that match *query*, ALL_BURIED or ALL_DEAD_LETTERS, as `start` does."""
        return self._start(query, (), is_fresh, "errors", lambda: url_for("errors"))

    def worst_by_tube(self, may_start: bool) -> Mapping[bytes, tuple[str, int]]:
        """Return the most common error of each tube in the last grouping of all buried jobs. Does not switch.

        Tubes without one of its groups are left out. If *may_start* and the grouping is not recent, start the next one
        in the background, unless the overview of another principal does so now.
        """
        if not principal().sees_bodies:
            return {}
        if may_start and not self._is_recent_for_overview(self._latest(ALL_BURIED, ())):
            with suppress(ServiceUnavailable):
                self._start(ALL_BURIED, (), True, "errors", lambda: url_for("errors"), is_listed=False)
        done = self._tasks.latest(
            lambda subject: isinstance(subject, ErrorGroups) and subject.query == ALL_BURIED and subject.is_closed
        )
        return done.subject_as(ErrorGroups).worst if done is not None else {}

    def _is_recent_for_overview(self, found: Task | None) -> bool:
        if self._tasks.running(lambda task: not task.is_listed) is not None:
            return True
        if found is None or found.is_running:
            return found is not None
        taken = found.ended_at - found.started_at
        return self._clock() - found.ended_at < max(MIN_OVERVIEW_INTERVAL, OVERVIEW_REUSE_FACTOR * taken)

    def _start(
        self,
        query: Query,
        path: Path,
        is_fresh: bool,
        endpoint: str,
        back: Callable[[], str],
        is_listed: bool = True,
    ) -> Task:
        _require_bodies()
        found = self._latest(query, path)
        if found is not None and (found.is_running or (not is_fresh and self._is_recent(found))):
            return found
        groups = ErrorGroups(query, path, self._clock())
        return self._tasks.start(
            f"Errors of {query}",
            groups,
            self._work_of(groups),
            kind="errors",
            endpoint=endpoint,
            needs_bodies=True,
            back=back,
            is_listed=is_listed,
        )

    def _work_of(self, groups: ErrorGroups) -> Callable[[Task], None]:
        if not self._parts.spans(groups.query.tube):
            return lambda task: self._work(task, groups)
        return self._parts.work(ERRORS, self._parts.everywhere(q=str(groups.query)), groups.merge)

    def _start_part(self, q: str) -> Task:
        """Group the jobs of this shard that match *q*."""
        _require_bodies()
        groups = ErrorGroups(parse(q), (), self._clock())
        return self._tasks.start("", groups, lambda task: self._work(task, groups, MAX_PART_GROUPS), is_part=True)

    def _latest(self, query: Query, path: Path) -> Task | None:
        return self._tasks.latest(
            lambda subject: isinstance(subject, ErrorGroups) and (subject.query, subject.path) == (query, path)
        )

    def _query(self, tube: Tube, state: int) -> Query:
        name = tube.name.decode()
        if not state and self._dead_letter_tubes.has(tube):
            return Query((*Query().within(name).terms, NOT_RESERVED))
        return Query().within(name, STATE_NAMES[state or BURIED])

    def _is_recent(self, task: Task) -> bool:
        taken = task.ended_at - task.started_at
        return task.state == DONE and self._clock() - task.ended_at < REUSE_FACTOR * taken

    def _candidates(self, query: Query) -> tuple[int, Iterable[int]]:
        """Return the ids of `candidate_ids`, but those of buried jobs in the order of their burial. May switch."""
        if query.state != STATE_NAMES[BURIED]:
            return candidate_ids(self._broker, query)
        who, name = principal(), query.tube.encode()
        found = self._broker.tubes.get(name)
        all_tubes = each_tube(self._broker, TUBE_BATCH) if not name else [found] if found is not None else []
        tubes = [tube for tube in all_tubes if tube.buried and who.sees(tube.name)]
        if any(len(tube.buried) > MAX_BURIED_IDS for tube in tubes):
            return candidate_ids(self._broker, query)
        return sum([len(tube.buried) for tube in tubes]), chain.from_iterable(map(_buried_ids, tubes))

    def _work(self, task: Task, groups: ErrorGroups, limit: int = MAX_GROUPS) -> None:
        """Group the jobs, and keep the first *limit* groups. Switches."""
        task.total, ids = self._candidates(groups.query)
        matcher = JobMatcher(
            self._broker, groups.query, self._clock(), task.checkpoint, lambda job: job.size <= MAX_PARSED
        )
        try:
            for _, job, body in matcher.match(ids):
                if job is not None:
                    groups.add(job, body)
                    task.matched += 1
                task.scanned += 1
        finally:
            groups.close(Pace(), limit)
        task.total = task.scanned  # jobs may be deleted before the scan reaches them


def _require_bodies() -> None:
    if not principal().sees_bodies:
        raise Forbidden("Job bodies are hidden from you, so you cannot see their errors.")


def _buried_ids(tube: Tube) -> list[int]:
    return list(tube.buried)
