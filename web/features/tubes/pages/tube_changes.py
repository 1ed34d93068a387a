"""The pages that pause, resume or kick many tubes: the form on the overview, the confirmation, and the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flask import Flask, jsonify, redirect, render_template, request, url_for
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED
from greenstalk_server.core.tube_names import is_tube_pattern
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.operations import MAX_REASON_LENGTH
from greenstalk_server.web.changes.tasks import INITIAL_WAIT, Tasks
from greenstalk_server.web.changes.tube_changes import (
    KICK,
    PAUSE,
    RESUME,
    TubeChange,
    TubeChanges,
    TubePlan,
)
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.fields import Fields
from greenstalk_server.web.framework.presets import pause_seconds
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.framework.shards import Shards
from greenstalk_server.web.reads.tubes import count_tubes, find_tubes
from greenstalk_server.web.store.saved_data import MAX_REASONS

MAX_PATTERN_LENGTH: Final = 200
"""Maximum characters of a pattern."""

MAX_SUGGESTED: Final = 20
"""Maximum tubes that the command palette suggests."""


@dataclass(frozen=True, slots=True)
class TubeRow:
    """A tube of the confirmation, and its number of jobs."""

    tube: str
    jobs: str


class TubeChangePages:
    """The pages of changes of many tubes."""

    def __init__(self, broker: Broker, clock: Clock, tasks: Tasks, changes: TubeChanges, shards: Shards) -> None:
        self._shards: Shards = shards
        self._clock: Clock = clock
        self._broker: Broker = broker
        self._tasks: Tasks = tasks
        self._changes: TubeChanges = changes

    def init_app(self, app: Flask) -> None:
        """Add the pages and forms to *app*."""
        app.add_url_rule("/tubes/change", "tube_change", self.page)
        app.add_url_rule("/tubes/find", "tubes_find", self.find)
        app.add_url_rule("/tubes/preview", "tubes_preview", self.preview, methods=["POST"])
        app.add_url_rule("/tubes/run", "tubes_run", self.run, methods=["POST"])

    @open_to(OPERATOR)
    def preview(self) -> Response:
        """Form `pattern`, `action`, and `preset` or `seconds`, and `reason`, or `state`: start a dry run. Switches."""
        task = self._changes.dry_run(read_tube_change(request.form, self._clock()), read_pattern(request.form))
        task.wait(INITIAL_WAIT)
        return redirect(url_for("tube_change", task=task.id), 303)

    def page(self) -> str | Response:
        """Serve `/tubes/change?task=`: the tubes that a dry run found, and the form that starts the run."""
        task = self._tasks.find(request.args)
        plan = task.subject_as(TubePlan)
        if task.is_running:
            return redirect(url_for("task", id=task.id), 303)
        rows = _rows(plan)
        return render_template(
            "tube_change.html",
            task=task,
            plan=plan,
            rows=rows,
            promise=self._changes.promise(plan),
            max_reasons=MAX_REASONS,
            jobs=text.counted(plan.jobs, plan.change.jobs_noun),
            others=text.counted(plan.matched - plan.affected, "tube") if plan.matched > plan.affected else "",
            summary=text.counted(len(rows), "tube")
            if len(rows) == plan.affected
            else f"{len(rows)} of {text.counted(plan.affected, 'tube')}, those with the most jobs first",
        )

    def find(self) -> Response:
        """Serve `/tubes/find` as JSON: the best matches for `q`, or the number for `pattern` as text. May switch.

        The scripts of the command palette and of the form on the overview use it.
        """
        if "pattern" in request.args:
            pattern = request.args["pattern"].strip()
            matched = count_tubes(self._broker, read_pattern({"pattern": pattern}), self._shards)
            return jsonify({"text": f"{text.counted(matched, 'tube')} {'matches' if matched == 1 else 'match'}"})
        query = request.args.get("q", "").strip()[:MAX_PATTERN_LENGTH]
        return jsonify({"tubes": find_tubes(self._broker, query, MAX_SUGGESTED, self._shards)[0] if query else []})

    @open_to(OPERATOR)
    def run(self) -> Response:
        """Form `task`: carry out a dry run, at most once. Does not switch."""
        return redirect(url_for("task", id=self._changes.start_run(self._tasks.find(request.form)).id), 303)


def _rows(plan: TubePlan) -> list[TubeRow]:
    """Return the sample of *plan*, largest first, without the tubes that the principal may not see."""
    sample = sorted(plan.sample, key=lambda one: (-one[0], one[1]))
    return [TubeRow(name.decode(), text.number(jobs)) for jobs, name in sample if principal().sees(name)]


def read_pattern(form: Fields) -> str:
    """Return the field `pattern`; raise BadRequest if it is invalid."""
    pattern = form.get("pattern", "").strip()
    if not is_tube_pattern(pattern):
        raise BadRequest(
            f"“pattern” must be 1 to {MAX_PATTERN_LENGTH} characters of tube names and *, such as billing.* (all"
            f" tubes: *), not “{pattern[:40]}”."
        )
    return pattern


def read_tube_change(form: Fields, now: int) -> TubeChange:
    """Return the change in `action`, the fields of `pause_seconds`, `reason` and `state`; raise BadRequest."""
    key = form.get("action", "")
    if key == PAUSE:
        reason = fields.line(form, "reason", MAX_REASON_LENGTH)
        return TubeChange(PAUSE, pause_seconds(form, now), reason)
    if key == KICK:
        return TubeChange(KICK, state=fields.state(form, (BURIED, DELAYED), BURIED))
    if key == RESUME:
        return TubeChange(RESUME)
    raise BadRequest(f"“action” must be {PAUSE}, {RESUME} or {KICK}, not “{key[:40]}”.")
