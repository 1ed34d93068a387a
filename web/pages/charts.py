"""The charts: what they show, as text, as an SVG for pages without a script, and as JSON for those with one.

Reads the history; a chart of the whole server and one of a tube differ in nothing else than whose history it is. None
of this switches.
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
from greenstalk_server.web.metrics.history import Columns, History
from greenstalk_server.web.metrics.rings import HOUR, SPANS, Span
from greenstalk_server.web.metrics.rings import TIMES as TIMED
from greenstalk_server.web.pages.actions import find_tube
from greenstalk_server.web.pages.sparkline import path

WIDTH: Final = 720
HEIGHT: Final = 160
"""Units of the SVG, which is stretched to whatever room there is."""

SVG_POINTS: Final = 120
"""Points of a line in the SVG; each stands for the largest of several. Three charts take 2.7 ms in all."""

TABLE_ROWS: Final = 12
"""Points in the table of figures."""

DROPPED: Final = frozenset({"span", "notice", "n", "late", "live"})
"""What the address of a page has that its links to another span do not keep."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: the series, and what it is called."""

    key: str
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """What one chart shows; *unit* is `rate`, `count` or `seconds`."""

    key: str
    title: str
    unit: str
    help: str
    lines: tuple[Line, ...]


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
    "estimated to a factor of two",
    (
        Line("wait_p50", "wait, median"),
        Line("wait_p95", "wait, 95 %"),
        Line("run_p50", "run, median"),
        Line("run_p95", "run, 95 %"),
    ),
)

TUBE_CHARTS: Final = (RATES, JOBS, TIMES)
SERVER_CHARTS: Final = (RATES, JOBS)


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """A line as it is drawn: its *path*, and the last value as text."""

    key: str
    label: str
    path: str
    last: str


@dataclass(frozen=True, slots=True)
class DrawnChart:
    """A chart as it is drawn; *rows* of the table are a time, the same as text, and a cell for each line."""

    chart: Chart
    label: str
    top: str
    lines: list[DrawnLine]
    rows: list[tuple[str, str, list[str]]]


@dataclass(frozen=True, slots=True)
class Panel:
    """All charts of a page.

    source      where a script gets the figures.
    spans       links to each span: its name, its label, the link, and whether it is the one that is shown.
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
        """Add the JSON to *app*, and `tube_charts` and `server_charts` to its templates."""
        app.add_url_rule("/tube/history", "tube_history", self.tube_history)
        app.add_url_rule("/server/history", "server_history", self.server_history)
        app.jinja_env.globals["tube_charts"] = self.tube_charts
        app.jinja_env.globals["server_charts"] = self.server_charts

    def tube_history(self) -> Response:
        """`/tube/history?tube=&span=`: the series of one tube, even if it exists no more."""
        span, name = _span(strict=True), fields.tube_name(request.args)
        if not self._history.has(name):
            find_tube(self._broker, request.args)
        return jsonify(history_json(self._history.columns(name, span)))

    def server_history(self) -> Response:
        """`/server/history?span=`: the series of the whole server."""
        return jsonify(history_json(self._history.columns(None, _span(strict=True))))

    def tube_charts(self, name: str) -> Panel:
        """The charts of the tube *name*, for the page that is asked for."""
        span = _span()
        source = url_for("tube_history", tube=name, span=span.name)
        return _panel(TUBE_CHARTS, self._history.columns(name.encode(), span), span, source, url_for("tube", tube=name))

    def server_charts(self) -> Panel:
        """The charts of the whole server, for the page that is asked for."""
        span = _span()
        source = url_for("server_history", span=span.name)
        return _panel(SERVER_CHARTS, self._history.columns(None, span), span, source, url_for("overview"))


def _span(*, strict: bool = False) -> Span:
    """The field `span`, by default the hour; of a wrong one a page shows the hour too, unless *strict*."""
    given = request.args.get("span", HOUR.name)
    if given not in SPANS and strict:
        raise BadRequest(f"“span” must be one of {', '.join(SPANS)}, not “{given[:40]}”.")
    return SPANS.get(given, HOUR)


def history_json(columns: Columns) -> dict[str, Any]:
    """*columns* as JSON has them: `step`, `end`, and by `series` a list each, but for those with nothing in them."""
    some = {key: values for key, values in columns.series.items() if _has_any(key, values)}
    series = {key: [_rounded(value) for value in values] for key, values in some.items()}
    return {"step": columns.step, "end": columns.end, "series": series}


def _has_any(key: str, values: Sequence[float]) -> bool:
    """Whether one of *values* is known, and, unless it is a duration, not zero."""
    return any(not isnan(value) and (value or key in TIMED) for value in values)


def _rounded(value: float) -> float | int | None:
    """*value* with no more digits than it is worth: a float32 has seven, times are estimates."""
    if isnan(value):
        return None
    return int(value) if value.is_integer() else round(value, 3) if value >= 1 else round(value, 6)


def _panel(charts: Sequence[Chart], columns: Columns, span: Span, source: str, page: str) -> Panel:
    return Panel(
        span=span,
        source=source,
        start=_time(columns.end - span.step * span.points),
        end=_time(columns.end),
        spans=[(one.name, f"Last {one.name}", _link(one, page), one is span) for one in SPANS.values()],
        charts=[_draw(chart, columns, span) for chart in charts],
    )


def _link(span: Span, page: str) -> str:
    """The page that is asked for, with *span*; relative, unless it is the answer to a form: then *page*."""
    kept = [(key, value) for key, value in request.args.items(multi=True) if key not in DROPPED]
    query = urlencode([*kept, ("span", span.name)])
    return f"{page}&{query}" if request.method == "POST" else f"?{query}"


def _draw(chart: Chart, columns: Columns, span: Span) -> DrawnChart:
    series = {line.key: columns.series[line.key] for line in chart.lines}
    thin = {key: _thinned(values) for key, values in series.items() if _has_any(key, values)}
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
    """What the picture says, for who does not see it."""
    last = ", ".join(f"{line.label} {line.last}" for line in lines)
    return f"{chart.title} in the last {span.name}, {chart.help}. Last: {last}."


def _rows(chart: Chart, columns: Columns, series: dict[str, list[float]]) -> list[tuple[str, str, list[str]]]:
    """The last points, newest first."""
    rows = []
    for back in range(1, TABLE_ROWS + 1):
        end = columns.end - (back - 1) * columns.step
        cells = [format_value(values[-back], chart.unit) for values in series.values()]
        rows.append((datetime.fromtimestamp(end, UTC).isoformat(), _time(end), cells))
    return rows


def _thinned(values: Sequence[float]) -> list[float]:
    """DRAWN points at most, each the largest of those it stands for; NaN if none of them is known."""
    by = -(-len(values) // SVG_POINTS)
    groups = [values[at : at + by] for at in range(0, len(values), by)]
    return [max((value for value in group if not isnan(value)), default=nan) for group in groups]


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")


def format_value(value: float, unit: str) -> str:
    """Return *value* as the charts write it; static/charts.js does the same."""
    if isnan(value):
        return text.NONE
    if unit == "count":
        return text.number(round(value))
    return _rate(value) if unit == "rate" else _seconds(value)


def _rate(value: float) -> str:
    """`0`, `0.03`, `4.2`, `1,250`."""
    if not value:
        return "0"
    return f"{value:,.2f}" if value < 1 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _seconds(value: float) -> str:
    """`0 ms`, `0.3 ms`, `270 ms`, `4.2 s`, `3 min 5 s`."""
    if value < 0.9995:
        return f"{value * 1000:.1f}{text.NBSP}ms" if 0 < value < 0.01 else f"{value * 1000:.0f}{text.NBSP}ms"
    return f"{value:.1f}{text.NBSP}s" if value < 59.95 else text.duration(round(value))
