"""The summary at the top of a tube's page: figures, workers, and a chart of the last hour.

The summary shows why the tube lags: the rates of puts and deletes, the age of the oldest job, and the workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import inf, isnan, nan
from typing import Final

from flask import url_for

from greenstalk_server.core.broker import DEFAULT_TUBE, Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.features.errors.failing_workers import FailingWorkers, Failures
from greenstalk_server.web.features.history.pages.charts import format_value
from greenstalk_server.web.features.history.worker_rates import WorkerRates
from greenstalk_server.web.features.tubes.tube_view import TubeView
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.cooperative import in_batches
from greenstalk_server.web.framework.sparkline import path
from greenstalk_server.web.reads.connections import BATCH_SIZE, client_name

MAX_WORKERS: Final = 5
"""Maximum workers in the summary."""

MAX_SCANNED: Final = 32
"""Maximum held jobs of a worker that are scanned for a job of the tube."""

LONG_HELD: Final = 10 * SECOND
"""A worker that has held a job for this time, in nanoseconds, is listed before the others."""

RECENT_POINTS: Final = 30
"""Ten-second points that are searched for the latest wait and run times: five minutes."""

CHART_WIDTH: Final = 360
CHART_HEIGHT: Final = 48
"""Height in SVG units of each of the two drawings, which scale to the space available."""

RATES: Final = (
    ("put", "Put/s", "Jobs put"),
    ("reserve", "Reserved/s", "Jobs reserved"),
    ("delete", "Deleted/s", "Jobs deleted"),
    ("bury", "Buried/s", "Jobs buried"),
    ("release", "Released/s", "Jobs released"),
    ("timeout", "Timeouts/s", "Reservations that timed out"),
    ("dead_letter", "Dead letters/s", "Jobs that became dead letters"),
)
"""Rates of the summary: the series, the label, and the events."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its label; *key* names it in live updates, *help* explains it, and *href* is the page about it."""

    key: str
    label: str
    value: str
    note: str
    help: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class Worker:
    """A connection that watches the tube or holds a job of it.

    rate            jobs that it finished per minute.
    job             the job of the tube that it has held for longest, or empty.
    doing           its activity, shown after the job if there is one: `for 3 s`, `waiting for 12 s`.
    """

    number: str
    name: str
    rate: str
    job: str
    doing: str


@dataclass(frozen=True, slots=True)
class Workers:
    """The first workers of a tube; *more* names the number of the others, or is empty."""

    rows: list[Worker]
    summary: str
    more: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing: for each series its key, label, path and last value; *top* is the highest value of all."""

    title: str
    lines: list[tuple[str, str, str, str]]
    top: str


@dataclass(frozen=True, slots=True)
class HourChart:
    """The chart of the last hour; *label* is its text alternative."""

    drawings: list[Drawing]
    label: str


@dataclass(frozen=True, slots=True)
class TubeSummary:
    """The summary of a tube."""

    figures: list[Figure]
    workers: Workers
    failures: Failures
    chart: HourChart

    def live_fields(self) -> dict[str, str]:
        """Return the texts of the figures, by field name."""
        return {f"figure-{one.key}": one.value for one in self.figures} | {
            f"figure-note-{one.key}": one.note for one in self.figures
        }


def tube_summary(
    broker: Broker, view: TubeView, worker_rates: WorkerRates, failing_workers: FailingWorkers
) -> TubeSummary:
    """Return the summary of the tube of *view*. May switch."""
    return TubeSummary(
        figures=_figures(view),
        workers=find_workers(broker, view.tube, worker_rates, view.now),
        failures=failing_workers.of(view.tube, view.now),
        chart=_chart(view),
    )


# Figures


def _figures(view: TubeView) -> list[Figure]:
    oldest = text.NONE if view.oldest_age is None else text.duration(view.oldest_age)
    rates = [
        Figure(key, label, text.rate(getattr(view.rates, key)), "", f"{events} per second, over the last ten seconds")
        for key, label, events in RATES
    ]
    return [
        Figure(
            "oldest",
            "Oldest ready",
            oldest,
            "",
            "How long the oldest ready job has been ready",
            url_for("tube_oldest", tube=view.tube.name.decode()) if view.oldest_age is not None else "",
        ),
        Figure("drain", "Backlog", *drain_text(view), "At the put and delete rates of the last ten seconds"),
        _times(view, "wait", "Wait", "From ready to reserved"),
        _times(view, "run", "Run", "From reserved to deleted, released or buried"),
        Figure(
            "failed", "Failed attempts", *failed_text(view),
            "The share of the reservations of the last five minutes that ended by release, timeout or burial",
        ),
        *rates,
    ]  # fmt: skip


def failed_text(view: TubeView) -> tuple[str, str]:
    """Return the share of attempts that failed, and a note with the attempts per job: `92 %`, `14 attempts per job`."""
    keys = ("release", "timeout", "bury", "reserve", "delete", "dead_letter")
    sums = {key: _sum(view.history.spark(view.tube.name, key, RECENT_POINTS)) for key in keys}
    failed, ended = (
        sums["release"] + sums["timeout"] + sums["bury"],
        sums["delete"] + sums["bury"] + sums["dead_letter"],
    )
    attempts = max(failed, sums["reserve"])
    if not attempts:
        return text.NONE, ""
    if not failed:
        return "0", ""
    note = f"{text.rate(attempts / ended)} attempts per job" if ended else "no job ended"
    return f"{max(1, round(100 * failed / attempts))}{text.NBSP}%", note


def _sum(points: list[float]) -> float:
    return sum(point for point in points if not isnan(point))


def drain_text(view: TubeView) -> tuple[str, str]:
    """Return the trend of the ready jobs of the tube, and a note: `4 min`, `until it is empty`."""
    tube, rates = view.tube, view.rates
    if not tube.ready.count:
        return text.NONE, ""
    if tube.paused_until > view.now:
        return "paused", ""
    if not tube.watching:
        return "stays", "" if view.is_dead_letter else "no workers"
    if view.drain_time == inf:
        return "growing", f"by {text.rate(rates.put - rates.delete)}/s"
    if view.drain_time is not None:
        return text.duration(max(1, round(view.drain_time))), "until it is empty"
    return "steady", "" if rates.delete else "nothing deleted"


def _times(view: TubeView, key: str, label: str, help: str) -> Figure:
    """Return the figure for the latest known median and 95th percentile of the waits or runs."""
    medians = view.history.spark(view.tube.name, f"{key}_p50", RECENT_POINTS)
    slow = view.history.spark(view.tube.name, f"{key}_p95", RECENT_POINTS)
    known = [pair for pair in zip(medians, slow, strict=True) if not isnan(pair[0])]
    median, high = known[-1] if known else (nan, nan)
    note = f"p95 {format_value(high, 'seconds')}" if known else ""
    return Figure(
        key, f"{label} p50", format_value(median, "seconds"), note,
        f"{help}: the median and the 95th percentile of the latest ten seconds with such jobs, accurate to"
        " 1.6 %",
    )  # fmt: skip


# Workers


def find_workers(broker: Broker, tube: Tube, rates: WorkerRates, now: int) -> Workers:
    """Return the workers of *tube*: first those that have held a job of it for long, then by number. May switch.

    Every connection watches the default tube at first, so only clients that have reserved count as its workers.
    """
    if not tube.watching and not tube.reserved_count:
        return Workers([], "0", "")
    found: list[tuple[int, int, Client, Job | None]] = []
    for client in in_batches(list(broker.clients), BATCH_SIZE):
        job = held_job(client, tube)
        is_worker = client.is_worker or tube.name != DEFAULT_TUBE
        if job is None and not (is_worker and tube.name in client.watched):
            continue
        held = now - job.reserved_at if job is not None else 0
        found.append((-held if held >= LONG_HELD else 0, client.number, client, job))
    found.sort(key=lambda one: one[:2])
    rows = [_worker(client, job, rates, now) for _, _, client, job in found[:MAX_WORKERS] if not client.is_closed]
    holding = sum(job is not None for *_, job in found)
    waiting = sum(client.is_waiting for _, _, client, _ in found)
    more = text.counted(len(found) - MAX_WORKERS, "other") if len(found) > MAX_WORKERS else ""
    return Workers(rows, f"{text.number(len(found))} ({holding:,} working, {waiting:,} waiting)", more)


def held_job(client: Client, tube: Tube) -> Job | None:
    """Return the job of *tube* that *client* has held for longest. Only its first MAX_SCANNED jobs are scanned."""
    return next((job for job in islice(client.reserved.values(), MAX_SCANNED) if job.tube is tube), None)


def _worker(client: Client, job: Job | None, rates: WorkerRates, now: int) -> Worker:
    if job is not None:
        doing = f"for {_seconds(now - job.reserved_at)}"
    elif client.is_waiting:
        doing = f"waiting for {_seconds(now - client.waiting_since)}"
    else:
        doing = "busy with another tube" if client.reserved else "not waiting"
    return Worker(
        number=str(client.number),
        name=", ".join(filter(None, (client.address, client_name(client)))),
        rate=f"{text.rate(rates.per_minute(client, now))}/min",
        job=str(job.id) if job is not None else "",
        doing=doing,
    )


def _seconds(nanoseconds: int) -> str:
    return text.duration(max(0, nanoseconds) // SECOND)


# The chart


def _chart(view: TubeView) -> HourChart:
    rates = ("put", "put"), ("reserve", "reserved"), ("release", "released")
    values = {key: _last_hour(view, key) for key in ("ready", "put", "reserve", "release")}
    begin = min([_first_known(line) for line in values.values()])
    values = {key: line[begin:] for key, line in values.items()}
    minutes = len(values["ready"]) - 1
    span = f"last {minutes} min" if 0 < minutes < 60 else "last hour"
    drawings = [
        _drawing(f"Ready, {span}", "count", (("ready", "ready"),), values),
        _drawing("Per second", "rate", rates, values),
    ]
    lines = ", ".join(f"{label} {last}" for one in drawings for _, label, _, last in one.lines)
    tops = ", ".join(f"{one.title.lower()} {one.top}" for one in drawings)
    return HourChart(drawings, f"Now: {lines}. Highest: {tops}.")


def _last_hour(view: TubeView, key: str) -> list[float]:
    """Return the series *key* by the minute, and at the end its value in the last ten seconds. NaN is unknown."""
    return [*view.history.last_hour(view.tube.name, key), *view.history.spark(view.tube.name, key, 1)]


def _first_known(values: list[float]) -> int:
    return next((at for at, value in enumerate(values) if not isnan(value)), max(0, len(values) - 1))


def _drawing(title: str, unit: str, series: tuple[tuple[str, str], ...], values: dict[str, list[float]]) -> Drawing:
    """Draw the *values* of each of *series*: its key and its label."""
    top = max((value for key, _ in series for value in values[key] if not isnan(value)), default=0.0)
    lines = [
        (
            key,
            label,
            path(values[key], CHART_WIDTH, CHART_HEIGHT, top) if top else "",
            format_value(values[key][-1] if values[key] else 0.0, unit),
        )
        for key, label in series
    ]
    return Drawing(title, lines, format_value(top, unit))
