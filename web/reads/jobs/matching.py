"""Jobs that match a query: the query of a request, the ids it may match, and a matcher that also reads bodies.

Pages, bulk changes, exports and the API share this code. Functions that may switch greenlets say so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import BadRequest, Forbidden

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import STATE_NAMES, Job
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.access import Principal, principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.fields import Fields
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.jobs.bodies import (
    BATCH_BYTES,
    BATCH_SIZE,
    JobWithBody,
    iter_with_bodies,
    load_bodies,
    never_wants_body,
)
from greenstalk_server.web.reads.jobs.body_terms import BodyTest
from greenstalk_server.web.reads.jobs.job_list import (
    MAX_LISTED,
    PAGE_SIZE,
    JobColumn,
    JobList,
    count_jobs,
    indexed_jobs,
    job_rows,
)
from greenstalk_server.web.reads.jobs.job_orders import order_text, sorted_jobs
from greenstalk_server.web.reads.jobs.json_fields import MAX_PARSED, MAX_VALUES, Path, PathError, parse_columns
from greenstalk_server.web.reads.jobs.moving import holders
from greenstalk_server.web.reads.jobs.query import MAX_SEARCHED, Query, Test, parse

MAX_COLLECTED_IDS: Final = 20_000
"""Maximum queue entries and reserved jobs for which the ids of a tube are collected; takes at most two milliseconds."""

MAX_LIST_TIME: Final = 0.002
"""Maximum seconds that a filtered list of a tube's jobs may take; searching a body of 1 MiB takes half of that."""

MIN_LIST_JOBS: Final = 8
"""Jobs that a filtered list examines even if that takes longer than MAX_LIST_TIME."""

MAX_FIRST_TIME: Final = 0.003
"""Seconds of CPU time after which a filtered list stops before MIN_LIST_JOBS: a large array takes several ms."""


class JobMatcher:
    """Selects the jobs that match *query* at the time *at*; calls *yield_if_due* between two jobs.

    Skips jobs of tubes that *who* may not see, by default the current principal.

    A body that is only on disk is read if the query is about bodies, or if *wants_body* returns True for its job.
    """

    def __init__(
        self,
        broker: Broker,
        query: Query,
        at: int,
        yield_if_due: Callable[[], None],
        wants_body: Callable[[Job], bool] = never_wants_body,
        who: Principal | None = None,
    ) -> None:
        self._broker: Broker = broker
        self._at: int = at
        self._yield_if_due: Callable[[], None] = yield_if_due
        self._is_match: Test = _seen_only(query.test(), who or principal())
        self._body_test: BodyTest | None = query.body_test()
        self._wants_body: Callable[[Job], bool] = wants_body
        self._lost: int = 0
        self._partial: int = 0

    def match(self, ids: Iterable[int]) -> Iterator[JobWithBody]:
        """Yield each of *ids* with its current job and body. Switches.

        The job is None if it was deleted or does not match.
        """
        is_match, body_test, at = self._is_match, self._body_test, self._at
        for id, job, body in iter_with_bodies(self._broker, ids, self._is_wanted, self._yield_if_due):
            if job is None or not is_match(job, at):
                yield id, None, None
            elif body_test is None or (body is not None and (holds := body_test(body))):
                yield id, job, body
            else:
                self._lost += body is None
                self._partial += body is not None and holds is None
                yield id, None, None

    @property
    def warning(self) -> str:
        """A warning about the jobs that could not be searched, or not completely; empty if there are none."""
        warnings = [partial_warning(self._partial)] if self._partial else []
        if self._lost:
            jobs = text.counted(self._lost, "job")
            warnings.append(f"{jobs} could not be searched: the journal cannot read their bodies back from the disk.")
        return " ".join(warnings)

    def _is_wanted(self, job: Job) -> bool:
        return (self._body_test is not None or self._wants_body(job)) and self._is_match(job, self._at)


def partial_warning(count: int) -> str:
    """Return a warning about *count* jobs that may match, but can be searched only in part."""
    return (
        f"{text.counted(count, 'job')} may match, but can be searched only in part: a body has more than"
        f" {text.size(MAX_SEARCHED)}, JSON more than {text.size(MAX_PARSED)}, or a field more than"
        f" {text.number(MAX_VALUES)} values."
    )


def read_query(given: fields.Fields) -> Query:
    """Return the query in the fields `q`, `tube` and `state`.

    Raise QueryError if `q` is malformed, and Forbidden if it is about bodies that the principal may not see.
    """
    query = parse(given.get("q", ""))
    if query.needs_bodies and not principal().sees_bodies:
        raise Forbidden("Job bodies are hidden from you, so you cannot search them.")
    tube = fields.tube_name(given).decode() if given.get("tube") else ""
    state = STATE_NAMES[fields.state(given)] if given.get("state") else ""
    return query.within(tube, state)


def candidate_ids(
    broker: Broker, query: Query, above: int = 0, who: Principal | None = None
) -> tuple[int, Iterable[int]]:
    """Return an upper bound on the number of current matches of *query*, and the candidate ids greater than *above*.

    A tube that *who*, by default the current principal, may not see has no candidates.

    The ids are unique and ascend. The caller may consume them over many iterations of the event loop.

    The ids of a small tube are collected from its queues. Collecting and sorting the ids of a large tube would block
    the event loop, so the caller gets the ids of all jobs, and skips jobs of other tubes.
    """
    if query.id is not None:
        return 1, [query.id] if query.id > above else []
    above = max(above, query.min_id - 1)
    tube = broker.tubes.get(query.tube.encode())
    if query.tube and (tube is None or not (who or principal()).sees(tube.name)):
        return 0, []
    sets = _job_sets(broker, tube, query.state) if tube is not None else []
    if tube is None or sum([found.size for found in sets]) > MAX_COLLECTED_IDS:
        below = broker.next_id
        return len(broker.jobs), (id for id in broker.jobs.ids_above(above) if broker.ids.is_older(id, below))
    ids = sorted([id for found in sets for id in found.ids() if id > above])
    return len(ids), ids


class _JobSet(NamedTuple):
    """A set of jobs: their number, and a function that returns their ids."""

    size: int
    ids: Callable[[], Iterable[int]]


def _job_sets(broker: Broker, tube: Tube, state: str) -> list[_JobSet]:
    """Return the sets of the jobs of *tube* in *state*, or in any state if that is empty.

    The set of the reserved jobs also includes jobs of other tubes.
    """
    sets = {
        "ready": _JobSet(tube.ready.count, tube.ready.ids),
        "delayed": _JobSet(tube.delayed.count, tube.delayed.ids),
        "buried": _JobSet(len(tube.buried), lambda: tube.buried),
        "reserved": _JobSet(
            sum([len(client.reserved) for client in holders(broker)]),
            lambda: chain.from_iterable([client.reserved for client in holders(broker)]),
        ),
    }
    return [found for name, found in sets.items() if not state or name == state]


def list_matching(
    broker: Broker, tube: Tube, state: int, order: Order, query: Query, now: int, columns: Iterable[JobColumn]
) -> JobList:
    """Return the tube's first jobs in *state* that match *query*, as many as are found in bounded time. May switch.

    If all jobs were examined, the matches are in *order*.
    """
    pace = Pace()
    pace.yield_now()  # so that this step of the event loop has only the scan
    until, first_until = time.perf_counter() + MAX_LIST_TIME, time.thread_time() + MAX_FIRST_TIME
    is_match, body_test, scanned = query.test(), query.body_test(), 0
    found, on_disk, size, partial = list[Job](), list[Job](), 0, 0
    for job in indexed_jobs(broker, tube, state, order):
        if scanned == MAX_LISTED or len(found) - len(on_disk) == PAGE_SIZE:
            break
        if scanned >= MIN_LIST_JOBS and time.perf_counter() > until:
            break
        if 0 < scanned < MIN_LIST_JOBS and time.thread_time() > first_until:
            break
        if len(on_disk) == BATCH_SIZE or size >= BATCH_BYTES:
            break
        scanned += 1
        if not is_match(job, now):
            continue
        if body_test is not None and job.body is None:
            on_disk.append(job)
            size += job.size
        elif body_test is not None and job.body is not None and not (holds := body_test(job.body)):
            partial += holds is None
            continue
        found.append(job)
    if body_test is not None and on_disk:
        bodies, rejected = load_bodies(broker, on_disk), set[int]()
        for job in on_disk:
            pace.yield_if_due()
            body = bodies.get(job.id)
            if body is None or not (holds := body_test(body)):
                rejected.add(job.id)
                partial += body is not None and holds is None
        unchanged = [job for job in found if broker.jobs.get(job.id) is job and job.state == state]
        found = [job for job in unchanged if job.id not in rejected]
    found = sorted_jobs(found, order)
    present = count_jobs(tube, state)
    of = f"all {text.number(present)}" if scanned >= present else f"the first {text.number(scanned)} of {present:,}"
    summary = f"{text.number(len(found))} matching, among {of}, {order_text(order, state)}"
    return JobList(
        state=STATE_NAMES[state],
        rows=job_rows(found, columns, now),
        summary=f"{summary}. {partial_warning(partial)}" if partial else summary,
        following="",
        is_first=True,
        is_truncated=False,
        is_complete=scanned >= present,
    )


def _seen_only(is_match: Test, who: Principal) -> Test:
    """Return *is_match*, restricted to the tubes that *who* may see."""
    if who.sees_all:
        return is_match
    sees = who.sees
    return lambda job, now: sees(job.tube.name) and is_match(job, now)


def read_columns(fields: Fields) -> tuple[Path, ...]:
    """Return the paths of JSON fields in the field `cols`, which a form may send several times."""
    given = ",".join(fields.getlist("cols")) if isinstance(fields, MultiDict) else fields.get("cols", "")
    try:
        return parse_columns(given)
    except PathError as error:
        raise BadRequest(f"“cols” is invalid: {error}") from error
