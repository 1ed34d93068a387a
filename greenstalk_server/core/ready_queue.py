"""The ready jobs of one tube, ordered by (pri, id). Also finds the job that has been ready for longest.

Most jobs turn ready in the order of their ids, at one of a few priorities. So there is a run for each priority: a list
of chunks of jobs. A job is appended to the run if its id is above all others in the run. A run takes eight bytes per
job and finds its first job in constant time. It is sorted both by id and by the time when jobs turned ready.

A job that does not fit in a run is out of order: the run already has a job with a higher id, or there are too many
priorities. Such jobs are in two indexes, one by priority and one by the time when they turned ready. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import Final

from greenstalk_server.core.gc_untrack import untrack
from greenstalk_server.core.job import Job, deadline_of
from greenstalk_server.core.job_index import JobIndex

MAX_RUNS: Final = 8
"""Maximum number of priorities that have a run. `first` looks at each run."""

MAX_CHUNK: Final = 256
"""Maximum number of jobs in a chunk. Removing the first job moves two kilobytes."""


class ReadyQueue:
    """The ready jobs of one tube.

    count   number of jobs.

    Invariant: `_pris` has the priorities that have a run, in increasing order. `_runs` has their runs in the same
    order, and `_run_of` maps each priority to its run.
    Invariant: no chunk is empty.
    Invariant: each job is either in the run of its priority, or out of order: in `_out_of_order`, whose ranks are
    priorities, and in `_by_age`, whose ranks are the times when the jobs turned ready. Both are None until a job is out
    of order.
    """

    __slots__ = ("_by_age", "_jobs", "_out_of_order", "_pris", "_run_of", "_runs", "count")

    def __init__(self, jobs: Mapping[int, Job]) -> None:
        """*jobs* is the broker's table of all jobs by id."""
        self.count: int = 0
        self._jobs: Mapping[int, Job] = jobs
        self._run_of: dict[int, list[list[Job]]] = {}
        self._pris: list[int] = []
        self._runs: list[list[list[Job]]] = []
        self._out_of_order: JobIndex | None = None
        self._by_age: JobIndex | None = None

    def add(self, job: Job) -> None:
        """Add the detached *job*, whose `ready_since` is set and must not decrease from call to call."""
        self.count += 1
        run = self._run_of.get(job.pri)
        if run is None:
            run = self._create_run(job.pri)
        if not run:
            if run is None:
                self._add_out_of_order(job)
                return
            run.append([job])
        else:
            last = run[-1]
            if last[-1].id > job.id:
                self._add_out_of_order(job)
                return
            if len(last) < MAX_CHUNK:
                last.append(job)
            else:
                untrack(last)
                run.append([job])

    def first(self) -> Job | None:
        """Return the job with the smallest (pri, id), or None."""
        job = None
        for run in self._runs:
            if run:
                job = run[0][0]
                break
        if self._out_of_order is not None and self._out_of_order.count:
            other = self._out_of_order.first()
            if other is not None and (job is None or is_before(other, job)):
                return other
        return job

    def remove(self, job: Job) -> None:
        """Remove *job*; cheapest if it is the first."""
        self.count -= 1
        run = self._run_of.get(job.pri)
        if run and run[0][0] is job:
            at, chunk = 0, run[0]
            del chunk[0]
        elif self._remove_out_of_order(job):
            return
        else:
            assert run
            at = bisect_right(run, job.id, key=_first_id) - 1
            chunk = run[at]
            place = bisect_left(chunk, job.id, key=_id)
            assert chunk[place] is job
            del chunk[place]
        if not chunk:
            del run[at]

    def oldest(self) -> Job | None:
        """Return the job that has been ready for longest, or None."""
        found = [run[0][0] for run in self._runs if run]
        other = self._by_age.first() if self._by_age is not None else None
        if other is not None:
            found.append(other)
        return min(found, key=deadline_of, default=None)

    def walk(self) -> Iterator[Job]:
        """Iterate over the jobs in order. Valid until the queue changes."""
        out_of_order = self._out_of_order.walk() if self._out_of_order is not None else iter(())
        other = next(out_of_order, None)
        for run in self._runs:
            for chunk in run:
                for job in chunk:
                    while other is not None and is_before(other, job):
                        yield other
                        other = next(out_of_order, None)
                    yield job
        while other is not None:
            yield other
            other = next(out_of_order, None)

    def ids(self) -> list[int]:
        """Return the ids of its jobs, in no order."""
        ids = [job.id for run in self._runs for chunk in run for job in chunk]
        return ids + self._out_of_order.ids() if self._out_of_order is not None else ids

    def check(self, jobs: list[Job]) -> None:
        """Assert that the queue has *jobs*, in this order, and that its invariants hold. Slow: for tests."""
        assert self.count == len(jobs)
        assert len(self._pris) == len(self._runs) <= MAX_RUNS and self._pris == sorted(self._run_of)
        in_runs = set[Job]()
        for pri, run in zip(self._pris, self._runs, strict=True):
            assert run is self._run_of[pri] and all(0 < len(chunk) <= MAX_CHUNK for chunk in run)
            in_run = [job for chunk in run for job in chunk]
            assert all(job.pri == pri for job in in_run)
            assert [job.id for job in in_run] == sorted({job.id for job in in_run})
            assert [job.deadline for job in in_run] == sorted(job.deadline for job in in_run)
            in_runs.update(in_run)
        out_of_order = [job for job in jobs if job not in in_runs]
        assert len(in_runs) + len(out_of_order) == self.count
        if self._out_of_order is not None and self._by_age is not None:
            self._out_of_order.check(out_of_order)
            self._by_age.check(sorted(out_of_order, key=lambda job: (job.ready_since, job.id)))
        else:
            assert not out_of_order

    def _create_run(self, pri: int) -> list[list[Job]] | None:
        """Create a run for *pri*, in place of an empty run if there are MAX_RUNS; return None if none is empty."""
        if len(self._runs) == MAX_RUNS:
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

    def _add_out_of_order(self, job: Job) -> None:
        if self._out_of_order is None or self._by_age is None:
            self._out_of_order, self._by_age = JobIndex(self._jobs), JobIndex(self._jobs)
        self._out_of_order.add(job, job.pri)
        self._by_age.add(job, job.deadline)

    def _remove_out_of_order(self, job: Job) -> bool:
        """Remove *job* from the jobs out of order; return False if it is not one of them."""
        if self._out_of_order is None or self._by_age is None or not self._out_of_order.remove(job, job.pri):
            return False
        is_removed = self._by_age.remove(job, job.deadline)
        assert is_removed
        return True


def is_before(one: Job, other: Job) -> bool:
    """Whether *one* comes before *other* in the order of reservation."""
    return one.pri < other.pri or (one.pri == other.pri and one.id < other.id)


def _id(job: Job) -> int:
    return job.id


def _first_id(chunk: list[Job]) -> int:
    return chunk[0].id
