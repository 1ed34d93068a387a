"""The texts of the tube page and the job page, except job lists and bodies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job_attributes import DeadLetter
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import DELAYED, READY, RESERVED, SECOND, STATE_NAMES, URGENT_BELOW, Job
from greenstalk_server.core.timers import NEVER
from greenstalk_server.core.travel import Travel, is_moving
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.protocol.stats import JobStats, TubeStats, job_stats, tube_stats
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.fields import STATES
from greenstalk_server.web.reads.connections import ActorRef, resolve_actors, tube_names, visible_jobs
from greenstalk_server.web.reads.jobs.events import events_of
from greenstalk_server.web.reads.jobs.job_list import REASON_TEXTS, attempts_text, count_jobs
from greenstalk_server.web.reads.jobs.moving import moving_since, target_of
from greenstalk_server.web.reads.jobs.tags_text import hold_reason, is_awaiting, tag_entries
from greenstalk_server.web.reads.policies import expires_at

EVENTS: Final[dict[int, tuple[str, str]]] = {
    job_history.RESERVED: ("Reserved", "reserved"),
    job_history.RELEASED: ("Released", "ready"),
    job_history.BURIED: ("Buried", "buried"),
    job_history.KICKED: ("Kicked", "ready"),
    job_history.TIMED_OUT: ("Timed out while held", "ready"),
    job_history.RETURNED: ("Returned on disconnect", "ready"),
    job_history.EDITED: ("Edited", ""),
    job_history.MOVED: ("Moved to another tube", ""),
    job_history.DEAD_LETTERED: ("Moved to a dead-letter tube", "ready"),
    job_history.REDRIVEN: ("Moved back from a dead-letter tube", "ready"),
    job_history.UNBLOCKED: ("No longer waits for its group", "ready"),
}
"""The label of each kind of event, and the state that it led to, if any."""

UNNAMED_ORIGINS: Final[Mapping[int, str]] = {
    job_history.RELEASED: "from the dashboard",
    job_history.BURIED: "from the dashboard",
    job_history.EDITED: "from the dashboard",
    job_history.MOVED: "from the dashboard",
    job_history.DEAD_LETTERED: "by a policy",
    job_history.REDRIVEN: "by an admin",
    job_history.UNBLOCKED: "the group that it waited for has no jobs left",
}
"""The origin of the kinds of events that name no client."""


@dataclass(frozen=True, slots=True)
class Tab:
    """A state of a tube's jobs: its name, the number of jobs, and a note."""

    state: str
    count: str
    note: str


@dataclass(frozen=True, slots=True)
class TubeDetails:
    """A tube. *pause_left* is empty unless it is paused; *is_idle*: it has ready jobs, but no client watches it."""

    name: str
    tabs: list[Tab]
    pause_left: str
    is_idle: bool
    entries: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Holder:
    """The client that holds a job."""

    by: ActorRef
    since: str
    time_left: str
    jobs: str
    watches: str
    uses: str


@dataclass(frozen=True, slots=True)
class HistoryItem:
    """An event of a job. *by* is None if no connection caused it; *note* is any other information about its origin."""

    at: Markup
    ago: str
    what: str
    state: str
    by: ActorRef | None
    note: str


@dataclass(frozen=True, slots=True)
class DeadLetterDetails:
    """The origin of a dead letter: tube, reason, attempts, and the times of its first and last move.

    source          empty if the principal may not see the tube.
    can_redrive     the principal may move the job back to *source*.
    """

    source: str
    can_redrive: bool
    entries: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job.

    held            its holder, or None.
    moving          the tube and the shard to which it is moving; empty if it is not moving.
    last_held       the last holder if no client holds the job now; None if one does, or if the last one is unknown.
    reservation     identifies the current reservation, which a forced change must confirm. Empty if not reserved.
    history         its events, from the put to now.
    forgotten       the events that its counters count but *history* lacks, in words; empty if there are none.
    kept_events     maximum number of events that are kept for a job; the oldest are dropped.
    was_held        it has been reserved at least once.
    size            bytes of its body.
    edited          identifies its last edit, so that a live page notices a new one.
    dead_letter     None if it is not a dead letter.
    """

    id: str
    tube: str
    state: str
    held: Holder | None
    moving: str
    last_held: ActorRef | None
    reservation: str
    history: list[HistoryItem]
    forgotten: str
    kept_events: int
    was_held: bool
    size: int
    edited: str
    dead_letter: DeadLetterDetails | None
    figures: list[tuple[str, str, str]]
    entries: list[tuple[str, str]]


def tube_details(tube: Tube, now: int) -> TubeDetails:
    """Return the details of *tube*."""
    stats = tube_stats(tube, now)
    urgent = f"{text.number(stats.current_jobs_urgent)} urgent" if stats.current_jobs_urgent else ""
    return TubeDetails(
        name=stats.name,
        tabs=[
            Tab(STATE_NAMES[state], text.number(count_jobs(tube, state)), urgent if at == 0 else "")
            for at, state in enumerate(STATES)
        ],
        pause_left=_pause_left(stats),
        is_idle=bool(stats.current_jobs_ready and not stats.current_watching),
        entries=[
            ("Connections that watch it", text.number(stats.current_watching)),
            ("Workers waiting for a job", text.number(stats.current_waiting)),
            ("Connections that use it", text.number(stats.current_using)),
            ("Jobs put", text.number(stats.total_jobs)),
            ("Jobs deleted", text.number(stats.cmd_delete)),
            ("Urgent jobs", text.number(stats.current_jobs_urgent)),
            ("Pauses and resumes", text.number(stats.cmd_pause_tube)),
            ("Pause", text.duration(stats.pause) if stats.pause else text.NONE),
        ],
    )


def job_details(broker: Broker, job: Job, now: int) -> JobDetails:
    """Return the details of *job*."""
    stats = job_stats(job, now)
    events = events_of(job)
    known = resolve_actors(broker, {event.client for event in events})
    held = _held(broker, job, stats, now)
    return JobDetails(
        id=str(stats.id),
        tube=stats.tube,
        state=stats.state,
        held=held,
        moving=_moving(broker, job),
        last_held=_last_held(job, events, known),
        reservation=reservation(job),
        history=_history(job, events, known, now),
        forgotten=_forgotten(job, events),
        kept_events=job_history.MAX_EVENTS,
        was_held=job.reserves > 0,
        size=job.size,
        edited=str(max((event.at for event in events if event.kind == job_history.EDITED), default=0)),
        dead_letter=_dead_letter(job, now),
        figures=[
            ("Priority", str(stats.pri), "urgent" if stats.pri < URGENT_BELOW else ""),
            ("Age", text.duration(stats.age), ""),
            _state_time(job, stats, events, now),
            ("Reserves", text.number(stats.reserves), f"{text.number(stats.timeouts)} timed out"),
            ("Body", text.number(job.size), "byte" if job.size == 1 else "bytes"),
        ],
        entries=[
            ("Put at", text.time_tag(job.created_at)),
            ("TTR", text.duration(stats.ttr)),
            *([("TTR left", text.duration(stats.time_left))] if held is not None else []),
            *([("Delay", text.duration(stats.delay))] if stats.delay else []),
            *(
                [("Delay left", text.duration(stats.time_left))]
                if job.state == DELAYED and not is_awaiting(job)
                else []
            ),
            *_policy_entries(job, now),
            *tag_entries(job),
            ("Reserved", _times(stats.reserves)),
            ("Timed out", _times(stats.timeouts)),
            ("Released", _times(stats.releases)),
            ("Buried", _times(stats.buries)),
            ("Kicked", _times(stats.kicks)),
            ("Journal file", text.number(stats.file) if stats.file else text.NONE),
        ],
    )


def reservation(job: Job) -> str:
    """Return a token that identifies the current reservation of *job*; empty if *job* is not reserved."""
    return str(job.reserves) if job.state == RESERVED else ""


def _pause_left(stats: TubeStats) -> str:
    return text.duration(stats.pause_time_left) if stats.pause else ""


def _state_time(job: Job, stats: JobStats, events: list[job_history.Event], now: int) -> tuple[str, str, str]:
    """Return the figure for the time that *job* has spent in its state, or will still spend in it."""
    if job.state == READY:
        note = hold_reason(job) or f"ttr {text.duration(stats.ttr)}"
        return "Ready for", _since(job.ready_since, now), note
    if is_awaiting(job):
        return "Held back", text.NONE, hold_reason(job)
    if job.state == DELAYED:
        return "Ready in", text.duration(stats.time_left), ""
    if is_moving(job.travel):
        return "Moving for", _since(moving_since(job), now), ""
    if job.state == RESERVED:
        return "TTR left", text.duration(stats.time_left), f"of {text.duration(stats.ttr)}"
    buried_at = max((event.at for event in events if event.kind == job_history.BURIED), default=None)
    return "Buried for", text.NONE if buried_at is None else _since(buried_at, now), ""


def _since(at: int, now: int) -> str:
    return text.duration(max(0, now - at) // SECOND)


def _at_and_ago(at: int, now: int) -> Markup:
    return Markup("{}, {} ago").format(text.time_tag(at), _since(at, now))


def _held(broker: Broker, job: Job, stats: JobStats, now: int) -> Holder | None:
    client = job.holder
    if client is None or is_moving(job.travel):
        return None
    return Holder(
        by=resolve_actors(broker, {client.number})[client.number],
        since=_since(job.reserved_at, now),
        time_left=text.duration(stats.time_left),
        jobs=text.counted(len(visible_jobs(client)), "job"),
        watches=tube_names(client) or text.NONE,
        uses=principal().name_of(client.used.name),
    )


def _moving(broker: Broker, job: Job) -> str:
    if not is_moving(job.travel):
        return ""
    shard = broker.tube_shards.shard_of(Travel.unpack(job.travel).target)
    return f"{target_of(job)} (shard {shard})"


def _last_held(job: Job, events: list[job_history.Event], known: dict[int, ActorRef]) -> ActorRef | None:
    if job.holder is not None and not is_moving(job.travel):
        return None
    return next((known[event.client] for event in reversed(events) if event.kind == job_history.RESERVED), None)


def _dead_letter(job: Job, now: int) -> DeadLetterDetails | None:
    if not job.dead_letter:
        return None
    found = DeadLetter.unpack(job.dead_letter)
    return DeadLetterDetails(
        source=found.source.decode() if principal().sees(found.source) else "",
        can_redrive=principal().operates(found.source) and principal().operates(job.tube.name),
        entries=[
            ("Reason", REASON_TEXTS[found.reason]),
            ("Attempts there", text.number(found.attempts)),
            ("First", _at_and_ago(found.first_at, now)),
            ("Last", _at_and_ago(found.last_at, now)),
        ],
    )


def _policy_entries(job: Job, now: int) -> list[tuple[str, str]]:
    """Return the entries of *job* that apply only under the policy of its tube."""
    policy_state, at = job.tube.policy_state, expires_at(job)
    found = [("Attempts", attempts_text(job))] if policy_state is not None and policy_state.policy.max_attempts else []
    if at == NEVER:
        return found
    if job.state == RESERVED:
        expiry = Markup("{}, or when its reservation ends after that").format(text.time_tag(at))
    else:
        expiry = Markup("{}, in {}").format(text.time_tag(at), text.duration(max(0, at - now) // SECOND))
    return [*found, ("Expires", expiry)]


def _history(job: Job, events: list[job_history.Event], known: dict[int, ActorRef], now: int) -> list[HistoryItem]:
    put = _history_item(job.created_at, "Put", "", None, "", now)
    return [put, *[_event_item(event, known, job, now) for event in events]]


def _event_item(event: job_history.Event, known: dict[int, ActorRef], job: Job, now: int) -> HistoryItem:
    what, state = EVENTS[event.kind]
    if event.client != job_history.NOBODY:
        return _history_item(event.at, what, state, known[event.client], "", now)
    origin = UNNAMED_ORIGINS.get(event.kind, "")
    if event.kind == job_history.BURIED and job.tube.policy_state is not None:
        origin = "from the dashboard, or by a policy"
    return _history_item(event.at, what, state, None, origin, now)


def _history_item(at: int, what: str, state: str, by: ActorRef | None, note: str, now: int) -> HistoryItem:
    return HistoryItem(text.time_tag(at), f"{_since(at, now)} ago", what, state, by, note)


def _forgotten(job: Job, events: list[job_history.Event]) -> str:
    """Return the events that the counters of *job* count but *events* lacks, in words."""
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
