"""Undo: a task that puts the jobs of a saved change back, as they were before the change.

A deleted job is restored with its id. A changed job gets its former fields and its history back, if nothing has changed
it since. A job that cannot be put back is counted with the reason, and the other jobs are put back. A change is undone
once. An undo that was cancelled, that had no room, or that a crash ended, can be continued: the position is in memory,
and is saved after each megabyte, once its jobs are durable. So if the server crashes between two saves, up to a
megabyte of deleted jobs may come back a second time, although workers have finished them since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Annotated, Any, Final

from flask import url_for
from msgspec import Meta, convert
from werkzeug.exceptions import Conflict, NotFound, ServiceUnavailable

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.operations.undoing import revert, undelete
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.web.changes.queue_changes import QueueChanges
from greenstalk_server.web.changes.saved_changes import SavedChange, SavedPart, merged
from greenstalk_server.web.changes.task_parts import TaskParts
from greenstalk_server.web.changes.tasks import Fact, Task, TaskFailed
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.api.values import Count, JobId, ResponseModel
from greenstalk_server.web.framework.shards import Shards
from greenstalk_server.web.reads.jobs.bodies import iter_with_bodies, never_wants_body

UNDO: Final = "undo"
"""The kind of the parts of an undo of all shards."""

PART: Final = "changes.part"
"""Question to the other shards."""

SAMPLE_SIZE: Final = 10
"""Job ids shown for each reason."""

_DAMAGED: Final = "the stored jobs are damaged"
_FORBIDDEN: Final = "you may not operate their tubes"
_UNREADABLE: Final = "the body cannot be read back from the disk"

_REASONS: Final = {
    Refusal.ID_TAKEN: "a job with the id exists",
    Refusal.KEY_TAKEN: "another job has the idempotency key or the unique body",
    Refusal.TUBE_FULL: "the tube is at the cap of its policy",
    Refusal.MEMORY: "jobs use all the memory that the server allows for them (--memory-limit)",
    Refusal.DELETED: "the job has been deleted since",
    Refusal.RESERVED: "a worker holds the job",
    Refusal.OTHER_SHARD: "the job is, or was, on another shard",
    Refusal.CHANGED: "the job has been reserved or changed since",
}
"""The reason for each refusal. All refusals that are not listed are limits of the server."""

_LIMITED: Final = "a limit of the server is reached"


class RefusedJobs(ResponseModel):
    """Jobs that were not put back."""

    reason: str
    jobs: Count
    sample: Annotated[list[JobId], Meta(description="Some of their ids.")]


class UndoTask:
    """The undo of *change*.

    refused     jobs that were not put back, by reason.
    """

    def __init__(self, change: SavedChange) -> None:
        self.change: SavedChange = change
        self.refused: dict[str, RefusedJobs] = {}

    def refuse(self, id: int, reason: str) -> None:
        """Count a job that is not put back."""
        found = self.refused.setdefault(reason, RefusedJobs(reason=reason, jobs=0, sample=[]))
        found.jobs += 1
        if len(found.sample) < SAMPLE_SIZE:
            found.sample.append(id)

    def merge(self, results: Mapping[int, Any]) -> None:
        """Add up the jobs that were not put back on several shards."""
        self.refused = {}
        for one in chain.from_iterable(convert(result, list[RefusedJobs]) for result in results.values()):
            found = self.refused.setdefault(one.reason, RefusedJobs(reason=one.reason, jobs=0, sample=[]))
            found.jobs += one.jobs
            found.sample = [*found.sample, *one.sample][:SAMPLE_SIZE]

    @property
    def message(self) -> str:
        """The jobs that were not put back, in words."""
        return " ".join(
            [
                f"{text.counted(one.jobs, 'job')} {'was' if one.jobs == 1 else 'were'} not put back, because"
                f" {one.reason}: {', '.join(map(str, one.sample))}{' …' if one.jobs > len(one.sample) else ''}."
                for one in self.refused.values()
            ]
        )


class Undo(QueueChanges):
    """Puts the jobs of saved changes back: of one shard, or of all shards if the change was made there."""

    def __init__(self, *changing: Any, parts: TaskParts, shards: Shards) -> None:
        super().__init__(*changing)
        self._parts: TaskParts = parts
        self._shards: Shards = shards
        shards.answer(PART, self._part_here)
        parts.register(UNDO, self._start_part, lambda task: list(task.subject_as(UndoTask).refused.values()))

    def start(self, number: int) -> Task:
        """Start to undo the change *number*. Switches if it was made on several shards.

        Raise NotFound without such a change, and Conflict if it is undone already, or still running. Raise
        ServiceUnavailable if a shard does not answer, or drains.
        """
        change = self._find(number)
        if change.whole and self._shards.others:
            return self._start_whole(change)
        subject = self._new(change)
        return self._start(subject, lambda task: self._audited(task, subject, partial(self._work, subject=subject)))

    def _start_whole(self, change: SavedChange) -> Task:
        """Start to undo the parts of *change* that are not undone yet."""
        answers = self._shards.ask_each(PART, self._parts.everywhere(whole=change.whole))
        if missing := [shard for shard in self._shards.all if shard not in answers]:
            raise ServiceUnavailable(f"The process of shard {missing[0]} does not answer. Nothing was changed.")
        parts = {shard: convert(one, list[SavedChange]) for shard, one in answers.items()}
        whole = merged([one for found in parts.values() for one in found])
        subject = self._new(whole)
        numbers = {
            shard: {"number": one.number} for shard, found in parts.items() for one in found if not one.undone_at
        }
        work = self._parts.work(UNDO, numbers, subject.merge)
        return self._start(subject, lambda task: self._audited(task, subject, work))

    def _part_here(self, whole: str) -> list[SavedChange]:
        """Return the part of the change *whole* on this shard, if it has one."""
        part = self._saved_changes.part(whole)
        return [] if part is None else [part]

    def _start_part(self, number: int) -> Task:
        subject = self._new(self._find(number))
        return self._start(subject, partial(self._work, subject=subject), is_part=True)

    def _find(self, number: int) -> SavedChange:
        change = self._saved_changes.find(number)
        if change is None:
            raise NotFound(
                "There is no such change. A change is kept for a day, or until later changes need its space."
                " Nothing was changed."
            )
        return change

    def _new(self, change: SavedChange) -> UndoTask:
        """Return the undo of *change*; raise an exception if it must not be undone now."""
        if change.undone_at:
            raise Conflict("This change has been undone already. Nothing was changed.")
        if change.is_open:
            raise Conflict("This change, or its undo, is still running. Wait for its end. Nothing was changed.")
        if self._broker.is_draining:
            raise ServiceUnavailable("The server is draining and undoes no changes. Nothing was changed.")
        return UndoTask(change)

    def _start(self, subject: UndoTask, work: Callable[[Task], None], *, is_part: bool = False) -> Task:
        change = subject.change
        by = f" by {change.by}" if change.by else ""
        task = self._tasks.start(
            f"Undo: {change.title}",
            subject,
            work,
            details=lambda: {"refused": list(subject.refused.values())},
            back=lambda: url_for("overview"),
            verb="put back",
            facts=(Fact("Deleted" if change.is_deletion else "Changed", f"{text.counted(change.jobs, 'job')}{by}"),),
            is_part=is_part,
        )
        change.is_open = True
        return task

    def _audited(self, task: Task, subject: UndoTask, work: Callable[[Task], None]) -> None:
        """Do *work*, and write the audit entries. Switches."""
        details: dict[str, str | int] = {
            "task": task.id,
            "change": subject.change.number,
            "title": subject.change.title,
        }
        self._audit.note("undo/run", **details)
        try:
            work(task)
        finally:
            self._audit.note("undo/end", **details, jobs=task.done, refused=task.skipped)

    def _work(self, task: Task, subject: UndoTask) -> None:
        """Put the jobs back. Switches."""
        change = subject.change
        task.total = task.matched = change.jobs
        try:
            while change.next_part < change.parts:
                self._put_back(task, subject)
            self._saved_changes.finish(change)
        except OSError as error:
            raise TaskFailed(f"The saved jobs cannot be read or updated: {error}. Start the undo again.") from error
        finally:
            change.is_open = False
            task.message = subject.message
            task.skipped = sum([one.jobs for one in subject.refused.values()])

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
                subject.refuse(0, f"{_DAMAGED} ({part.damage})")
            try:
                for id, reason in self._undo_part(task, part, change):
                    change.next_job += 1
                    task.done += not reason
                    task.scanned += 1
                    if reason:
                        subject.refuse(id, reason)
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

    def _undo_part(self, task: Task, part: SavedPart, change: SavedChange) -> Iterator[tuple[int, str]]:
        """Put the next jobs of *part* back; yield each id, and the reason if the job is not put back. Switches."""
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

    def _reason(self, refusal: int) -> str:
        """Return the reason in words; empty if *refusal* is 0. Raise TaskFailed if the journal refuses the job."""
        if refusal == Refusal.JOURNAL:
            error = self._broker.journal.write_error or "the disk has no room"
            raise TaskFailed(f"The journal cannot store the jobs: {error}. Start the undo again for the rest.")
        return _REASONS.get(refusal, _LIMITED) if refusal else ""
