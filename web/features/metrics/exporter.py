"""`/metrics` for Prometheus. docs/metrics.md describes each metric.

The core keeps plain integers, which are read at each scrape. Two thousand tubes give tens of thousands of lines, so
reading and formatting work in batches and yield to the event loop in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, chain
from typing import Final, NamedTuple

from flask import Flask, Response, make_response
from prometheus_client import Histogram, generate_latest
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
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.alerts.alerts import Alerts
from greenstalk_server.web.features.conditions.measures import KINDS, SEVERITIES
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from greenstalk_server.web.features.history.tube_counters import POLICY_ACTIONS, PROTOCOL_COUNTERS
from greenstalk_server.web.features.metrics.ledger import TubeCounters
from greenstalk_server.web.features.metrics.shard_metrics import BodyValues, MetricsReader, ShardMetrics
from greenstalk_server.web.framework.access import require_full_view
from greenstalk_server.web.framework.cooperative import Pace, in_batches
from greenstalk_server.web.framework.shards import Shards
from greenstalk_server.web.reads.fronts import Fronts

PREFIX: Final = "greenstalk_"

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The text format, which every Prometheus reads. OpenMetrics costs several times as much in the library."""

STATES: Final = ("ready", "reserved", "delayed", "buried")

JOB_BIT_LENGTHS: Final = range(14, 50)
SYNC_BIT_LENGTHS: Final = range(14, 36)
"""Upper bounds of buckets as bit lengths of nanoseconds: from 16 µs to 6.5 days for jobs, and to 34 s for syncs."""

SAMPLE_BATCH: Final = 16
"""Samples or rows formatted between two checks of the time slice."""


class TubeGauge(NamedTuple):
    """A metric of each tube."""

    name: str
    help: str
    read: Callable[[TubeCounters], float]


TUBE_GAUGES: Final = (
    TubeGauge("tube_jobs_urgent", "Ready jobs with a priority below 1024.", lambda row: row.gauges.urgent),
    TubeGauge(
        "tube_oldest_ready_age_seconds",
        "Time that the oldest ready job has been ready; 0 if no job is ready.",
        lambda row: row.gauges.oldest_age / SECOND,
    ),
    TubeGauge("tube_waiting", "Clients that wait for a job from the tube.", lambda row: row.gauges.waiting),
    TubeGauge("tube_watching", "Clients that watch the tube.", lambda row: row.gauges.watching),
    TubeGauge("tube_paused", "1 while the tube is paused.", lambda row: row.gauges.paused),
    TubeGauge(
        "tube_pause_remaining_seconds",
        "Time until the pause of the tube ends.",
        lambda row: row.gauges.pause_left / SECOND,
    ),
    TubeGauge("tube_bytes", "Bytes of the bodies of all jobs in the tube.", lambda row: row.gauges.bytes),
)

TUBE_COUNTERS: Final = (
    ("put", "Jobs put into the tube."),
    ("reserved", "Reservations of the tube's jobs."),
    ("deleted", "Jobs deleted from the tube."),
    ("buried", "Burials of the tube's jobs."),
    ("timed_out", "Reservations of the tube's jobs that timed out."),
    ("released", "Releases of the tube's jobs."),
    ("kicked", "Kicks of the tube's jobs."),
)
"""Name and help of each counter, in the order of `all_counters`."""


class Metrics:
    """The metrics of one broker and its dashboard."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        requests: Histogram,
        attention: ConditionMonitor,
        shards: Shards,
        fronts: Fronts,
        role: Callable[[], ClusterStatus] | None = None,
        directory: str | None = None,
        alerts: Alerts | None = None,
    ) -> None:
        """Read *broker*, *alerts* and the other *shards* at each scrape.

        requests    the durations of requests.
        role        returns the status of the cluster, as in `create_app`.
        directory   directory of the journal; None without one.
        """
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._has_shards: bool = shards.count > 1
        self._reader: MetricsReader = MetricsReader(broker, clock, directory, shards, fronts)
        self._requests: Histogram = requests
        self._attention: ConditionMonitor = attention
        self._role: Callable[[], ClusterStatus] | None = role
        self._alerts: Alerts | None = alerts

    def init_app(self, app: Flask) -> None:
        """Add `/metrics` to *app*."""
        app.add_url_rule("/metrics", "metrics", self.metrics)

    def metrics(self) -> Response:
        """`/metrics`: all metrics as text. Switches."""
        require_full_view("The metrics")
        return exposition(self.collect())

    def collect(self) -> Iterator[Metric]:
        """Yield every metric. Switches, including during iterations over the samples of a metric."""
        values = self._reader.read()
        pace = Pace()
        tubes, times = _tubes(values.tubes, pace), _times(values)
        whole = (
            _moves(values) if self._has_shards else (),
            _journal(values),
            role_metrics(self._role()) if self._role is not None else (),
            _bodies(values.bodies),
            self._conditions(),
            self._alert_messages(),
            self._requests.collect(),
        )
        for metric in chain(self._server(values), _connections(values), tubes, times, *whole):
            metric.samples = _PacedSamples(metric.samples, pace)
            yield metric

    def _server(self, values: ShardMetrics) -> Iterator[Metric]:
        facts = self._broker.facts
        labels = {"version": facts.version, "build": facts.build}
        yield InfoMetricFamily(f"{PREFIX}build", "The version and the build of the server.", labels)
        uptime = (self._clock() - facts.started_at) / SECOND
        yield _gauge("uptime_seconds", "Time since the start of the server.", uptime)
        yield _counters("commands_total", "Commands, as in the protocol's stats.", "command", values.commands)
        text = "Restarts of a service after an internal error."
        yield _counters("service_restarts_total", text, "service", values.restarts)

    def _conditions(self) -> Iterator[Metric]:
        """Yield the conditions that need attention: the number of each kind, and the worst ones with their tubes."""
        counts = self._attention.counts
        numbers = {kind.name: sum([counts[kind.name, severity] for severity in SEVERITIES]) for kind in KINDS}
        yield _gauges("attention_conditions", "Active conditions that need attention.", "condition", numbers)
        active = GaugeMetricFamily(
            f"{PREFIX}attention",
            "1 for each active condition. The tube is empty for the server.",
            labels=("condition", "severity", "tube", "limit"),
        )
        for measure, _ in self._attention.conditions:
            active.add_metric((measure.kind.name, measure.severity, measure.tube.decode(), measure.detail), 1)
        yield active

    def _alert_messages(self) -> Iterator[Metric]:
        alerts = self._alerts
        if alerts is None or not alerts.queues:
            return
        names = list(alerts.queues)
        text = "Messages about conditions that a receiver has accepted."
        yield _counters("alert_messages_sent_total", text, "receiver", {name: alerts.sent[name] for name in names})
        text = "Failed attempts to send a message about conditions."
        yield _counters("alert_messages_failed_total", text, "receiver", {name: alerts.failed[name] for name in names})
        text = "Conditions that are due and that a receiver has not accepted."
        yield _gauges("alert_conditions_waiting", text, "receiver", {name: alerts.waiting(name) for name in names})


def _connections(values: ShardMetrics) -> Iterator[Metric]:
    text = "Open connections: all, and those that have put, have reserved, or wait. A connection may have many roles."
    yield _gauges("connections", text, "role", values.connections)
    total = values.total_connections
    yield CounterMetricFamily(f"{PREFIX}connections_total", "Connections since the start.", total)
    text = "Times that a limit or rule refused or delayed a client."
    yield _counters("limited_total", text, "limit", values.limited)


def _moves(values: ShardMetrics) -> Iterator[Metric]:
    jobs, age = values.moves
    yield _gauge("moving_jobs", "Jobs that are moving to a tube of another shard.", jobs)
    text = "Time for which the first of the moving jobs has been moving; 0 if no job moves."
    yield _gauge("moving_oldest_seconds", text, age / SECOND)


def _journal(values: ShardMetrics) -> Iterator[Metric]:
    yield _gauge("journal_bytes", "Size of the journal on disk; 0 without a journal.", values.journal_bytes)
    if values.disk_free is not None:
        yield _gauge("journal_disk_free_bytes", "Free space on the journal's disk.", values.disk_free)
    text = "1 while the journal cannot be written, so that puts are refused."
    yield _gauge("journal_trouble", text, int(values.is_in_trouble))
    yield _histogram("journal_sync_seconds", "Duration of syncs of the journal.", *values.syncs, SYNC_BIT_LENGTHS)


def _bodies(bodies: BodyValues | None) -> Iterator[Metric]:
    """Yield the metrics of the memory limit, if there is one."""
    if bodies is None:
        return
    sizes = {"memory": bodies.in_memory, "disk": bodies.on_disk}
    yield _gauges("body_bytes", "Bytes of the bodies of all jobs.", "where", sizes)
    counts = {"memory": bodies.resident, "disk": bodies.evicted}
    yield _gauges("bodies", "Bodies of all jobs.", "where", counts)
    yield _gauge("memory_limit_bytes", "Memory that jobs may use.", bodies.limit)
    yield _gauge("memory_taken_bytes", "Memory that jobs use, approximately.", bodies.taken)
    text = "1 while puts are refused because of the memory limit."
    yield _gauge("memory_full", text, int(bodies.is_full))


def role_metrics(role: ClusterStatus) -> Iterator[Metric]:
    """Yield the metrics of a server in a cluster."""
    yield _gauge("leader", "1 while the server leads, 0 while it stands by.", int(role.is_active))
    if role.behind is not None:
        text = "Time since the standby last reached the end of the journal; 0 while the server leads."
        yield _gauge("replication_lag_seconds", text, role.behind)
    if role.is_front:
        yield _gauge("relayed_links", "Links between servers that a third one relays.", role.relayed_links)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}{name}", text, value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a gauge with the *values* by *label*."""
    return _labelled(GaugeMetricFamily(f"{PREFIX}{name}", text, labels=(label,)), values)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a counter with the *values* by *label*."""
    return _labelled(CounterMetricFamily(f"{PREFIX}{name}", text, labels=(label,)), values)


def _labelled(metric: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    for label, value in values.items():
        metric.add_metric((label,), value)
    return metric


def exposition(metrics: Iterable[Metric]) -> Response:
    """Return *metrics* as text. Switches if the metrics do."""
    response = make_response(b"".join([generate_latest(_SingleMetric(metric)) for metric in metrics]))
    response.headers["Content-Type"] = CONTENT_TYPE
    return response


def _tubes(rows: list[TubeCounters], pace: Pace) -> Iterator[Metric]:
    """Yield the metrics of all tubes. Switches."""
    jobs = GaugeMetricFamily(f"{PREFIX}tube_jobs", "Jobs in the tube.", labels=("tube", "state"))
    for row in in_batches(rows, SAMPLE_BATCH, pace):
        for state in STATES:
            jobs.add_metric((row.label, state), getattr(row.gauges, state))
    yield jobs
    for name, text, read in TUBE_GAUGES:
        gauge = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=("tube",))
        for row in in_batches(rows, SAMPLE_BATCH, pace):
            gauge.add_metric((row.label,), read(row))
        yield gauge
    for place, (word, text) in enumerate(TUBE_COUNTERS):
        counter = CounterMetricFamily(f"{PREFIX}tube_jobs_{word}_total", text, labels=("tube",))
        for row in in_batches(rows, SAMPLE_BATCH, pace):
            counter.add_metric((row.label,), row.counts[place])
        yield counter
    yield from _policies(rows, pace)


def _policies(rows: list[TubeCounters], pace: Pace) -> Iterator[Metric]:
    """Yield the metrics of policies, without tubes that no policy concerns. Switches."""
    actions = CounterMetricFamily(
        f"{PREFIX}tube_policy_total", "Actions of policies on the tube and its jobs.", labels=("tube", "action")
    )
    held = GaugeMetricFamily(
        f"{PREFIX}tube_held", "1 while a policy holds back the tube's ready jobs.", labels=("tube", "reason")
    )
    dead = GaugeMetricFamily(f"{PREFIX}tube_dead_letters", "Jobs in a dead-letter tube.", labels=("tube",))
    for row in in_batches(rows, SAMPLE_BATCH, pace):
        gauges, counts = row.gauges, row.counts[PROTOCOL_COUNTERS:]
        if gauges.governed or any(counts):
            for action, count in zip(POLICY_ACTIONS.values(), counts, strict=True):
                actions.add_metric((row.label, action), count)
        if gauges.governed:
            held.add_metric((row.label, "rate"), gauges.rate_held)
            held.add_metric((row.label, "max_reserved"), gauges.reserved_held)
        if gauges.dead_letter:
            dead.add_metric((row.label,), gauges.dead_letters)
    yield actions
    yield held
    yield dead


def _times(values: ShardMetrics) -> Iterator[Metric]:
    queued, processed = values.times
    text = "Time that jobs were ready until they were reserved."
    yield _histogram("job_wait_seconds", text, *queued, JOB_BIT_LENGTHS)
    text = "Time that jobs were reserved until they were deleted, released or buried."
    yield _histogram("job_run_seconds", text, *processed, JOB_BIT_LENGTHS)


def _histogram(name: str, text: str, counts: Mapping[int, int], total: int, lengths: range) -> Metric:
    """Return a histogram of durations.

    counts          number of durations by the bit length of their nanoseconds.
    total           sum of all durations in nanoseconds.
    lengths         bit lengths at which a bucket ends.
    """
    below = sum(count for length, count in counts.items() if length < lengths.start)
    by_length = accumulate((counts.get(length, 0) for length in lengths), initial=below)
    next(by_length)
    buckets: list[tuple[str, float]] = [
        (str(2**length / SECOND), count) for length, count in zip(lengths, by_length, strict=True)
    ]
    buckets.append(("+Inf", sum(counts.values())))
    return HistogramMetricFamily(f"{PREFIX}{name}", text, buckets, total / SECOND)


class _SingleMetric(NamedTuple):
    """A collector of one metric, since the library does not yield while it formats a collector."""

    metric: Metric

    def collect(self) -> tuple[Metric]:
        """Return the metric."""
        return (self.metric,)


class _PacedSamples(list[Sample]):
    """Samples whose iteration yields to the event loop."""

    def __init__(self, samples: list[Sample], pace: Pace) -> None:
        super().__init__(samples)
        self._pace: Pace = pace

    def __iter__(self) -> Iterator[Sample]:
        for count, sample in enumerate(super().__iter__()):
            if count % SAMPLE_BATCH == 0:
                self._pace.yield_if_due()
            yield sample
