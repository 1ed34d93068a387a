"""Snapshots of the server, a tube and a job, as "stats", "stats-tube" and "stats-job" report them.

The fields of a snapshot, in order, are the keys of the protocol's YAML with `_` for `-`. They are exactly beanstalkd
1.12's keys, because clients compare and map these replies. `extended_stats` has all other keys. The same class defines
the fields for YAML, JSON and HTML. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.counters import COUNTERS
from greenstalk_server.core.jobs.job import DELAYED, RESERVED, SECOND, STATE_NAMES, Job
from greenstalk_server.core.tags.tags import NO_DEADLINE
from greenstalk_server.core.tubes.tube import Tube


@dataclass(frozen=True, slots=True)
class ServerStats:
    """The reply to "stats"; times in seconds."""

    current_jobs_urgent: int
    current_jobs_ready: int
    current_jobs_reserved: int
    current_jobs_delayed: int
    current_jobs_buried: int
    cmd_put: int
    cmd_peek: int
    cmd_peek_ready: int
    cmd_peek_delayed: int
    cmd_peek_buried: int
    cmd_reserve: int
    cmd_reserve_with_timeout: int
    cmd_delete: int
    cmd_release: int
    cmd_use: int
    cmd_watch: int
    cmd_ignore: int
    cmd_bury: int
    cmd_kick: int
    cmd_touch: int
    cmd_stats: int
    cmd_stats_job: int
    cmd_stats_tube: int
    cmd_list_tubes: int
    cmd_list_tube_used: int
    cmd_list_tubes_watched: int
    cmd_pause_tube: int
    job_timeouts: int
    total_jobs: int
    max_job_size: int
    current_tubes: int
    current_connections: int
    current_producers: int
    current_workers: int
    current_waiting: int
    total_connections: int
    pid: int
    version: str
    rusage_utime: float
    rusage_stime: float
    uptime: int
    binlog_oldest_index: int
    binlog_current_index: int
    binlog_records_migrated: int
    binlog_records_written: int
    binlog_max_size: int
    draining: bool
    id: str
    hostname: str
    os: str
    platform: str


@dataclass(frozen=True, slots=True)
class TubeStats:
    """The reply to "stats-tube"; times in whole seconds."""

    name: str
    current_jobs_urgent: int
    current_jobs_ready: int
    current_jobs_reserved: int
    current_jobs_delayed: int
    current_jobs_buried: int
    total_jobs: int
    current_using: int
    current_watching: int
    current_waiting: int
    cmd_delete: int
    cmd_pause_tube: int
    pause: int
    pause_time_left: int


@dataclass(frozen=True, slots=True)
class JobStats:
    """The reply to "stats-job"; times in whole seconds."""

    id: int
    tube: str
    state: str
    pri: int
    age: int
    delay: int
    ttr: int
    time_left: int
    file: int
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int


Snapshot: TypeAlias = ServerStats | TubeStats | JobStats


def server_stats(broker: Broker, now: int) -> ServerStats:
    """Return the statistics in the reply to "stats"."""
    facts, journal, totals = broker.facts, broker.journal.stats(), broker.totals
    utime, stime = facts.rusage()
    counters = {name: getattr(broker.counters, name) for name in COUNTERS}
    return ServerStats(
        **counters,
        current_jobs_urgent=totals.urgent,
        current_jobs_ready=len(broker.jobs) - totals.reserved - totals.delayed - totals.buried,
        current_jobs_reserved=totals.reserved,
        current_jobs_delayed=totals.delayed,
        current_jobs_buried=totals.buried,
        max_job_size=broker.max_job_size,
        current_tubes=len(broker.tubes),
        current_connections=len(broker.clients) - broker.remote_count,
        current_producers=broker.producer_count,
        current_workers=broker.worker_count,
        current_waiting=broker.waiting_count,
        pid=facts.pid,
        version=facts.version,
        rusage_utime=utime,
        rusage_stime=stime,
        uptime=(now - facts.started_at) // SECOND,
        binlog_oldest_index=journal.oldest_index,
        binlog_current_index=journal.current_index,
        binlog_records_migrated=journal.records_migrated,
        binlog_records_written=journal.records_written,
        binlog_max_size=journal.max_size,
        draining=broker.is_draining,
        id=facts.id,
        hostname=facts.hostname,
        os=facts.os,
        platform=facts.platform,
    )


def tube_stats(tube: Tube, now: int) -> TubeStats:
    """Return the statistics in the reply to "stats-tube"."""
    return TubeStats(
        name=tube.name.decode(),
        current_jobs_urgent=tube.urgent_count,
        current_jobs_ready=tube.ready.count,
        current_jobs_reserved=tube.reserved_count,
        current_jobs_delayed=tube.delayed.count,
        current_jobs_buried=len(tube.buried),
        total_jobs=tube.total_jobs,
        current_using=tube.using,
        current_watching=tube.watching,
        current_waiting=tube.waiting_count,
        cmd_delete=tube.cmd_delete,
        cmd_pause_tube=tube.cmd_pause_tube,
        pause=tube.pause // SECOND,
        pause_time_left=_seconds_left(tube.paused_until, now),
    )


def job_stats(job: Job, now: int) -> JobStats:
    """Return the statistics in the reply to "stats-job"."""
    runs_out = job.state == RESERVED or (job.state == DELAYED and job.deadline < NO_DEADLINE)
    return JobStats(
        id=job.id,
        tube=job.tube.name.decode(),
        state=STATE_NAMES[job.state],
        pri=job.pri,
        age=(now - job.created_at) // SECOND,
        delay=job.delay // SECOND,
        ttr=job.ttr // SECOND,
        time_left=_seconds_left(job.deadline, now) if runs_out else 0,
        file=job.segment,
        reserves=job.reserves,
        timeouts=job.timeouts,
        releases=job.releases,
        buries=job.buries,
        kicks=job.kicks,
    )


def _seconds_left(until: int, now: int) -> int:
    """Return the whole seconds left 1 ns after *now*.

    The commands of one batch share *now*, but time passes between them: if one command sets 10 s, the next one reads 9.
    """
    return max(0, until - now - 1) // SECOND
