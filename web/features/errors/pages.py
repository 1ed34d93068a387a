"""The page of a tube's errors, with actions on each group of failed jobs."""

from __future__ import annotations

from typing import Any, Final

from flask import Flask, make_response, redirect, render_template, request, url_for
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, STATE_NAMES
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.task_progress import progress_texts
from greenstalk_server.web.changes.tasks import Task, Tasks
from greenstalk_server.web.features.errors.errors import STATES, TubeErrors
from greenstalk_server.web.features.errors.groups import ErrorGroups
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.values import instant
from greenstalk_server.web.reads.jobs.job_list import REASON_TEXTS, REASONS
from greenstalk_server.web.reads.jobs.json_fields import MAX_PATH, Path, PathError, parse_path
from greenstalk_server.web.reads.jobs.query import Query
from greenstalk_server.web.reads.lookup import find_tube
from greenstalk_server.web.reads.policies import DeadLetterTubes
from greenstalk_server.web.reads.tube_tabs import page_tabs

INITIAL_WAIT: Final = 0.25
"""Maximum seconds that a request waits for its grouping; then the page shows the progress."""


class ErrorPages:
    """The page `/tube/errors`."""

    def __init__(self, broker: Broker, clock: Clock, tasks: Tasks, errors: TubeErrors) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._tasks: Tasks = tasks
        self._errors: TubeErrors = errors
        self._dead_letter_tubes: DeadLetterTubes = DeadLetterTubes(broker)

    def init_app(self, app: Flask) -> None:
        """Add the page to *app*."""
        app.add_url_rule("/tube/errors", "tube_errors", self.page)

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
        return make_response(render_template("tube_errors.html", **self._shown(tube, task)))

    def _shown(self, tube: Tube, task: Task) -> dict[str, Any]:
        found, now, name = task.subject_as(ErrorGroups), self._clock(), tube.name.decode()
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
            "summary": _summary(found),
            "now": instant(now),
            "as_of": instant(task.ended_at or now),
            "groups": found.groups,
            "failed": found.total,
            "reasons": {reason: REASON_TEXTS[number] for number, reason in REASONS.items()},
            "within": str(Query().within(found.query.tube, found.query.state)),
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
