"""Jobs on their way from one tube to another, on the same server or not; none is lost.

A job is put at the target first, and deleted at the source then. A crash between the two leaves it in both: one job
at most, since they go one by one. It gets a new id; pri, ttr, body, and what is left of its delay are kept; its age
and its counts of reserves, timeouts, releases, buries and kicks begin anew.

A ready job is reserved meanwhile, so no worker gets it; a crash gives it back. One that is delayed or buried is only
peeked: if it were reserved, a crash would make it ready. If a worker takes it in that moment, the copy is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from greenstalkctl.exits import Failure, Refused
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.queue import BURIED, DELAYED, READY, RESERVED, STATES
from greenstalkctl.server import Job, Server
from greenstalkctl.text import plural

HOUR: Final = 3600
"""Seconds for which a job that is to be buried is delayed, so that no worker gets it before it is."""


class Outcome(Enum):
    """What became of one job."""

    MOVED = "moved"
    TAKEN = "taken"
    """A worker has it, or has deleted it; nothing is left at the target."""

    DOUBLED = "doubled"
    """A worker took it, and another the copy."""


@dataclass(slots=True)
class Tally:
    """How many jobs have moved, by the state in which they were, and what became of those that did not."""

    moved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    taken: int = 0
    doubled: int = 0

    def note(self, state: str, outcome: Outcome, count: int = 1) -> None:
        """Count so many jobs."""
        match outcome:
            case Outcome.MOVED:
                self.moved[state] += count
            case Outcome.TAKEN:
                self.taken += count
            case Outcome.DOUBLED:
                self.doubled += count

    @property
    def total(self) -> int:
        """The jobs that have moved."""
        return sum(self.moved.values())

    def data(self) -> dict[str, object]:
        """The counts as JSON has them."""
        return {"moved": self.moved, "taken": self.taken, "doubled": self.doubled}

    def lines(self, where: str) -> list[str]:
        """The counts in words, of a move to *where*."""
        by_state = ", ".join(f"{count} {state}" for state, count in self.moved.items() if count)
        said = [f"moved {plural(self.total)} to {where}" + (f": {by_state}" if by_state else "")]
        if self.taken:
            said.append(f"{plural(self.taken)} not moved, since a worker took them meanwhile")
        if self.doubled:
            said.append(f"{plural(self.doubled)} in both places, since workers took them at both in the same moment")
        return said


@dataclass(frozen=True, slots=True)
class Transfer:
    """From a tube to a tube, over two connections, each of which stays in its tube."""

    source: Server
    source_tube: str
    target: Server
    target_tube: str

    def run(self, state: str, limit: int | None, interrupt: Interrupt) -> Iterator[Outcome]:
        """Move jobs in *state*, *limit* at most, until there are none or somebody interrupts."""
        done = 0
        while not interrupt and done != limit and (outcome := self.next(state)) is not None:
            done += 1
            yield outcome

    def next(self, state: str) -> Outcome | None:
        """Move the job in *state* whose turn is next; None if there is none, or none that can be had.

        To move a buried job the target must be able to reserve by id. If the target refuses, or goes away, the job
        stays where it was.
        """
        job = self._take_ready() if state == READY else self.source.first(self.source_tube, state)
        if job is None:
            return None
        stats = self.source.job(job.id)
        if stats is None or stats["state"] != (RESERVED if state == READY else state):
            return self.next(state)  # somebody has kicked, taken or deleted it since
        try:
            copy = self._put(job, state, stats["pri"], stats["ttr"], stats["time-left"])
        except Failure as error:
            self._give_back(job, state, stats["pri"])
            if isinstance(error, Refused):
                raise Refused(error.word, f"job {job.id} of {self.source_tube} stays: {error}") from error
            raise
        if self.source.delete(job.id):
            return Outcome.MOVED
        return Outcome.TAKEN if self.target.delete(copy) else Outcome.DOUBLED

    def _take_ready(self) -> Job | None:
        """Reserve a job; of a paused tube by its id, if the server can do that."""
        job = self.source.reserve(self.source_tube)
        if job is not None or not self.source.abilities.reserves_by_id:
            return job
        while (ahead := self.source.first(self.source_tube, READY)) is not None:
            if (job := self.source.reserve_job(ahead.id)) is not None:
                return job
        return None

    def _put(self, job: Job, state: str, pri: int, ttr: int, seconds_left: int) -> int:
        if state != BURIED:
            delay = seconds_left + 1 if state == DELAYED else 0  # stats-job rounds down; a delay must not end early
            return self.target.put(self.target_tube, job.body, pri, delay, ttr)
        copy = self.target.put(self.target_tube, job.body, pri, HOUR, ttr)
        if (held := self.target.reserve_job(copy)) is not None:
            self.target.bury(held, pri)
        return copy

    def _give_back(self, job: Job, state: str, pri: int) -> None:
        if state == READY:
            with suppress(Failure):  # the source has gone away as well, and gives it back itself
                self.source.release(job, pri)
