"""The ready jobs of one tube, ordered by (pri, id). Also finds the job that has been ready for longest.

Most jobs become ready in the order of their ids, at one of a few priorities. So there is a run for each priority: a
list of chunks of jobs. A job is appended to the run if its id is above all others in the run. A run takes eight bytes
per job and finds its first job in constant time. It is sorted both by id and by the time when jobs became ready.

A job that does not fit in a run is out of order: the run already has a job with a higher id, or there are too many
priorities. Such jobs are in two indexes, one by priority and one by the time when they became ready.

Jobs with a concurrency key (see greenstalk_server.core.tags.concurrency) are never in a run. The front of each key is
out of order, and the other jobs are withheld: they are ready, counted and listed, but `first` does not return them.
The same holds for jobs that are offered (see greenstalk_server.core.transitions.waiting). Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from greenstalk_server.core.gc_untrack import untrack
from greenstalk_server.core.jobs.job import Job, deadline_of
from greenstalk_server.core.jobs.job_index import JobIndex
from greenstalk_server.core.tags.concurrency import ConcurrencyKey, LimitedJobs
from greenstalk_server.core.tags.tags import TaggedJob

if TYPE_CHECKING:
    from greenstalk_server.core.client import Client
    from greenstalk_server.core.tubes.tube import Tube

MAX_RUNS: Final = 8
"""Maximum number of priorities that have a run. `first` looks at each run."""

MAX_CHUNK: Final = 256
"""Maximum number of jobs in a chunk. Removing the first job moves two kilobytes."""

MAX_STALE: Final = 256
"""Maximum number of stale fronts that one call of `first` withholds; takes up to a millisecond."""


class ReadyQueue:
    """The ready jobs of one tube.

    count           number of jobs, withheld and offered ones included.
    is_unfinished   the last call of `first` stopped at MAX_STALE stale fronts; the next call continues.

    Invariant: `_pris` has the priorities that have a run, in increasing order. `_runs` has their runs in the same
    order, and `_run_of` maps each priority to its run.
    Invariant: no chunk is empty.
    Invariant: each job is in the run of its priority, or out of order, or withheld, or offered. `_out_of_order`,
    `_withheld` and `_offered` are ranked by priority. `_by_age` has the jobs of all three, ranked by the time when they
    became ready. The indexes are None until they are needed.
    Invariant: `_offers` has the client of each offered job, by the job's id.
    """

    __slots__ = (
        "_by_age",
        "_jobs",
        "_offered",
        "_offers",
        "_out_of_order",
        "_pris",
        "_run_of",
        "_runs",
        "_withheld",
        "count",
        "is_unfinished",
    )

    def __init__(self, jobs: Mapping[int, Job]) -> None:
        """*jobs* is the broker's table of all jobs by id."""
        self.count: int = 0
        self._jobs: Mapping[int, Job] = jobs
        self._run_of: dict[int, list[list[Job]]] = {}
        self._pris: list[int] = []
        self._runs: list[list[list[Job]]] = []
        self._out_of_order: JobIndex | None = None
        self._by_age: JobIndex | None = None
        self._withheld: JobIndex | None = None
        self._offered: JobIndex | None = None
        self._offers: dict[int, Client] | None = None
        self.is_unfinished: bool = False

    def add(self, job: Job) -> None:
        """Add the detached *job*, whose `ready_since` is set and must not decrease from call to call."""
        self.count += 1
        if isinstance(job, TaggedJob):
            job.count(1)
            limiter = job.limiter
            if limiter is not None:
                self._add_limited(job, limiter)
                return
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
        """Return the job with the smallest (pri, id) that is not withheld, or None.

        Withholds the stale fronts that it meets. After MAX_STALE of them, returns None and sets `is_unfinished`; the
        broker continues the search.
        """
        job = None
        for run in self._runs:
            if run:
                job = run[0][0]
                break
        if self._out_of_order is not None and self._out_of_order.count:
            other = self._out_of_order.first()
            if other is not None and (job is None or is_before(other, job)):
                return self._first_runnable(other, job) if isinstance(other, TaggedJob) else other
        return job

    def peek(self) -> Job | None:
        """Return the first of `first` and the offered jobs, or the first withheld job; None if the queue is empty."""
        job = self.first()
        offered = self._offered.first() if self._offered is not None else None
        if offered is not None and (job is None or is_before(offered, job)):
            return offered
        return self._withheld.first() if job is None and self._withheld is not None else job

    def remove(self, job: Job) -> None:
        """Remove *job*; cheapest if it is the first."""
        self.count -= 1
        if self._offers and job.id in self._offers:
            self._return_offered(job)
        if isinstance(job, TaggedJob):
            job.count(-1)
            limiter = job.limiter
            if limiter is not None:
                self._remove_limited(job, limiter)
                return
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
        for index in (self._withheld, self._offered):
            if index is not None:
                out_of_order = _merged(out_of_order, index.walk())
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
        return ids + self._by_age.ids() if self._by_age is not None else ids

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
        others = [job for job in jobs if job not in in_runs]
        assert len(in_runs) + len(others) == self.count
        withheld = [job for job in others if is_withheld(job)]
        offers = self._offers or {}
        for index, found in (
            (self._out_of_order, [job for job in others if not is_withheld(job) and job.id not in offers]),
            (self._withheld, withheld),
            (self._offered, [job for job in others if job.id in offers]),
            (self._by_age, sorted(others, key=lambda job: (job.ready_since, job.id))),
        ):
            if index is not None:
                index.check(found)
            else:
                assert not found
        for job in others:
            limiter = job.limiter if isinstance(job, TaggedJob) else None
            if limiter is not None:
                queue = limiter.queues[job.tube]
                mine = [one for one in others if isinstance(one, TaggedJob) and one.limiter is limiter]
                assert queue.front is None or queue.front is mine[0]
                if queue.withheld is not None:
                    queue.withheld.check([one for one in mine if one is not queue.front])
                assert (job.tube in limiter.pending) == (queue.front is None)

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
        self._indexed_out_of_order().add(job, job.pri)
        self._indexed_by_age().add(job, job.deadline)

    def _indexed_out_of_order(self) -> JobIndex:
        if self._out_of_order is None:
            self._out_of_order = JobIndex(self._jobs)
        return self._out_of_order

    def _indexed_by_age(self) -> JobIndex:
        if self._by_age is None:
            self._by_age = JobIndex(self._jobs)
        return self._by_age

    def _remove_out_of_order(self, job: Job) -> bool:
        """Remove *job* from the jobs out of order; return False if it is not one of them."""
        if self._out_of_order is None or self._by_age is None or not self._out_of_order.remove(job, job.pri):
            return False
        is_removed = self._by_age.remove(job, job.deadline)
        assert is_removed
        return True

    # Offers

    def withhold(self, job: Job, client: Client) -> None:
        """Withhold *job*, which is `first`, from all but *client*."""
        if self._offered is None or self._offers is None:
            self._offered, self._offers = JobIndex(self._jobs), {}
        if self._out_of_order is None or not self._out_of_order.remove(job, job.pri):
            run = self._run_of[job.pri]
            assert run[0][0] is job
            del run[0][0]
            if not run[0]:
                del run[0]
            self._indexed_by_age().add(job, job.deadline)
        self._offered.add(job, job.pri)
        self._offers[job.id] = client

    def end_offer(self, job: Job, client: Client) -> bool:
        """End the offer of *job* to *client*; return False if there is none."""
        if self._offers is None or self._offers.get(job.id) is not client:
            return False
        self._return_offered(job)
        return True

    def _return_offered(self, job: Job) -> None:
        """Make the offered *job* one of the jobs out of order."""
        assert self._offered is not None and self._offers is not None
        del self._offers[job.id]
        self._offered.remove(job, job.pri)
        self._indexed_out_of_order().add(job, job.pri)

    # Jobs with a concurrency key

    def place_front(self, limiter: ConcurrencyKey, tube: Tube) -> Job:
        """Make the first withheld job of the pending *tube*, which owns this queue, the front; return it."""
        del limiter.pending[tube]
        queue = limiter.queues[tube]
        job = queue.withheld.first() if queue.withheld is not None else None
        assert job is not None and queue.withheld is not None and self._withheld is not None
        queue.withheld.remove(job, job.pri)
        self._withheld.remove(job, job.pri)
        queue.front = job
        self._indexed_out_of_order().add(job, job.pri)
        if tube.head_watch is not None:
            tube.head_watch.note(tube)
        return job

    def _add_limited(self, job: Job, limiter: ConcurrencyKey) -> None:
        """Make *job* the front if it is the tube's best job with the key and a slot is free; else withhold it."""
        self._indexed_by_age().add(job, job.deadline)
        queue = limiter.queues.get(job.tube)
        if queue is None:
            queue = limiter.queues[job.tube] = LimitedJobs()
        front = queue.front
        if front is not None and is_before(front, job):
            self._withhold(job, queue)
            return
        if front is not None:
            self._withdraw(front, queue, limiter, False)
        if limiter.is_free and not limiter.pending:
            queue.front = job
            self._indexed_out_of_order().add(job, job.pri)
        else:
            self._withhold(job, queue)
            limiter.pending[job.tube] = None
            limiter.note()

    def _remove_limited(self, job: Job, limiter: ConcurrencyKey) -> None:
        queue = limiter.queues[job.tube]
        is_removed = self._indexed_by_age().remove(job, job.deadline)
        if queue.front is job:
            queue.front = None
            self._indexed_out_of_order().remove(job, job.pri)
            if queue.has_withheld:
                limiter.pending[job.tube] = None
                limiter.note()
        else:
            assert self._withheld is not None and queue.withheld is not None
            self._withheld.remove(job, job.pri)
            is_removed &= queue.withheld.remove(job, job.pri)
            if not queue.has_withheld:
                limiter.pending.pop(job.tube, None)
        assert is_removed
        if queue.front is None and not queue.has_withheld:
            del limiter.queues[job.tube]

    def _withhold(self, job: Job, queue: LimitedJobs) -> None:
        if self._withheld is None:
            self._withheld = JobIndex(self._jobs)
        if queue.withheld is None:
            queue.withheld = JobIndex(self._jobs)
        self._withheld.add(job, job.pri)
        queue.withheld.add(job, job.pri)

    def _withdraw(self, front: Job, queue: LimitedJobs, limiter: ConcurrencyKey, is_pending: bool = True) -> None:
        """Withhold *front*, and note the tube as pending if *is_pending*."""
        if self._offers and front.id in self._offers:
            self._return_offered(front)
        self._indexed_out_of_order().remove(front, front.pri)
        queue.front = None
        self._withhold(front, queue)
        if front.tube.head_watch is not None:
            front.tube.head_watch.note(front.tube)
        if is_pending:
            limiter.pending[front.tube] = None

    def _first_runnable(self, candidate: TaggedJob, job: Job | None) -> Job | None:
        """Return the first job that is not a stale front, and withhold the stale fronts before it.

        *candidate* is the first job out of order. *job*, the first job of the runs or None, comes after it. Returns
        None and sets `is_unfinished` after MAX_STALE stale fronts.
        """
        self.is_unfinished = False
        index = self._indexed_out_of_order()
        for _ in range(MAX_STALE):
            limiter = candidate.limiter
            if limiter is None or limiter.is_free:
                return candidate
            self._withdraw(candidate, limiter.queues[candidate.tube], limiter)
            found = index.first()
            if found is None or (job is not None and is_before(job, found)):
                return job
            if not isinstance(found, TaggedJob):
                return found
            candidate = found
        limiter = candidate.limiter
        if limiter is None or limiter.is_free:
            return candidate
        self.is_unfinished = True
        limiter.note_tube(candidate.tube)
        return None


def is_before(one: Job, other: Job) -> bool:
    """Whether *one* comes before *other* in the order of reservation."""
    return one.pri < other.pri or (one.pri == other.pri and one.id < other.id)


def is_withheld(job: Job) -> bool:
    """Whether the ready *job* is withheld: it has a concurrency key and is not the front."""
    limiter = job.limiter if isinstance(job, TaggedJob) else None
    return limiter is not None and limiter.queues[job.tube].front is not job


def _merged(one: Iterator[Job], other: Iterator[Job]) -> Iterator[Job]:
    """Merge two iterators over jobs, each in order."""
    left, right = next(one, None), next(other, None)
    while left is not None and right is not None:
        if is_before(left, right):
            yield left
            left = next(one, None)
        else:
            yield right
            right = next(other, None)
    if left is not None:
        yield left
    if right is not None:
        yield right
    yield from one
    yield from other


def _id(job: Job) -> int:
    return job.id


def _first_id(chunk: list[Job]) -> int:
    return chunk[0].id
