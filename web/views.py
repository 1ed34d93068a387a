"""The pages: each reads the broker once, does not switch greenlets, and changes nothing. What changes is in actions."""

from __future__ import annotations

from typing import Final

from flask import Flask, Response, jsonify, make_response, render_template, request

from greenstalk_server.broker import Broker
from greenstalk_server.clock import Clock
from greenstalk_server.job import READY
from web import fields, text
from web.actions import find_job, find_tube
from web.body import look
from web.details import job_details, tube_details
from web.first_job import Example
from web.jobs import JOB_COLUMNS, list_jobs
from web.overview import COLUMNS, COMMANDS, GROUPS, LONGEST_FILTER, Overview, overview

DEFAULT_PRI: Final = 65536
DEFAULT_TTR: Final = 60
"""What the form for a new job starts from, as clients' libraries do."""


class Views:
    """The pages of one broker's dashboard."""

    def __init__(self, broker: Broker, clock: Clock, first_job: tuple[Example, ...]) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._first_job: tuple[Example, ...] = first_job

    def install(self, app: Flask) -> None:
        """Add the pages to *app*."""
        app.add_url_rule("/", "overview", self.overview)
        app.add_url_rule("/overview.json", "overview_json", self.overview_json)
        app.add_url_rule("/tube", "tube", self.tube)
        app.add_url_rule("/job", "job", self.job)
        app.add_url_rule("/job/body", "job_body", self.job_body)
        app.add_url_rule("/healthz", "healthz", self.healthz)
        app.add_url_rule("/readyz", "readyz", self.readyz)

    def overview(self) -> str:
        """`/?q=`: the tubes and the server."""
        return render_template(
            "overview.html",
            overview=self._look(),
            columns=COLUMNS,
            groups=GROUPS,
            commands=COMMANDS,
            longest_filter=LONGEST_FILTER,
            first_job=self._first_job,
        )

    def overview_json(self) -> Response:
        """`/overview.json?q=`: what the script of `/` shows from second to second, in a tenth of the page's time."""
        look = self._look()
        return jsonify({name: getattr(look, name) for name in look.__slots__})

    def tube(self) -> str:
        """`/tube?tube=&state=&after=`: one tube, and a page of its jobs in one state."""
        tube = find_tube(self._broker, request.args)
        state = fields.state(request.args, default=READY)
        now = self._clock()
        return render_template(
            "tube.html",
            tube=tube_details(tube, now),
            jobs=list_jobs(self._broker, tube, state, fields.cursor(request.args), now),
            columns=JOB_COLUMNS[state],
            default_pri=DEFAULT_PRI,
            default_ttr=DEFAULT_TTR,
            max_number=fields.MAX_NUMBER,
            max_job_size=text.size(self._broker.max_job_size),
        )

    def job(self) -> str:
        """`/job?id=`: one job and its body; without the body if its script asks, with `live=1`."""
        job = find_job(self._broker, request.args)
        is_live = request.args.get("live") == "1"
        return render_template(
            "job.html", job=job_details(job, self._clock()), look=None if is_live else look(job.body)
        )

    def job_body(self) -> Response:
        """`/job/body?id=`: the body, to be saved; never to be shown by the browser, whatever it is."""
        job = find_job(self._broker, request.args)
        response = make_response(job.body)
        response.mimetype = "application/octet-stream"
        response.headers["Content-Disposition"] = f'attachment; filename="job-{job.id}.bin"'
        return response

    def healthz(self) -> Response:
        """`/healthz`: `ok`, for whoever wants to know if the process answers."""
        return _plain("ok", 200)

    def readyz(self) -> Response:
        """`/readyz`: `ready`, or 503 and why puts are refused, for whoever wants to know if to send it work."""
        trouble = self._broker.journal.trouble
        return _plain("ready", 200) if trouble is None else _plain(f"journal: {trouble}", 503)

    def _look(self) -> Overview:
        return overview(self._broker, request.args.get("q", ""), self._clock())


def _plain(line: str, status: int) -> Response:
    response = make_response(f"{line}\n", status)
    response.mimetype = "text/plain"
    return response
