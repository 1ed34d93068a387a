"""Lists of jobs that go on by cursors: all that match, each once, whatever happens to the others meanwhile.

Those of one tube in one state come in the order of a list page, as far as a walk of DEEPEST jobs leads; the others
after them, and all other lists, by id, which is in the order in which they were put. A page that is found by looking
through many jobs ends after SCAN_FOR with what it has, and its cursor goes on from there: so it never waits long, and
never leaves out what it has not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b
from itertools import islice
from math import inf
from typing import Annotated, Final, Generic, TypeVar

from msgspec import Meta, Struct

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import RESERVED, STATE_NAMES, Job
from greenstalk_server.core.tube import Tube
from greenstalk_server.web.api.framework.problems import refuse
from greenstalk_server.web.cooperative import Pace
from greenstalk_server.web.jobs.bodies import iter_with_bodies
from greenstalk_server.web.jobs.job_list import MAX_LISTED, count_jobs, jobs_in_order, sort_key
from greenstalk_server.web.jobs.matching import JobMatcher, candidate_ids
from greenstalk_server.web.jobs.query import Query

SCAN_FOR: Final = 0.5
"""Seconds that a page looks for jobs."""

PAGE_BYTES: Final = 1024 * 1024
"""Bytes of bodies on a page, after which it ends."""

Row = TypeVar("Row")


class Place(Struct, array_like=True, kw_only=True):
    """Where a list goes on.

    of          tells the list from others.
    above       the last id that was looked at, where it goes by id; None while it goes in order.
    beyond      rank and id of the last job that came in order; None if none did.
    """

    of: str
    above: Annotated[int, Meta(ge=0)] | None
    beyond: tuple[int, int] | None


class Rows(Generic[Row]):
    """The rows of a page, until it is full.

    tell            makes a row of a job and its body, and says how many bytes of that it has.
    wants_body      whether the body of a job is needed for that.
    """

    def __init__(
        self, limit: int, tell: Callable[[Job, bytes | None], tuple[Row, int]], wants_body: Callable[[Job], bool]
    ) -> None:
        self.wants_body: Callable[[Job], bool] = wants_body
        self.rows: list[Row] = []
        self._limit: int = limit
        self._bytes: int = 0
        self._tell: Callable[[Job, bytes | None], tuple[Row, int]] = tell
        self._pace: Pace = Pace()

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= self._limit or self._bytes >= PAGE_BYTES

    def add(self, job: Job, body: bytes | None) -> None:
        """Add *job* as it is now; *body* is None if it is not wanted, or lost."""
        row, size = self._tell(job, body)
        self.rows.append(row)
        self._bytes += size

    def rest(self) -> None:
        """Let others run if it is time to. May switch."""
        self._pace.yield_if_due()


def begin(query: Query) -> Place:
    """Where the list of *query* begins."""
    return Place(of=_digest(query), above=None if _has_order(query) else 0, beyond=None)


def refuse_other(place: Place, query: Query) -> None:
    """Refuse a *place* of another list than that of *query*."""
    if place.of != _digest(query) or (place.above is None and not _has_order(query)):
        refuse("cursor", "is of another list: the other parameters have to be as they were")


def fill(broker: Broker, query: Query, place: Place, now: int, rows: Rows[Row]) -> Place | None:
    """Fill a page of the list of *query* from *place* on; return where it goes on, or None. May switch."""
    if place.above is not None:
        return _by_id(broker, query, place, now, rows)
    tube = broker.tubes.get(query.tube.encode())
    return None if tube is None else _in_order(broker, tube, query, place, rows)


def _in_order(broker: Broker, tube: Tube, query: Query, place: Place, rows: Rows[Row]) -> Place | None:
    """Fill in the order of a list page. May switch."""
    state = STATE_NAMES.index(query.state)
    listed = [(sort_key(job, state), job) for job in islice(jobs_in_order(broker, tube, state), MAX_LISTED)]
    is_all = len(listed) >= count_jobs(tube, state)
    if state == RESERVED and not is_all:  # the first that a bounded look found need not be the first of all
        return Place(of=place.of, above=0, beyond=place.beyond)
    beyond = place.beyond
    places = {job.id: (at, job) for at, job in listed if beyond is None or at > beyond}
    for id, job, body in iter_with_bodies(broker, places, rows.wants_body, rows.rest):
        if rows.is_full:
            return Place(of=place.of, above=None, beyond=beyond)
        beyond, was = places[id]
        if job is was and job.state == state:  # others had their turn since
            rows.add(job, body)
    return None if is_all else Place(of=place.of, above=0, beyond=beyond)


def _by_id(broker: Broker, query: Query, place: Place, now: int, rows: Rows[Row]) -> Place | None:
    """Fill by id, with what did not come in order. May switch."""
    until, above, beyond = inf, place.above or 0, place.beyond
    matcher = JobMatcher(broker, query, now, rows.rest, rows.wants_body)
    for id, job, body in matcher.match(candidate_ids(broker, query, above)[1]):
        if rows.is_full or time.monotonic() > until:
            return Place(of=place.of, above=above, beyond=beyond)
        if until == inf:  # the first has come, however long a disk took for it
            until = time.monotonic() + SCAN_FOR
        if job is not None and (beyond is None or sort_key(job, job.state) > beyond):
            rows.add(job, body)
        above = id
    return None


def _has_order(query: Query) -> bool:
    """Whether *query* asks for one tube and one state, and no more: else each job is asked, step by step by id."""
    return bool(query.tube and query.state) and query == Query().within(query.tube, query.state)


def _digest(query: Query) -> str:
    return blake2b(str(query).encode(errors="replace"), digest_size=6).hexdigest()
