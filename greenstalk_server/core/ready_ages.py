"""The jobs of a `ReadyQueue` that are out of order, by the time when they turned ready.

An entry is two items: the id of a job, and when it turned ready. It is live while the job is in this tube, out of
order, and ready since then. A job that is removed from the middle leaves a dead entry. Dead entries are swept when they
outnumber the live ones, a few at each removal, so that no removal takes long. A job that is removed and returns at the
same nanosecond has two equal live entries, which is harmless. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from greenstalk_server.core.gc_untrack import untrack
from greenstalk_server.core.job import IN_RUN, READY, Job
from greenstalk_server.core.job_heap import JobHeap

SLACK: Final = 64
"""Dead entries that are tolerated in addition to one per live entry."""

STEP: Final = 8
"""Maximum number of entries that a removal examines."""

MAX_SKIPPED: Final = 10_000
"""Maximum number of dead entries that `oldest` skips, in about a millisecond."""


class ReadyAges:
    """The jobs of one tube that are out of order, by the time when they turned ready.

    Invariant: there are at most 2 * live + SLACK entries, or 3 * live + 2 * SLACK during a sweep.
    Invariant: during a sweep the first `_left` of `_entries` are not yet examined, and the live ones of those examined
    are in `_swept`, which precedes `_entries`.
    """

    __slots__ = ("_entries", "_heap", "_jobs", "_left", "_name", "_swept")

    def __init__(self, name: bytes, heap: JobHeap, jobs: Mapping[int, Job]) -> None:
        """*heap* has the same jobs of the tube *name*; *jobs* is the broker's table of every job by id."""
        self._name: bytes = name
        self._heap: JobHeap = heap
        self._jobs: Mapping[int, Job] = jobs
        self._entries: deque[int] = deque()
        self._swept: deque[int] = deque()
        untrack(self._entries)
        untrack(self._swept)
        self._left: int = 0

    def add(self, job: Job) -> None:
        """Add *job*, which is out of order. Its `ready_since` must not decrease from call to call."""
        self._entries.append(job.id)
        self._entries.append(job.deadline)

    def remove(self, job: Job) -> None:
        """Note that *job* was removed from the heap."""
        entries = self._entries
        if not self._left:
            if entries[0] == job.id:
                entries.popleft()
                entries.popleft()
            else:
                self._drop_dead(entries, STEP)
            if len(entries) <= 4 * self._heap.count + 2 * SLACK:
                return
            self._left = len(entries) // 2
        self._sweep()

    def oldest(self) -> Job | None:
        """Return the job that has been ready longest; None if there is none, or if too many dead entries precede it."""
        self._drop_dead(self._swept, MAX_SKIPPED)
        if not self._swept and self._left:
            self._drop_swept_over()
        elif not self._left:
            self._drop_dead(self._entries, MAX_SKIPPED)
        front = self._swept or self._entries
        return self._live(front) if front else None

    def check(self, members: list[Job]) -> None:
        """Assert that the live entries are those of *members*, in order. O(everything): for tests."""
        entries = [*self._swept, *self._entries]
        pairs = dict.fromkeys(zip(entries[::2], entries[1::2], strict=True))
        live = [(id, since) for id, since in pairs if self._is_live(id, since)]
        assert sorted(id for id, _ in live) == sorted(job.id for job in members)
        assert [since for _, since in live] == sorted(since for _, since in live)
        assert len(pairs) <= (3 * len(members) + 2 * SLACK if self._left else 2 * len(members) + SLACK)
        assert not self._swept or self._left

    def _is_live(self, id: int, since: int) -> bool:
        job = self._jobs.get(id)
        if job is None or job.state != READY or job.key <= IN_RUN:
            return False
        return job.deadline == since and job.tube.name == self._name

    def _live(self, entries: deque[int]) -> Job | None:
        """Return the job of the first entry, if that is live."""
        return self._jobs[entries[0]] if self._is_live(entries[0], entries[1]) else None

    def _drop_dead(self, entries: deque[int], limit: int) -> None:
        """Drop up to *limit* dead entries from the front."""
        for _ in range(limit):
            if not entries or self._is_live(entries[0], entries[1]):
                return
            entries.popleft()
            entries.popleft()

    def _drop_swept_over(self) -> None:
        """Continue the sweep until the first entry is live."""
        for _ in range(MAX_SKIPPED // STEP):
            if self._swept or not self._left or self._live(self._entries) is not None:
                return
            self._sweep()

    def _sweep(self) -> None:
        """Sweep a few entries."""
        entries, swept = self._entries, self._swept
        for _ in range(min(STEP, self._left)):
            id, since = entries.popleft(), entries.popleft()
            self._left -= 1
            if self._is_live(id, since):
                swept.append(id)
                swept.append(since)
        if not self._left:
            swept.extend(entries)  # entries added during the sweep, at most an eighth
            self._entries, self._swept = swept, deque()
            untrack(self._swept)
