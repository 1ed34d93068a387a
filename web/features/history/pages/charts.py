"""Charts of the history: as SVG and text, which work without scripts, and as JSON for static/charts.js.

A chart of the whole server and one of a tube differ only in the history that they read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Final
from urllib.parse import urlencode

from flask import request
from markupsafe import Markup

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.features.history.history import Columns
from greenstalk_server.web.features.history.rings import Span
from greenstalk_server.web.features.history.series_json import has_any
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.sparkline import path

WIDTH: Final = 720
HEIGHT: Final = 160
"""Height of the SVG in its own units; it scales to the space available."""

SVG_POINTS: Final = 120
"""Points of a line in the SVG, each the maximum of several samples. Three charts take 2.7 ms."""

TABLE_ROWS: Final = 12
"""Rows in the table of figures."""

MAX_SHOWN_MARKS: Final = 50
"""Maximum marks on a chart: the latest."""

DROPPED_ARGS: Final = frozenset({"span", "compare", "notice", "n", "late", "live"})
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
    "jobs per second",
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
    "number of jobs at the end of each interval",
    (
        Line("ready", "ready"),
        Line("reserved", "reserved"),
        Line("delayed", "delayed"),
        Line("buried", "buried"),
        Line("waiting", "workers waiting"),
    ),
)
TIMES: Final = Chart(
    "times",
    "Wait and run times",
    "seconds",
    "of the jobs whose wait or run ended in the interval, accurate to 1.6\u00a0%",
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
    """A line of a drawn chart: its SVG path, the path of the time to compare with, and the last value as text."""

    key: str
    label: str
    path: str
    before: str
    last: str


@dataclass(frozen=True, slots=True)
class DrawnChart:
    """A drawn chart. A row of its table has the end of the interval, as HTML, and a cell per chart line."""

    chart: Chart
    label: str
    top: str
    lines: list[DrawnLine]
    rows: list[tuple[Markup, list[str]]]


@dataclass(frozen=True, slots=True)
class Choice:
    """A link to the charts with another span or comparison."""

    label: str
    href: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class DrawnMark:
    """A mark: its place in the SVG, its time as HTML, and its text."""

    x: float
    at: Markup
    text: str
    tube: str
    who: str


@dataclass(frozen=True, slots=True)
class ChartPanel:
    """All charts of a page.

    source          URL of the figures as JSON.
    start, end      the shown time, as HTML.
    spans, compares choices of the span, and of the time to compare with.
    before          label of that time; empty if there is none.
    tube            name of the tube; empty for the server.
    may_mark        the principal may add marks to it.
    """

    span: Span
    source: str
    start: Markup
    end: Markup
    spans: list[Choice]
    compares: list[Choice]
    before: str
    charts: list[DrawnChart]
    marks: list[DrawnMark]
    tube: str
    may_mark: bool


def is_shown(chart: Chart, columns: Columns) -> bool:
    """Return whether the page has *chart*."""
    return not chart.is_optional or any(has_any(line.key, columns.series[line.key]) for line in chart.lines)


def link(**changed: str) -> str:
    """Return the relative URL of the charts of the page with *changed* of the fields `span` and `compare`."""
    dropped = {key for key in DROPPED_ARGS if key not in {"span", "compare"} - changed.keys()}
    kept = [(key, value) for key, value in request.args.items(multi=True) if key not in dropped]
    return f"?{urlencode([*kept, *[one for one in changed.items() if one[1]]])}#charts"


def draw(chart: Chart, columns: Columns, before: Columns | None, span: Span) -> DrawnChart:
    """Return *chart* of *columns*, with the lines of *before* if there are any."""
    series = {line.key: columns.series[line.key] for line in chart.lines}
    earlier = {line.key: before.series[line.key] for line in chart.lines} if before is not None else {}
    thin = {key: downsample(values) for key, values in series.items() if has_any(key, values)}
    faint = {key: downsample(values) for key, values in earlier.items() if has_any(key, values)}
    drawn = [*thin.values(), *faint.values()]
    top = max((value for values in drawn for value in values if not isnan(value)), default=0.0)
    lines = [
        DrawnLine(
            line.key,
            line.label,
            path(thin[line.key], WIDTH, HEIGHT, top) if line.key in thin else "",
            path(faint[line.key], WIDTH, HEIGHT, top) if line.key in faint else "",
            format_value(series[line.key][-1], chart.unit),
        )
        for line in chart.lines
    ]
    rows = _rows(chart, columns, series, earlier)
    return DrawnChart(chart, _label(chart, span, lines), format_value(top, chart.unit), lines, rows)


def _label(chart: Chart, span: Span, lines: Sequence[DrawnLine]) -> str:
    """Return the text alternative of a chart."""
    last = ", ".join(f"{line.label} {line.last}" for line in lines)
    return f"{chart.title} in the last {span.label}, {chart.help}. Last: {last}."


def _rows(
    chart: Chart, columns: Columns, series: dict[str, list[float]], earlier: dict[str, list[float]]
) -> list[tuple[Markup, list[str]]]:
    """Return the last TABLE_ROWS points, newest first, each with the earlier value in brackets if there is one."""
    rows = []
    for back in range(1, TABLE_ROWS + 1):
        end = columns.end - (back - 1) * columns.step
        cells = [format_value(values[-back], chart.unit) for values in series.values()]
        if earlier:
            others = [format_value(values[-back], chart.unit) for values in earlier.values()]
            cells = [f"{cell} ({other})" for cell, other in zip(cells, others, strict=True)]
        rows.append((time_of(end), cells))
    return rows


def downsample(values: Sequence[float]) -> list[float]:
    """Return at most SVG_POINTS points, each the maximum of its group; NaN if the whole group is unknown."""
    by = max(1, -(-len(values) // SVG_POINTS))
    groups = [values[at : at + by] for at in range(0, len(values), by)]
    return [max((value for value in group if not isnan(value)), default=nan) for group in groups]


def time_of(seconds: int) -> Markup:
    """Return a time in seconds since the Unix epoch as HTML."""
    return text.time_tag(seconds * SECOND)


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
