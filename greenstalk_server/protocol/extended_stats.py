"""Extended keys, which follow the standard keys in the replies to a connection that has asked for them.

The fields of a class, in order, are the keys of the YAML with `_` for `-`; a key whose value is None is left out.
tuber's clients read these names; docs/protocol-extensions.md defines them. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import TypeAlias

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, Job
from greenstalk_server.core.tags.groups import WAITING
from greenstalk_server.core.tags.tags import TaggedJob, tags_of
from greenstalk_server.core.tubes.durations import DurationStats, quantile
from greenstalk_server.core.tubes.tube import Tube


@dataclass(frozen=True, slots=True)
class ServerExtension:
    """Keys of "stats"; sizes in bytes. The last two are None without a memory limit."""

    greenstalk_version: str
    binlog_enabled: bool
    binlog_file_count: int
    binlog_total_bytes: int
    body_bytes_in_memory: int | None
    body_bytes_on_disk: int | None


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
    """Keys of "stats-job"; times in whole seconds. The keys of a tag are None if the job does not have the tag."""

    time_reserved: int
    idempotency_key: str | None = None
    idempotency_ttl: int | None = None
    group: str | None = None
    after_group: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None


@dataclass(frozen=True, slots=True)
class GroupStats:
    """The reply to "stats-group": the number of jobs in each state, and of jobs that wait for the group."""

    name: str
    ready: int
    reserved: int
    delayed: int
    buried: int
    waiting_jobs: int


StatsExtension: TypeAlias = ServerExtension | TubeExtension | JobExtension


def extension(broker: Broker, subject: Tube | Job | None, now: int) -> StatsExtension:
    """Return the extended keys for *subject*, or for the server if that is None."""
    if isinstance(subject, Tube):
        return tube_extension(subject, now)
    return job_extension(subject, now) if isinstance(subject, Job) else server_extension(broker)


def server_extension(broker: Broker) -> ServerExtension:
    """Return the extended keys of the reply to "stats"."""
    journal, bodies = broker.journal.stats(), broker.bodies
    return ServerExtension(
        greenstalk_version=broker.facts.version,
        binlog_enabled=journal.is_on_disk,
        binlog_file_count=journal.files,
        binlog_total_bytes=journal.bytes_on_disk,
        body_bytes_in_memory=bodies.in_memory if bodies is not None else None,
        body_bytes_on_disk=bodies.on_disk if bodies is not None else None,
    )


def tube_extension(tube: Tube, now: int) -> TubeExtension:
    """Return the extended keys of the reply to "stats-tube"."""
    oldest, processing, queued = tube.oldest_ready(), tube.processing_times, tube.queue_times
    return TubeExtension(
        total_reserves=tube.total_reserves,
        total_timeouts=tube.total_timeouts,
        total_buries=tube.total_buries,
        bury_rate=tube.total_buries / tube.total_reserves if tube.total_reserves else 0.0,
        processing_time_ewma=processing.ewma / SECOND,
        processing_time_min=min(processing.shortest, processing.longest) / SECOND,
        processing_time_max=processing.longest / SECOND,
        processing_time_samples=sum(processing.counts().values()),
        processing_time_p50=_quantile(processing, 0.5),
        processing_time_p95=_quantile(processing, 0.95),
        processing_time_p99=_quantile(processing, 0.99),
        queue_time_ewma=queued.ewma / SECOND,
        queue_time_min=min(queued.shortest, queued.longest) / SECOND,
        queue_time_max=queued.longest / SECOND,
        queue_time_samples=tube.total_reserves,
        oldest_ready_id=oldest.id if oldest is not None else 0,
        oldest_ready_age=_age(oldest, now),
        oldest_delayed_age=_age(tube.delayed.first(), now),
        oldest_buried_age=_age(tube.first_buried(), now),
    )


def job_extension(job: Job, now: int) -> JobExtension:
    """Return the extended keys of the reply to "stats-job"."""
    time_reserved = (now - job.reserved_at) // SECOND if job.state == RESERVED else 0
    if not isinstance(job, TaggedJob):
        return JobExtension(time_reserved=time_reserved)
    tags = tags_of(job)
    has_key, has_limit = bool(tags.idempotency_key), bool(tags.concurrency_key)
    return JobExtension(
        time_reserved=time_reserved,
        idempotency_key=tags.idempotency_key.decode() if has_key else None,
        idempotency_ttl=tags.idempotency_ttl // SECOND if has_key else None,
        group=tags.group.decode() if tags.group else None,
        after_group=tags.after.decode() if tags.after else None,
        concurrency_key=tags.concurrency_key.decode() if has_limit else None,
        concurrency_limit=tags.concurrency_limit if has_limit else None,
    )


def group_stats(name: bytes, counts: Sequence[int]) -> GroupStats:
    """Return the statistics of the group *name* in the reply to "stats-group"; *counts* are those of Group."""
    return GroupStats(
        name=name.decode(),
        ready=counts[READY],
        reserved=counts[RESERVED],
        delayed=counts[DELAYED],
        buried=counts[BURIED],
        waiting_jobs=counts[WAITING],
    )


def _quantile(times: DurationStats, part: float) -> float:
    """Return the *part* quantile of *times* in seconds, 0 if there are none."""
    found = quantile(times.counts(), part)
    return 0.0 if isnan(found) else min(max(found, times.shortest / SECOND), times.longest / SECOND)


def _age(job: Job | None, now: int) -> int:
    return (now - job.created_at) // SECOND if job is not None else 0
