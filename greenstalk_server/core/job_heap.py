"""A heap of the jobs of one tube in one state, ordered by priority or by time. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from greenstalk_server.core.gc_untrack import untrack
from greenstalk_server.core.job import ID_BITS, MAX_ID, NO_KEY, Job


class JobHeap:
    """Jobs of one tube in one state, smallest (rank, id) first. The rank is a priority or a deadline.

    An entry is the integer rank << 64 | id: it is compared in C, and takes less memory than a tuple. A job that is
    removed from the middle leaves a dead entry. An entry is live while it is its job's `key` and the job is in this
    tube. A job that returns with the same rank has two equal live entries, which is harmless. The heap knows its tube
    by name: a reference would be a cycle, and a dropped tube has to be freed at once. Dead entries are swept when they
    outnumber the live ones, so a removal costs O(log n) amortised.

    A sweep of a large heap is incremental: the heap becomes `_old`, and each removal pops a few entries from the end of
    `_old`, which leaves it a heap, and pushes the live ones to a new heap.

    Invariant: `count` is the number of jobs, and after every method there are at most 2 * count + SLACK entries, or
    3 * count + 2 * SLACK during a sweep.
    """

    __slots__ = ("_jobs", "_name", "_old", "count", "entries")

    SLACK: Final = 64
    SWEEP_BATCH: Final = 4096
    """Maximum number of entries swept in one call: about a millisecond."""
    STEP: Final = 8
    """Entries that a removal sweeps."""

    def __init__(self, name: bytes, jobs: Mapping[int, Job]) -> None:
        """*name* is the tube's, *jobs* the broker's table of every job by id."""
        self._name: bytes = name
        self._jobs: Mapping[int, Job] = jobs
        self._old: list[int] = []
        self.count: int = 0
        self.entries: list[int] = []
        untrack(self.entries)

    def push(self, job: Job, rank: int) -> None:
        """Add *job*, which is in no heap."""
        key = rank << ID_BITS | job.id
        job.key = key
        heappush(self.entries, key)
        self.count += 1

    def first(self) -> Job | None:
        """Return the job with the smallest (rank, id), or None."""
        if self._old:
            return self._first_of_both()
        entries, jobs = self.entries, self._jobs
        while entries:
            key = entries[0]
            job = jobs.get(key & MAX_ID)
            if job is not None and job.key == key and job.tube.name == self._name:
                return job
            heappop(entries)
        return None

    def remove(self, job: Job) -> None:
        """Remove *job*; cheapest if it is the first."""
        entries = self.entries
        if entries and entries[0] == job.key:
            heappop(entries)
        elif self._old and self._old[0] == job.key:
            heappop(self._old)
        job.key = NO_KEY
        self.count -= 1
        if self._old:
            self._continue_sweep()
        elif len(entries) > 2 * self.count + self.SLACK:
            self._begin_sweep()

    def walk(self) -> Iterator[Job]:
        """Iterate over the jobs in order: the first k of n cost O(k log k). Valid until the heap changes."""
        heaps = (self.entries, self._old)
        frontier = [(heap[0], 0, which) for which, heap in enumerate(heaps) if heap]
        heapify(frontier)
        last = NO_KEY
        while frontier:
            key, at, which = heappop(frontier)
            entries = heaps[which]
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(entries):
                    heappush(frontier, (entries[child], child, which))
            job = self._live(key)
            if job is not None and key != last:
                last = key
                yield job

    def ids(self) -> list[int]:
        """Return the ids of its jobs, in no order, and of some jobs that were removed."""
        return [key & MAX_ID for heap in (self.entries, self._old) for key in heap]

    @property
    def size(self) -> int:
        """Number of ids that `ids` returns."""
        return len(self.entries) + len(self._old)

    def check(self, jobs: list[Job]) -> None:
        """Assert that the heap holds *jobs* and is within its bounds. O(everything): for tests."""
        assert self.count == len(jobs)
        assert self.size <= (3 * self.count + 2 * self.SLACK if self._old else 2 * self.count + self.SLACK)

    def _first_of_both(self) -> Job | None:
        """Return the first job during a sweep."""
        firsts = [job for job in map(self._first_of, (self.entries, self._old)) if job is not None]
        return min(firsts, key=_key_of, default=None)

    def _first_of(self, entries: list[int]) -> Job | None:
        while entries:
            job = self._live(entries[0])
            if job is not None:
                return job
            heappop(entries)
        return None

    def _live(self, key: int) -> Job | None:
        job = self._jobs.get(key & MAX_ID)
        return job if job is not None and job.key == key and job.tube.name == self._name else None

    def _begin_sweep(self) -> None:
        if len(self.entries) <= self.SWEEP_BATCH:
            self._sweep_all()
        else:
            self._old, self.entries = self.entries, []
            untrack(self.entries)
            self._continue_sweep()

    def _continue_sweep(self) -> None:
        old, entries = self._old, self.entries
        for _ in range(min(self.STEP, len(old))):
            key = old.pop()
            if self._live(key):
                heappush(entries, key)
        if not old and len(entries) > 2 * self.count + self.SLACK:
            self._sweep_all()  # many entries are duplicates, of jobs that were removed from the middle and returned

    def _sweep_all(self) -> None:
        self.entries = list({key for key in self.entries if self._live(key)})
        untrack(self.entries)
        heapify(self.entries)


def _key_of(job: Job) -> int:
    return job.key
