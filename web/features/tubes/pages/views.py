"""The pages of the overview, tubes and jobs. They only read. Functions that may switch greenlets say so."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final
from urllib.parse import urlencode

from flask import Flask, Response, make_response, redirect, render_template, request, url_for
from werkzeug.exceptions import BadRequest, Conflict, HTTPException

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import READY, STATE_NAMES, Job
from greenstalk_server.core.travel import is_moving
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime import supervisor
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.operations import MAX_REASON_LENGTH
from greenstalk_server.web.changes.task_progress import live_state, progress_texts
from greenstalk_server.web.changes.tasks import Task
from greenstalk_server.web.features.conditions.pages import AttentionPanel, attention_panel
from greenstalk_server.web.features.conditions.rows import AttentionModel
from greenstalk_server.web.features.errors.errors import TubeErrors
from greenstalk_server.web.features.errors.failing_workers import FailingWorkers
from greenstalk_server.web.features.errors.failure import failure_of
from greenstalk_server.web.features.history.figures import WholeFigures
from greenstalk_server.web.features.history.worker_rates import WorkerRates
from greenstalk_server.web.features.jobs.export import body_file
from greenstalk_server.web.features.jobs.pages.details import job_details, tube_details
from greenstalk_server.web.features.jobs.pages.edit import edit_page, initial_form
from greenstalk_server.web.features.jobs.pages.messages import message_details
from greenstalk_server.web.features.policies.pages.tube_policy import tube_policy
from greenstalk_server.web.features.samples.pages import samples_for
from greenstalk_server.web.features.tubes.pages.onboarding import Example
from greenstalk_server.web.features.tubes.pages.overview import (
    COMMANDS,
    GROUPS,
    MAX_TUBES,
    TOTALS,
    Overview,
    OverviewBuilder,
)
from greenstalk_server.web.features.tubes.pages.tube_filter import TubeFilter
from greenstalk_server.web.features.tubes.pages.tube_summary import TubeSummary, tube_summary
from greenstalk_server.web.features.tubes.tube_view import (
    BY_NAME,
    COLUMNS,
    DEFAULT_ORDER,
    MAX_FILTER_LENGTH,
    NAME,
    SORTS,
    TubeViews,
)
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.access import principal, require_operator
from greenstalk_server.web.framework.errors import error_page
from greenstalk_server.web.framework.fields import Fields
from greenstalk_server.web.framework.presets import PAUSE_PRESETS
from greenstalk_server.web.framework.refusals import FIELDS, NOTHING_SENT, Sent, sent_form
from greenstalk_server.web.framework.sorting import Head, Heads, Order, order_args, read_order
from greenstalk_server.web.live.hub import LiveHub, State, render_blocks
from greenstalk_server.web.reads.jobs.bodies import BodyLost, load_job_with_body
from greenstalk_server.web.reads.jobs.body_format import describe_body
from greenstalk_server.web.reads.jobs.job_list import column_groups, suggested_paths
from greenstalk_server.web.reads.jobs.job_orders import DEFAULT_ORDERS, TUBE_ORDERS
from greenstalk_server.web.reads.lookup import find_job, find_tube
from greenstalk_server.web.reads.policies import hold_text
from greenstalk_server.web.reads.tube_tabs import page_tabs
from greenstalk_server.web.store.saved_data import MAX_NAME_LENGTH, SavedData

TUBE_PARTS: Final = {
    "tube_summary.html": ("badges", "trend", "workers"),
    "tube_jobs.html": ("pager", "no_jobs"),
    "tube_actions.html": ("pause",),
    "tube_policy.html": ("policy", "facts"),
}
"""Blocks of the templates of a tube's page, each within an element with its name in `data-part`."""

JOB_PARTS: Final = ("crumb", "badges", "figures", "life", "who", "dead_letter", "facts")
JOB_PARTS_OF_OPERATORS: Final = (*JOB_PARTS, "actions")
"""Blocks of job.html, each within an element with its name in `data-part`."""

MAX_BEGIN: Final = 10**9
"""Maximum index at which a page of tubes may begin."""


class Views:
    """The pages of one broker's dashboard."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        views: TubeViews,
        examples: tuple[Example, ...],
        saved: SavedData,
        role: Callable[[], ClusterStatus] | None,
        attention: AttentionModel,
        worker_rates: WorkerRates,
        tube_filter: TubeFilter,
        errors: TubeErrors,
        figures: WholeFigures,
    ) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._role: Callable[[], ClusterStatus] | None = role
        self._attention: AttentionModel = attention
        self._views: TubeViews = views
        self._worker_rates: WorkerRates = worker_rates
        self._failing_workers: FailingWorkers = FailingWorkers(broker)
        self._filter: TubeFilter = tube_filter
        self._errors: TubeErrors = errors
        self._builder: OverviewBuilder = OverviewBuilder(broker, views, figures, role)
        self._examples: tuple[Example, ...] = examples
        self._saved: SavedData = saved

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add the pages to *app*, and register them with *live* for live updates."""
        app.add_url_rule("/", "overview", self.overview)
        app.add_url_rule("/tube", "tube", self.tube)
        app.add_url_rule("/tube/oldest", "tube_oldest", self.tube_oldest)
        app.add_url_rule("/job", "job", self.job)
        app.add_url_rule("/job/body", "job_body", self.job_body)
        app.add_url_rule("/job/form", "job_form", self.job_form)
        app.add_url_rule("/job/holder", "job_holder", self.job_holder)
        app.add_url_rule("/healthz", "healthz", self.healthz)
        app.add_url_rule("/readyz", "readyz", self.readyz)
        for kind in (BadRequest, Conflict):
            app.register_error_handler(kind, self.refused)
        live.register("overview", self.overview_state)
        live.register("tube", self.tube_state)
        live.register("job", self.job_state)

    def overview(self) -> str:
        """Serve `/?q=&sort=&desc=&from=`: a page of the tubes, and the server. May switch."""
        return self._overview_page(request.args, NOTHING_SENT)

    def _overview_page(self, args: Fields, sent: Sent) -> str:
        shown = self._overview(args, self._clock())
        return render_template(
            "overview.html",
            pause_presets=PAUSE_PRESETS,
            overview=shown,
            sent=sent,
            attention=self._attention_panel(),
            columns=COLUMNS,
            heads=_heads(shown.query, shown.order),
            kept=order_args(shown.order, DEFAULT_ORDER),
            live_args=urlencode(_overview_args(shown.query, shown.order, shown.begin)),
            pages=_pages(shown),
            totals=TOTALS,
            groups=GROUPS,
            commands=COMMANDS,
            longest_filter=MAX_FILTER_LENGTH,
            first_job=self._examples,
            max_number=fields.MAX_NUMBER,
            max_reason_length=MAX_REASON_LENGTH,
        )

    def overview_state(self, args: Fields, now: int) -> State:
        """Return the live state of `/`. May switch."""
        shown = self._overview(args, now)
        values = {"attention": self._attention_panel(), "pages": _pages(shown)}
        return shown.live_state() | {"parts": render_blocks("overview.html", ("attention", "pager"), values)}

    def tube(self) -> str:
        """Serve `/tube?tube=&state=&after=&q=`: a tube, and a page of its jobs in one state. May switch."""
        return render_template("tube.html", **self._tube_values(request.args, self._clock()))

    def tube_oldest(self) -> Response:
        """Serve `/tube/oldest?tube=`: redirect to the job that has been ready longest, or to the tube without one."""
        tube = find_tube(self._broker, request.args)
        oldest = tube.oldest_ready()
        where = url_for("tube", tube=tube.name.decode()) if oldest is None else url_for("job", id=oldest.id)
        return make_response(redirect(where))

    def refused(self, error: HTTPException) -> Response:
        """Return the page of a refused form, with its values and the error, or else an error page. May switch."""
        if request.endpoint not in FIELDS:
            return error_page(error)
        sent = sent_form(error)
        try:
            if sent.endpoint == "tubes_preview":
                page = self._overview_page({}, sent)
            else:
                page = self._job_page(sent) if sent.endpoint.startswith("job_") else self._tube_page(sent)
        except HTTPException:  # the job or the tube no longer exists, or the form names neither
            return error_page(error)
        return make_response(page, error.code)

    def _tube_page(self, sent: Sent) -> str:
        given = {name: sent.values[name] for name in ("tube", "state", "q") if sent.values.get(name)}
        if given.get("state") not in [STATE_NAMES[state] for state in fields.STATES]:
            given.pop("state", None)
        values = self._tube_values(given, self._clock()) | {"sent": sent}
        return render_template("tube.html", **values)

    def tube_state(self, args: Fields, now: int) -> State:
        """Return the live state of `/tube`. May switch."""
        values = self._tube_values(args, now, is_live=True)
        tube, jobs, task = values["tube"], values["jobs"], values["filtered"].task
        parts: dict[str, str] = {}
        for template, names in TUBE_PARTS.items():
            parts |= render_blocks(template, names, values)
        state: State = {
            "fields": {f"count-{tab.state}": tab.count for tab in tube.tabs}
            | {f"note-{tab.state}": tab.note for tab in tube.tabs}
            | {"summary": jobs.summary}
            | values["summary"].live_fields(),
            "rows": {"jobs": jobs.rows},
            "shown": {"jobs": bool(jobs.rows)},
            "parts": parts,
        }
        if task is not None:
            for kind, changes in live_state(task, now).items():
                state[kind] |= changes
        return state

    def job(self) -> str:
        """Serve `/job?id=`: a job and its body. May switch."""
        return self._job_page(NOTHING_SENT)

    def _job_page(self, sent: Sent) -> str:
        job, body, is_lost = self._job(), b"", False
        if principal().sees_bodies:
            try:
                job, body = load_job_with_body(self._broker, self._job)
            except BodyLost:
                job, is_lost = self._job(), True
        has_body = principal().sees_bodies and not is_lost
        failure = failure_of(self._broker, self._errors, job, body if has_body else None)
        job = self._job()  # counting the error group may have switched
        return render_template(
            "job.html",
            job=job_details(self._broker, job, self._clock()),
            failure=failure,
            message=message_details(body) if has_body else None,
            body_view=describe_body(body) if has_body else None,
            is_lost=is_lost,
            is_on_disk=job.body is None,
            max_number=fields.MAX_NUMBER,
            sent=sent,
        )

    def job_state(self, args: Fields, now: int) -> State:
        """Return the live state of `/job`, without the body.

        The argument `edited` is the value of JobDetails.edited when the page was loaded. The state tells whether the
        job has been edited since.
        """
        job = find_job(self._broker, args)
        details = job_details(self._broker, job, now)
        names = JOB_PARTS_OF_OPERATORS if principal().operates(job.tube.name) else JOB_PARTS
        return {
            "parts": render_blocks("job.html", names, {"job": details, "max_number": fields.MAX_NUMBER}),
            "shown": {"edited": details.edited != args.get("edited", details.edited)},
        }

    def job_holder(self) -> Response:
        """Serve `/job/holder?id=`: redirect to the connection that holds the job, or to the job if none does."""
        job = find_job(self._broker, request.args)
        if job.holder is None or is_moving(job.travel):
            return make_response(redirect(url_for("job", id=job.id)))
        return make_response(redirect(url_for("connection", number=job.holder.number)))

    def job_form(self) -> str:
        """Serve `/job/form?id=&encoding=`: the form that edits a job. May switch."""
        require_operator(self._job().tube.name)
        job, body = load_job_with_body(self._broker, self._job)
        form = initial_form(job, body, principal().sees_bodies, request.args.get("encoding", ""))
        return edit_page(job, body, form, self._clock())

    def job_body(self) -> Response:
        """Serve `/job/body?id=`: the body as a download. May switch."""
        return body_file(self._broker, self._job)

    def healthz(self) -> Response:
        """Serve `/healthz`: `ok` while the process responds."""
        return _plain("ok", 200)

    def readyz(self) -> Response:
        """Serve `/readyz`: `ready`, or 503 and the reason why puts are refused, or the services that have failed."""
        if names := supervisor.failed():
            return _plain(f"restarting after an internal error: {', '.join(names)}; the log has the details", 503)
        if self._role is not None and self._role().unreached:
            return _plain(self._role().unready, 503)
        error = self._broker.journal.write_error
        if error is None and self._role is not None:
            error = self._role().unready or None
        return _plain("ready", 200) if error is None else _plain(f"journal: {error}", 503)

    def _job(self) -> Job:
        return find_job(self._broker, request.args if request.method == "GET" else request.form)

    def _tube_values(self, args: Fields, now: int, *, is_live: bool = False) -> dict[str, Any]:
        """Return the values of tube.html, for the page, or for its live parts if *is_live*. May switch."""
        tube = find_tube(self._broker, args)
        state = fields.state(args, default=READY)
        policy = tube_policy(self._broker, tube, self._views.dead_letter_tubes)
        order = read_order(args, TUBE_ORDERS, DEFAULT_ORDERS[state])
        groups = _column_groups(self._broker, args, tube, state, order, policy.is_dead_letter)
        listed = self._filter.values(tube, state, args, now, order, groups, may_start=not is_live)
        task: Task | None = listed["filtered"].task
        cols = {"cols": listed["cols"]} if listed["cols"] else {}
        here = url_for("tube", tube=tube.name.decode(), **_kept(args, "span") | cols)
        return {
            "tube": tube_details(tube, now),
            "tabs": page_tabs(self._broker, self._views.dead_letter_tubes, tube.name.decode(), "Jobs"),
            "summary": self._summary(tube, now),
            "policy": policy,
            "hold": hold_text(tube, now),
            "here": here,
            "list_here": f"{here}&{urlencode({'state': STATE_NAMES[state]} | listed['order_args'])}",
            "span": args.get("span", ""),
            **listed,
            "paths": lambda: suggested_paths(self._broker, (int(row[0]) for row in listed["jobs"].rows)),
            "live_args": urlencode(
                {"tube": tube.name, "state": STATE_NAMES[state], "columns": " ".join(groups)}
                | _kept(args, "after", "q", "span", "from")
                | ({"task": task.id} if task is not None else {})
                | cols
                | listed["order_args"]
            ),
            "texts": progress_texts(task, now) if task is not None else {},
            "reason": self._saved.reason(tube.name.decode(), tube.paused_until),
            "pause_presets": PAUSE_PRESETS,
            "samples": samples_for(self._saved, args, tube.name.decode()),
            "max_reason_length": MAX_REASON_LENGTH,
            "longest_sample_name": MAX_NAME_LENGTH,
            "max_number": fields.MAX_NUMBER,
            "max_job_size": text.size(self._broker.max_job_size),
        }

    def _summary(self, tube: Tube, now: int) -> TubeSummary:
        return tube_summary(self._broker, self._views.of(tube, now), self._worker_rates, self._failing_workers)

    def _attention_panel(self) -> AttentionPanel:
        return attention_panel(self._attention, self._errors.worst_by_tube, self._clock())

    def _overview(self, args: Fields, now: int) -> Overview:
        begin = fields.number(args, "from", 0, MAX_BEGIN) if args.get("from") else 0
        return self._builder.build(args.get("q", ""), read_order(args, (BY_NAME, *SORTS), DEFAULT_ORDER), now, begin)


def _heads(query: str, order: Order) -> list[Head]:
    """Return the column headings of the table of tubes. A first click sorts descending, except by name."""
    page, kept = url_for("overview"), {"q": query} if query else {}
    heads = Heads(order, DEFAULT_ORDER, lambda sorting: f"{page}?{urlencode(kept | sorting)}")
    columns = [heads.head(NAME.key, NAME.label, NAME.help, BY_NAME)]
    for column in COLUMNS:
        key = column.key if column.rank is not None else ""
        columns.append(heads.head(column.key, column.label, column.help, key, descends_first=True))
    return columns


def _pages(shown: Overview) -> list[tuple[str, str]]:
    """Return label and URL of the links to other pages of the tubes."""
    places = [("First page", 0)] if shown.begin > MAX_TUBES else []
    places += [("Previous", shown.begin - MAX_TUBES)] if shown.begin else []
    places += [("Next", shown.following)] if shown.following else []
    return [(label, url_for("overview", **_overview_args(shown.query, shown.order, at))) for label, at in places]


def _overview_args(query: str, order: Order, begin: int = 0) -> dict[str, Any]:
    return ({"q": query} if query else {}) | order_args(order, DEFAULT_ORDER) | ({"from": begin} if begin else {})


def _column_groups(
    broker: Broker, args: Fields, tube: Tube, state: int, order: Order, is_dead_letter: bool
) -> Collection[str]:
    """Return the groups of columns of the list of jobs; a live page keeps those that it was loaded with."""
    given = args.get("columns")
    return column_groups(broker, tube, state, order, is_dead_letter) if given is None else given.split()


def _kept(args: Fields, *names: str) -> dict[str, Any]:
    return {name: args[name] for name in names if args.get(name)}


def _plain(line: str, status: int) -> Response:
    response = make_response(f"{line}\n", status)
    response.mimetype = "text/plain"
    return response
