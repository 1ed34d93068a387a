"""Undo: a task that puts deleted jobs back, with their ids, priorities, delays, tags and states.

A job that cannot come back is counted with the reason, and the others do. A removal is undone once. An undo that was
cancelled, that had no room, or that a crash ended, can be continued: the position is in memory, and is saved after each
megabyte, once its jobs are durable. So after a crash in between, jobs of one megabyte may come back although a worker
has finished them since.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Final

from flask import url_for
from msgspec import Meta
from werkzeug.exceptions import Conflict, NotFound, ServiceUnavailable

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.operations.undoing import undelete
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.removals import Removal, Removals
from greenstalk_server.web.changes.tasks import Fact, Task, TaskFailed, Tasks
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.api.values import Count, JobId, ResponseModel
from greenstalk_server.web.store.audit import Audit

SAMPLE_SIZE: Final = 10
"""Job ids shown for each reason."""

_FORBIDDEN: Final = "you may not operate their tubes"

_REASONS: Final = {
    Refusal.ID_TAKEN: "a job with the id exists",
    Refusal.KEY_TAKEN: "another job has the idempotency key or the unique body",
    Refusal.TUBE_FULL: "the tube is at the cap of its policy",
    Refusal.MEMORY: "jobs use all the memory that the server allows for them (--memory-limit)",
}
"""The reason for each refusal. All others are limits of the server."""

_LIMITED: Final = "a limit of the server is reached"


class RefusedJobs(ResponseModel):
    """Deleted jobs that did not come back."""

    reason: str
    jobs: Count
    sample: Annotated[list[JobId], Meta(description="Some of their ids.")]


class UndoTask:
    """The undo of *removal*.

    refused     jobs that did not come back, by reason.
    """

    def __init__(self, removal: Removal) -> None:
        self.removal: Removal = removal
        self.refused: dict[str, RefusedJobs] = {}

    def refuse(self, id: int, reason: str) -> None:
        """Count a job that does not come back."""
        found = self.refused.setdefault(reason, RefusedJobs(reason=reason, jobs=0, sample=[]))
        found.jobs += 1
        if len(found.sample) < SAMPLE_SIZE:
            found.sample.append(id)

    @property
    def message(self) -> str:
        """The jobs that did not come back, in words."""
        return " ".join(
            [
                f"{text.counted(one.jobs, 'job')} did not come back, because {one.reason}:"
                f" {', '.join(map(str, one.sample))}{' …' if one.jobs > len(one.sample) else ''}."
                for one in self.refused.values()
            ]
        )


class Undo:
    """Puts the jobs of removals back.

    *commit* waits until all changes so far are as durable as an acknowledged command; it returns False on a timeout.
    """

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        commit: Callable[[], bool],
        audit: Audit,
        tasks: Tasks,
        removals: Removals,
    ) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit
        self._audit: Audit = audit
        self._tasks: Tasks = tasks
        self._removals: Removals = removals

    def start(self, number: int) -> Task:
        """Start to put the jobs of the removal *number* back. Does not switch.

        Raise NotFound without such a removal, and Conflict if it is undone already, or still running.
        """
        removal = self._removals.find(number)
        if removal is None:
            raise NotFound(
                "There is no such deletion. Deleted jobs are kept for a day, or until later deletions need their space."
                " Nothing was changed."
            )
        if removal.undone_at:
            raise Conflict("This deletion has been undone already. Nothing was changed.")
        if removal.is_open:
            raise Conflict("This deletion, or its undo, is still running. Wait for its end. Nothing was changed.")
        if self._broker.is_draining:
            raise ServiceUnavailable("The server is draining and accepts no jobs. Nothing was changed.")
        subject = UndoTask(removal)
        task = self._tasks.start(
            f"Undo: {removal.title}",
            subject,
            lambda task: self._work(task, subject),
            details=lambda: {"refused": list(subject.refused.values())},
            back=lambda: url_for("overview"),
            verb="put back",
            facts=(Fact("Deleted", f"{text.counted(removal.jobs, 'job')}{' by ' * bool(removal.by)}{removal.by}"),),
        )
        removal.is_open = True
        return task

    def _work(self, task: Task, subject: UndoTask) -> None:
        """Put the jobs back, and write the audit entries. Switches."""
        removal = subject.removal
        task.total = task.matched = removal.jobs
        details: dict[str, str | int] = {"task": task.id, "removal": removal.number, "title": removal.title}
        self._audit.note("undo/run", **details)
        try:
            while removal.next_part < removal.parts:
                self._put_back(task, subject)
            self._removals.finish(removal)
        except OSError as error:
            raise TaskFailed(f"The deleted jobs cannot be read or updated: {error}. Start the undo again.") from error
        finally:
            removal.is_open = False
            task.message = subject.message
            task.skipped = sum([one.jobs for one in subject.refused.values()])
            self._audit.note("undo/end", **details, jobs=task.done, refused=task.skipped)

    def _put_back(self, task: Task, subject: UndoTask) -> None:
        """Put the jobs of the next parts back, and save the position. Switches.

        A cancelled undo ends after these parts: it could not tell later which of their jobs workers have finished.
        """
        removal = subject.removal
        task.checkpoint()
        for saved in self._removals.read(removal, removal.next_part):
            if saved.damage:
                subject.refuse(0, f"the stored jobs are damaged ({saved.damage})")
            for job in saved.jobs[removal.next_job :]:
                reason = self._undelete(task, removal, job)
                removal.next_job += 1
                task.done += not reason
                task.scanned += 1
                if reason:
                    subject.refuse(job.id, reason)
                task.pace.yield_if_due()
            removal.next_part, removal.next_job = removal.next_part + 1, 0
        self._save(removal)

    def _save(self, removal: Removal) -> None:
        """Save the position, once the jobs are durable. Switches."""
        if not self._commit():
            raise TaskFailed("The disk does not keep up: the last jobs may not survive a crash.")
        self._removals.save(removal)

    def _undelete(self, task: Task, removal: Removal, job: Job) -> str:
        """Put *job* of *removal* back; return the reason why it stays deleted, or an empty text. May switch."""
        if not task.who.operates(job.tube.name):
            return _FORBIDDEN
        refusal = undelete(self._broker, job, self._clock())
        if refusal == Refusal.JOURNAL:
            error = self._broker.journal.write_error or "the disk has no room"
            with suppress(OSError):  # the position is in memory
                self._save(removal)
            raise TaskFailed(f"The journal cannot store the jobs: {error}. Start the undo again for the rest.")
        return _REASONS.get(refusal, _LIMITED) if refusal else ""
