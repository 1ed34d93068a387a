"""Keys that the extensions append to the replies to "stats", "stats-tube" and "stats-job".

The fields of a class, in order, are the keys of the YAML with `_` for `-`. Strict mode leaves all of them out. tuber's
clients read these names; docs/protocol-extensions.md defines them. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import TypeAlias

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.durations import quantile
from greenstalk_server.core.job import RESERVED, SECOND, Job
from greenstalk_server.core.tube import Tube


@dataclass(frozen=True, slots=True)
class ServerExtension:
    """Keys of "stats"; sizes in bytes."""

    binlog_enabled: bool
    binlog_file_count: int
    binlog_total_bytes: int


@dataclass(frozen=True, slots=True)
class TubeExtension:
    """Keys of "stats-tube"; times in seconds with six digits, ages in whole seconds."""

    total_reserves: int
    total_timeouts: int
    total_buries: int
    bury_rate: float
    processing_time_ewma: float
    processing_time_min: float
    processing_time_max: float
    processing_time_samples: int
    processing_time_p50: float
    processing_time_p95: float
    processing_time_p99: float
    queue_time_ewma: float
    queue_time_min: float
    queue_time_max: float
    queue_time_samples: int
    oldest_ready_id: int
    oldest_ready_age: int
    oldest_delayed_age: int
    oldest_buried_age: int


@dataclass(frozen=True, slots=True)
class JobExtension:
    """Keys of "stats-job"; times in whole seconds."""

    time_reserved: int


StatsExtension: TypeAlias = ServerExtension | TubeExtension | JobExtension


def server_extension(broker: Broker) -> ServerExtension:
    """Return the further keys of the reply to "stats"."""
    journal = broker.journal.stats()
    return ServerExtension(
        binlog_enabled=journal.is_on_disk,
        binlog_file_count=journal.files,
        binlog_total_bytes=journal.bytes_on_disk,
    )


def tube_extension(tube: Tube, now: int) -> TubeExtension:
    """Return the further keys of the reply to "stats-tube"."""
    oldest = tube.oldest_ready()
    return TubeExtension(
        total_reserves=tube.total_reserves,
        total_timeouts=tube.total_timeouts,
        total_buries=tube.total_buries,
        bury_rate=tube.total_buries / tube.total_reserves if tube.total_reserves else 0.0,
        processing_time_ewma=tube.run_ewma / SECOND,
        processing_time_min=min(tube.run_min, tube.run_max) / SECOND,
        processing_time_max=tube.run_max / SECOND,
        processing_time_samples=sum(tube.runs.values()),
        processing_time_p50=_processing_time(tube, 0.5),
        processing_time_p95=_processing_time(tube, 0.95),
        processing_time_p99=_processing_time(tube, 0.99),
        queue_time_ewma=tube.wait_ewma / SECOND,
        queue_time_min=min(tube.wait_min, tube.wait_max) / SECOND,
        queue_time_max=tube.wait_max / SECOND,
        queue_time_samples=tube.total_reserves,
        oldest_ready_id=oldest.id if oldest is not None else 0,
        oldest_ready_age=_age(oldest, now),
        oldest_delayed_age=_age(tube.delayed.first(), now),
        oldest_buried_age=_age(tube.first_buried(), now),
    )


def job_extension(job: Job, now: int) -> JobExtension:
    """Return the further keys of the reply to "stats-job"."""
    return JobExtension(time_reserved=(now - job.reserved_at) // SECOND if job.state == RESERVED else 0)


def _processing_time(tube: Tube, part: float) -> float:
    """Return the *part* quantile of the processing times in seconds, 0 if there are none."""
    found = quantile(tube.runs, part)
    return 0.0 if isnan(found) else min(max(found, tube.run_min / SECOND), tube.run_max / SECOND)


def _age(job: Job | None, now: int) -> int:
    return (now - job.created_at) // SECOND if job is not None else 0
