"""The pages: each reads the broker once, does not switch greenlets, and changes nothing."""

from __future__ import annotations

from flask import Flask, Response, jsonify, make_response, render_template, request

from greenstalk_server.broker import Broker
from greenstalk_server.clock import Clock
from web.first_job import Example
from web.overview import COLUMNS, COMMANDS, GROUPS, LONGEST_FILTER, Overview, overview


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
