"""A sorted index of the jobs of one tube in one state, by priority or by time. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from typing import Final

from greenstalk_server.core.gc_untrack import untrack
from greenstalk_server.core.job import ID_BITS, MAX_ID, Job

MAX_CHUNK: Final = 512
"""Maximum number of keys in a chunk. Removing the first key moves four kilobytes."""

MIN_CHUNK: Final = MAX_CHUNK // 4
"""A chunk that a removal leaves with fewer keys than this is merged with a neighbour if both together fill at most half
a chunk. Removing the first key of the first chunk merges nothing."""


class JobIndex:
    """Jobs of one tube in one state, smallest (rank, id) first. The rank is a priority or a time.

    A job's key is the integer rank << 64 | id: it is compared in C, and takes less memory than a tuple. The keys are
    in a list of sorted chunks. Adding the last key and removing the first one take constant time. Any other addition or
    removal takes two bisections and moves at most a chunk.

    A job must be removed with the rank with which it was added.

    count   number of jobs.

    Invariant: the keys of all chunks, one after the other, are sorted; no chunk is empty or has more than MAX_CHUNK.
    Invariant: `_bounds[i]` is above all keys of the chunk i - 1, and not above any key of the chunk i. `_bounds[0]` has
    no meaning.
    Invariant: any two adjacent chunks have at least MIN_CHUNK keys together, except the first two chunks.
    """

    __slots__ = ("_bounds", "_chunks", "_jobs", "count")

    def __init__(self, jobs: Mapping[int, Job]) -> None:
        """*jobs* is the broker's table of all jobs by id. It contains every job of the index."""
        self._jobs: Mapping[int, Job] = jobs
        self._chunks: list[list[int]] = []
        self._bounds: list[int] = []
        self.count: int = 0

    def add(self, job: Job, rank: int) -> None:
        """Add *job*, which must not be in the index."""
        key = rank << ID_BITS | job.id
        self.count += 1
        chunks = self._chunks
        if chunks:
            last = chunks[-1]
            if last[-1] > key:
                self._insert(key)
                return
            if len(last) < MAX_CHUNK:
                last.append(key)
                return
            untrack(last)
        chunks.append([key])
        self._bounds.append(key)

    def first(self) -> Job | None:
        """Return the job with the smallest (rank, id), or None."""
        chunks = self._chunks
        return self._jobs.get(chunks[0][0] & MAX_ID) if chunks else None

    def remove(self, job: Job, rank: int) -> bool:
        """Remove *job*, which was added with *rank*; return False if it is not in the index."""
        chunks = self._chunks
        if not chunks:
            return False
        key = rank << ID_BITS | job.id
        chunk = chunks[0]
        if chunk[0] == key:
            del chunk[0]
            if not chunk:
                del chunks[0], self._bounds[0]
        else:
            at = bisect_right(self._bounds, key, 1) - 1
            chunk = chunks[at]
            place = bisect_left(chunk, key)
            if place == len(chunk) or chunk[place] != key:
                return False
            del chunk[place]
            if len(chunk) < MIN_CHUNK:
                self._merge(at)
        self.count -= 1
        return True

    def walk(self) -> Iterator[Job]:
        """Iterate over the jobs in order. Valid until the index changes."""
        jobs = self._jobs
        for chunk in self._chunks:
            for key in chunk:
                yield jobs[key & MAX_ID]

    def ids(self) -> list[int]:
        """Return the ids of its jobs, in order."""
        return [key & MAX_ID for chunk in self._chunks for key in chunk]

    def check(self, jobs: list[Job]) -> None:
        """Assert that the index has *jobs*, in this order, and that its invariants hold. Slow: for tests."""
        chunks, bounds = self._chunks, self._bounds
        keys = [key for chunk in chunks for key in chunk]
        assert self.ids() == [job.id for job in jobs] and self.count == len(keys)
        assert keys == sorted(set(keys)) and len(bounds) == len(chunks)
        assert all(0 < len(chunk) <= MAX_CHUNK for chunk in chunks)
        assert all(chunks[at - 1][-1] < bounds[at] <= chunks[at][0] for at in range(1, len(chunks)))
        assert all(len(chunks[at - 1]) + len(chunks[at]) >= MIN_CHUNK for at in range(2, len(chunks)))

    def _insert(self, key: int) -> None:
        """Insert *key*, which is not the last one, and split its chunk if it is too large."""
        at = bisect_right(self._bounds, key, 1) - 1
        chunk = self._chunks[at]
        insort(chunk, key)
        if len(chunk) > MAX_CHUNK:
            upper = chunk[MAX_CHUNK // 2 :]
            del chunk[MAX_CHUNK // 2 :]
            untrack(chunk)
            untrack(upper)
            self._chunks.insert(at + 1, upper)
            self._bounds.insert(at + 1, upper[0])

    def _merge(self, at: int) -> None:
        """Drop the chunk number *at* if it is empty; merge it with a neighbour if both fill at most half a chunk."""
        chunks, bounds = self._chunks, self._bounds
        if not chunks[at]:
            del chunks[at], bounds[at]
            return
        for right in (at, at + 1):
            if 0 < right < len(chunks) and len(chunks[right - 1]) + len(chunks[right]) <= MAX_CHUNK // 2:
                chunks[right - 1].extend(chunks[right])
                del chunks[right], bounds[right]
                return
