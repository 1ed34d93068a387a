"""What the pages of one tube and of one job show besides lists and bodies, as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from greenstalk_server.client import Client
from greenstalk_server.job import RESERVED, STATE_NAMES, Job
from greenstalk_server.stats import JobStats, TubeStats, job_stats, tube_stats
from greenstalk_server.tube import Tube
from web import text
from web.fields import STATES
from web.jobs import count

TUBES_NAMED: Final = 10
"""Tubes that a client watches which are named; it may watch thousands."""


@dataclass(frozen=True, slots=True)
class Tab:
    """One state of a tube's jobs: its name, how many, and what else to know."""

    state: str
    count: str
    note: str


@dataclass(frozen=True, slots=True)
class TubeDetails:
    """A tube: *pause_left* is empty unless it is paused; *is_idle* if jobs are ready and nobody watches it."""

    name: str
    tabs: list[Tab]
    pause_left: str
    is_idle: bool
    figures: list[tuple[str, str, str]]
    entries: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Held:
    """Who holds a job: what is known of the client."""

    time_left: str
    jobs: str
    watches: str
    uses: str


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job; *held* is None unless a client holds it."""

    id: str
    tube: str
    state: str
    held: Held | None
    figures: list[tuple[str, str, str]]
    entries: list[tuple[str, str]]


def tube_details(tube: Tube, now: int) -> TubeDetails:
    """Look at *tube*."""
    stats = tube_stats(tube, now)
    urgent = f"{text.number(stats.current_jobs_urgent)} urgent" if stats.current_jobs_urgent else ""
    return TubeDetails(
        name=stats.name,
        tabs=[
            Tab(STATE_NAMES[state], text.number(count(tube, state)), urgent if at == 0 else "")
            for at, state in enumerate(STATES)
        ],
        pause_left=_pause_left(stats),
        is_idle=bool(stats.current_jobs_ready and not stats.current_watching),
        figures=[
            ("Watching", text.number(stats.current_watching), f"{text.number(stats.current_waiting)} waiting"),
            ("Put", text.number(stats.total_jobs), f"{text.number(stats.cmd_delete)} deleted"),
        ],
        entries=[
            ("Clients that watch it", text.number(stats.current_watching)),
            ("of these waiting for a job", text.number(stats.current_waiting)),
            ("Clients that use it", text.number(stats.current_using)),
            ("Jobs put", text.number(stats.total_jobs)),
            ("Jobs deleted", text.number(stats.cmd_delete)),
            ("Urgent jobs", text.number(stats.current_jobs_urgent)),
            ("Times paused or resumed", text.number(stats.cmd_pause_tube)),
            ("Pause", text.duration(stats.pause) if stats.pause else text.NONE),
        ],
    )


def job_details(job: Job, now: int) -> JobDetails:
    """Look at *job*."""
    stats = job_stats(job, now)
    return JobDetails(
        id=str(stats.id),
        tube=stats.tube,
        state=stats.state,
        held=_held(job.holder, stats) if job.holder is not None else None,
        figures=[
            ("Priority", str(stats.pri), "urgent" if stats.pri < 1024 else ""),
            ("Age", text.duration(stats.age), ""),
            _time_left(job, stats),
            ("Reserves", text.number(stats.reserves), f"{text.number(stats.timeouts)} timed out"),
            ("Body", text.number(len(job.body)), "byte" if len(job.body) == 1 else "bytes"),
        ],
        entries=[
            ("Put at", text.instant(job.created_at)),
            ("Time to run", text.duration(stats.ttr)),
            ("Delay", text.duration(stats.delay) if stats.delay else text.NONE),
            ("Reserved", _times(stats.reserves)),
            ("Timed out", _times(stats.timeouts)),
            ("Released", _times(stats.releases)),
            ("Buried", _times(stats.buries)),
            ("Kicked", _times(stats.kicks)),
            ("Binlog file", text.number(stats.file) if stats.file else text.NONE),
        ],
    )


def _pause_left(stats: TubeStats) -> str:
    return text.duration(stats.pause_time_left) if stats.pause else ""


def _time_left(job: Job, stats: JobStats) -> tuple[str, str, str]:
    if stats.state == "delayed":
        return "Ready in", text.duration(stats.time_left), ""
    label = "TTR left" if job.state == RESERVED else "TTR"
    of = f"of {text.duration(stats.ttr)}" if job.state == RESERVED else ""
    return label, text.duration(stats.time_left if job.state == RESERVED else stats.ttr), of


def _held(client: Client, stats: JobStats) -> Held:
    names = [name.decode() for name in list(client.watched)[:TUBES_NAMED]]
    more = len(client.watched) - len(names)
    return Held(
        time_left=text.duration(stats.time_left),
        jobs=text.counted(len(client.reserved), "job"),
        watches=", ".join(names) + (f" and {text.counted(more, 'other tube')}" if more else ""),
        uses=client.used.name.decode(),
    )


def _times(number: int) -> str:
    return "never" if number == 0 else "once" if number == 1 else f"{text.number(number)} times"
