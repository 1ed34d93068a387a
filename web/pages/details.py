"""What the pages of one tube and of one job show besides lists and bodies, as text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from greenstalk_server.core import job_history
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import DELAYED, READY, RESERVED, SECOND, STATE_NAMES, URGENT_BELOW, Job
from greenstalk_server.core.tube import Tube
from greenstalk_server.protocol.stats import JobStats, TubeStats, job_stats, tube_stats
from greenstalk_server.web import text
from greenstalk_server.web.fields import STATES
from greenstalk_server.web.jobs.job_list import count
from greenstalk_server.web.pages.connections import Party, parties, tube_names

EVENTS: Final[dict[int, tuple[str, str]]] = {
    job_history.RESERVED: ("Reserved", "reserved"),
    job_history.RELEASED: ("Released", "ready"),
    job_history.BURIED: ("Buried", "buried"),
    job_history.KICKED: ("Kicked", "ready"),
    job_history.TIMED_OUT: ("Timed out: its time to run was up", "ready"),
    job_history.RETURNED: ("Given back: the connection ended", "ready"),
    job_history.EDITED: ("Edited", ""),
    job_history.MOVED: ("Moved to another tube", ""),
}
"""What each kind of event is called, and the state that it led to, if to one."""

BY_HAND: Final = frozenset({job_history.RELEASED, job_history.BURIED, job_history.EDITED, job_history.MOVED})
"""Kinds that tell of an admin where they tell of nobody."""


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

    by: Party
    since: str
    time_left: str
    jobs: str
    watches: str
    uses: str


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to a job: *by* is None if no connection did it, and *note* says what else is known."""

    at: str
    ago: str
    what: str
    state: str
    by: Party | None
    note: str


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job.

    held            who holds it, or None.
    last_held       who held it last, if nobody does; None if that is not known.
    reservation     tells this reservation of it from all others: what a forced change of it has to confirm.
    moments         its life, from the put to now.
    forgotten       what its counts tell of besides; empty if the moments are all there were.
    kept_events     how many of its last events are kept.
    was_held        it has been reserved before.
    edited          tells what its last edit has made of it from what was there before.
    """

    id: str
    tube: str
    state: str
    held: Held | None
    last_held: Party | None
    reservation: str
    moments: list[Moment]
    forgotten: str
    kept_events: int
    was_held: bool
    edited: str
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
            ("Workers watching", text.number(stats.current_watching), f"{text.number(stats.current_waiting)} waiting"),
            ("Put", text.number(stats.total_jobs), f"{text.number(stats.cmd_delete)} deleted"),
        ],
        entries=[
            ("Clients that watch it", text.number(stats.current_watching)),
            ("waiting for a job", text.number(stats.current_waiting)),
            ("Clients that use it", text.number(stats.current_using)),
            ("Jobs put", text.number(stats.total_jobs)),
            ("Jobs deleted", text.number(stats.cmd_delete)),
            ("Urgent jobs", text.number(stats.current_jobs_urgent)),
            ("Times paused or resumed", text.number(stats.cmd_pause_tube)),
            ("Pause", text.duration(stats.pause) if stats.pause else text.NONE),
        ],
    )


def job_details(broker: Broker, job: Job, now: int) -> JobDetails:
    """Look at *job*."""
    stats = job_stats(job, now)
    events = events_of(job)
    known = parties(broker, {event.client for event in events})
    return JobDetails(
        id=str(stats.id),
        tube=stats.tube,
        state=stats.state,
        held=_held(broker, job, stats, now),
        last_held=_last_held(job, events, known),
        reservation=reservation(job),
        moments=_moments(job, events, known, now),
        forgotten=_forgotten(job, events),
        kept_events=job_history.MAX_EVENTS,
        was_held=job.reserves > 0,
        edited=str(max((event.at for event in events if event.kind == job_history.EDITED), default=0)),
        figures=[
            ("Priority", str(stats.pri), "urgent" if stats.pri < URGENT_BELOW else ""),
            ("Age", text.duration(stats.age), ""),
            _state_time(job, stats, events, now),
            ("Reserves", text.number(stats.reserves), f"{text.number(stats.timeouts)} timed out"),
            ("Body", text.number(job.size), "byte" if job.size == 1 else "bytes"),
        ],
        entries=[
            ("Put at", text.instant(job.created_at)),
            ("Time to run", text.duration(stats.ttr)),
            ("TTR left", text.duration(stats.time_left) if job.state == RESERVED else text.NONE),
            ("Delay", text.duration(stats.delay) if stats.delay else text.NONE),
            ("Delay left", text.duration(stats.time_left) if job.state == DELAYED else text.NONE),
            ("Reserved", _times(stats.reserves)),
            ("Timed out", _times(stats.timeouts)),
            ("Released", _times(stats.releases)),
            ("Buried", _times(stats.buries)),
            ("Kicked", _times(stats.kicks)),
            ("Binlog file", text.number(stats.file) if stats.file else text.NONE),
        ],
    )


def reservation(job: Job) -> str:
    """What tells the reservation of *job* that goes on from all others of it; empty if there is none."""
    return str(job.reserves) if job.state == RESERVED else ""


def _pause_left(stats: TubeStats) -> str:
    return text.duration(stats.pause_time_left) if stats.pause else ""


def _state_time(job: Job, stats: JobStats, events: list[job_history.Event], now: int) -> tuple[str, str, str]:
    """The figure that tells how long *job* is in its state, or will be."""
    if job.state == READY:
        return "Ready for", _since(job.ready_since, now), f"ttr {text.duration(stats.ttr)}"
    if job.state == DELAYED:
        return "Ready in", text.duration(stats.time_left), ""
    if job.state == RESERVED:
        return "TTR left", text.duration(stats.time_left), f"of {text.duration(stats.ttr)}"
    buried_at = max((event.at for event in events if event.kind == job_history.BURIED), default=None)
    return "Buried for", text.NONE if buried_at is None else _since(buried_at, now), ""


def _since(at: int, now: int) -> str:
    return text.duration(max(0, now - at) // SECOND)


def _held(broker: Broker, job: Job, stats: JobStats, now: int) -> Held | None:
    client = job.holder
    if client is None:
        return None
    return Held(
        by=parties(broker, {client.number})[client.number],
        since=_since(job.reserved_at, now),
        time_left=text.duration(stats.time_left),
        jobs=text.counted(len(client.reserved), "job"),
        watches=tube_names(client),
        uses=client.used.name.decode(),
    )


def events_of(job: Job) -> list[job_history.Event]:
    """The events of *job*, oldest first, with the reservation that goes on."""
    events = job_history.unpack(job.events)
    if job.holder is not None:
        events.append(job_history.Event(job.reserved_at, job_history.RESERVED, job.holder.number))
    # A reservation is noted when it ends, with the time it began; what was done to the job meanwhile stands before.
    return sorted(events, key=lambda event: event.at)


def _last_held(job: Job, events: list[job_history.Event], known: dict[int, Party]) -> Party | None:
    if job.holder is not None:
        return None
    return next((known[event.client] for event in reversed(events) if event.kind == job_history.RESERVED), None)


def _moments(job: Job, events: list[job_history.Event], known: dict[int, Party], now: int) -> list[Moment]:
    put = _moment(job.created_at, "Put", "", None, "", now)
    return [put, *[_event_moment(event, known, now) for event in events]]


def _event_moment(event: job_history.Event, known: dict[int, Party], now: int) -> Moment:
    what, state = EVENTS[event.kind]
    if event.client != job_history.NOBODY:
        return _moment(event.at, what, state, known[event.client], "", now)
    return _moment(event.at, what, state, None, "from the dashboard" if event.kind in BY_HAND else "", now)


def _moment(at: int, what: str, state: str, by: Party | None, note: str, now: int) -> Moment:
    return Moment(text.instant(at), f"{_since(at, now)} ago", what, state, by, note)


def _forgotten(job: Job, events: list[job_history.Event]) -> str:
    """What the counts of *job* tell of and its *events* do not."""
    kept = Counter(event.kind for event in events)
    counted = {
        job_history.RESERVED: job.reserves,
        job_history.TIMED_OUT: job.timeouts,
        job_history.RELEASED: job.releases,
        job_history.BURIED: job.buries,
        job_history.KICKED: job.kicks,
    }
    return ", ".join(
        f"{job_history.KINDS[kind]} {_times(number - kept[kind])}"
        for kind, number in counted.items()
        if number > kept[kind]
    )


def _times(number: int) -> str:
    return "never" if number == 0 else "once" if number == 1 else f"{text.number(number)} times"
