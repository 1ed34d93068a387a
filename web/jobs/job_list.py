"""Lists of a tube's jobs: a page of those in one state, in the order that matters for it.

A page is found by a walk that stops when it is full, so the first of a million costs what the first of a hundred
does. A later page begins after the last job of the one before, wherever that is by now; there is none beyond the
first DEEPEST jobs, since the walk has to pass by all before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import BURIED, DELAYED, READY, RESERVED, STATE_NAMES, Job
from greenstalk_server.core.tube import Tube
from greenstalk_server.protocol.stats import JobStats, job_stats
from greenstalk_server.web import text
from greenstalk_server.web.cooperative import Pace
from greenstalk_server.web.jobs.bodies import ON_DISK
from greenstalk_server.web.jobs.body_format import row_preview

PAGE_SIZE: Final = 100
"""Jobs on a page, about 4 ms."""

MAX_LISTED: Final = 1000
"""Jobs that are listed of one state, on all pages together."""

MAX_SCANNED: Final = 20_000
"""Clients and jobs that they hold looked at for the reserved jobs of a tube, about 2 ms."""


@dataclass(frozen=True, slots=True)
class JobColumn:
    """One column of a list, after the id; *key* is its name in styles."""

    label: str
    key: str
    help: str
    text: Callable[[JobStats, Job], str]


_PRI: Final = JobColumn("Priority", "pri", "The smallest is reserved first", lambda stats, _: str(stats.pri))
_AGE: Final = JobColumn("Age", "age", "Since it was put", lambda stats, _: text.duration(stats.age))
_TTR: Final = JobColumn("TTR", "ttr", "Time a worker has for it", lambda stats, _: text.duration(stats.ttr))
_RESERVES: Final = JobColumn(
    "Reserves", "reserves", "How often a worker took it", lambda stats, _: text.number(stats.reserves)
)
_SIZE: Final = JobColumn("Bytes", "size", "Size of the body", lambda _, job: text.number(job.size))
_BODY: Final = JobColumn("Body", "body", "How the body begins", lambda _, job: body_preview(job))
_HOLDER: Final = JobColumn("Held by", "holder", "The client that reserved it", lambda _, job: _holder(job))
_TIMEOUTS: Final = JobColumn(
    "Timeouts", "timeouts", "How often a worker's time ran out", lambda stats, _: text.number(stats.timeouts)
)
_READY_IN: Final = JobColumn(
    "Ready in", "left", "Until its delay ends", lambda stats, _: text.duration(stats.time_left)
)
_TTR_LEFT: Final = JobColumn(
    "TTR left", "left", "Until it turns ready again", lambda stats, _: text.duration(stats.time_left)
)

JOB_COLUMNS: Final = {
    READY: (_PRI, _AGE, _TTR, _RESERVES, _SIZE, _BODY),
    RESERVED: (_TTR_LEFT, _HOLDER, _PRI, _AGE, _RESERVES, _SIZE, _BODY),
    DELAYED: (_READY_IN, _PRI, _AGE, _RESERVES, _SIZE, _BODY),
    BURIED: (_PRI, _AGE, _RESERVES, _TIMEOUTS, _SIZE, _BODY),
}

_ORDER: Final = {
    READY: "in the order they will be reserved",
    RESERVED: "the next to time out first",
    DELAYED: "the next to turn ready first",
    BURIED: "in the order they were buried",
}


@dataclass(frozen=True, slots=True)
class JobList:
    """A page of jobs.

    state           its name in the protocol.
    rows            a row each: the id, then the columns in order.
    summary         which of how many, in which order.
    following       where the next page begins, as the field `after` has it; empty if there is none.
    is_first        it begins with the first job.
    is_deepest      there are more jobs, which no page shows.
    """

    state: str
    rows: list[list[str]]
    summary: str
    following: str
    is_first: bool
    is_deepest: bool


def job_columns(state: int, sees_bodies: bool) -> tuple[JobColumn, ...]:
    """The columns of a list of jobs in *state*, for who may see their bodies or not."""
    return tuple(column for column in JOB_COLUMNS[state] if sees_bodies or column is not _BODY)


def jobs_in_order(broker: Broker, tube: Tube, state: int) -> Iterable[Job]:
    """The tube's jobs in *state*, lazily, in the order of a list: all of them, or of reserved ones the first."""
    return _reserved(broker, tube) if state == RESERVED else tube.walk(state)


def body_preview(job: Job) -> str:
    """How the body of *job* begins, on one line; a list reads none back."""
    return ON_DISK if job.body is None else row_preview(job.body)


def job_row(job: Job, columns: Iterable[JobColumn], now: int) -> list[str]:
    """The id of *job*, then its *columns*."""
    stats = job_stats(job, now)
    return [str(job.id), *[column.text(stats, job) for column in columns]]


def job_rows(jobs: Iterable[Job], columns: Iterable[JobColumn], now: int) -> list[list[str]]:
    """Return a row for each of *jobs*, with rests between. May switch."""
    pace, rows = Pace(), []
    for job in jobs:
        rows.append(job_row(job, columns, now))
        pace.yield_if_due()
    return rows


def list_jobs(
    broker: Broker, tube: Tube, state: int, after: tuple[int, int] | None, now: int, sees_bodies: bool
) -> JobList:
    """Return the page of the tube's jobs in *state* that begins after the rank and id *after*. May switch."""
    present = count_jobs(tube, state)
    listed = list(islice(jobs_in_order(broker, tube, state), PAGE_SIZE + 1 if after is None else MAX_LISTED + 1))
    begin = 0
    if after is not None:
        begin = next((at for at, job in enumerate(listed) if sort_key(job, state) > after), len(listed))
    page = listed[begin : min(begin + PAGE_SIZE, MAX_LISTED)]
    end = begin + len(page)
    columns = job_columns(state, sees_bodies)
    is_last = end >= min(len(listed), MAX_LISTED)
    return JobList(
        state=STATE_NAMES[state],
        rows=job_rows(page, columns, now),
        summary=_summary(begin, end, present, state) if page else "",
        following="" if is_last or not page else "{}-{}".format(*sort_key(page[-1], state)),
        is_first=after is None,
        is_deepest=is_last and present > end > 0,
    )


def count_jobs(tube: Tube, state: int) -> int:
    """How many jobs of *tube* are in *state*."""
    if state == RESERVED:
        return tube.reserved_count
    return tube.ready.count if state == READY else tube.delayed.count if state == DELAYED else len(tube.buried)


def sort_key(job: Job, state: int) -> tuple[int, int]:
    """By what *job* is ordered in *state*, which is its own."""
    return job.pri if state == READY else job.deadline, job.id


def _reserved(broker: Broker, tube: Tube) -> list[Job]:
    """Return the first reserved jobs of *tube*, of as many as a bounded look at all clients finds."""
    found: list[Job] = []
    left = MAX_SCANNED
    for client in broker.clients:
        if left <= 0 or len(found) >= tube.reserved_count:
            break
        found += [job for job in islice(client.reserved.values(), left) if job.tube is tube]
        left -= 1 + len(client.reserved)
    return nsmallest(MAX_LISTED + 1, found, key=lambda job: (job.deadline, job.id))


def _holder(job: Job) -> str:
    return (job.holder.address or f"connection {job.holder.number}") if job.holder is not None else text.NONE


def _summary(begin: int, end: int, present: int, state: int) -> str:
    if begin:
        which = f"{text.number(begin + 1)} to {text.number(end)} of {text.number(present)}"
    elif end < present:
        which = f"first {end} of {text.number(present)}"
    else:
        which = text.counted(present, "job")
    return f"{which}, {_ORDER[state]}"
