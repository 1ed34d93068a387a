"""`/metrics`, for Prometheus: docs/metrics.md says what each means.

The core keeps plain integers, and they are read when somebody asks. Two thousand tubes give tens of thousands of lines,
so both reading and writing them go in slices, and workers come in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, chain
from typing import Final, NamedTuple

from flask import Flask, Response, make_response
from gevent.lock import BoundedSemaphore
from prometheus_client import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.samples import Sample

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.counters import COUNTERS
from greenstalk_server.core.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.cooperative import Pace
from greenstalk_server.web.metrics.ledger import Ledger, Row, Totals
from greenstalk_server.web.metrics.request_times import BOUNDS, RequestTimes

PREFIX: Final = "greenstalk_"

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The text format, which every Prometheus reads; the library writes OpenMetrics at several times the cost."""

STATES: Final = ("ready", "reserved", "delayed", "buried")

COMMANDS: Final = {name: name.removeprefix("cmd_").replace("_", "-") for name in COUNTERS if name.startswith("cmd_")}
"""The protocol's word for what each counter of "stats" counts."""

JOB_LENGTHS: Final = range(14, 50)
SYNC_LENGTHS: Final = range(14, 36)
"""Bit lengths of nanoseconds that are the bounds of buckets: from 16 µs to 6.5 days, and to 34 s."""

SAMPLES_A_STEP: Final = 16


class TubeGauge(NamedTuple):
    """A metric of each tube."""

    name: str
    help: str
    read: Callable[[Row], float]


TUBE_GAUGES: Final = (
    TubeGauge("tube_jobs_urgent", "Ready jobs with a priority below 1024.", lambda row: row.gauges.urgent),
    TubeGauge(
        "tube_oldest_ready_age_seconds",
        "For how long the oldest ready job has been ready; 0 if none is.",
        lambda row: row.gauges.oldest_age / SECOND,
    ),
    TubeGauge("tube_waiting", "Connections that wait for a job of the tube.", lambda row: row.gauges.waiting),
    TubeGauge("tube_watching", "Connections that watch the tube.", lambda row: row.gauges.watching),
    TubeGauge("tube_paused", "1 while the tube is paused.", lambda row: row.gauges.paused),
    TubeGauge(
        "tube_pause_remaining_seconds",
        "For how much longer the tube is paused.",
        lambda row: row.gauges.pause_left / SECOND,
    ),
    TubeGauge("tube_bytes", "Bytes of the bodies of all jobs in the tube.", lambda row: row.gauges.bytes),
)

TUBE_COUNTERS: Final = (
    ("put", "Jobs put into the tube."),
    ("reserved", "Reservations of jobs of the tube."),
    ("deleted", "Jobs of the tube that were deleted."),
    ("buried", "Burials of jobs of the tube."),
    ("timed_out", "Reservations of jobs of the tube that ran out of time."),
    ("released", "Releases of jobs of the tube."),
    ("kicked", "Kicks of jobs of the tube."),
)
"""In the order of track.counters."""


class Metrics:
    """The metrics of one broker and its dashboard."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        requests: RequestTimes,
        role: Callable[[], ClusterStatus] | None = None,
        directory: str | None = None,
    ) -> None:
        """*role* is as `create_app` has it.

        *directory* is the journal's; None if there is none.
        """
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._requests: RequestTimes = requests
        self._role: Callable[[], ClusterStatus] | None = role
        self._directory: str | None = directory
        self._ledger: Ledger = Ledger(broker, clock)
        self._looking: BoundedSemaphore = BoundedSemaphore(1)

    def init_app(self, app: Flask) -> None:
        """Add `/metrics` to *app*."""
        app.add_url_rule("/metrics", "metrics", self.metrics)

    def metrics(self) -> Response:
        """`/metrics`: all of it, as text. Switches."""
        return exposition(self.collect())

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, with samples that rest in between when they are gone through. Switches."""
        with self._looking:
            rows, totals = self._ledger.look()
        pace = Pace()
        tubes, times = _tubes(rows, pace), _times(totals)
        whole = (
            self._journal(),
            role_metrics(self._role()) if self._role is not None else (),
            self._bodies(),
            self._http(),
        )
        for metric in chain(self._server(), self._connections(), tubes, times, *whole):
            metric.samples = _Unhurried(metric.samples, pace)
            yield metric

    def _server(self) -> Iterator[Metric]:
        facts, counters = self._broker.facts, self._broker.counters
        yield InfoMetricFamily(f"{PREFIX}build", "Which server this is.", {"version": facts.version})
        uptime = (self._clock() - facts.started_at) / SECOND
        yield GaugeMetricFamily(f"{PREFIX}uptime_seconds", "Since when the server runs.", uptime)
        commands = CounterMetricFamily(
            f"{PREFIX}commands_total", "Commands so far, as the protocol's stats count them.", labels=("command",)
        )
        for name, command in COMMANDS.items():
            commands.add_metric((command,), getattr(counters, name))
        yield commands

    def _connections(self) -> Iterator[Metric]:
        broker = self._broker
        connections = GaugeMetricFamily(
            f"{PREFIX}connections",
            "Connections now: all; those that have put, have reserved, and wait for a job. One may be in many.",
            labels=("role",),
        )
        connections.add_metric(("any",), len(broker.clients))
        connections.add_metric(("producer",), broker.producer_count)
        connections.add_metric(("worker",), broker.worker_count)
        connections.add_metric(("waiting",), broker.waiting_count)
        yield connections
        total = broker.counters.total_connections
        yield CounterMetricFamily(f"{PREFIX}connections_total", "Connections so far.", total)
        limited = CounterMetricFamily(
            f"{PREFIX}limited_total", "How often a limit or a rule refused something or held it up.", labels=("limit",)
        )
        for name, count in broker.limit_counters.counts().items():
            limited.add_metric((name,), count)
        yield limited

    def _journal(self) -> Iterator[Metric]:
        journal = self._broker.journal
        stats = journal.stats()
        yield GaugeMetricFamily(
            f"{PREFIX}journal_bytes", "What the journal takes of the disk; 0 without one.", stats.bytes_on_disk
        )
        if (free := self._free()) is not None:
            yield GaugeMetricFamily(f"{PREFIX}journal_disk_free_bytes", "Free bytes of the journal's disk.", free)
        yield GaugeMetricFamily(
            f"{PREFIX}journal_trouble",
            "1 while the journal cannot be written, and puts are refused.",
            int(journal.trouble is not None),
        )
        syncs = (stats.syncs, stats.sync_time)
        yield _histogram("journal_sync_seconds", "What syncs of the journal took.", *syncs, SYNC_LENGTHS)

    def _free(self) -> int | None:
        """Bytes that the server's user can still write to the journal's disk; None if unknown. Switches."""
        if self._directory is None:
            return None
        try:
            disk = run_in_thread(os.statvfs, self._directory)
        except OSError:  # readyz and the log report a directory that is gone
            return None
        return disk.f_bavail * disk.f_frsize

    def _bodies(self) -> Iterator[Metric]:
        """What jobs take of memory, if there is a limit to that."""
        bodies = self._broker.bodies
        if bodies is None:
            return
        sizes = GaugeMetricFamily(f"{PREFIX}body_bytes", "Bytes of the bodies of all jobs.", labels=("where",))
        counts = GaugeMetricFamily(f"{PREFIX}bodies", "Bodies of all jobs.", labels=("where",))
        for where, size, count in (
            ("memory", bodies.in_memory, bodies.held),
            ("disk", bodies.on_disk, bodies.jobs - bodies.held),
        ):
            sizes.add_metric((where,), size)
            counts.add_metric((where,), count)
        yield sizes
        yield counts
        yield GaugeMetricFamily(f"{PREFIX}memory_limit_bytes", "What jobs may take of memory.", bodies.limit)
        yield GaugeMetricFamily(f"{PREFIX}memory_taken_bytes", "What jobs take of memory, about.", bodies.taken)
        yield GaugeMetricFamily(
            f"{PREFIX}memory_full", "1 while puts are refused as jobs take too much.", int(not bodies.has_room(0))
        )

    def _http(self) -> Iterator[Metric]:
        metric = HistogramMetricFamily(
            f"{PREFIX}http_request_duration_seconds",
            "How long requests took on the dashboard's port, until the answer began.",
            labels=("endpoint", "method", "code"),
        )
        bounds = [*map(str, BOUNDS), "+Inf"]
        for key, times in self._requests.by_key.items():
            metric.add_metric(key, list(zip(bounds, accumulate(times.counts), strict=True)), times.sum)
        yield metric


def role_metrics(role: ClusterStatus) -> Iterator[Metric]:
    """How a server stands whose journal others may lead."""
    yield GaugeMetricFamily(f"{PREFIX}leader", "1 while the server leads, 0 while it stands by.", int(role.is_active))
    if role.behind is not None:
        text = "How long ago the server had read all that there was of the journal; 0 while it leads."
        yield GaugeMetricFamily(f"{PREFIX}replication_lag_seconds", text, role.behind)


def exposition(metrics: Iterable[Metric]) -> Response:
    """The *metrics* as text. Switches if they do."""
    response = make_response(b"".join([generate_latest(_One(metric)) for metric in metrics]))
    response.headers["Content-Type"] = CONTENT_TYPE
    return response


def _tubes(rows: list[Row], pace: Pace) -> Iterator[Metric]:
    """What there is of each tube. Switches."""
    jobs = GaugeMetricFamily(f"{PREFIX}tube_jobs", "Jobs in the tube.", labels=("tube", "state"))
    for row in _rested(rows, pace):
        for state in STATES:
            jobs.add_metric((row.label, state), getattr(row.gauges, state))
    yield jobs
    for name, text, read in TUBE_GAUGES:
        gauge = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=("tube",))
        for row in _rested(rows, pace):
            gauge.add_metric((row.label,), read(row))
        yield gauge
    for place, (word, text) in enumerate(TUBE_COUNTERS):
        counter = CounterMetricFamily(f"{PREFIX}tube_jobs_{word}_total", text, labels=("tube",))
        for row in _rested(rows, pace):
            counter.add_metric((row.label,), row.counts[place])
        yield counter


def _times(totals: Totals) -> Iterator[Metric]:
    waits, runs = (totals.waits, totals.wait_time), (totals.runs, totals.run_time)
    yield _histogram("job_wait_seconds", "How long jobs were ready until they were reserved.", *waits, JOB_LENGTHS)
    text = "How long jobs were reserved until they were deleted, released or buried."
    yield _histogram("job_run_seconds", text, *runs, JOB_LENGTHS)


def _histogram(name: str, text: str, counts: Mapping[int, int], total: int, lengths: range) -> Metric:
    """A histogram of *counts* by bit length of nanoseconds, which are *total* together, in buckets up to *lengths*."""
    below = sum(count for length, count in counts.items() if length < lengths.start)
    by_length = accumulate((counts.get(length, 0) for length in lengths), initial=below)
    next(by_length)
    buckets: list[tuple[str, float]] = [
        (str(2**length / SECOND), count) for length, count in zip(lengths, by_length, strict=True)
    ]
    buckets.append(("+Inf", sum(counts.values())))
    return HistogramMetricFamily(f"{PREFIX}{name}", text, buckets, total / SECOND)


class _One(NamedTuple):
    """What the library takes for a collector: of one metric, so that it joins the lines of no more at a stretch."""

    metric: Metric

    def collect(self) -> tuple[Metric]:
        """The metric."""
        return (self.metric,)


class _Unhurried(list[Sample]):
    """Samples that rest in between when they are gone through. Switches then."""

    def __init__(self, samples: list[Sample], pace: Pace) -> None:
        super().__init__(samples)
        self._pace: Pace = pace

    def __iter__(self) -> Iterator[Sample]:
        for count, sample in enumerate(super().__iter__()):
            if count % SAMPLES_A_STEP == 0:
                self._pace.yield_if_due()
            yield sample


def _rested(rows: list[Row], pace: Pace) -> Iterator[Row]:
    """The *rows*, resting in between. Switches."""
    for count, row in enumerate(rows):
        if count % SAMPLES_A_STEP == 0:
            pace.yield_if_due()
        yield row
