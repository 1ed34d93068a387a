"""Move jobs from one tube to another, on the same server or another one, without losing any.

Each job is put at the target, then deleted at the source. Jobs are moved one at a time, so that a crash between the two
steps leaves at most one job in both places. The job gets a new id. Its pri, ttr, body and remaining delay are kept; its
age and its counts of reserves, timeouts, releases, buries and kicks restart at 0.

A ready job is reserved while it is moved, so that no worker gets it; a crash releases it. A delayed or buried job is
only peeked at, because after a reserve, a crash would make it ready. If a worker takes the job during that time, the
copy is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from greenstalkctl.errors import CommandError, Refused
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.queue import BURIED, DELAYED, READY, RESERVED, STATES
from greenstalkctl.server import Job, Server
from greenstalkctl.text import plural

HOLD_DELAY: Final = 3600
"""Delay in seconds of a copy until it is buried, so that no worker can reserve it before that."""


class Outcome(Enum):
    """The outcome of moving one job."""

    MOVED = "moved"
    TAKEN = "taken"
    """A worker has reserved or deleted the job; the copy at the target is deleted."""

    DOUBLED = "doubled"
    """A worker took the job, and another worker took the copy."""


@dataclass(slots=True)
class TransferCounts:
    """Counts of moved jobs by their former state, and of jobs that were taken or doubled."""

    moved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    taken: int = 0
    doubled: int = 0

    def add(self, state: str, outcome: Outcome, count: int = 1) -> None:
        """Add *count* jobs with *outcome*."""
        match outcome:
            case Outcome.MOVED:
                self.moved[state] += count
            case Outcome.TAKEN:
                self.taken += count
            case Outcome.DOUBLED:
                self.doubled += count

    @property
    def total(self) -> int:
        """The number of jobs moved."""
        return sum(self.moved.values())

    def to_json(self) -> dict[str, object]:
        """Return the counts as in the JSON output."""
        return {"moved": self.moved, "taken": self.taken, "doubled": self.doubled}

    def summary_lines(self, where: str) -> list[str]:
        """Return the counts of a move to *where*, as lines for the terminal."""
        by_state = ", ".join(f"{count} {state}" for state, count in self.moved.items() if count)
        lines = [f"moved {plural(self.total)} to {where}" + (f": {by_state}" if by_state else "")]
        if self.taken:
            lines.append(f"{plural(self.taken)} not moved, because a worker took them first")
        if self.doubled:
            lines.append(f"{plural(self.doubled)} in both places, because workers took them in both at the same time")
        return lines


@dataclass(frozen=True, slots=True)
class Transfer:
    """Moves jobs from one tube to another over two connections, each of which uses only its tube."""

    source: Server
    source_tube: str
    target: Server
    target_tube: str

    def run(self, state: str, limit: int | None, interrupt: Interrupt) -> Iterator[Outcome]:
        """Move up to *limit* jobs in *state*, until none is left or the command is interrupted."""
        done = 0
        while not interrupt and done != limit and (outcome := self.move_next(state)) is not None:
            done += 1
            yield outcome

    def move_next(self, state: str) -> Outcome | None:
        """Move the next job in *state*; return None if there is none, or none that can be reserved.

        To move a buried job, the target must have `reserve-job`. If the target refuses the job or the connection to it
        is lost, the job stays at the source.
        """
        job = self._reserve_ready() if state == READY else self.source.first(self.source_tube, state)
        if job is None:
            return None
        stats = self.source.job(job.id)
        if stats is None or stats["state"] != (RESERVED if state == READY else state):
            return self.move_next(state)  # another client has kicked, reserved or deleted the job since
        try:
            copy = self._put(job, state, stats["pri"], stats["ttr"], stats["time-left"])
        except CommandError as error:
            self._release_reserved(job, state, stats["pri"])
            if isinstance(error, Refused):
                raise Refused(error.word, f"job {job.id} of {self.source_tube} stays: {error}") from error
            raise
        if self.source.delete(job.id):
            return Outcome.MOVED
        return Outcome.TAKEN if self.target.delete(copy) else Outcome.DOUBLED

    def _reserve_ready(self) -> Job | None:
        """Reserve the next job; in a paused tube by its id, if the server supports that."""
        job = self.source.reserve(self.source_tube)
        if job is not None or not self.source.reserves_by_id:
            return job
        while (ahead := self.source.first(self.source_tube, READY)) is not None:
            if (job := self.source.reserve_job(ahead.id)) is not None:
                return job
        return None

    def _put(self, job: Job, state: str, pri: int, ttr: int, seconds_left: int) -> int:
        if state != BURIED:
            delay = seconds_left + 1 if state == DELAYED else 0  # stats-job rounds down, and a delay must not end early
            return self.target.put(self.target_tube, job.body, pri, delay, ttr)
        copy = self.target.put(self.target_tube, job.body, pri, HOLD_DELAY, ttr)
        if (held := self.target.reserve_job(copy)) is not None:
            self.target.bury(held, pri)
        return copy

    def _release_reserved(self, job: Job, state: str, pri: int) -> None:
        if state == READY:
            with suppress(CommandError):  # the connection to the source is lost too, which releases the job
                self.source.release(job, pri)
