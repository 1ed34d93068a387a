"""The strays among the ready jobs of one tube (see ready) in the order in which they turned ready, for the oldest.

An entry is two items: a job's id, and since when it is ready. It counts while the job is a stray in this tube since
then; a job that leaves from the middle leaves its entry behind, dead. Those are swept when they outnumber the others, a
few at each removal, so that no removal takes long. A job that leaves and returns in one instant has the same entry
twice, which does no harm. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from greenstalk_server.core.gc_untrack import untrack
from greenstalk_server.core.job import IN_RUN, READY, Job
from greenstalk_server.core.job_heap import JobHeap

SLACK: Final = 64
"""Dead entries that are borne beyond as many as live ones."""

STEP: Final = 8
"""Entries looked at by a removal at most."""

LOOK_AT_MOST: Final = 10_000
"""Dead entries that `oldest` passes by, in about a millisecond."""


class Arrivals:
    """See the module.

    Invariant: at most 2 * live + SLACK entries; and while a sweep is under way 3 * live + 2 * SLACK. Then `_left` of
    `_entries` are still to be looked at, and those that were found to live stand in `_swept`, before all others.
    """

    __slots__ = ("_entries", "_jobs", "_left", "_name", "_strays", "_swept")

    def __init__(self, name: bytes, strays: JobHeap, jobs: Mapping[int, Job]) -> None:
        """*strays* are those of the tube *name*; *jobs* is the broker's table of every job by id."""
        self._name: bytes = name
        self._strays: JobHeap = strays
        self._jobs: Mapping[int, Job] = jobs
        self._entries: deque[int] = deque()
        self._swept: deque[int] = deque()
        untrack(self._entries)
        untrack(self._swept)
        self._left: int = 0

    def add(self, job: Job) -> None:
        """Note *job*, a stray, which has turned ready at its deadline, no earlier than those before."""
        self._entries.append(job.id)
        self._entries.append(job.deadline)

    def remove(self, job: Job) -> None:
        """Note that *job* has left the strays."""
        entries = self._entries
        if not self._left:
            if entries[0] == job.id:
                entries.popleft()
                entries.popleft()
            else:
                self._drop_dead(entries, STEP)
            if len(entries) <= 4 * self._strays.count + 2 * SLACK:
                return
            self._left = len(entries) // 2
        self._sweep()

    def oldest(self) -> Job | None:
        """The job that has been ready for longest; None if there is none, or too many dead entries stand before it."""
        self._drop_dead(self._swept, LOOK_AT_MOST)
        if not self._swept and self._left:
            self._drop_swept_over()
        elif not self._left:
            self._drop_dead(self._entries, LOOK_AT_MOST)
        front = self._swept or self._entries
        return self._live(front) if front else None

    def check(self, strays: list[Job]) -> None:
        """Assert that the entries that count are those of the *strays*, in order. O(everything): for tests."""
        entries = [*self._swept, *self._entries]
        pairs = dict.fromkeys(zip(entries[::2], entries[1::2], strict=True))
        live = [(id, since) for id, since in pairs if self._is_live(id, since)]
        assert sorted(id for id, _ in live) == sorted(job.id for job in strays)
        assert [since for _, since in live] == sorted(since for _, since in live)
        assert len(pairs) <= (3 * len(strays) + 2 * SLACK if self._left else 2 * len(strays) + SLACK)
        assert not self._swept or self._left

    def _is_live(self, id: int, since: int) -> bool:
        job = self._jobs.get(id)
        if job is None or job.state != READY or job.key <= IN_RUN:
            return False
        return job.deadline == since and job.tube.name == self._name

    def _live(self, entries: deque[int]) -> Job | None:
        """The job of the first entry, if that counts."""
        return self._jobs[entries[0]] if self._is_live(entries[0], entries[1]) else None

    def _drop_dead(self, entries: deque[int], at_most: int) -> None:
        """Drop dead entries from the front, *at_most* so many."""
        for _ in range(at_most):
            if not entries or self._is_live(entries[0], entries[1]):
                return
            entries.popleft()
            entries.popleft()

    def _drop_swept_over(self) -> None:
        """Go on with the sweep until what is first lives."""
        for _ in range(LOOK_AT_MOST // STEP):
            if self._swept or not self._left or self._live(self._entries) is not None:
                return
            self._sweep()

    def _sweep(self) -> None:
        """Go on with the sweep."""
        entries, swept = self._entries, self._swept
        for _ in range(min(STEP, self._left)):
            id, since = entries.popleft(), entries.popleft()
            self._left -= 1
            if self._is_live(id, since):
                swept.append(id)
                swept.append(since)
        if not self._left:
            swept.extend(entries)  # what has come meanwhile, an eighth of it at most
            self._entries, self._swept = swept, deque()
            untrack(self._swept)
