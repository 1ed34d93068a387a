"""Groups of jobs, and the jobs that wait until a group is empty.

In a queue of several shards a group counts within one scope (see greenstalk_server.core.tube_shards). The groups
of one name in different scopes have nothing in common, except that they share their counts by state, for statistics.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.jobs.job_index import JobIndex
from greenstalk_server.core.timers import Dependents

STATES = max(READY, RESERVED, BURIED, DELAYED) + 1

WAITING: Final = 0
"""Index in `Group.counts` of the number of jobs that wait for the group; no job has this state."""


class GroupCounts:
    """The counts that all groups of one name share.

    counts  number of jobs by state, and at WAITING the number of jobs that wait.
    groups  number of the groups.
    """

    __slots__ = ("counts", "groups")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * STATES
        self.groups: int = 0


class Group:
    """A group of jobs. Exists while it has members or while jobs wait for it.

    name        1 to 200 bytes.
    scope       scope in which it counts; empty in a queue of one shard.
    members     number of its jobs, over all tubes of the scope.
    counts      number of its jobs by state, and at WAITING the number of jobs that wait for it. A job between two
                states is not counted. In a queue of several shards, the groups of this name in all scopes.
    waiting     the delayed jobs that wait for the group, by id.
    timer_at    time for which the broker's timers are armed, 0 for none (see Timers).
    """

    __slots__ = ("_dependents", "counts", "members", "name", "scope", "timer_at", "waiting")

    def __init__(
        self, name: bytes, scope: bytes, counts: list[int], jobs: Mapping[int, Job], dependents: Dependents
    ) -> None:
        """*jobs* is the broker's table of every job by id, *dependents* its dependents."""
        self.name: bytes = name
        self.scope: bytes = scope
        self.members: int = 0
        self.counts: list[int] = counts
        self.waiting: JobIndex = JobIndex(jobs)
        self.timer_at: int = 0
        self._dependents: Dependents = dependents

    def add_waiting(self, job: Job) -> None:
        """Add *job* to the jobs that wait for the group."""
        self.waiting.add(job, 0)
        self.counts[WAITING] += 1
        self.note()

    def remove_waiting(self, job: Job) -> None:
        """Remove *job* from the jobs that wait."""
        is_removed = self.waiting.remove(job, 0)
        assert is_removed
        self.counts[WAITING] -= 1
        self.note()

    def remove_member(self) -> None:
        """Count the deletion of a member."""
        self.members -= 1
        self.note()

    def note(self) -> None:
        """Add the group to the dependents if it has no members: its waiting jobs become ready, or it is dropped."""
        if not self.members:
            self._dependents.add(self)
