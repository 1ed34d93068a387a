"""Groups of jobs, and the jobs that wait until a group is empty. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.jobs.job_index import JobIndex
from greenstalk_server.core.timers import Target

STATES = max(READY, RESERVED, BURIED, DELAYED) + 1


class Group:
    """A group of jobs. Exists while it has members or while jobs wait for it.

    name        1 to 200 bytes.
    members     number of its jobs, over all tubes.
    counts      number of its jobs by state. A job between two states is not counted.
    waiting     the delayed jobs that wait for the group, by id.
    timer_at    time for which the broker's timers are armed, 0 for none (see Timers).
    is_noted    the group is in the broker's list of unsettled targets (see transitions.dependents).
    """

    __slots__ = ("_unsettled", "counts", "is_noted", "members", "name", "timer_at", "waiting")

    def __init__(self, name: bytes, jobs: Mapping[int, Job], unsettled: list[Target]) -> None:
        """*jobs* is the broker's table of every job by id, *unsettled* its list of unsettled targets."""
        self.name: bytes = name
        self.members: int = 0
        self.counts: list[int] = [0] * STATES
        self.waiting: JobIndex = JobIndex(jobs)
        self.timer_at: int = 0
        self.is_noted: bool = False
        self._unsettled: list[Target] = unsettled

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
        """Queue the group for settling if it has no members: its waiting jobs become ready, or it is dropped."""
        if not self.members and not self.is_noted:
            self.is_noted = True
            self._unsettled.append(self)
