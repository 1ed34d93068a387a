"""A tube: its ready, delayed and buried jobs, the clients that wait for them, and its pause.

Owns the order of the jobs in the tube, and the tube's counters. Knows no other tubes, timers or journal: those are the
broker's. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, URGENT_BELOW, Job
from greenstalk_server.core.jobs.job_index import JobIndex
from greenstalk_server.core.policies.policy_counts import PolicyCounts
from greenstalk_server.core.tags.idempotency import IdempotencyKeys
from greenstalk_server.core.tags.tags import TaggedJob
from greenstalk_server.core.timers import NEVER
from greenstalk_server.core.tubes.durations import DurationStats
from greenstalk_server.core.tubes.ready_queue import ReadyQueue

if TYPE_CHECKING:
    from greenstalk_server.core.client import Client
    from greenstalk_server.core.policies.tube_policy_state import TubePolicyState
    from greenstalk_server.core.tubes.head_watch import HeadWatch
    from greenstalk_server.core.tubes.name_list import NameChunk
    from greenstalk_server.core.tubes.tube_set import TubeSet


class Totals:
    """Number of reserved, delayed and buried jobs of all tubes; the remaining jobs are ready.

    urgent  number of ready jobs that are urgent.
    """

    __slots__ = ("buried", "delayed", "reserved", "urgent")

    def __init__(self) -> None:
        self.urgent: int = 0
        self.reserved: int = 0
        self.delayed: int = 0
        self.buried: int = 0


class Tube:
    """One tube.

    ready           ready jobs, ordered by (pri, id).
    delayed         delayed jobs, ordered by (deadline, id); jobs that wait for a group are last.
    buried          buried jobs by id, in the order in which they were buried.
    waiters         clients that watch the tube and are parked in a reserve, longest waiting first, except those that
                    wait in one of `tube_sets`.
    reserved_count  number of its jobs that are reserved, those that move to another shard included.
    moving_count    number of its jobs that move to another shard.
    body_bytes      size in bytes of the bodies of all its jobs, in every state.
    using, watching number of clients that use and that watch the tube.
    paused_until    end of the pause, nanoseconds; the tube is paused while this is later than now.
    pause           length of the current pause, nanoseconds; 0 if there is none.
    policy_state    merged settings of the policies that match the tube, and their state; None if no policy matches.
    throttled_until the tube hands out no job before this time, nanoseconds: the end of its pause, the next start that
                    its rate allows, or NEVER while the maximum of its jobs is reserved.
    idempotency     idempotency keys of its jobs; None until a job has one.
    scope           prefix of the groups and concurrency keys of its jobs in the tables of the broker (see
                    greenstalk_server.core.tube_shards); empty in a queue of one shard.
    policy_counts   counts of policy actions on its jobs; None if there were none.
    tube_sets       sets of many tubes that include this one; the tube notifies them of its ready jobs.
    head_watch      notes when the first ready job may have changed; None unless another process subscribes to it.
    timer_at        time for which the broker's timers are armed, 0 for none (see Timers).
    total_jobs, cmd_delete, total_*   counters since the tube was created.
    name_chunk      the chunk of the broker's TubeNames that has the name.
    queue_times     how long jobs were ready until they were reserved.
    processing_times    how long jobs were reserved until they were deleted, released or buried.
    """

    __slots__ = (
        "body_bytes",
        "buried",
        "cmd_delete",
        "cmd_pause_tube",
        "delayed",
        "head_watch",
        "idempotency",
        "moving_count",
        "name",
        "name_chunk",
        "pause",
        "paused_until",
        "policy_counts",
        "policy_state",
        "processing_times",
        "queue_times",
        "ready",
        "reserved_count",
        "scope",
        "throttled_until",
        "timer_at",
        "total_buries",
        "total_jobs",
        "total_kicks",
        "total_releases",
        "total_reserves",
        "total_timeouts",
        "totals",
        "tube_sets",
        "urgent_count",
        "using",
        "waiters",
        "watching",
    )

    def __init__(self, name: bytes, jobs: Mapping[int, Job], totals: Totals | None = None) -> None:
        """*jobs* is the broker's table of every job by id, *totals* its counts of them."""
        self.name: bytes = name
        self.name_chunk: NameChunk | None = None
        self.scope: bytes = b""
        self.totals: Totals = totals if totals is not None else Totals()
        self.ready: ReadyQueue = ReadyQueue(jobs)
        self.delayed: JobIndex = JobIndex(jobs)
        self.buried: OrderedDict[int, Job] = OrderedDict()
        self.waiters: OrderedDict[Client, None] = OrderedDict()
        self.reserved_count: int = 0
        self.moving_count: int = 0
        self.body_bytes: int = 0
        self.urgent_count: int = 0
        self.using: int = 0
        self.watching: int = 0
        self.tube_sets: list[TubeSet] = []
        self.head_watch: HeadWatch | None = None
        self.total_jobs: int = 0
        self.cmd_delete: int = 0
        self.cmd_pause_tube: int = 0
        self.pause: int = 0
        self.paused_until: int = 0
        self.throttled_until: int = 0
        self.policy_state: TubePolicyState | None = None
        self.idempotency: IdempotencyKeys | None = None
        self.policy_counts: PolicyCounts | None = None
        self.timer_at: int = 0
        self.total_reserves: int = 0
        self.total_releases: int = 0
        self.total_buries: int = 0
        self.total_kicks: int = 0
        self.total_timeouts: int = 0
        self.queue_times: DurationStats = DurationStats()
        self.processing_times: DurationStats = DurationStats()

    def __repr__(self) -> str:
        return f"<Tube {self.name!r}>"

    def add_ready(self, job: Job) -> None:
        """Add the detached *job*, whose `ready_since` is set, to the ready jobs."""
        job.state = READY
        self.ready.add(job)
        if self.policy_state is not None:
            self.policy_state.add_waiting(job)
        if self.tube_sets:
            for tube_set in self.tube_sets:
                tube_set.note(job)
        if self.head_watch is not None:
            self.head_watch.note(self)
        if job.pri < URGENT_BELOW:
            self.urgent_count += 1
            self.totals.urgent += 1

    def add_delayed(self, job: Job) -> None:
        """Add the detached *job* to the delayed jobs, until its deadline."""
        job.state = DELAYED
        self.delayed.add(job, job.deadline)
        if isinstance(job, TaggedJob):
            job.count(1)
        if self.policy_state is not None:
            self.policy_state.add_waiting(job)
        self.totals.delayed += 1

    def add_buried(self, job: Job) -> None:
        """Append the detached *job* to the buried jobs."""
        job.state = BURIED
        self.buried[job.id] = job
        if isinstance(job, TaggedJob):
            job.count(1)
        self.totals.buried += 1

    def remove(self, job: Job) -> None:
        """Detach *job*, which is ready, delayed or buried in this tube."""
        if job.state == READY:
            self.remove_ready(job)
        elif job.state == DELAYED:
            is_removed = self.delayed.remove(job, job.deadline)
            assert is_removed
            self.totals.delayed -= 1
            if isinstance(job, TaggedJob):
                job.count(-1)
                job.end_await()
            if self.policy_state is not None:
                self.policy_state.remove_waiting(job)
        else:
            assert job.state == BURIED
            if isinstance(job, TaggedJob):
                job.count(-1)
            del self.buried[job.id]
            self.totals.buried -= 1

    def remove_ready(self, job: Job) -> None:
        """Detach *job*, which is ready in this tube."""
        self.ready.remove(job)
        if self.head_watch is not None:
            self.head_watch.note(self)
        if self.policy_state is not None:
            self.policy_state.remove_waiting(job)
        if job.pri < URGENT_BELOW:
            self.urgent_count -= 1
            self.totals.urgent -= 1

    def claim_key(self, job: Job) -> None:
        """Register the idempotency key of *job*, which was added to the tube, if the job has one."""
        if isinstance(job, TaggedJob) and job.idempotency_key:
            if self.idempotency is None:
                self.idempotency = IdempotencyKeys()
            self.idempotency.claim(job)

    def release_key(self, job: Job, jobs: Mapping[int, Job]) -> None:
        """Unregister the idempotency key of *job*, which leaves the tube; *jobs* is the broker's job table."""
        if self.idempotency is not None and isinstance(job, TaggedJob) and job.idempotency_key:
            self.idempotency.release(job, jobs)

    def counts(self) -> PolicyCounts:
        """Return `policy_counts`, created if there are none."""
        if self.policy_counts is None:
            self.policy_counts = PolicyCounts()
        return self.policy_counts

    @property
    def job_count(self) -> int:
        """Number of its jobs, in every state."""
        return self.ready.count + self.reserved_count + self.delayed.count + len(self.buried)

    @property
    def waiting_count(self) -> int:
        """Number of clients that wait for a job of the tube."""
        count = len(self.waiters)
        for tube_set in self.tube_sets:
            count += len(tube_set.waiters)
        return count

    def first_waiter(self) -> Client | None:
        """Return the client that has waited longest for a job of the tube, or None."""
        first = next(iter(self.waiters), None)
        for tube_set in self.tube_sets:
            other = next(iter(tube_set.waiters), None)
            if other is not None and (first is None or other.wait_number < first.wait_number):
                first = other
        return first

    def throttle_reason(self, now: int) -> str:
        """Return why reserves get no job of the tube at *now*: "pause", "max_reserved" or "rate"; empty if they can."""
        if self.throttled_until <= now:
            return ""
        if self.paused_until > now:
            return "pause"
        return "max_reserved" if self.throttled_until == NEVER else "rate"

    def oldest_ready(self) -> Job | None:
        """Return the job that has been ready for longest, or None."""
        return self.ready.oldest()

    def walk(self, state: int) -> Iterator[Job]:
        """Iterate over the jobs in *state*, READY, DELAYED or BURIED, in order. Valid until one is added or removed."""
        if state == READY:
            return self.ready.walk()
        return self.delayed.walk() if state == DELAYED else iter(self.buried.values())

    def first_buried(self) -> Job | None:
        """Return the job that was buried first, or None."""
        return next(iter(self.buried.values()), None)

    def is_unneeded(self) -> bool:
        """Whether no client uses or watches the tube, and it holds no job."""
        return not (
            self.using or self.watching or self.reserved_count or self.ready.count or self.delayed.count or self.buried
        )
