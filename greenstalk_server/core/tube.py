"""A tube: its ready, delayed and buried jobs, the clients that wait on it, its pause.

Owns the order of jobs within the tube and the tube's counters. Knows nothing of other tubes, of timers or of
the journal: the broker calls it and does the rest.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from greenstalk_server.core.job import BURIED, DELAYED, NO_KEY, READY, URGENT_BELOW, Job
from greenstalk_server.core.job_heap import JobHeap
from greenstalk_server.core.ready_queue import ReadyQueue

if TYPE_CHECKING:
    from greenstalk_server.core.client import Client
    from greenstalk_server.core.tube_set import Watch

NAME: Final = re.compile(rb"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199}")
"""What a tube may be called (protocol.txt, "Names")."""


class Totals:
    """Jobs of all tubes by state. Jobs in no other state are ready, and some of them urgent."""

    __slots__ = ("buried", "delayed", "reserved", "urgent")

    def __init__(self) -> None:
        self.urgent: int = 0
        self.reserved: int = 0
        self.delayed: int = 0
        self.buried: int = 0


def is_tube_name(name: bytes) -> bool:
    """Whether a tube may be called *name*."""
    return NAME.fullmatch(name) is not None


class Tube:
    """One tube.

    ready           by (pri, id).
    delayed         by (deadline, id).
    buried          in the order they were buried, by id.
    waiters         clients parked in a reserve that watch it, longest waiting first, but for those that wait in one of
                    its watches.
    reserved_count  its jobs that some client holds.
    body_bytes      of all its jobs, in whatever state.
    paused_until    end of the pause, nanoseconds; it is paused while this is later than now.
    pause           length of the running pause, nanoseconds; 0 if none.
    watches         of many tubes, this one among them; they are told of its ready jobs.
    timer_at        when the broker's timers next call on it, 0 for never (see broker.Timers).
    total_jobs, cmd_delete, total_*   what was counted since the tube was created.
    waits, runs     how long jobs were ready until they were reserved, and reserved until they were deleted, released or
                    buried: how many by the bit length of that in nanoseconds; wait_time and run_time are the sums.
    """

    __slots__ = (
        "body_bytes",
        "buried",
        "cmd_delete",
        "cmd_pause_tube",
        "delayed",
        "name",
        "pause",
        "paused_until",
        "ready",
        "reserved_count",
        "run_time",
        "runs",
        "timer_at",
        "total_buries",
        "total_jobs",
        "total_kicks",
        "total_releases",
        "total_reserves",
        "total_timeouts",
        "totals",
        "urgent_count",
        "using",
        "wait_time",
        "waiters",
        "waits",
        "watches",
        "watching",
    )

    def __init__(self, name: bytes, jobs: Mapping[int, Job], totals: Totals | None = None) -> None:
        """*jobs* is the broker's table of every job by id, *totals* are its counts."""
        self.name: bytes = name
        self.totals: Totals = totals if totals is not None else Totals()
        self.ready: ReadyQueue = ReadyQueue(name, jobs)
        self.delayed: JobHeap = JobHeap(name, jobs)
        self.buried: OrderedDict[int, Job] = OrderedDict()
        self.waiters: OrderedDict[Client, None] = OrderedDict()
        self.reserved_count: int = 0
        self.body_bytes: int = 0
        self.urgent_count: int = 0
        self.using: int = 0
        self.watching: int = 0
        self.watches: list[Watch] = []
        self.total_jobs: int = 0
        self.cmd_delete: int = 0
        self.cmd_pause_tube: int = 0
        self.pause: int = 0
        self.paused_until: int = 0
        self.timer_at: int = 0
        self.total_reserves: int = 0
        self.total_releases: int = 0
        self.total_buries: int = 0
        self.total_kicks: int = 0
        self.total_timeouts: int = 0
        self.wait_time: int = 0
        self.run_time: int = 0
        self.waits: dict[int, int] = {}
        self.runs: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Tube {self.name!r}>"

    def add_ready(self, job: Job) -> None:
        """Put *job*, which is nowhere, and ready since its deadline, among the ready ones."""
        job.state = READY
        self.ready.add(job)
        if self.watches:
            for watch in self.watches:
                watch.note(job)
        if job.pri < URGENT_BELOW:
            self.urgent_count += 1
            self.totals.urgent += 1

    def add_delayed(self, job: Job) -> None:
        """Put *job*, which is nowhere, among the delayed ones until its deadline."""
        job.state = DELAYED
        self.delayed.push(job, job.deadline)
        self.totals.delayed += 1

    def add_buried(self, job: Job) -> None:
        """Put *job*, which is nowhere, at the end of the buried ones."""
        job.state = BURIED
        self.buried[job.id] = job
        self.totals.buried += 1

    def remove(self, job: Job) -> None:
        """Take out *job*, which is ready, delayed or buried here; it is nowhere then."""
        if job.state == READY:
            self.remove_ready(job)
        elif job.state == DELAYED:
            self.delayed.remove(job)
            self.totals.delayed -= 1
        else:
            assert job.state == BURIED and job.key == NO_KEY
            del self.buried[job.id]
            self.totals.buried -= 1

    def remove_ready(self, job: Job) -> None:
        """Take out *job*, which is ready here; it is nowhere then."""
        self.ready.remove(job)
        if job.pri < URGENT_BELOW:
            self.urgent_count -= 1
            self.totals.urgent -= 1

    @property
    def waiting_count(self) -> int:
        """How many clients wait for a job of it."""
        count = len(self.waiters)
        for watch in self.watches:
            count += len(watch.waiters)
        return count

    def first_waiter(self) -> Client | None:
        """The client that has waited longest for a job of it, or None."""
        first = next(iter(self.waiters), None)
        for watch in self.watches:
            other = next(iter(watch.waiters), None)
            if other is not None and (first is None or other.wait_number < first.wait_number):
                first = other
        return first

    def oldest_ready(self) -> Job | None:
        """The job that has been ready for longest, or None."""
        return self.ready.oldest()

    def walk(self, state: int) -> Iterator[Job]:
        """The jobs in *state*, READY, DELAYED or BURIED, in their order, lazily. Valid until they next change."""
        if state == READY:
            return self.ready.walk()
        return self.delayed.walk() if state == DELAYED else iter(self.buried.values())

    def first_buried(self) -> Job | None:
        """The job buried longest ago, or None."""
        return next(iter(self.buried.values()), None)

    def is_unneeded(self) -> bool:
        """Whether no client uses or watches it and no job is in it."""
        return not (
            self.using or self.watching or self.reserved_count or self.ready.count or self.delayed.count or self.buried
        )
