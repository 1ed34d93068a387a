"""Lists of a tube's jobs in one state, page by page, in an order.

The default order is the order in which jobs leave the state, or, for buried jobs, the newest burial first. The tube has
an index with this order. Iteration stops when the page is full, so the first page costs the same for a million jobs as
for a hundred. A later page begins after the sort key of the last job of the previous page, even if that job has moved
or is gone. Only the first MAX_LISTED jobs are listed, since each iteration starts at the first job. Any other order
needs all jobs, so this module provides it for at most MAX_LISTED jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from operator import gt, lt
from typing import Final, Literal

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job_attributes import DeadLetter, DeadLetterReason
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, STATE_NAMES, Job
from greenstalk_server.core.policies.tube_policy_state import buried_at
from greenstalk_server.core.tags.tags import TaggedJob
from greenstalk_server.core.timers import NEVER
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.protocol.stats import JobStats, job_stats
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.sorting import Head, Heads, Order
from greenstalk_server.web.reads.jobs.bodies import ON_DISK
from greenstalk_server.web.reads.jobs.body_format import row_preview
from greenstalk_server.web.reads.jobs.frameworks import class_of
from greenstalk_server.web.reads.jobs.job_errors import error_text
from greenstalk_server.web.reads.jobs.job_orders import (
    DEFAULT_ORDERS,
    ORDERS,
    is_indexed,
    job_key,
    order_text,
    sorted_jobs,
)
from greenstalk_server.web.reads.jobs.json_fields import MAX_SUGGESTED, Path, field_paths, field_text, parse_body
from greenstalk_server.web.reads.jobs.moving import holders, target_of
from greenstalk_server.web.reads.jobs.tags_text import hold_reason, is_awaiting, key_words
from greenstalk_server.web.reads.policies import expires_at

PAGE_SIZE: Final = 100
"""Jobs per page: about 4 ms of rendering."""

MAX_LISTED: Final = 1000
"""Maximum jobs listed per state, over all pages."""

CLASSES_FROM: Final = 5
"""Number of first jobs of a list that are searched for a class; each takes at most 5 ms, and 50 µs usually."""

SUGGESTED_FROM: Final = 20
"""Maximum jobs of a list whose fields are suggested as columns; takes about 0.5 ms for bodies of usual JSON."""

MAX_SCANNED: Final = 20_000
"""Maximum clients and held jobs scanned to find the reserved jobs of a tube; takes about 2 ms."""


@dataclass(frozen=True, slots=True)
class JobColumn:
    """A column of a list of jobs, after the column of ids.

    key             its CSS classes.
    text            returns the text of a cell at a time in nanoseconds.
    is_long         a cell may be cut at its end, so it shows its whole text on hover.
    order           the order of the list that the column shows, a key of ORDERS; empty if it has none.
    """

    label: str
    key: str
    help: str
    text: Callable[[JobStats, Job, int], str]
    is_long: bool = False
    order: str = ""


DEAD_LETTERS: Final = "dead-letters"
ATTEMPTS: Final = "attempts"
EXPIRY: Final = "expiry"
TAGS: Final = "tags"
CLASS: Final = "class"
"""Names of groups of columns that a list has only if they apply under the policy of its tube, or to its first jobs."""


PRI: Final = JobColumn(
    "Priority", "pri", "Jobs with the smallest value are reserved first", lambda stats, *_: str(stats.pri), order="pri"
)
AGE: Final = JobColumn(
    "Age", "age", "Time since the job was put", lambda stats, *_: text.duration(stats.age), order="age"
)
_TTR: Final = JobColumn(
    "TTR", "ttr", "Time to run: how long a worker may hold the job", lambda stats, *_: text.duration(stats.ttr),
    order="ttr",
)  # fmt: skip
RESERVES: Final = JobColumn(
    "Reserves", "reserves", "Number of times that the job was reserved", lambda stats, *_: text.number(stats.reserves),
    order="reserves",
)  # fmt: skip
SIZE: Final = JobColumn("Bytes", "size", "Size of the body", lambda _, job, now: text.number(job.size), order="size")
_BODY: Final = JobColumn(
    "Body", "body", "The first bytes of the body", lambda _, job, now: body_preview(job), is_long=True
)
_ERROR: Final = JobColumn(
    "Error or body", "body error", "The error in the body; the first bytes of the body if it has none",
    lambda _, job, now: error_preview(job), is_long=True,
)  # fmt: skip
_HOLDER: Final = JobColumn("Held by", "holder", "The client that reserved the job", lambda _, job, now: _holder(job))
_TIMEOUTS: Final = JobColumn(
    "Timeouts", "timeouts", "How often a reservation timed out", lambda stats, *_: text.number(stats.timeouts),
    order="timeouts",
)  # fmt: skip
_BURIED: Final = JobColumn(
    "Buried", "buried", "Time since the job was buried, or moved to this tube while buried",
    lambda _, job, now: text.duration(max(0, now - buried_at(job)) // SECOND), order="buried",
)  # fmt: skip
_READY_IN: Final = JobColumn(
    "Ready in",
    "left",
    "Time until the delay ends",
    lambda stats, job, now: text.NONE if is_awaiting(job) else text.duration(stats.time_left),
    order="time_left",
)
_TTR_LEFT: Final = JobColumn(
    "TTR left",
    "left",
    "Time until the reservation times out and the job is ready again",
    lambda stats, *_: text.duration(stats.time_left),
    order="time_left",
)
_ATTEMPTS: Final = JobColumn(
    "Attempts",
    "attempts",
    "Reservations since the put, the last kick or the last redrive, and the maximum of the tube's policy",
    lambda _, job, now: attempts_text(job),
    order="attempts",
)
_EXPIRES: Final = JobColumn(
    "Expires in", "expires", "Time until the tube's policy removes the job", lambda _, job, now: _expires_in(job, now),
    order="expires_at",
)  # fmt: skip
_KEYS: Final = JobColumn(
    "Keys", "tag-words", "The idempotency key, group, awaited group and concurrency key of the put",
    lambda _, job, now: key_words(job) or text.NONE,
)  # fmt: skip
_HELD_BACK: Final = JobColumn(
    "Held back", "held-back", "The reason why no worker can reserve the job now",
    lambda _, job, now: hold_reason(job) or text.NONE,
)  # fmt: skip
CLASS_COLUMN: Final = JobColumn(
    "Class", "class-name", "The class of the job or the name of the task, if a known framework has put the job",
    lambda _, job, now: class_cell(job), is_long=True,
)  # fmt: skip
_DEAD_LETTER: Final = (
    JobColumn(
        "From", "source", "The tube that the job came from",
        lambda _, job, now: _of(job, lambda d: principal().name_of(d.source)),
    ),
    JobColumn(
        "Reason", "reason", "The reason for the move", lambda _, job, now: _of(job, lambda d: REASON_TEXTS[d.reason])
    ),
    JobColumn(
        "Attempts", "attempts", "Attempts in that tube",
        lambda _, job, now: _of(job, lambda d: text.number(d.attempts)), order="dead_letter.attempts",
    ),
    JobColumn(
        "First", "first", "Time since it first became a dead letter",
        lambda _, job, now: _of(job, lambda d: _ago(d.first_at, now)), order="dead_letter.first_at",
    ),
    JobColumn(
        "Last", "last", "Time since it last became a dead letter",
        lambda _, job, now: _of(job, lambda d: _ago(d.last_at, now)), order="dead_letter.last_at",
    ),
)  # fmt: skip

Reason = Literal["attempts", "expired", "buried-expired", "overflow"]

REASONS: Final[Mapping[int, Reason]] = {
    DeadLetterReason.ATTEMPTS: "attempts",
    DeadLetterReason.EXPIRED: "expired",
    DeadLetterReason.BURIED_EXPIRED: "buried-expired",
    DeadLetterReason.OVERFLOW: "overflow",
}
"""The reasons why jobs become dead letters, as the protocol and the query language name them."""

REASON_TEXTS: Final[Mapping[int, str]] = {
    DeadLetterReason.ATTEMPTS: "out of attempts",
    DeadLetterReason.EXPIRED: "expired",
    DeadLetterReason.BURIED_EXPIRED: "expired while buried",
    DeadLetterReason.OVERFLOW: "pushed out of a full tube",
}
"""The reasons why jobs become dead letters, as text for people."""

JOB_COLUMNS: Final[Mapping[int, tuple[JobColumn, ...]]] = {
    READY: (PRI, AGE, _TTR, RESERVES, SIZE),
    RESERVED: (_TTR_LEFT, _HOLDER, PRI, AGE, RESERVES, SIZE),
    DELAYED: (_READY_IN, PRI, AGE, RESERVES, SIZE),
    BURIED: (_BURIED, PRI, AGE, RESERVES, _TIMEOUTS, SIZE),
}
"""Columns by state, without those that the body adds."""


@dataclass(frozen=True, slots=True)
class JobList:
    """A page of jobs.

    state           the protocol's name of the state.
    rows            a row per job: the id, then the columns in order.
    summary         the range of jobs shown, the total, and the order.
    following       the value of the request field `after` for the next page; empty on the last page.
    is_first        the page begins with the first job.
    is_truncated    this is the last page, and some jobs in this state are on no page.
    is_complete     every job in this state was examined for the list.
    """

    state: str
    rows: list[list[str]]
    summary: str
    following: str
    is_first: bool
    is_truncated: bool
    is_complete: bool = True


def column_groups(broker: Broker, tube: Tube, state: int, order: Order, is_dead_letter: bool) -> tuple[str, ...]:
    """Return the groups of columns of the list of *tube* in *state* that policies, or its first jobs, add."""
    policy = tube.policy_state.policy if tube.policy_state is not None else None
    groups = [DEAD_LETTERS] if is_dead_letter else []
    if policy is not None:
        expires = {READY: policy.expire_after, DELAYED: policy.expire_after, BURIED: policy.buried_expire_after}
        groups += [ATTEMPTS] if policy.max_attempts and not is_dead_letter else []
        groups += [EXPIRY] if expires.get(state) else []
    if any(isinstance(job, TaggedJob) for job in islice(indexed_jobs(broker, tube, state, order), PAGE_SIZE)):
        groups.append(TAGS)
    if has_classes(indexed_jobs(broker, tube, state, order)):
        groups.append(CLASS)
    return tuple(groups)


def job_columns(
    state: int, sees_bodies: bool, groups: Collection[str] = (), paths: Iterable[Path] = ()
) -> tuple[JobColumn, ...]:
    """Return the columns of a list of jobs in *state*, with the body if the principal *sees_bodies*.

    *groups* names the columns that policies, tags and classes add. For dead letters, the attempts in their former tube
    replace the counts of this tube. For buried jobs and dead letters, the error replaces the body. *paths* names the
    fields of the body that are columns too.
    """
    columns = list(JOB_COLUMNS[state])
    if ATTEMPTS in groups:
        columns[columns.index(RESERVES)] = _ATTEMPTS
    if DEAD_LETTERS in groups:
        columns = [column for column in columns if column not in (AGE, _TTR, RESERVES, _TIMEOUTS)]
        columns[:0] = _DEAD_LETTER
    if EXPIRY in groups:
        columns.insert(columns.index(SIZE), _EXPIRES)
    if TAGS in groups:
        at = columns.index(SIZE)
        columns[at:at] = (_KEYS, _HELD_BACK) if state in (READY, DELAYED) else (_KEYS,)
    if sees_bodies:
        columns += [CLASS_COLUMN] if CLASS in groups else []
        columns += [field_column(path) for path in paths]
        columns.append(_ERROR if state == BURIED or DEAD_LETTERS in groups else _BODY)
    return tuple(columns)


def job_heads(heads: Heads, columns: Iterable[JobColumn]) -> list[Head]:
    """Return the column headings of a table of jobs: the id, then *columns*."""
    shown = [("id", "Id", "The number of the job, in the order of the puts", "id")]
    shown += [(column.key, column.label, column.help, column.order) for column in columns]
    return [
        heads.head(css, label, help, order, descends_first=bool(order) and ORDERS[order].descends_first)
        for css, label, help, order in shown
    ]


def field_column(path: Path) -> JobColumn:
    """Return the column of the field of the body at *path*."""
    name = ".".join(path)
    help_text = f"The field {name} of the body"
    return JobColumn(name, "json", help_text, lambda _, job, now: field_cell(job, path), is_long=True)


def indexed_jobs(broker: Broker, tube: Tube, state: int, order: Order) -> Iterable[Job]:
    """Return an iterable of the tube's jobs in *state*: in *order* if `is_indexed`, else as `jobs_in_order` does."""
    is_newest_first = state == BURIED and order == DEFAULT_ORDERS[BURIED]
    return reversed(tube.buried.values()) if is_newest_first else jobs_in_order(broker, tube, state)


def jobs_in_order(broker: Broker, tube: Tube, state: int) -> Iterable[Job]:
    """Return an iterable of the tube's jobs in *state*, in the order in which they leave it.

    For RESERVED, it has at most MAX_LISTED + 1 jobs. It may miss some if the server has more than MAX_SCANNED clients
    and held jobs.
    """
    return _reserved(broker, tube) if state == RESERVED else tube.walk(state)


def has_classes(jobs: Iterable[Job]) -> bool:
    """Return whether one of the first *jobs* has a class that the principal may see."""
    return principal().sees_bodies and any(
        class_of(job.body) for job in islice(jobs, CLASSES_FROM) if job.body is not None
    )


def body_preview(job: Job) -> str:
    """Return the beginning of the body of *job* on one line. A list reads no body back from the disk."""
    return ON_DISK if job.body is None else row_preview(job.body)


def error_preview(job: Job) -> str:
    """Return the error in the body of *job*, or the beginning of the body if there is none."""
    return ON_DISK if job.body is None else text.spelled(error_text(job.body)) or row_preview(job.body)


def class_cell(job: Job) -> str:
    """Return the class of the framework's message in the body of *job* as text for a cell."""
    return ON_DISK if job.body is None else text.spelled(class_of(job.body)) or text.NONE


def field_cell(job: Job, path: Path) -> str:
    """Return the field of the body of *job* at *path* as text for a cell."""
    if job.body is None:
        return ON_DISK
    found = field_text(parse_body(job.body), path)
    return text.NONE if found is None else text.spelled(found)


def suggested_paths(broker: Broker, ids: Iterable[int]) -> list[str]:
    """Return paths of the fields in the bodies of the first jobs *ids*; none if the principal may not see bodies.

    May switch.
    """
    pace, found = Pace(), dict[str, None]()
    if not principal().sees_bodies:
        return []
    for id in islice(ids, SUGGESTED_FROM):
        pace.yield_if_due()
        job = broker.jobs.get(id)
        if job is not None and job.body is not None:
            found.update(dict.fromkeys(field_paths(parse_body(job.body))))
    return list(found)[:MAX_SUGGESTED]


def job_row(job: Job, columns: Iterable[JobColumn], now: int, pace: Pace) -> list[str]:
    """Return the row of *job*: the id, then the *columns*. May switch."""
    stats, row = job_stats(job, now), [str(job.id)]
    for column in columns:
        row.append(column.text(stats, job, now))
        pace.yield_if_due()  # a field of a body may take several ms
    return row


def job_rows(jobs: Iterable[Job], columns: Iterable[JobColumn], now: int) -> list[list[str]]:
    """Return a row for each of *jobs*. May switch."""
    pace = Pace()
    return [job_row(job, columns, now, pace) for job in jobs]


def list_jobs(
    broker: Broker,
    tube: Tube,
    state: int,
    order: Order,
    after: tuple[int, int] | None,
    now: int,
    columns: Iterable[JobColumn],
) -> JobList:
    """Return the page of the tube's jobs in *state* that begins after the sort key *after* in *order*. May switch.

    If the tube has no index for the order, only the first MAX_LISTED jobs are sorted.
    """
    present, key = count_jobs(tube, state), job_key(order)
    if is_indexed(order, state):
        most = PAGE_SIZE + 1 if after is None else MAX_LISTED + 1
        listed = list(islice(indexed_jobs(broker, tube, state, order), most))
    else:
        listed = sorted_jobs(islice(jobs_in_order(broker, tube, state), MAX_LISTED), order)
    begin = 0
    if after is not None:
        is_after = gt if not order.is_descending else lt
        begin = next((at for at, job in enumerate(listed) if is_after(key(job), after)), len(listed))
    page = listed[begin : min(begin + PAGE_SIZE, MAX_LISTED)]
    end = begin + len(page)
    is_last = end >= min(len(listed), MAX_LISTED)
    return JobList(
        state=STATE_NAMES[state],
        rows=job_rows(page, columns, now),
        summary=list_summary(begin, end, present, order_text(order, state)) if page else "",
        following="" if is_last or not page else "{}-{}".format(*key(page[-1])),
        is_first=after is None,
        is_truncated=is_last and present > end > 0,
    )


def count_jobs(tube: Tube, state: int) -> int:
    """Return how many jobs of *tube* are in *state*."""
    if state == RESERVED:
        return tube.reserved_count
    return tube.ready.count if state == READY else tube.delayed.count if state == DELAYED else len(tube.buried)


def sort_key(job: Job, state: int) -> tuple[int, int]:
    """Return the sort key of *job* among the jobs in *state*, which must be its current state."""
    return job.pri if state == READY else job.deadline, job.id


def _reserved(broker: Broker, tube: Tube) -> list[Job]:
    """Return the reserved jobs of *tube* that time out first, among those found by a bounded scan of clients."""
    found: list[Job] = []
    left = MAX_SCANNED
    for client in holders(broker):
        if left <= 0 or len(found) >= tube.reserved_count:
            break
        found += [job for job in islice(client.reserved.values(), left) if job.tube is tube]
        left -= 1 + len(client.reserved)
    return nsmallest(MAX_LISTED + 1, found, key=lambda job: (job.deadline, job.id))


def attempts_text(job: Job) -> str:
    """Return the attempts of *job*, the current one included, and their maximum: `2 of 5`."""
    most = job.tube.policy_state.policy.max_attempts if job.tube.policy_state is not None else 0
    attempts = text.number(job.attempts)
    return f"{attempts} of {text.number(most)}" if most else attempts


def _of(job: Job, part: Callable[[DeadLetter], str]) -> str:
    return part(DeadLetter.unpack(job.dead_letter)) if job.dead_letter else text.NONE


def _ago(at: int, now: int) -> str:
    return f"{text.duration(max(0, now - at) // SECOND)} ago"


def _expires_in(job: Job, now: int) -> str:
    at = expires_at(job)
    return text.NONE if at == NEVER else text.duration(max(0, at - now) // SECOND)


def _holder(job: Job) -> str:
    if target := target_of(job):
        return f"moving to {target}"
    return (job.holder.address or f"connection {job.holder.number}") if job.holder is not None else text.NONE


def list_summary(begin: int, end: int, present: int, order: str) -> str:
    """Return which of the *present* jobs a page shows, and their *order*: `first 100 of 4,031, newest first`."""
    if begin:
        which = f"{text.number(begin + 1)} to {text.number(end)} of {text.number(present)}"
    elif end < present:
        which = f"first {end} of {text.number(present)}"
    else:
        which = text.counted(present, "job")
    return f"{which}, {order}"
