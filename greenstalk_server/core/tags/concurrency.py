"""Concurrency keys: limits on how many jobs with the same key are reserved at a time, over all tubes of a scope.

A queue of one shard has one scope (see greenstalk_server.core.tube_shards).

For each tube and key, at most one ready job is runnable: the best one, called the *front*. A job becomes the front only
while the key has a free slot. All other ready jobs with the key are *withheld*: a reserve does not examine them. A
front whose key no longer has a free slot is stale, and is withheld when a reserve reaches it. `ReadyQueue` holds the
jobs; this module holds the state of a key. Pure.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from greenstalk_server.core.timers import Dependents

if TYPE_CHECKING:
    from greenstalk_server.core.jobs.job import Job
    from greenstalk_server.core.jobs.job_index import JobIndex
    from greenstalk_server.core.tubes.tube import Tube

MAX_DEAD: Final = 64
"""`_heap` is rebuilt when it has more than 2 * n + MAX_DEAD entries, where n is the number of distinct limits."""


class LimitedJobs:
    """The ready jobs of one tube that have the same key.

    front       the runnable job, or None.
    withheld    the other jobs, by priority; None until a job is withheld.

    Invariant: the front precedes all withheld jobs.
    """

    __slots__ = ("front", "withheld")

    def __init__(self) -> None:
        self.front: Job | None = None
        self.withheld: JobIndex | None = None

    @property
    def has_withheld(self) -> bool:
        """Whether jobs are withheld."""
        return self.withheld is not None and self.withheld.count > 0


class ConcurrencyKey:
    """A concurrency key. Exists while any job with the key exists, in any state.

    name        1 to 200 bytes.
    scope       scope in which it counts; empty in a queue of one shard.
    jobs        number of the jobs with the key.
    limit       smallest limit of these jobs.
    reserved    number of reserved jobs with the key.
    queues      ready jobs with the key, by tube.
    pending     tubes that have withheld jobs and no front, in the order in which they will get a front.
    timer_at    time for which the broker's timers are armed, 0 for none (see Timers).

    Invariant: if a tube is pending and the key has a free slot, the key is in `dependents`, or a timer is armed.
    """

    __slots__ = (
        "_dependents",
        "_heap",
        "_limits",
        "jobs",
        "limit",
        "name",
        "pending",
        "queues",
        "reserved",
        "scope",
        "timer_at",
    )

    def __init__(self, name: bytes, scope: bytes, dependents: Dependents) -> None:
        """*dependents* is the broker's."""
        self.name: bytes = name
        self.scope: bytes = scope
        self.jobs: int = 0
        self.limit: int = 0
        self.reserved: int = 0
        self.queues: dict[Tube, LimitedJobs] = {}
        self.pending: dict[Tube, None] = {}
        self.timer_at: int = 0
        self._dependents: Dependents = dependents
        self._limits: dict[int, int] | None = None  # number of jobs by limit; None while all have the same limit
        self._heap: list[int] = []  # the keys of _limits, and some that were deleted

    @property
    def is_free(self) -> bool:
        """Whether one more job may be reserved."""
        return self.reserved < self.limit

    def add_job(self, limit: int) -> None:
        """Count a new job with *limit*."""
        if not self.jobs:
            self.limit = limit
        elif self._limits is not None or limit != self.limit:
            self._add_limit(limit)
        self.jobs += 1

    def remove_job(self, limit: int) -> None:
        """Count the deletion of a job with *limit*."""
        self.jobs -= 1
        limits = self._limits
        if limits is None:
            return
        limits[limit] -= 1
        if limits[limit]:
            return
        del limits[limit]
        while self._heap and self._heap[0] not in limits:
            heappop(self._heap)
        self.limit = self._heap[0] if self._heap else 0
        if len(limits) <= 1:
            self._limits = None
        self.note()

    def add_reserved(self, change: int) -> None:
        """Add *change* to the number of reserved jobs."""
        self.reserved += change
        self.note()

    def note(self) -> None:
        """Add the key to the dependents if it has a free slot and a pending tube."""
        if self.pending and self.reserved < self.limit:
            self._dependents.add(self)

    def note_tube(self, tube: Tube) -> None:
        """Add *tube* to the dependents, so that the broker continues the search for its first runnable job."""
        self._dependents.add(tube)

    def _add_limit(self, limit: int) -> None:
        limits = self._limits
        if limits is None:
            limits = self._limits = {self.limit: self.jobs}
            self._heap = [self.limit]
        count = limits.get(limit, 0)
        limits[limit] = count + 1
        if not count:
            heappush(self._heap, limit)
            if len(self._heap) > 2 * len(limits) + MAX_DEAD:
                self._heap = list(limits)
                heapify(self._heap)
        self.limit = min(self.limit, limit)
