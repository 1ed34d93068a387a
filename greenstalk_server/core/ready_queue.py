"""The ready jobs of one tube, smallest (pri, id) first, and the one of them that has been ready for longest.

Most jobs turn ready in the order of their ids, at one of a few priorities. So they stand in runs: a list of chunks for
each priority, to whose end a job is added, if its id is above all before. A run takes eight bytes a job, its first job
is at hand, and whatever leaves it leaves nothing behind. It is sorted by id and by time of arrival alike.

What does not fit is a stray: a job that has come back behind later ones, or one of many priorities. Strays stand in a
heap, and in their order of arrival besides. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import Final

from greenstalk_server.core.gc_untrack import untrack
from greenstalk_server.core.job import IN_RUN, NO_KEY, Job, deadline_of
from greenstalk_server.core.job_heap import JobHeap
from greenstalk_server.core.ready_ages import Arrivals

RUNS: Final = 8
"""Priorities of one tube that have a run at a time; `first` looks at each."""

CHUNK: Final = 256
"""Jobs: to take the first of so many moves two kilobytes."""


class ReadyQueue:
    """See the module.

    count   how many jobs are in it.

    Invariants: `_pris` rises, and `_runs` are the runs of those, by `_run_of` too; no chunk is empty; a job in a run
    has the key IN_RUN, a stray that of its entry in the heap.
    """

    __slots__ = ("_arrivals", "_jobs", "_name", "_pris", "_run_of", "_runs", "_strays", "count")

    def __init__(self, name: bytes, jobs: Mapping[int, Job]) -> None:
        """*name* is the tube's; *jobs* is the broker's table of every job by id."""
        self.count: int = 0
        self._name: bytes = name
        self._jobs: Mapping[int, Job] = jobs
        self._run_of: dict[int, list[list[Job]]] = {}
        self._pris: list[int] = []
        self._runs: list[list[list[Job]]] = []
        self._strays: JobHeap | None = None
        self._arrivals: Arrivals | None = None

    def add(self, job: Job) -> None:
        """Add *job*, which is nowhere, and ready since its deadline, which is no earlier than that of any before."""
        self.count += 1
        run = self._run_of.get(job.pri)
        if run is None:
            run = self._begin_run(job.pri)
        if not run:
            if run is None:
                self._add_stray(job)
                return
            run.append([job])
        else:
            last = run[-1]
            if last[-1].id > job.id:
                self._add_stray(job)
                return
            if len(last) < CHUNK:
                last.append(job)
            else:
                untrack(last)
                run.append([job])
        job.key = IN_RUN

    def first(self) -> Job | None:
        """The job with the smallest (pri, id), or None."""
        job = None
        for run in self._runs:
            if run:
                job = run[0][0]
                break
        if self._strays is not None and self._strays.count:
            stray = self._strays.first()
            if stray is not None and (job is None or is_before(stray, job)):
                return stray
        return job

    def remove(self, job: Job) -> None:
        """Take *job* out, from wherever it stands; cheapest if it is the first."""
        self.count -= 1
        if job.key != IN_RUN:
            assert self._strays is not None and self._arrivals is not None
            self._strays.remove(job)
            self._arrivals.remove(job)
            return
        job.key = NO_KEY
        run = self._run_of[job.pri]
        at, chunk = 0, run[0]
        if chunk[0] is job:
            del chunk[0]
        else:
            at = bisect_right(run, job.id, key=_first_id) - 1
            chunk = run[at]
            del chunk[bisect_left(chunk, job.id, key=_id)]
        if not chunk:
            del run[at]

    def oldest(self) -> Job | None:
        """The job that has been ready for longest; None too if too many dead entries stand before the oldest stray."""
        found = [run[0][0] for run in self._runs if run]
        stray = self._arrivals.oldest() if self._arrivals is not None else None
        if stray is not None:
            found.append(stray)
        return min(found, key=deadline_of, default=None)

    def walk(self) -> Iterator[Job]:
        """Every job in order, lazily. Valid until the queue next changes."""
        strays = self._strays.walk() if self._strays is not None else iter(())
        stray = next(strays, None)
        for run in self._runs:
            for chunk in run:
                for job in chunk:
                    while stray is not None and is_before(stray, job):
                        yield stray
                        stray = next(strays, None)
                    yield job
        while stray is not None:
            yield stray
            stray = next(strays, None)

    def ids(self) -> list[int]:
        """The ids of all jobs in it, in no order, and of some that have left."""
        ids = [job.id for run in self._runs for chunk in run for job in chunk]
        return ids + self._strays.ids() if self._strays is not None else ids

    @property
    def size(self) -> int:
        """How many ids `ids` gives."""
        return self.count + (self._strays.size - self._strays.count if self._strays is not None else 0)

    def check(self, jobs: list[Job]) -> None:
        """Assert that it holds *jobs* and is within its bounds. O(everything): for tests."""
        assert self.count == len(jobs)
        assert len(self._pris) == len(self._runs) <= RUNS and self._pris == sorted(self._run_of)
        in_runs = 0
        for pri, run in zip(self._pris, self._runs, strict=True):
            assert run is self._run_of[pri] and all(0 < len(chunk) <= CHUNK for chunk in run)
            standing = [job for chunk in run for job in chunk]
            assert all(job.key == IN_RUN and job.pri == pri for job in standing)
            assert [job.id for job in standing] == sorted({job.id for job in standing})
            assert [job.deadline for job in standing] == sorted(job.deadline for job in standing)
            in_runs += len(standing)
        strays = [job for job in jobs if job.key != IN_RUN]
        assert in_runs + len(strays) == self.count
        if self._strays is not None and self._arrivals is not None:
            self._strays.check(strays)
            self._arrivals.check(strays)

    def _begin_run(self, pri: int) -> list[list[Job]] | None:
        """A run for *pri*, in the place of an empty one if there are RUNS; None if none of those is."""
        if len(self._runs) == RUNS:
            empty = next((at for at, run in enumerate(self._runs) if not run), None)
            if empty is None:
                return None
            del self._run_of[self._pris.pop(empty)], self._runs[empty]
        at = bisect_left(self._pris, pri)
        run: list[list[Job]] = []
        self._pris.insert(at, pri)
        self._runs.insert(at, run)
        self._run_of[pri] = run
        return run

    def _add_stray(self, job: Job) -> None:
        if self._strays is None or self._arrivals is None:
            self._strays = JobHeap(self._name, self._jobs)
            self._arrivals = Arrivals(self._name, self._strays, self._jobs)
        self._strays.push(job, job.pri)
        self._arrivals.add(job)


def is_before(one: Job, other: Job) -> bool:
    """Whether *one* is reserved before *other*."""
    return one.pri < other.pri or (one.pri == other.pri and one.id < other.id)


def _id(job: Job) -> int:
    return job.id


def _first_id(chunk: list[Job]) -> int:
    return chunk[0].id
