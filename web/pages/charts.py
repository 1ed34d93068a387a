"""Charts of the history: as SVG and text, which need no script, and as JSON for static/charts.js.

A chart of the whole server and one of a tube differ only in the history that they read. Nothing in this module
switches greenlets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isnan, nan
from typing import Any, Final
from urllib.parse import urlencode

from flask import Flask, Response, jsonify, request, url_for
from werkzeug.exceptions import BadRequest

from greenstalk_server.core.broker import Broker
from greenstalk_server.web import fields, text
from greenstalk_server.web.auth.access import require_full_view, visitor
from greenstalk_server.web.metrics.history import Columns, History
from greenstalk_server.web.metrics.rings import HOUR, SPANS, Span
from greenstalk_server.web.metrics.rings import TIMES as TIMED
from greenstalk_server.web.pages.actions import find_tube
from greenstalk_server.web.pages.sparkline import path

WIDTH: Final = 720
HEIGHT: Final = 160
"""Units of the SVG, which scales to the space available."""

SVG_POINTS: Final = 120
"""Points of a line in the SVG, each the maximum of several samples. Three charts take 2.7 ms."""

TABLE_ROWS: Final = 12
"""Rows in the table of figures."""

DROPPED_ARGS: Final = frozenset({"span", "notice", "n", "late", "live"})
"""Query arguments that the links to other spans leave out."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: the series and its label."""

    key: str
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The definition of a chart; *unit* is `rate`, `count` or `seconds`.

    is_optional     the chart is left out if none of its series has a value to show.
    """

    key: str
    title: str
    unit: str
    help: str
    lines: tuple[Line, ...]
    is_optional: bool = False


RATES: Final = Chart(
    "rates",
    "Rates",
    "rate",
    "per second",
    (
        Line("put", "put"),
        Line("reserve", "reserve"),
        Line("delete", "delete"),
        Line("bury", "bury"),
        Line("timeout", "time out"),
        Line("release", "release"),
        Line("kick", "kick"),
    ),
)
JOBS: Final = Chart(
    "jobs",
    "Jobs by state",
    "count",
    "at the end of each interval",
    (
        Line("ready", "ready"),
        Line("reserved", "reserved"),
        Line("delayed", "delayed"),
        Line("buried", "buried"),
        Line("waiting", "clients waiting"),
    ),
)
TIMES: Final = Chart(
    "times",
    "Wait and run times",
    "seconds",
    "accurate to 1.6 %",
    (
        Line("wait_p50", "wait, median"),
        Line("wait_p95", "wait, 95th percentile"),
        Line("wait_p99", "wait, 99th percentile"),
        Line("run_p50", "run, median"),
        Line("run_p95", "run, 95th percentile"),
        Line("run_p99", "run, 99th percentile"),
    ),
)

POLICIES: Final = Chart(
    "policies",
    "Policies",
    "rate",
    "jobs per second",
    (
        Line("dead_letter", "to a dead-letter tube"),
        Line("expire", "expired"),
    ),
    is_optional=True,
)

TUBE_CHARTS: Final = (RATES, JOBS, TIMES, POLICIES)
SERVER_CHARTS: Final = (RATES, JOBS, POLICIES)


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """A line of a drawn chart: its SVG path, and the last value as text."""

    key: str
    label: str
    path: str
    last: str


@dataclass(frozen=True, slots=True)
class DrawnChart:
    """A drawn chart. A row of its table has the time in ISO format, the time as text, and a cell per chart line."""

    chart: Chart
    label: str
    top: str
    lines: list[DrawnLine]
    rows: list[tuple[str, str, list[str]]]


@dataclass(frozen=True, slots=True)
class Panel:
    """All charts of a page.

    source      URL of the figures as JSON.
    spans       for each span: its name, its label, the link, and whether it is shown.
    """

    span: Span
    source: str
    start: str
    end: str
    spans: list[tuple[str, str, str, bool]]
    charts: list[DrawnChart]


class Charts:
    """The charts of one broker's dashboard."""

    def __init__(self, broker: Broker, history: History) -> None:
        self._broker: Broker = broker
        self._history: History = history

    def init_app(self, app: Flask) -> None:
        """Add the JSON routes to *app*, and `tube_charts` and `server_charts` to its templates."""
        app.add_url_rule("/tube/history", "tube_history", self.tube_history)
        app.add_url_rule("/server/history", "server_history", self.server_history)
        app.jinja_env.globals["tube_charts"] = self.tube_charts
        app.jinja_env.globals["server_charts"] = self.server_charts

    def tube_history(self) -> Response:
        """Serve `/tube/history?tube=&span=`: the series of a tube that may no longer exist."""
        span, name = _span(strict=True), fields.tube_name(request.args)
        if not self._history.has(name) or not visitor().sees(name):
            find_tube(self._broker, request.args)
        return jsonify(history_json(self._history.columns(name, span)))

    def server_history(self) -> Response:
        """Serve `/server/history?span=`: the series of the whole server."""
        require_full_view("The history of the server")
        return jsonify(history_json(self._history.columns(None, _span(strict=True))))

    def tube_charts(self, name: str) -> Panel:
        """Return the charts of the tube *name* for the current request."""
        span = _span()
        source = url_for("tube_history", tube=name, span=span.name)
        return _panel(TUBE_CHARTS, self._history.columns(name.encode(), span), span, source, url_for("tube", tube=name))

    def server_charts(self) -> Panel:
        """Return the charts of the whole server for the current request."""
        span = _span()
        source = url_for("server_history", span=span.name)
        return _panel(SERVER_CHARTS, self._history.columns(None, span), span, source, url_for("overview"))


def _span(*, strict: bool = False) -> Span:
    """Return the span in the field `span`, by default HOUR. If it is invalid: BadRequest if *strict*, else HOUR."""
    given = request.args.get("span", HOUR.name)
    if given not in SPANS and strict:
        raise BadRequest(f"“span” must be one of {', '.join(SPANS)}, not “{given[:40]}”.")
    return SPANS.get(given, HOUR)


def history_json(columns: Columns) -> dict[str, Any]:
    """Return *columns* as JSON: `step`, `end`, and `series`: a list of values for each series that is not empty."""
    some = {key: values for key, values in columns.series.items() if _has_any(key, values)}
    series = {key: [_rounded(value) for value in values] for key, values in some.items()}
    return {"step": columns.step, "end": columns.end, "series": series}


def _has_any(key: str, values: Sequence[float]) -> bool:
    """Return whether the series *key* has any known value to show. Zeros count only in series of durations."""
    return any(not isnan(value) and (value or key in TIMED) for value in values)


def _rounded(value: float) -> float | int | None:
    """Return *value* rounded; None for NaN.

    Further digits are noise: a float32 has seven, and times are estimates.
    """
    if isnan(value):
        return None
    return int(value) if value.is_integer() else round(value, 3) if value >= 1 else round(value, 6)


def _panel(charts: Sequence[Chart], columns: Columns, span: Span, source: str, page: str) -> Panel:
    return Panel(
        span=span,
        source=source,
        start=_time(columns.end - span.step * span.points),
        end=_time(columns.end),
        spans=[(one.name, f"Last {one.label}", _link(one, page), one is span) for one in SPANS.values()],
        charts=[_draw(chart, columns, span) for chart in charts if _is_shown(chart, columns)],
    )


def _is_shown(chart: Chart, columns: Columns) -> bool:
    return not chart.is_optional or any(_has_any(line.key, columns.series[line.key]) for line in chart.lines)


def _link(span: Span, page: str) -> str:
    """Return the URL of the current page with *span*.

    The URL is relative; in the response to a POST it starts with *page*, the page's own URL.
    """
    kept = [(key, value) for key, value in request.args.items(multi=True) if key not in DROPPED_ARGS]
    query = urlencode([*kept, ("span", span.name)])
    return f"{page}&{query}" if request.method == "POST" else f"?{query}"


def _draw(chart: Chart, columns: Columns, span: Span) -> DrawnChart:
    series = {line.key: columns.series[line.key] for line in chart.lines}
    thin = {key: downsample(values) for key, values in series.items() if _has_any(key, values)}
    top = max((value for values in thin.values() for value in values if not isnan(value)), default=0.0)
    lines = [
        DrawnLine(
            line.key,
            line.label,
            path(thin[line.key], WIDTH, HEIGHT, top) if line.key in thin else "",
            format_value(series[line.key][-1], chart.unit),
        )
        for line in chart.lines
    ]
    return DrawnChart(
        chart, _label(chart, span, lines), format_value(top, chart.unit), lines, _rows(chart, columns, series)
    )


def _label(chart: Chart, span: Span, lines: Sequence[DrawnLine]) -> str:
    """Return the text alternative of a chart."""
    last = ", ".join(f"{line.label} {line.last}" for line in lines)
    return f"{chart.title} in the last {span.label}, {chart.help}. Last: {last}."


def _rows(chart: Chart, columns: Columns, series: dict[str, list[float]]) -> list[tuple[str, str, list[str]]]:
    """Return the last TABLE_ROWS points, newest first."""
    rows = []
    for back in range(1, TABLE_ROWS + 1):
        end = columns.end - (back - 1) * columns.step
        cells = [format_value(values[-back], chart.unit) for values in series.values()]
        rows.append((datetime.fromtimestamp(end, UTC).isoformat(), _time(end), cells))
    return rows


def downsample(values: Sequence[float]) -> list[float]:
    """Return at most SVG_POINTS points, each the maximum of its group; NaN if the whole group is unknown."""
    by = max(1, -(-len(values) // SVG_POINTS))
    groups = [values[at : at + by] for at in range(0, len(values), by)]
    return [max((value for value in group if not isnan(value)), default=nan) for group in groups]


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")


def format_value(value: float, unit: str) -> str:
    """Return *value* as charts show it; static/charts.js does the same."""
    if isnan(value):
        return text.NONE
    if unit == "count":
        return text.number(round(value))
    return _rate(value) if unit == "rate" else _seconds(value)


def _rate(value: float) -> str:
    """Format a rate: `0`, `0.03`, `4.2`, `1,250`."""
    if not value:
        return "0"
    return f"{value:,.2f}" if value < 1 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _seconds(value: float) -> str:
    """Format a duration in seconds: `0 ms`, `0.3 ms`, `270 ms`, `4.2 s`, `3 min 5 s`."""
    if value < 0.9995:
        return f"{value * 1000:.1f}{text.NBSP}ms" if 0 < value < 0.01 else f"{value * 1000:.0f}{text.NBSP}ms"
    return f"{value:.1f}{text.NBSP}s" if value < 59.95 else text.duration(round(value))
