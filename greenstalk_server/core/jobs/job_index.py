"""A sorted index of the jobs of one tube in one state, by priority or by time. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from greenstalk_server.core.jobs.job import ID_BITS, MAX_ID, Job
from greenstalk_server.core.sorted_keys import MAX_CHUNK, MIN_CHUNK, SortedKeys


class JobIndex(SortedKeys):
    """Jobs of one tube in one state, smallest (rank, id) first. The rank is a priority or a time.

    A job's key is the integer rank << 64 | id: it is compared in C, and takes less memory than a tuple.

    A job must be removed with the rank with which it was added. `count` is the number of jobs.
    """

    __slots__ = ("_jobs",)

    def __init__(self, jobs: Mapping[int, Job]) -> None:
        """*jobs* is the broker's table of all jobs by id. It contains every job of the index."""
        super().__init__()
        self._jobs: Mapping[int, Job] = jobs

    def add(self, job: Job, rank: int) -> None:
        """Add *job*, which must not be in the index."""
        self.insert(rank << ID_BITS | job.id)

    def first(self) -> Job | None:
        """Return the job with the smallest (rank, id), or None."""
        chunks = self._chunks
        return self._jobs.get(chunks[0][0] & MAX_ID) if chunks else None

    def remove(self, job: Job, rank: int) -> bool:
        """Remove *job*, which was added with *rank*; return False if it is not in the index."""
        return self.discard(rank << ID_BITS | job.id)

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
