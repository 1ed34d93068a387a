"""The pages of the errors of a tube and of all tubes, with actions on each group of failed jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from flask import Flask, make_response, redirect, render_template, request, url_for
from werkzeug.exceptions import BadRequest, NotFound
from werkzeug.wrappers import Response

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, STATE_NAMES
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.task_progress import progress_texts
from greenstalk_server.web.changes.tasks import Task, Tasks
from greenstalk_server.web.features.errors.errors import ALL_BURIED, ALL_DEAD_LETTERS, STATES, TubeErrors
from greenstalk_server.web.features.errors.groups import ErrorGroup, ErrorGroups
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.values import Instant, instant
from greenstalk_server.web.reads.jobs.job_list import REASON_TEXTS, REASONS
from greenstalk_server.web.reads.jobs.json_fields import MAX_PATH, Path, PathError, parse_path
from greenstalk_server.web.reads.jobs.query import Query
from greenstalk_server.web.reads.lookup import find_tube
from greenstalk_server.web.reads.policies import DeadLetterTubes
from greenstalk_server.web.reads.tube_tabs import page_tabs

INITIAL_WAIT: Final = 0.25
"""Maximum seconds that a request waits for its grouping; then the page shows the progress."""

DEAD_LETTERS: Final = "dead-letters"
"""Value of `jobs` in the URL of the errors of all dead letters."""


@dataclass(frozen=True, slots=True)
class ShownErrors:
    """The groups that *task* finds, as both pages show them.

    texts           the progress of the task.
    summary         numbers of jobs and groups; empty if there are none.
    now, as_of      the current time, and the time of the counts.
    total           number of jobs that were grouped.
    others          a sentence about the jobs in groups that are not shown; empty if there are none.
    unread          number of jobs whose bodies cannot be read from the disk.
    fields          paths of fields of the bodies, as suggestions.
    again           URL that groups the jobs again.
    none            the sentence of a page without groups.
    reasons         why jobs without an error are dead letters, in words, by the reason of the group.
    """

    task: Task
    texts: Mapping[str, str]
    summary: str
    now: Instant
    as_of: Instant
    groups: Sequence[ErrorGroup]
    total: int
    others: str
    unread: int
    fields: Sequence[str]
    again: str
    none: str
    reasons: ClassVar[Mapping[str, str]] = {reason: REASON_TEXTS[number] for number, reason in REASONS.items()}


class ErrorPages:
    """The pages `/tube/errors` and `/errors`."""

    def __init__(self, broker: Broker, clock: Clock, tasks: Tasks, errors: TubeErrors) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._tasks: Tasks = tasks
        self._errors: TubeErrors = errors
        self._dead_letter_tubes: DeadLetterTubes = DeadLetterTubes(broker)

    def init_app(self, app: Flask) -> None:
        """Add the pages to *app*."""
        app.add_url_rule("/tube/errors", "tube_errors", self.page)
        app.add_url_rule("/errors", "errors", self.all_tubes)

    def page(self) -> str | Response:
        """Serve `/tube/errors?tube=&state=&field=&refresh=`, or the grouping of `task`. May switch."""
        if request.args.get("task"):
            task = self._tasks.find(request.args)
            tube = find_tube(self._broker, {"tube": task.subject_as(ErrorGroups).query.tube})
        else:
            tube = find_tube(self._broker, request.args)
            state = fields.state(request.args, STATES, default=0)
            path = read_path(request.args.get("field", "").strip())
            if not principal().sees_bodies:
                return redirect(url_for("tube", tube=tube.name.decode(), state=STATE_NAMES[state or BURIED]))
            task = self._errors.start(tube, state, path, is_fresh=bool(request.args.get("refresh")))
        task.wait(INITIAL_WAIT)
        found, name = task.subject_as(ErrorGroups), tube.name.decode()
        state_name = found.query.state
        kept: dict[str, Any] = {"tube": name, "state": state_name, "field": ".".join(found.path)}
        again = url_for("tube_errors", refresh=1, **{key: value for key, value in kept.items() if value})
        none = f"No job is {state_name}." if state_name else "The tube has only reserved jobs, or none."
        page = render_template(
            "tube_errors.html",
            shown=self._shown(task, again, none),
            tube_name=name,
            tabs=page_tabs(self._broker, self._dead_letter_tubes, name, "Errors"),
            is_dead_letter=self._dead_letter_tubes.has(tube),
            state=state_name,
            states=[STATE_NAMES[one] for one in STATES],
            field=kept["field"],
            max_field=MAX_PATH,
            within=str(Query().within(name, state_name)),
        )
        return make_response(page)

    def all_tubes(self) -> str:
        """Serve `/errors?jobs=&refresh=`, or the grouping of `task`: the errors of all tubes. May switch."""
        if request.args.get("task"):
            task = self._tasks.find(request.args)
            query = task.subject_as(ErrorGroups).query
            if query not in (ALL_BURIED, ALL_DEAD_LETTERS):
                raise NotFound("The task is about one tube.")
        else:
            query = ALL_DEAD_LETTERS if request.args.get("jobs") == DEAD_LETTERS else ALL_BURIED
            task = self._errors.start_all(query, is_fresh=bool(request.args.get("refresh")))
        task.wait(INITIAL_WAIT)
        jobs = DEAD_LETTERS if query == ALL_DEAD_LETTERS else None
        none = "There are no dead letters." if jobs else "No job is buried."
        return render_template(
            "errors.html",
            shown=self._shown(task, url_for("errors", jobs=jobs, refresh=1), none),
            is_dead_letters=bool(jobs),
            dead_letters=DEAD_LETTERS,
        )

    def _shown(self, task: Task, again: str, none: str) -> ShownErrors:
        found, now = task.subject_as(ErrorGroups), self._clock()
        return ShownErrors(
            task=task,
            texts=progress_texts(task, now),
            summary=_summary(found),
            now=instant(now),
            as_of=instant(task.ended_at or now),
            groups=found.groups,
            total=found.total,
            others=_others(found),
            unread=found.unread,
            fields=list(found.fields),
            again=again,
            none=none,
        )


def read_path(given: str) -> Path:
    """Return the path *given*, empty if there is none; raise BadRequest if it is invalid."""
    try:
        return parse_path(given) if given else ()
    except PathError as error:
        raise BadRequest(f"“field” is invalid: {error}") from error


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
