"""Groups of jobs, and the jobs that wait until a group is empty. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.jobs.job_index import JobIndex
from greenstalk_server.core.timers import Dependents

STATES = max(READY, RESERVED, BURIED, DELAYED) + 1


class Group:
    """A group of jobs. Exists while it has members or while jobs wait for it.

    name        1 to 200 bytes.
    members     number of its jobs, over all tubes.
    counts      number of its jobs by state. A job between two states is not counted.
    waiting     the delayed jobs that wait for the group, by id.
    timer_at    time for which the broker's timers are armed, 0 for none (see Timers).
    """

    __slots__ = ("_dependents", "counts", "members", "name", "timer_at", "waiting")

    def __init__(self, name: bytes, jobs: Mapping[int, Job], dependents: Dependents) -> None:
        """*jobs* is the broker's table of every job by id, *dependents* its dependents."""
        self.name: bytes = name
        self.members: int = 0
        self.counts: list[int] = [0] * STATES
        self.waiting: JobIndex = JobIndex(jobs)
        self.timer_at: int = 0
        self._dependents: Dependents = dependents

    def add_waiting(self, job: Job) -> None:
        """Add *job* to the jobs that wait for the group."""
        self.waiting.add(job, 0)
        self.note()

    def remove_waiting(self, job: Job) -> None:
        """Remove *job* from the jobs that wait."""
        is_removed = self.waiting.remove(job, 0)
        assert is_removed
        self.note()

    def remove_member(self) -> None:
        """Count the deletion of a member."""
        self.members -= 1
        self.note()

    def note(self) -> None:
        """Add the group to the dependents if it has no members: its waiting jobs become ready, or it is dropped."""
        if not self.members:
            self._dependents.add(self)
