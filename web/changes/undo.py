"""Undo: a task that puts the jobs or the pauses of a saved change back, as they were before the change.

A deleted job is restored with its id. A changed job gets its former fields and its history back, if nothing has changed
it since. A tube gets its former pause back, if nobody has changed the pause since. A job or a tube that cannot be put
back is counted with the reason, and the others are put back. A change is undone once. An undo that was cancelled, that
had no room, or that a crash ended, can be continued: the position is in memory, and is saved after each megabyte, once
its jobs are durable. So if the server crashes between two saves, up to a megabyte of deleted jobs may come back a
second time, although workers have finished them since.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Final

from flask import url_for
from msgspec import Meta
from werkzeug.exceptions import Conflict, NotFound, ServiceUnavailable

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.operations.undoing import revert, revert_pause, undelete
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.web.changes.queue_changes import QueueChanges, reasons_lost
from greenstalk_server.web.changes.saved_changes import TUBE, SavedChange
from greenstalk_server.web.changes.saved_parts import SavedPart, SavedPause
from greenstalk_server.web.changes.tasks import Fact, Task, TaskFailed
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.api.values import Count, JobId, ResponseModel, TubeName
from greenstalk_server.web.reads.jobs.bodies import iter_with_bodies, never_wants_body

SAMPLE_SIZE: Final = 10
"""Job ids or tubes shown for each reason."""

_DAMAGED: Final = "the stored jobs are damaged"
_FORBIDDEN: Final = "you may not operate their tubes"
_FORBIDDEN_TUBES: Final = "you may not operate them"
_UNREADABLE: Final = "the body cannot be read back from the disk"

_REASONS: Final = {
    Refusal.ID_TAKEN: "a job with the id exists",
    Refusal.KEY_TAKEN: "another job has the idempotency key or the unique body",
    Refusal.TUBE_FULL: "the tube is at the cap of its policy",
    Refusal.MEMORY: "jobs use all the memory that the server allows for them (--memory-limit)",
    Refusal.DELETED: "the job has been deleted since",
    Refusal.RESERVED: "a worker holds the job",
    Refusal.CHANGED: "the job has been reserved or changed since",
}
"""The reason for each refusal. All refusals that are not listed are limits of the server."""

_TUBE_REASONS: Final = {
    Refusal.DELETED: "the tube no longer exists",
    Refusal.CHANGED: "the tube has been paused or resumed since",
}
"""The reason for each refusal of a pause that is not a limit of the server."""

_LIMITED: Final = "a limit of the server is reached"


class Refused(ResponseModel):
    """Jobs, or tubes with their pauses, that were not put back."""

    reason: str
    jobs: Count
    sample: Annotated[list[JobId], Meta(description="Some of their ids.")]
    tubes: Count
    tube_sample: Annotated[list[TubeName], Meta(description="Some of the tubes.")]


class UndoTask:
    """The undo of *change*.

    refused         jobs or tubes that were not put back, by reason.
    without_reason  tubes paused without their reason, for which there was no room.
    """

    def __init__(self, change: SavedChange) -> None:
        self.change: SavedChange = change
        self.refused: dict[str, Refused] = {}
        self.without_reason: int = 0

    def refuse(self, item: int | str, reason: str) -> None:
        """Count a job, by its id, or a tube, by its name or an empty text, that is not put back."""
        found = self.refused.setdefault(reason, Refused(reason=reason, jobs=0, sample=[], tubes=0, tube_sample=[]))
        if isinstance(item, int):
            found.jobs += 1
            found.sample = [*found.sample, item][:SAMPLE_SIZE]
        else:
            found.tubes += 1
            found.tube_sample = [*found.tube_sample, *([item] if item else [])][:SAMPLE_SIZE]

    @property
    def skipped(self) -> int:
        """Number of the jobs or tubes that were not put back."""
        return sum([one.jobs + one.tubes for one in self.refused.values()])

    @property
    def message(self) -> str:
        """The jobs or tubes that were not put back, in words."""
        sentences = []
        for one in self.refused.values():
            count, sample = one.jobs + one.tubes, [*one.sample, *one.tube_sample]
            shown = f": {', '.join(map(str, sample))}{' …' if count > len(sample) else ''}" if sample else ""
            sentences.append(
                f"{text.counted(count, self.change.noun)} {'was' if count == 1 else 'were'} not put back, because"
                f" {one.reason}{shown}."
            )
        if self.without_reason:
            sentences.append(reasons_lost(self.without_reason))
        return " ".join(sentences)


class Undo(QueueChanges):
    """Puts the jobs of saved changes back."""

    def start(self, number: int) -> Task:
        """Start to undo the change *number*. Does not switch.

        Raise NotFound without such a change, and Conflict if it is undone already, or still running.
        """
        change = self._saved_changes.find(number)
        if change is None:
            raise NotFound(
                "There is no such change. A change is kept for a day, or until later changes need its space."
                " Nothing was changed."
            )
        if change.undone_at:
            raise Conflict("This change has been undone already. Nothing was changed.")
        if change.is_open:
            raise Conflict("This change, or its undo, is still running. Wait for its end. Nothing was changed.")
        if self._broker.is_draining:
            raise ServiceUnavailable("The server is draining and undoes no changes. Nothing was changed.")
        subject = UndoTask(change)
        by = f" by {change.by}" if change.by else ""
        task = self._tasks.start(
            f"Undo: {change.title}",
            subject,
            lambda task: self._work(task, subject),
            details=lambda: {"refused": list(subject.refused.values())},
            back=lambda: url_for("overview"),
            verb="put back",
            noun=change.noun,
            facts=(Fact("Deleted" if change.is_deletion else "Changed", f"{change.amount}{by}"),),
        )
        change.is_open = True
        return task

    def _work(self, task: Task, subject: UndoTask) -> None:
        """Put the jobs or the pauses back, and write the audit entries. Switches."""
        change = subject.change
        task.total = task.matched = change.count
        details: dict[str, str | int] = {"task": task.id, "change": change.number, "title": change.title}
        self._audit.note("undo/run", **details)
        try:
            while change.next_part < change.parts:
                self._put_back(task, subject)
            self._saved_changes.finish(change)
        except OSError as error:
            raise TaskFailed(f"The saved jobs cannot be read or updated: {error}. Start the undo again.") from error
        finally:
            change.is_open = False
            task.message = subject.message
            task.skipped = subject.skipped
            self._audit.note("undo/end", **details, **{f"{change.noun}s": task.done}, refused=task.skipped)
            self._saved.save()

    def _put_back(self, task: Task, subject: UndoTask) -> None:
        """Put the jobs of the next parts back, and save the position. Switches.

        A cancelled undo first completes these parts: later, it could not tell which of their jobs workers have
        finished.
        """
        change = subject.change
        task.checkpoint()
        if self._broker.is_draining:
            raise TaskFailed("The server is draining. Start the undo again for the rest.")
        for part in self._saved_changes.read(change, change.next_part):
            if part.damage:
                if change.noun == TUBE:
                    subject.refuse("", f"the stored pauses are damaged ({part.damage})")
                else:
                    subject.refuse(0, f"{_DAMAGED} ({part.damage})")
            try:
                for item, reason in self._undo_part(task, subject, part):
                    change.next_job += 1
                    task.done += not reason
                    task.scanned += 1
                    if reason:
                        subject.refuse(item, reason)
            except TaskFailed:
                with suppress(OSError, TaskFailed):  # the position is in memory
                    self._save(change)
                raise
            change.next_part, change.next_job = change.next_part + 1, 0
        self._save(change)

    def _save(self, change: SavedChange) -> None:
        """Save the position, once the jobs are durable. Switches."""
        if not self._commit():
            raise TaskFailed("The disk does not keep up: the last jobs may not survive a crash.")
        self._saved_changes.save(change)

    def _undo_part(self, task: Task, subject: UndoTask, part: SavedPart) -> Iterator[tuple[int | str, str]]:
        """Put the next jobs or pauses of *part* back; yield each id or tube, and the reason if it stays. Switches."""
        change = subject.change
        if change.noun == TUBE:
            return self._revert_pauses(task, subject, part.pauses[change.next_job :])
        jobs = part.before[change.next_job :]
        if change.is_deletion:
            return self._undelete(task, jobs)
        return self._revert(task, jobs, part.after, change.has_bodies)

    def _undelete(self, task: Task, jobs: list[Job]) -> Iterator[tuple[int, str]]:
        """Put the deleted *jobs* back; yield each id, and the reason if the job stays deleted. Switches."""
        for job in jobs:
            is_allowed = task.who.operates(job.tube.name)
            yield job.id, self._reason(undelete(self._broker, job, self._clock())) if is_allowed else _FORBIDDEN
            task.pace.yield_if_due()

    def _revert(
        self, task: Task, jobs: list[Job], results: dict[int, Job], has_bodies: bool
    ) -> Iterator[tuple[int, str]]:
        """Revert the changed *jobs*; yield each id, and the reason if a job stays changed. Switches.

        *results* has the jobs after the change. If *has_bodies*, *jobs* have the former bodies; otherwise the jobs keep
        their present ones.
        """
        before = {job.id: job for job in jobs}
        wants_body = never_wants_body if has_bodies else (lambda job: task.who.operates(job.tube.name))
        for id, job, body in iter_with_bodies(self._broker, before, wants_body, task.pace.yield_if_due):
            former, after = before[id], results.get(id)
            if after is None:
                yield id, _DAMAGED
                continue
            if not (task.who.operates(former.tube.name) and task.who.operates(after.tube.name)):
                yield id, _FORBIDDEN
                continue
            if has_bodies:
                body = former.body  # noqa: PLW2901  the body before the change
            if job is not None and body is None:
                yield id, _UNREADABLE
            else:
                yield id, self._reason(revert(self._broker, former, after, body or b"", self._clock()))

    def _revert_pauses(self, task: Task, subject: UndoTask, pauses: list[SavedPause]) -> Iterator[tuple[str, str]]:
        """Give tubes their former *pauses*; yield each tube, and the reason if its pause stays. Switches.

        The name of a tube that the principal may not see is empty.
        """
        for one in pauses:
            name = one.tube.encode()
            if not task.who.operates(name):
                yield one.tube if task.who.sees(name) else "", _FORBIDDEN_TUBES
                continue
            if (error := self._broker.journal.write_error) is not None:
                raise TaskFailed(f"The journal cannot be written: {error}. Start the undo again for the rest.")
            now = self._clock()
            refusal = revert_pause(self._broker, name, one.before, one.after, now)
            if not refusal:
                reason = one.reason if one.before > now else ""
                self._saved.set_reason(one.tube, reason, one.before, now)
                subject.without_reason += self._saved.reason(one.tube, one.before) != reason
            yield one.tube, _TUBE_REASONS.get(refusal, _LIMITED) if refusal else ""
            task.pace.yield_if_due()

    def _reason(self, refusal: int) -> str:
        """Return the reason in words; empty if *refusal* is 0. Raise TaskFailed if the journal refuses the job."""
        if refusal == Refusal.JOURNAL:
            error = self._broker.journal.write_error or "the disk has no room"
            raise TaskFailed(f"The journal cannot store the jobs: {error}. Start the undo again for the rest.")
        return _REASONS.get(refusal, _LIMITED) if refusal else ""
