"""The errors of a tube: a task groups the failed jobs of the tube by their errors.

Requests for the same jobs share a running task. They also share a finished task for ten times as long as it took, so
grouping takes at most a tenth of the time, however often the page is loaded.
"""

from __future__ import annotations

from typing import Final

from flask import url_for
from werkzeug.exceptions import Forbidden

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, STATE_NAMES
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.tasks import DONE, Task, Tasks
from greenstalk_server.web.features.errors.groups import ErrorGroups
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.reads.jobs.json_fields import MAX_PARSED, Path
from greenstalk_server.web.reads.jobs.matching import JobMatcher, candidate_ids
from greenstalk_server.web.reads.jobs.query import Query, Term, TextMatch
from greenstalk_server.web.reads.policies import DeadLetterTubes

REUSE_FACTOR: Final = 10
"""A finished grouping is reused for this multiple of the time that it took."""

STATES: Final = (BURIED, READY, DELAYED)
"""States that a principal can select for grouping."""

NOT_RESERVED: Final = Term("state", TextMatch(STATE_NAMES[RESERVED]), is_negated=True)


class TubeErrors:
    """The errors of the tubes of one broker."""

    def __init__(self, broker: Broker, clock: Clock, tasks: Tasks) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._tasks: Tasks = tasks
        self._dead_letter_tubes: DeadLetterTubes = DeadLetterTubes(broker)

    def start(self, tube: Tube, state: int, path: Path, is_fresh: bool = False) -> Task:
        """Group the failed jobs of *tube*, or return the task of the same grouping. Does not switch.

        state       one of STATES, or 0 for the default: buried, and in a dead-letter tube all except reserved.
        path        the field with the error; empty to find the error as job_errors describes.
        is_fresh    do not return a finished task.
        """
        if not principal().sees_bodies:
            raise Forbidden("Job bodies are hidden from you, so you cannot see their errors.")
        query = self._query(tube, state)
        found = self._tasks.latest(
            lambda subject: isinstance(subject, ErrorGroups) and (subject.query, subject.path) == (query, path)
        )
        if found is not None and (found.is_running or (not is_fresh and self._is_recent(found))):
            return found
        groups, name = ErrorGroups(query, path), tube.name.decode()
        return self._tasks.start(
            f"Errors of {query}",
            groups,
            lambda task: self._work(task, groups),
            kind="errors",
            endpoint="tube_errors",
            needs_bodies=True,
            back=lambda: url_for("tube_errors", tube=name),
        )

    def _query(self, tube: Tube, state: int) -> Query:
        name = tube.name.decode()
        if not state and self._dead_letter_tubes.has(tube):
            return Query((*Query().within(name).terms, NOT_RESERVED))
        return Query().within(name, STATE_NAMES[state or BURIED])

    def _is_recent(self, task: Task) -> bool:
        taken = task.ended_at - task.started_at
        return task.state == DONE and self._clock() - task.ended_at < REUSE_FACTOR * taken

    def _work(self, task: Task, groups: ErrorGroups) -> None:
        """Group the jobs. Switches."""
        task.total, ids = candidate_ids(self._broker, groups.query)
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
            groups.close()
        task.total = task.scanned  # jobs may be deleted before the scan reaches them
