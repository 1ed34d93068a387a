"""The page of a tube's errors: a task groups the failed jobs of the tube, and the page has actions on each group.

A grouping is a task. Requests for the same jobs share a running task. They also share a finished task for ten times as
long as it took, so grouping takes at most a tenth of the time, however often the page is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flask import Flask, make_response, redirect, render_template, request, url_for
from markupsafe import Markup
from werkzeug.exceptions import BadRequest, Forbidden, NotFound
from werkzeug.wrappers import Response

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, STATE_NAMES
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.tasks import DONE, Task, Tasks, progress_texts
from greenstalk_server.web.features.errors.groups import ErrorGroup, ErrorGroups
from greenstalk_server.web.features.jobs.pages.actions import find_tube
from greenstalk_server.web.features.tubes.pages.tube_summary import page_tabs
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.access import visitor
from greenstalk_server.web.reads.jobs.body_format import row_preview
from greenstalk_server.web.reads.jobs.job_list import REASON_TEXTS
from greenstalk_server.web.reads.jobs.json_fields import MAX_PARSED, MAX_PATH, Path, PathError, parse_path
from greenstalk_server.web.reads.jobs.matching import JobMatcher, candidate_ids
from greenstalk_server.web.reads.jobs.query import Query, Term, TextMatch
from greenstalk_server.web.reads.policies import DeadLetterTubes

INITIAL_WAIT: Final = 0.25
"""Maximum seconds that a request waits for its grouping; then the page shows the progress."""

REUSE_FACTOR: Final = 10
"""A finished grouping is reused for this multiple of the time that it took."""

STATES: Final = (BURIED, READY, DELAYED)
"""States that a visitor can select for grouping."""

NOT_RESERVED: Final = Term("state", TextMatch(STATE_NAMES[RESERVED]), is_negated=True)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group of failed jobs as the page shows it.

    first, last     when the first and the last of its jobs failed.
    title       the normalised error, or in words why there is none.
    sample      the error in the body of the sample; empty if it is equal to *title*.
    share       per cent of all jobs that were grouped, at least 1.
    query       the query that selects its jobs.
    q           that query without the terms of the tube and the state.
    retry       the bulk action that makes its jobs ready: `kick` or `redrive`; empty if neither would change one.
    """

    title: str
    has_error: bool
    count: str
    share: int
    first: Markup
    last: Markup
    sample_id: int
    sample: str
    sample_start: str
    query: str
    q: str
    retry: str


class TubeErrors:
    """The errors of the tubes of one broker."""

    def __init__(self, broker: Broker, clock: Clock, tasks: Tasks) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._tasks: Tasks = tasks
        self._dead_letter_tubes: DeadLetterTubes = DeadLetterTubes(broker)

    def init_app(self, app: Flask) -> None:
        """Add the page to *app*."""
        app.add_url_rule("/tube/errors", "tube_errors", self.page)

    def page(self) -> str | Response:
        """Serve `/tube/errors?tube=&state=&field=&refresh=`, or the grouping of `task`. May switch."""
        if request.args.get("task"):
            task = self._tasks.find(request.args)
            tube = find_tube(self._broker, {"tube": groups_of(task).query.tube})
        else:
            tube = find_tube(self._broker, request.args)
            state = fields.state(request.args, STATES, default=0)
            path = read_path(request.args.get("field", "").strip())
            if not visitor().sees_bodies:
                return redirect(url_for("tube", tube=tube.name.decode(), state=STATE_NAMES[state or BURIED]))
            task = self.start(tube, state, path, is_fresh=bool(request.args.get("refresh")))
        task.wait(INITIAL_WAIT)
        return make_response(render_template("tube_errors.html", **self._shown(tube, task)))

    def start(self, tube: Tube, state: int, path: Path, is_fresh: bool = False) -> Task:
        """Group the failed jobs of *tube*, or return the task of the same grouping. Does not switch.

        state       one of STATES, or 0 for the default: buried, and in a dead-letter tube all except reserved.
        path        the field with the error; empty to find the error as job_errors describes.
        is_fresh    do not return a finished task.
        """
        if not visitor().sees_bodies:
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

    def _shown(self, tube: Tube, task: Task) -> dict[str, Any]:
        found, now, name = groups_of(task), self._clock(), tube.name.decode()
        kept: dict[str, Any] = {"tube": name, "state": found.query.state, "field": ".".join(found.path)}
        return {
            "tube_name": name,
            "tabs": page_tabs(name, "Errors"),
            "is_dead_letter": self._dead_letter_tubes.has(tube),
            "state": found.query.state,
            "states": [STATE_NAMES[state] for state in STATES],
            "field": ".".join(found.path),
            "max_field": MAX_PATH,
            "fields": list(found.fields),
            "task": task,
            "texts": progress_texts(task, now),
            "total": found.total,
            "summary": _summary(found),
            "as_of": _ago(task.ended_at or now, now),
            "rows": [_row(found, group, now) for group in found.groups],
            "others": _others(found),
            "unread": found.unread,
            "again": url_for("tube_errors", refresh=1, **{key: value for key, value in kept.items() if value}),
        }


def read_path(given: str) -> Path:
    """Return the path *given*, empty if there is none; raise BadRequest if it is invalid."""
    try:
        return parse_path(given) if given else ()
    except PathError as error:
        raise BadRequest(f"“field” is invalid: {error}") from error


def groups_of(task: Task) -> ErrorGroups:
    """Return the groups of *task*; raise NotFound if it groups no errors."""
    if not isinstance(task.subject, ErrorGroups):
        raise NotFound("This task does not group errors.")
    return task.subject


def group_title(group: ErrorGroup) -> str:
    """Return the error of *group*, or in words why there is none."""
    if group.error:
        return group.error
    return f"No error in the body, {REASON_TEXTS[group.reason]}" if group.reason else "No error in the body"


def retry_action(group: ErrorGroup) -> str:
    """Return the bulk action that makes the jobs of *group* ready; empty if none changes one of them."""
    if group.dead_letters:
        return "redrive"
    return "kick" if group.unready else ""


def _row(found: ErrorGroups, group: ErrorGroup, now: int) -> GroupRow:
    query = found.query_of(group)
    place = Query().within(query.tube, query.state).terms
    return GroupRow(
        title=group_title(group),
        has_error=bool(group.error),
        count=text.number(group.count),
        share=max(1, 100 * group.count // found.total),
        first=_seen(group.first_at, now),
        last=_seen(group.last_at, now),
        sample_id=group.sample_id,
        sample=group.sample if group.sample != group.error else "",
        sample_start=row_preview(group.sample_start),
        query=str(query),
        q=str(Query(tuple(term for term in query.terms if term not in place))),
        retry=retry_action(group),
    )


def _seen(at: int, now: int) -> Markup:
    return Markup("{}, {}").format(text.time_tag(at), _ago(at, now))


def _ago(at: int, now: int) -> str:
    return f"{text.duration(max(0, now - at) // SECOND)} ago"


def _summary(found: ErrorGroups) -> str:
    if not found.groups:
        return ""
    groups = len(found.groups) + found.other_groups
    return f"{text.counted(found.total, 'job')} in {text.counted(groups, 'group')}"


def _others(found: ErrorGroups) -> str:
    """Return a sentence about the jobs in groups that the page does not show; empty if there are none."""
    if not found.others:
        return ""
    jobs = "job has" if found.others == 1 else "jobs have"
    return f"{text.number(found.others)} {jobs} other, less common errors."
