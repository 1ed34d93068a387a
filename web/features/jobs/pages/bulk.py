"""The pages of bulk changes: the form starts a dry run, whose page starts the run."""

from __future__ import annotations

import re
from typing import Final

from flask import Flask, make_response, redirect, render_template, request, url_for
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.core.jobs.job import MAX_ID
from greenstalk_server.core.tube_names import is_tube_name
from greenstalk_server.web.changes.bulk import ACTIONS, MAX_TICKED, MIN_RATE, Bulk, Change, Plan
from greenstalk_server.web.changes.tasks import INITIAL_WAIT, Task, Tasks
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.fields import MAX_NUMBER
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.reads.jobs.match_table import MatchTable, visible_columns
from greenstalk_server.web.reads.jobs.matching import read_query
from greenstalk_server.web.reads.jobs.query import QueryError

_DECIMAL: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,6})?")


class BulkPages:
    """The pages `/bulk`, and the forms that lead to them."""

    def __init__(self, tasks: Tasks, bulk: Bulk, table: MatchTable) -> None:
        self._tasks: Tasks = tasks
        self._bulk: Bulk = bulk
        self._table: MatchTable = table

    def init_app(self, app: Flask) -> None:
        """Add the pages and forms to *app*."""
        app.add_url_rule("/bulk", "bulk", self.page)
        app.add_url_rule("/bulk/preview", "bulk_preview", self.preview, methods=["POST"])
        app.add_url_rule("/bulk/run", "bulk_run", self.run, methods=["POST"])

    @open_to(OPERATOR)
    def preview(self) -> Response:
        """Start a dry run. Switches.

        Form: `scope` (`all`, or `ticked` with `id`s), `q`, `tube`, `state`, `action`, and the field of the action;
        for a redrive, `rate`.
        """
        try:
            query = read_query(request.form)
        except QueryError as error:
            raise BadRequest(f"“q” is not a valid query. {error}") from error
        change = read_change(request.form)
        rate = read_rate(request.form) if change.key == "redrive" else 0.0
        task = self._bulk.dry_run(self._bulk.plan(change, query, ticked_ids(request.form), rate))
        task.wait(INITIAL_WAIT)
        return redirect(url_for("bulk", task=task.id), 303)

    def page(self) -> str | Response:
        """`/bulk?task=`: the counts of a dry run, and the form that starts the run."""
        task = self._tasks.find(request.args)
        return redirect(url_for("task", id=task.id), 303) if task.is_running else self._confirmation(task)

    def _confirmation(self, task: Task, refusal: str = "") -> str:
        """Return the page of the dry run *task*; *refusal* is the reason if its form was refused."""
        plan = task.subject_as(Plan)
        has_class, _ = self._table.contents(plan.sample)
        return render_template(
            "bulk.html",
            task=task,
            plan=plan,
            back=self._bulk.back(plan),
            promise=self._bulk.promise(plan),
            columns=visible_columns(has_class),
            rows=self._table.rows(plan.sample, has_class),
            refusal=refusal,
            typed=request.form.get("confirm", ""),
            is_forced=request.form.get("force") == "1",
        )

    @open_to(OPERATOR)
    def run(self) -> Response:
        """Carry out a dry run, at most once. Form: `task`, `force`, `confirm`. Does not switch.

        If the confirmation is wrong, the form comes back as it was sent.
        """
        dry_run = self._tasks.find(request.form)
        plan, is_forced = self._bulk.runnable_plan(dry_run), request.form.get("force") == "1"
        if not plan.run:
            self._bulk.refuse_unfinished(dry_run)
            if refusal := _refusal(plan, is_forced):
                return make_response(self._confirmation(dry_run, refusal), 400)
        return redirect(url_for("task", id=self._bulk.start_run(plan, is_forced).id), 303)


def _refusal(plan: Plan, is_forced: bool) -> str:
    """Return the reason why the confirmation of *plan* in the form is invalid; empty if it is valid or not needed."""
    typed = request.form.get("confirm", "").strip()
    if not (plan.is_destructive or is_forced) or typed == plan.confirm:
        return ""
    return f"“confirm” must be “{plan.confirm}”, not “{typed[:200]}”. Nothing was changed."


def read_change(form: fields.Fields) -> Change:
    """Return the change in the fields `action` and `to`, `pri` or `delay`; raise BadRequest if one is invalid."""
    given = form.get("action", "")
    key = next((name for name in ACTIONS if name == given), None)
    if key is None:
        raise BadRequest(f"“action” must be one of {', '.join(ACTIONS)}, not “{given[:40]}”.")
    field_name = ACTIONS[key].field_name
    if field_name == "to":
        return Change(key, _target(form))
    return Change(key, fields.number(form, field_name, 0, MAX_NUMBER) if field_name else 0)


def read_rate(form: fields.Fields) -> float:
    """Return the field `rate` in jobs per second; 0 if it is empty."""
    given = form.get("rate", "").strip()
    if not given:
        return 0.0
    rate = float(given) if _DECIMAL.fullmatch(given) else 0.0
    if not MIN_RATE <= rate <= MAX_NUMBER:
        allowed = f"a number of jobs per second from {MIN_RATE} to {text.number(MAX_NUMBER)}, or be empty"
        raise BadRequest(f"“rate” must be {allowed}, not “{given[:40]}”.")
    return rate


def _target(form: fields.Fields) -> bytes:
    """Return the tube named by the field `to`; raise BadRequest if that is not a tube name."""
    name = form.get("to", "").strip().encode(errors="replace")
    if not is_tube_name(name):
        raise BadRequest(
            "“to” must name the tube to move to: 1 to 200 of A–Z, a–z, 0–9 and -+/;.$_(), not starting with a hyphen."
        )
    return name


def ticked_ids(form: MultiDict[str, str]) -> tuple[int, ...] | None:
    """Return the ticked ids without duplicates; None if the field `scope` selects all matching jobs."""
    scope = form.get("scope", "")
    if scope == "all":
        return None
    if scope != "ticked":
        raise BadRequest("“scope” must be ticked or all.")
    ids = form.getlist("id")
    if not ids:
        raise BadRequest("No job is selected. Select some jobs, or choose all that match.")
    if len(ids) > MAX_TICKED:
        raise BadRequest(f"At most {MAX_TICKED} jobs can be selected at once.")
    return tuple(dict.fromkeys(fields.number({"id": id}, "id", 1, MAX_ID) for id in ids))
