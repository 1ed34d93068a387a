"""Sort orders of job lists: the value and the text of each, and the orders that a tube's indexes provide.

Jobs with equal values are ordered by id. A value never depends on the current time, so the order of two jobs changes
only if one of them does, and a cursor stays valid. Pure.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Final, Literal, TypeAlias

from greenstalk_server.core.job_attributes import DeadLetter
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, STATE_NAMES, Job
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.policies import expires_at

Rank: TypeAlias = int | str
"""The value of a job in an order. The values of one order have one type."""

SortKey: TypeAlias = tuple[Rank, int]
"""The value of a job in an order, and its id."""

OrderName = Literal[
    "id", "tube", "state", "pri", "age", "size", "ttr", "time_left", "reserves", "timeouts", "releases", "buries",
    "kicks", "attempts", "buried", "expires_at", "dead_letter.attempts", "dead_letter.first_at", "dead_letter.last_at",
]  # fmt: skip
"""The keys of ORDERS; a test compares them."""


@dataclass(frozen=True, slots=True)
class JobSort:
    """A value by which jobs are sorted.

    rank            returns the value of a job.
    ascending, descending   the orders in words.
    descends_first  the first click on its column sorts descending.
    """

    rank: Callable[[Job], Rank]
    ascending: str
    descending: str
    descends_first: bool = False


def _count(label: str, rank: Callable[[Job], int]) -> JobSort:
    return JobSort(rank, f"by {label}, smallest first", f"by {label}, largest first", descends_first=True)


def _dead_letter(job: Job, part: Callable[[DeadLetter], int]) -> int:
    return part(DeadLetter.unpack(job.dead_letter)) if job.dead_letter else 0


ORDERS: Final[Mapping[str, JobSort]] = {
    "id": JobSort(lambda job: job.id, "oldest first", "newest first", descends_first=True),
    "tube": JobSort(lambda job: job.tube.name.decode(), "by tube", "by tube, descending"),
    "state": JobSort(lambda job: STATE_NAMES[job.state], "by state", "by state, descending"),
    "pri": JobSort(lambda job: job.pri, "by priority, most urgent first", "by priority, least urgent first"),
    "age": JobSort(lambda job: -job.created_at, "by age, newest first", "by age, oldest first"),
    "size": _count("size", lambda job: job.size),
    "ttr": _count("TTR", lambda job: job.ttr),
    "time_left": JobSort(
        lambda job: job.deadline if job.state in (DELAYED, RESERVED) else 0,
        "by time left, soonest first",
        "by time left, latest first",
    ),
    "reserves": _count("reserves", lambda job: job.reserves),
    "timeouts": _count("timeouts", lambda job: job.timeouts),
    "releases": _count("releases", lambda job: job.releases),
    "buries": _count("buries", lambda job: job.buries),
    "kicks": _count("kicks", lambda job: job.kicks),
    "attempts": _count("attempts", lambda job: job.attempts),
    "buried": JobSort(
        lambda job: -job.burial_number if job.state == BURIED else 0, "newest burial first", "oldest burial first"
    ),
    "expires_at": JobSort(expires_at, "by expiry, soonest first", "by expiry, latest first"),
    "dead_letter.attempts": _count("attempts", lambda job: _dead_letter(job, lambda dead: dead.attempts)),
    "dead_letter.first_at": JobSort(
        lambda job: -_dead_letter(job, lambda dead: dead.first_at),
        "by the first time as a dead letter, newest first",
        "by the first time as a dead letter, oldest first",
    ),
    "dead_letter.last_at": JobSort(
        lambda job: -_dead_letter(job, lambda dead: dead.last_at),
        "by the last time as a dead letter, newest first",
        "by the last time as a dead letter, oldest first",
    ),
}
"""The orders by name: the fields of a job in the API."""

BY_ID: Final = Order("id")

DEFAULT_ORDERS: Final[Mapping[int, Order]] = {
    READY: Order("pri"),
    RESERVED: Order("time_left"),
    DELAYED: Order("time_left"),
    BURIED: Order("buried"),
}
"""The order of the list of a tube's jobs in each state, unless a request names another one."""

TEXT_ORDERS: Final = ("tube", "state")
"""The orders whose values are texts; the others have numbers."""

TUBE_ORDERS: Final = tuple(key for key in ORDERS if key not in TEXT_ORDERS)
"""The orders of the jobs of one tube in one state."""

_DEFAULT_WORDS: Final = {
    READY: "in the order they will be reserved",
    RESERVED: "soonest timeout first",
    DELAYED: "soonest ready first",
}


def is_indexed(order: Order, state: int) -> bool:
    """Return whether a tube has an index of its jobs in *state* that is sorted in *order*."""
    return order == DEFAULT_ORDERS[state] or (state == BURIED and order.key == "buried")


def order_text(order: Order, state: int | None = None) -> str:
    """Return *order* in words, of a list of jobs in *state* if that is given."""
    if state in _DEFAULT_WORDS and order == DEFAULT_ORDERS[state]:
        return _DEFAULT_WORDS[state]
    sort = ORDERS[order.key]
    return sort.descending if order.is_descending else sort.ascending


class FirstJobs:
    """The first *limit* of the added jobs, in *order*, without jobs up to the sort key *after* if it is given.

    Adding a job takes about a microsecond, and the memory does not depend on the number of jobs.
    """

    def __init__(self, order: Order, limit: int, after: SortKey | None = None) -> None:
        self._key: Callable[[Job], SortKey] = job_key(order)
        self._is_descending: bool = order.is_descending
        self._limit: int = limit
        self._after: SortKey | None = after
        self._found: list[SortKey] = []  # ascending

    @property
    def keys(self) -> list[SortKey]:
        """The sort keys of the first jobs, in order."""
        return self._found[::-1] if self._is_descending else self._found[:]

    @property
    def is_full(self) -> bool:
        """Whether there are as many jobs as the limit."""
        return len(self._found) == self._limit

    def add(self, job: Job) -> None:
        """Add *job*; drop the last job if there are too many."""
        key, found = self._key(job), self._found
        if self._after is not None and (key >= self._after if self._is_descending else key <= self._after):
            return
        if len(found) == self._limit:
            if key <= found[0] if self._is_descending else key >= found[-1]:
                return
            del found[0 if self._is_descending else -1]
        insort(found, key)


def job_key(order: Order) -> Callable[[Job], SortKey]:
    """Return the function from a job to its sort key in *order*; if that is descending, the largest key is first."""
    rank = ORDERS[order.key].rank
    return lambda job: (rank(job), job.id)


def sorted_jobs(jobs: Iterable[Job], order: Order) -> list[Job]:
    """Return *jobs* in *order*."""
    return sorted(jobs, key=job_key(order), reverse=order.is_descending)


def merged_keys(keys: Mapping[int, Sequence[SortKey]], order: Order) -> Iterator[tuple[Rank, int, int]]:
    """Yield the sort keys of several shards in *order*, each with its shard: rank, id, shard."""

    def of_shard(shard: int, theirs: Sequence[SortKey]) -> Iterator[tuple[Rank, int, int]]:
        return ((rank, id, shard) for rank, id in theirs)  # lazy, since a caller takes a page

    return merge(*[of_shard(shard, theirs) for shard, theirs in keys.items()], reverse=order.is_descending)
