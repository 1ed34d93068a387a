"""The page of a tube's history, the charts of the server, their figures as JSON, and the form that adds a mark."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

import msgspec
from flask import Flask, make_response, redirect, render_template, request, url_for
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.features.history.figures import WholeFigures
from greenstalk_server.web.features.history.history import Columns, History
from greenstalk_server.web.features.history.pages.charts import (
    MAX_SHOWN_MARKS,
    SERVER_CHARTS,
    TUBE_CHARTS,
    WIDTH,
    Chart,
    ChartPanel,
    Choice,
    DrawnMark,
    draw,
    is_shown,
    link,
    time_of,
)
from greenstalk_server.web.features.history.rings import HOUR, SPANS, Span
from greenstalk_server.web.features.history.series_json import COMPARED, history_json
from greenstalk_server.web.features.marks.changes import VisibleMarks, add_mark, may_mark
from greenstalk_server.web.features.marks.marks import MAX_TEXT, Mark, Marks
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.access import principal, require_full_view
from greenstalk_server.web.framework.api.values import nanoseconds
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.reads.lookup import find_tube
from greenstalk_server.web.reads.policies import DeadLetterTubes
from greenstalk_server.web.reads.tube_tabs import page_tabs
from greenstalk_server.web.store.audit import Audit


class HistoryPages:
    """The histories of one broker's dashboard."""

    def __init__(
        self,
        broker: Broker,
        history: History,
        whole: WholeFigures,
        marks: Marks,
        visible_marks: VisibleMarks,
        audit: Audit,
    ) -> None:
        self._broker: Broker = broker
        self._dead_letter_tubes: DeadLetterTubes = DeadLetterTubes(broker)
        self._history: History = history
        self._whole: WholeFigures = whole
        self._marks: Marks = marks
        self._visible_marks: VisibleMarks = visible_marks
        self._audit: Audit = audit

    def init_app(self, app: Flask) -> None:
        """Add the routes to *app*, and `server_charts` to its templates."""
        app.add_url_rule("/tube/history", "tube_history", self.tube_page)
        app.add_url_rule("/tube/history.json", "tube_history_json", self.tube_json)
        app.add_url_rule("/server/history.json", "server_history_json", self.server_json)
        app.add_url_rule("/mark/add", "mark_add", self.add_mark, methods=["POST"])
        app.jinja_env.globals["server_charts"] = self.server_charts

    def tube_page(self) -> Response:
        """Serve `/tube/history?tube=&span=&compare=`: the charts of a tube that may no longer exist. Switches."""
        name = fields.tube_name(request.args)
        columns = self._tube_columns(name, _span())
        tube = name.decode()
        page = render_template(
            "tube_history.html",
            tube_name=tube,
            tabs=page_tabs(self._broker, self._dead_letter_tubes, tube, "History"),
            charts=self._panel(TUBE_CHARTS, columns, name),
        )
        return make_response(page)

    def tube_json(self) -> Response:
        """Serve `/tube/history.json?tube=&span=&compare=`. Switches."""
        name = fields.tube_name(request.args)
        return self._json(self._tube_columns(name, _span(strict=True)), name)

    def server_json(self) -> Response:
        """Serve `/server/history.json?span=&compare=`: the series of the whole server. Switches."""
        require_full_view("The history of the server")
        return self._json(self._whole.columns(_span(strict=True)), None)

    def server_charts(self) -> ChartPanel:
        """Return the charts of the whole server for the current request. Switches."""
        return self._panel(SERVER_CHARTS, self._whole.columns(_span()), None)

    @open_to(OPERATOR)
    def add_mark(self) -> Response:
        """`text`, `tube`: add a mark, of the whole server if `tube` is empty."""
        tube = fields.tube_name(request.form).decode() if request.form.get("tube") else ""
        mark = fields.line(request.form, "text", MAX_TEXT)
        if not mark:
            raise BadRequest("“text” is empty. Write what happened, such as “deployed 4.2”.")
        add_mark(self._marks, self._audit, mark, tube)
        return redirect(fields.own_path(request.form, "back", url_for("overview")), 303)

    def _tube_columns(self, name: bytes, span: Span) -> Columns:
        """Return the series of a tube; raise NotFound if it does not exist and has no history in *span*. Switches."""
        if not principal().sees(name):
            find_tube(self._broker, request.args)
        columns = self._history.columns(name, span)
        if not self._history.has(name) and all(map(isnan, columns.series["ready"])):
            find_tube(self._broker, request.args)
        return columns

    def _before(self, name: bytes | None) -> Columns | None:
        """Return the series to compare with, as the field `compare` says; None if it is empty. Switches."""
        given = request.args.get("compare", "")
        if given not in COMPARED:
            return None
        span, ago = _span(), COMPARED[given][1]
        return self._whole.columns(span, ago) if name is None else self._history.columns(name, span, ago)

    def _shown_marks(self, columns: Columns, span: Span, name: bytes | None) -> list[Mark]:
        tube = name.decode() if name is not None else ""
        since, until = (columns.end - span.seconds) * SECOND, (columns.end + span.step) * SECOND
        return self._visible_marks.find(tube, since, until)[-MAX_SHOWN_MARKS:]

    def _json(self, columns: Columns, name: bytes | None) -> Response:
        before = self._before(name)
        found = history_json(columns)
        if before is not None:
            found["before"] = history_json(before)["series"]
        found["marks"] = [
            {"at": nanoseconds(mark.at) // SECOND, "text": mark.text, "kind": mark.kind}
            for mark in self._shown_marks(columns, _span(), name)
        ]
        response = make_response(msgspec.json.encode(found))
        response.mimetype = "application/json"
        return response

    def _panel(self, charts: Sequence[Chart], columns: Columns, name: bytes | None) -> ChartPanel:
        span, compare = _span(), request.args.get("compare", "")
        before = self._before(name)
        asked: dict[str, Any] = {"span": span.name, **({"compare": compare} if before is not None else {})}
        tube = name.decode() if name is not None else ""
        source = url_for("tube_history_json", tube=tube, **asked) if tube else url_for("server_history_json", **asked)
        begin, pace = columns.end - span.seconds, Pace()
        drawn = []
        for chart in charts:
            pace.yield_if_due()
            if is_shown(chart, columns):
                drawn.append(draw(chart, columns, before, span))
        return ChartPanel(
            span=span,
            source=source,
            start=time_of(begin),
            end=time_of(columns.end),
            spans=[Choice(f"Last {one.label}", link(span=one.name), one is span) for one in SPANS.values()],
            compares=[
                Choice("nothing", link(compare=""), before is None),
                *[
                    Choice(label, link(compare=key), before is not None and key == compare)
                    for key, (label, _) in COMPARED.items()
                ],
            ],
            before=COMPARED[compare][0] if before is not None else "",
            charts=drawn,
            marks=[
                DrawnMark(
                    round((mark.at.timestamp() - begin) / span.seconds * WIDTH, 1),
                    text.time_tag(mark.at),
                    mark.text,
                    mark.tube or "",
                    mark.who,
                )
                for mark in self._shown_marks(columns, span, name)
            ],
            tube=tube,
            may_mark=may_mark(tube),
        )


def _span(*, strict: bool = False) -> Span:
    """Return the span in the field `span`, by default HOUR. If it is invalid: BadRequest if *strict*, else HOUR."""
    given = request.args.get("span", HOUR.name)
    if given not in SPANS and strict:
        raise BadRequest(f"“span” must be one of {', '.join(SPANS)}, not “{given[:40]}”.")
    return SPANS.get(given, HOUR)
