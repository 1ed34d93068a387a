"""Lists of jobs with cursors: every matching job exactly once, even while other jobs change.

A list of one tube in one state begins with up to MAX_LISTED jobs in page order. This is the order on the tube's page,
in which the jobs leave the state (web.reads.jobs.job_list). The other jobs of that list, and all other lists, are
ordered by id, which is the order of the puts. A page that has to scan many jobs ends after SCAN_TIME with
the jobs found so far, and its cursor continues from there. So no request waits long, and no job is skipped.

A list with another order has at most MAX_SORTED jobs: for each page, the server scans all of them for those that follow
the sort key of the cursor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b
from itertools import islice
from math import inf
from typing import Annotated, Final, Generic, NamedTuple, TypeVar

from msgspec import Meta, Struct

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import RESERVED, STATE_NAMES, Job
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.jobs.bodies import iter_with_bodies
from greenstalk_server.web.reads.jobs.job_list import MAX_LISTED, count_jobs, jobs_in_order, sort_key
from greenstalk_server.web.reads.jobs.job_orders import BY_ID, TEXT_ORDERS, FirstJobs, Rank, SortKey
from greenstalk_server.web.reads.jobs.matching import MAX_COLLECTED_IDS, JobMatcher, candidate_ids
from greenstalk_server.web.reads.jobs.query import Query

SCAN_TIME: Final = 0.5
"""Seconds that one page scans for jobs."""

MAX_SORTED: Final = MAX_COLLECTED_IDS
"""Maximum jobs of a list that is not in the order of the ids or of the page; a search sorts longer lists."""

PAGE_BYTES: Final = 1024 * 1024
"""Bytes of bodies after which a page is full."""

OTHER_LIST: Final = "belongs to another list: the other parameters must be the same as in the first request"

Row = TypeVar("Row")


class Position(Struct, array_like=True, kw_only=True):
    """The position of a cursor in a list.

    query_digest    a digest of the query, to recognize cursors of other lists.
    after_id        the last id scanned, in the part of the list ordered by id; None in the part in page order.
    after_key       sort key of the last job in page order; None if there was none.
    """

    query_digest: str
    after_id: Annotated[int, Meta(ge=0)] | None
    after_key: tuple[int, int] | None


class SortedPosition(Struct, array_like=True, kw_only=True, forbid_unknown_fields=True):
    """The position of a cursor in a sorted list: a digest of the query and the order, and the last sort key."""

    query_digest: str
    rank: int | str
    id: Annotated[int, Meta(ge=0)]


class JobPage(Generic[Row]):
    """The rows of a page, until it is full.

    limit           maximum number of rows.
    make_row        returns the row of a job and its body, and the size in bytes of the body in that row.
    max_bytes       sum of these sizes at which the page is full.
    wants_body      whether the row of a job needs its body.
    warning         says which jobs could not be searched completely; empty if there are none.
    """

    def __init__(
        self,
        limit: int,
        make_row: Callable[[Job, bytes | None], tuple[Row, int]],
        wants_body: Callable[[Job], bool],
        max_bytes: int = PAGE_BYTES,
    ) -> None:
        self.wants_body: Callable[[Job], bool] = wants_body
        self.rows: list[Row] = []
        self.warning: str = ""
        self.limit: int = limit
        self._bytes: int = 0
        self._max_bytes: int = max_bytes
        self._make_row: Callable[[Job, bytes | None], tuple[Row, int]] = make_row
        self._pace: Pace = Pace()

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= self.limit or self._bytes >= self._max_bytes

    def add(self, job: Job, body: bytes | None) -> None:
        """Add *job* as it is now. *body* is None if it is not wanted, or lost."""
        row, size = self._make_row(job, body)
        self.rows.append(row)
        self._bytes += size

    def yield_if_due(self) -> None:
        """Yield to the event loop if it is time. May switch."""
        self._pace.yield_if_due()


def begin(query: Query) -> Position:
    """Return the first position of the list of *query*."""
    return Position(query_digest=_digest(query), after_id=None if _has_order(query) else 0, after_key=None)


def refuse_other(position: Position, query: Query) -> None:
    """Refuse the request if *position* does not belong to the list of *query*."""
    if position.query_digest != _digest(query) or (position.after_id is None and not _has_order(query)):
        refuse("cursor", OTHER_LIST)


def fill(broker: Broker, query: Query, position: Position, now: int, rows: JobPage[Row]) -> Position | None:
    """Fill *rows* from *position* on; return the next position, or None at the end of the list. May switch."""
    if position.after_id is not None:
        return _by_id(broker, query, position, now, rows)
    tube = broker.tubes.get(query.tube.encode())
    return None if tube is None or not principal().sees(tube.name) else _in_order(broker, tube, query, position, rows)


def fill_sorted(
    broker: Broker, query: Query, order: Order, position: SortedPosition | None, now: int, rows: JobPage[Row]
) -> SortedPosition | None:
    """Fill *rows* in *order*, after *position*; return the next position, or None at the end. May switch."""
    after = None if position is None else (position.rank, position.id)
    first = first_keys(broker, query, order, after, now, rows.limit + 1)
    refuse_long(first.most)
    rows.warning = first.warning
    keys = {id: rank for rank, id in first.keys}
    last = position
    for id, job, body in JobMatcher(broker, query, now, rows.yield_if_due, rows.wants_body).match(keys):
        if rows.is_full:
            return last
        last = sorted_position(query, order, keys[id], id)
        if job is not None:
            rows.add(job, body)
    return last if len(keys) > rows.limit else None


class FirstKeys(NamedTuple):
    """The sort keys of the first matches in an order; none if there are more than MAX_SORTED candidates.

    most        number of the candidates.
    warning     says which jobs could not be searched completely; empty if there are none.
    """

    keys: list[SortKey]
    most: int
    warning: str = ""


def first_keys(broker: Broker, query: Query, order: Order, after: SortKey | None, now: int, limit: int) -> FirstKeys:
    """Return the first *limit* matches of *query* after the sort key *after*. May switch."""
    most, ids = candidate_ids(broker, query)
    if most > MAX_SORTED:
        return FirstKeys([], most)
    first, pace = FirstJobs(order, limit, after), Pace()
    matcher = JobMatcher(broker, query, now, pace.yield_if_due)
    for _, job, _ in matcher.match(ids):
        if job is not None:
            first.add(job)
    return FirstKeys(first.keys, most, matcher.warning)


def refuse_long(most: int) -> None:
    """Refuse to sort a list of *most* candidates if that is more than MAX_SORTED."""
    if most > MAX_SORTED:
        refuse("sort", f"needs a list of at most {MAX_SORTED:,} jobs; for a longer one, start a search: POST /searches")


def sorted_position(query: Query, order: Order, rank: Rank, id: int) -> SortedPosition:
    """Return the position after the job *id* in the list of *query* in *order*."""
    return SortedPosition(query_digest=_digest(query, order), rank=rank, id=id)


def refuse_other_sorted(position: SortedPosition, query: Query, order: Order) -> None:
    """Refuse the request if *position* does not belong to the list of *query* in *order*."""
    if position.query_digest != _digest(query, order) or isinstance(position.rank, str) != (order.key in TEXT_ORDERS):
        refuse("cursor", OTHER_LIST)


def _in_order(broker: Broker, tube: Tube, query: Query, position: Position, rows: JobPage[Row]) -> Position | None:
    """Fill *rows* in page order. May switch."""
    state = STATE_NAMES.index(query.state)
    listed = [(sort_key(job, state), job) for job in islice(jobs_in_order(broker, tube, state), MAX_LISTED)]
    is_all = len(listed) >= count_jobs(tube, state)
    if state == RESERVED and not is_all:  # the bounded scan may have missed the jobs that time out first
        return Position(query_digest=position.query_digest, after_id=0, after_key=position.after_key)
    after_key = position.after_key
    positions = {job.id: (key, job) for key, job in listed if after_key is None or key > after_key}
    for id, job, body in iter_with_bodies(broker, positions, rows.wants_body, rows.yield_if_due):
        if rows.is_full:
            return Position(query_digest=position.query_digest, after_id=None, after_key=after_key)
        after_key, was = positions[id]
        if job is was and job.state == state:  # the job may have changed since the listing
            rows.add(job, body)
    return None if is_all else Position(query_digest=position.query_digest, after_id=0, after_key=after_key)


def _by_id(broker: Broker, query: Query, position: Position, now: int, rows: JobPage[Row]) -> Position | None:
    """Fill *rows* by id; skip the jobs that were listed in page order. May switch."""
    until, after_id, after_key = inf, position.after_id or 0, position.after_key
    matcher = JobMatcher(broker, query, now, rows.yield_if_due, rows.wants_body)
    try:
        for id, job, body in matcher.match(candidate_ids(broker, query, after_id)[1]):
            if rows.is_full or time.monotonic() > until:
                return Position(query_digest=position.query_digest, after_id=after_id, after_key=after_key)
            if until == inf:  # SCAN_TIME begins at the first job, whose body may have come from a slow disk
                until = time.monotonic() + SCAN_TIME
            if job is not None and (after_key is None or sort_key(job, job.state) > after_key):
                rows.add(job, body)
            after_id = id
    finally:
        rows.warning = matcher.warning
    return None


def _has_order(query: Query) -> bool:
    """Return whether *query* selects exactly one tube and one state, and nothing else."""
    return bool(query.tube and query.state) and query == Query().within(query.tube, query.state)


def _digest(query: Query, order: Order = BY_ID) -> str:
    sorting = "" if order == BY_ID else f" {order.key} {order.direction}"
    return blake2b(f"{query}{sorting}".encode(errors="replace"), digest_size=6).hexdigest()
