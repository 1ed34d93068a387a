"""Bulk changes: one action on all ticked jobs, or on all jobs that match a query.

A change takes two steps. The dry run counts and changes nothing. The page of the dry run shows the predicate, the
change, and how many jobs it would affect. The run, started from that page, changes the jobs that match the same
predicate and are no newer than the dry run. Both are tasks: they work in small steps, report progress, and can be
cancelled.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final, Literal

import gevent
from flask import url_for
from msgspec import Meta, convert
from werkzeug.exceptions import Conflict, Forbidden, ServiceUnavailable

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job_attributes import DeadLetter
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, Job
from greenstalk_server.core.operations import editing, finishing, kicking
from greenstalk_server.core.outcomes import EditOutcome
from greenstalk_server.web.changes.queue_changes import QueueChanges
from greenstalk_server.web.changes.saved_changes import Recording
from greenstalk_server.web.changes.task_parts import TaskParts
from greenstalk_server.web.changes.tasks import Fact, Task, TaskCancelled, TaskFailed
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import Principal, principal, require_operator
from greenstalk_server.web.framework.api.values import Count, JobId, ResponseModel
from greenstalk_server.web.reads.jobs.bodies import never_wants_body
from greenstalk_server.web.reads.jobs.matching import JobMatcher, candidate_ids
from greenstalk_server.web.reads.jobs.query import Query, parse

SAMPLE_SIZE: Final = 10
"""Sample jobs that the page of a dry run shows."""

MAX_TICKED: Final = 1000

COMMIT_BATCH_BYTES: Final = 1024 * 1024
"""Bytes of journal records between two commits; it bounds the records that are not yet written."""

RECORD_OVERHEAD: Final = 128
"""Approximate bytes of a journal record without its body."""

MIN_THROTTLE: Final = 0.05
"""Seconds. A change that is allowed within this time is made at once, so that a high rate needs few commits."""

DRY_RUN: Final = "dry-run"
RUN: Final = "run"
"""The kinds of the parts of a change of all shards."""

MIN_RATE: Final = 0.001
"""The lowest rate of a redrive that a page accepts, in jobs per second."""

MAX_THROTTLE_SLEEP: Final = 0.2
"""Seconds between checks of a waiting task for cancellation."""


ActionName = Literal["kick", "bury", "delete", "move", "pri", "delay", "redrive"]


@dataclass(frozen=True, slots=True)
class Action:
    """A bulk action.

    label           the verb on buttons and in titles: "Move".
    done            the participle, as in "3 jobs moved".
    means           what the action does to a job; `{}` is the value. Empty if the label says it all.
    field_name      name of the form field with the value; empty if the action takes none.
    changes         whether the action would change a job, given the value.
    forced          what the action does to a job that a client holds; empty if it never applies to such a job.
    noun            name of the value: "priority".
    """

    label: str
    done: str
    means: str
    field_name: str
    changes: Callable[[Job, bytes | int], bool]
    forced: str
    noun: str = ""


ACTIONS: Final[Mapping[ActionName, Action]] = {
    "kick": Action(
        "Retry",
        "retried",
        "becomes ready, and a worker can reserve it at once",
        "",
        lambda job, _: job.state != READY,
        "is taken from the worker that holds it, and becomes ready",
    ),
    "bury": Action(
        "Bury",
        "buried",
        "is buried until somebody retries it",
        "",
        lambda job, _: job.state != BURIED,
        "is taken from the worker that holds it, and buried",
    ),
    "delete": Action(
        "Delete",
        "deleted",
        "",
        "",
        lambda job, _: True,
        "is taken from the worker that holds it, and deleted",
    ),
    "move": Action(
        "Move",
        "moved",
        "moves to the tube {} in its current state; its id, age, priority and counts stay",
        "to",
        lambda job, to: job.tube.name != to,
        "moves to the tube {}; its worker keeps it reserved",
    ),
    "pri": Action(
        "Set the priority of",
        "given another priority",
        "gets the priority {}",
        "pri",
        lambda job, pri: job.pri != pri,
        "gets the priority {} for when it is released; its worker keeps it reserved",
        "priority",
    ),
    "delay": Action(
        "Set the delay of",
        "given another delay",
        "becomes ready {} after the change",
        "delay",
        lambda job, _: job.state in (READY, DELAYED),
        "",
        "delay",
    ),
    "redrive": Action(
        "Retry",
        "retried",
        "moves back from its dead-letter tube to the tube that it came from, where it is ready as a new job",
        "",
        lambda job, _: bool(job.dead_letter) and job.state != RESERVED,
        "",
    ),
}


@dataclass(frozen=True, slots=True)
class Change:
    """An action and its value: a tube name, a priority, or a delay in seconds."""

    key: ActionName
    value: bytes | int = 0

    @property
    def action(self) -> Action:
        return ACTIONS[self.key]

    @property
    def shown(self) -> str:
        """The value as text for a page."""
        if isinstance(self.value, bytes):
            return f"“{self.value.decode()}”"
        return text.duration(self.value) if self.key == "delay" else text.number(self.value)

    @property
    def means(self) -> str:
        """The effect of the change on a job."""
        return self.action.means.format(self.shown)

    def plain(self) -> dict[str, str | int]:
        """Return the change as plain JSON, for `change_of`."""
        return {"key": self.key, "value": self.value.decode() if isinstance(self.value, bytes) else self.value}

    def audit_details(self) -> dict[str, str | int]:
        """Return the value under its field name, for the audit log."""
        value = self.value.decode() if isinstance(self.value, bytes) else self.value
        return {self.action.field_name: value} if self.action.field_name else {}

    def title(self, jobs: str) -> str:
        """Return a title for this change of *jobs*: `Move 3 jobs to “archive”`."""
        return f"{self.action.label} {jobs}" + (f" to {self.shown}" if self.action.field_name else "")

    @property
    def forced(self) -> str:
        """The effect of the change on a job that a client holds; empty if it never applies to such a job."""
        return self.action.forced.format(self.shown)

    def applies_to(self, job: Job) -> bool:
        """Whether this would change *job*; for a job that a client holds, whether a forced run would."""
        return self.action.changes(job, self.value)

    def is_allowed(self, job: Job, who: Principal) -> bool:
        """Return whether *who* may make this change to *job*, whose tube *who* may see."""
        if who.is_admin:
            return True
        source = DeadLetter.unpack(job.dead_letter).source if self.key == "redrive" and job.dead_letter else b""
        return who.operates(job.tube.name) and (not source or who.operates(source))

    def apply(self, broker: Broker, id: int, body: bytes | None, is_forced: bool, now: int) -> int:
        """Change the job *id*, whose body is *body*; return an EditOutcome, as `editing.edit_job` does."""
        job = broker.jobs.get(id)
        if job is None:
            return EditOutcome.NOT_FOUND
        if self.key == "redrive":
            return editing.redrive(broker, id, now)
        if job.state == RESERVED and not is_forced:
            return EditOutcome.RESERVED
        if isinstance(self.value, bytes):
            return editing.edit_job(broker, id, now, tube=self.value, body=body, is_forced=is_forced)
        if self.key == "pri":
            return editing.edit_job(broker, id, now, pri=self.value, body=body, is_forced=is_forced)
        if self.key == "delay":
            return editing.edit_job(broker, id, now, delay=self.value * SECOND, body=body)
        return EditOutcome.DONE if self._transition(broker, job, is_forced, now) else EditOutcome.NOT_FOUND

    def _transition(self, broker: Broker, job: Job, is_forced: bool, now: int) -> bool:
        if self.key == "kick":
            return (
                finishing.release_job(broker, job.id, now)
                if job.state == RESERVED
                else kicking.kick_job(broker, job.id, now)
            )
        if self.key == "bury":
            return finishing.bury_job(broker, job.id, now, is_forced)
        return finishing.delete_job(broker, job.id, now, is_forced)


def change_of(key: ActionName, value: str | int) -> Change:
    """Return the change whose `plain` form is given."""
    return Change(key, value.encode() if isinstance(value, str) else value)


@dataclass(frozen=True, slots=True)
class CountedPart:
    """The counts of a dry run on one shard.

    dry_run         id of the part.
    refusal         why the change of the shard's jobs could not be undone; empty if it could.
    """

    dry_run: str
    hit: int
    held: int
    others: int
    size: int
    sample: list[int]
    refusal: str


class Counted(ResponseModel):
    """The counts of a dry run so far, and the task that carries it out."""

    action: ActionName
    would_change: Annotated[Count, Meta(description="Jobs that the change would change.")]
    held: Annotated[Count, Meta(description="Jobs held by clients; the change would change them only with `force`.")]
    as_they_are: Annotated[Count, Meta(description="Matching jobs that the change would not change.")]
    sample: Annotated[list[JobId], Meta(description="Some of the jobs that the change would change.")]
    undo: Annotated[str, Meta(description="Whether the change of all these jobs can be undone, as a sentence.")]
    run: Annotated[str | None, Meta(description="Id of the task that makes the change; null if it has not started.")]


class Throttle:
    """Limits the changes of a task to *rate* per second; 0 for no limit."""

    def __init__(self, rate: float) -> None:
        self._interval: float = 1 / rate if rate else 0.0
        self._next_at: float = time.monotonic()

    @property
    def seconds_left(self) -> float:
        """Seconds until the next change is allowed; 0 or less if it is allowed now."""
        return self._next_at - time.monotonic()

    def note_change(self) -> None:
        """Count a change."""
        self._next_at = max(self._next_at, time.monotonic() - MIN_THROTTLE) + self._interval

    def wait(self, checkpoint: Callable[[], None]) -> None:
        """Wait until the next change is allowed; call *checkpoint*, which may raise, several times per second.

        Switches.
        """
        while (left := self.seconds_left) > 0:
            gevent.sleep(min(left, MAX_THROTTLE_SLEEP))
            checkpoint()


@dataclass(slots=True)
class Plan:
    """A change, the jobs it is for, and the counts of its dry run.

    query, ids      the jobs: those that match *query*, limited to *ids* unless that is None.
    rate            maximum number of jobs that the run changes per second; 0 for no limit.
    at, below       time of the dry run, and the next job id at that time. The run evaluates ages as of *at*, and skips
                    newer jobs.
    hit             jobs that the change would change, and that no client holds.
    held            jobs that the change would change, and that a client holds.
    others          matching jobs that the change would not change.
    size            bytes of the bodies of the jobs counted in *hit* and *held*.
    sample          ids of the first jobs counted in *hit*, and their shards.
    run             id of the task of the run; empty until it has started. Invariant: a plan runs at most once.
    parts           the counts of each shard, if the dry run is about all shards.
    """

    change: Change
    query: Query
    ids: tuple[int, ...] | None
    at: int
    below: int
    rate: float = 0.0
    hit: int = 0
    held: int = 0
    others: int = 0
    size: int = 0
    sample: dict[int, int] = field(default_factory=dict)
    run: str = ""
    parts: dict[int, CountedPart] = field(default_factory=dict)

    def merge(self, results: Mapping[int, Any]) -> None:
        """Add up the counts of the shards."""
        self.parts = {shard: convert(result, CountedPart) for shard, result in results.items()}
        counted = self.parts.values()
        self.hit = sum([one.hit for one in counted])
        self.held = sum([one.held for one in counted])
        self.others = sum([one.others for one in counted])
        self.size = sum([one.size for one in counted])
        sample = sorted([(id, shard) for shard, one in self.parts.items() for id in one.sample])
        self.sample = dict(islice(sample, SAMPLE_SIZE))

    def rate_of(self, shard: int, shards: int) -> float:
        """Return the part of the rate for *shard*: by the jobs that the dry run has counted, or else the same for each.

        *shards* is the number of shards.
        """
        weights = {other: max(1, one.hit + one.held) for other, one in self.parts.items()}
        return self.rate * (weights[shard] / sum(weights.values()) if shard in weights else 1 / shards)

    def counted(self, promise: str) -> Counted:
        """Return the counts of the dry run; *promise* says whether the change can be undone."""
        return Counted(
            action=self.change.key,
            would_change=self.hit,
            held=self.held,
            as_they_are=self.others,
            sample=list(self.sample),
            undo=promise,
            run=self.run or None,
        )

    @property
    def tube(self) -> str:
        """The tube that the query names, or empty."""
        return self.query.tube

    @property
    def predicate(self) -> str:
        """The selected jobs in words."""
        which = str(self.query) or "all jobs"
        return which if self.ids is None else f"{text.counted(len(self.ids), 'selected job')} of {which}"

    @property
    def is_destructive(self) -> bool:
        """Whether the change deletes jobs."""
        return self.change.key == "delete"

    @property
    def hit_text(self) -> str:
        return text.counted(self.hit, "job")

    @property
    def held_text(self) -> str:
        return text.counted(self.held, "job")

    @property
    def others_text(self) -> str:
        return text.counted(self.others, "job")

    @property
    def confirm(self) -> str:
        """The text to type to confirm a destructive or forced change: the tube's name, or the number of jobs."""
        return self.tube or str(self.hit + self.held)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts for the task's page."""
        found = [Fact("Query", self.predicate)]
        if self.tube:
            found.append(Fact("Tube", self.tube, self.tube))
        if isinstance(self.change.value, bytes):
            target = self.change.value.decode()
            found.append(Fact("Target tube", target, target))
        elif self.change.action.field_name:
            found.append(Fact(f"New {self.change.action.noun}", self.change.shown))
        if self.rate:
            found.append(Fact("Rate", f"at most {self.rate:g} jobs per second"))
        return tuple(found)


class Bulk(QueueChanges):
    """Dry runs and runs of bulk changes, of the jobs of one tube, or of all shards."""

    def __init__(self, *changing: Any, parts: TaskParts) -> None:
        super().__init__(*changing)
        self._parts: TaskParts = parts
        parts.register(DRY_RUN, self._start_dry_run_part, self._counted_part, is_kept=True)
        parts.register(RUN, self._start_run_part, lambda task: None)

    def plan(self, change: Change, query: Query, ids: tuple[int, ...] | None, rate: float = 0.0) -> Plan:
        """Return a plan as of now; raise Forbidden if the principal may not put jobs into the target tube."""
        if isinstance(change.value, bytes):
            require_operator(change.value)
        return Plan(change, query, ids, self._clock(), self._broker.next_id, rate)

    def dry_run(self, plan: Plan) -> Task:
        """Start a task that counts what *plan* would change. Does not switch."""
        work: Callable[[Task], None] = partial(self._count, plan=plan)
        if self._parts.spans(plan.tube):
            work = self._parts.work(DRY_RUN, self._parts.everywhere(plan=_plain(plan)), plan.merge)
        return self._tasks.start(
            f"Preview: {_uncapitalized(plan.change.title(plan.predicate))}",
            plan,
            work,
            kind="dry-run",
            details=lambda: {"counted": plan.counted(self.promise(plan))},
            endpoint="bulk",
            needs_bodies=plan.query.needs_bodies,
            facts=plan.facts,
        )

    def start_run(self, plan: Plan, is_forced: bool) -> Task:
        """Start the run of *plan*, or return the run if it has already started. Does not switch."""
        if plan.run:
            return self._tasks.get(plan.run)
        self._refuse_draining()
        work: Callable[[Task], None] = partial(self._work, plan=plan, is_forced=is_forced)
        if self._parts.spans(plan.tube):
            work = self._work_of_all(plan, is_forced)
        task = self._tasks.start(
            plan.change.title(plan.predicate),
            plan,
            lambda task: self._audited(task, plan, is_forced, work),
            back=lambda: self.back(plan),
            needs_bodies=plan.query.needs_bodies,
            verb=plan.change.action.done,
            facts=plan.facts,
        )
        plan.run = task.id
        return task

    def _work_of_all(self, plan: Plan, is_forced: bool) -> Callable[[Task], None]:
        """Return the work of a run on all shards."""
        asked: dict[int, Mapping[str, Any]] = {}
        for shard, same in self._parts.everywhere(is_forced=is_forced, whole=secrets.token_hex(8)).items():
            dry_run = plan.parts[shard].dry_run if shard in plan.parts else ""
            plain = _plain(plan) | {"rate": plan.rate_of(shard, self._broker.ids.shards)}
            asked[shard] = {**same, "dry_run": dry_run, "plan": plain}
        return self._parts.work(RUN, asked, lambda _: None)

    def _start_dry_run_part(self, plan: dict[str, Any]) -> Task:
        """Start the part of this shard of the dry run of *plan*, in its plain form."""
        own = self._plan_of(**plan)
        return self._tasks.start("", own, partial(self._count, plan=own), endpoint="bulk", is_part=True)

    def _counted_part(self, dry_run: Task) -> CountedPart:
        plan = dry_run.subject_as(Plan)
        sample, refusal = list(plan.sample), self._undo_refusal(plan)
        return CountedPart(dry_run.id, plan.hit, plan.held, plan.others, plan.size, sample, refusal)

    def _start_run_part(self, dry_run: str, plan: dict[str, Any], is_forced: bool, whole: str) -> Task:
        """Start the part of this shard of a run: of the part *dry_run* if it is not empty, else of *plan* as of now."""
        self._refuse_draining()
        own = self._tasks.part(dry_run).subject_as(Plan) if dry_run else self._plan_of(**plan)
        own.rate = plan["rate"]
        work = partial(self._work, plan=own, is_forced=is_forced, whole=whole)
        return self._tasks.start(own.change.title(own.predicate), own, work, is_part=True)

    def _plan_of(self, change: dict[str, Any], q: str, ids: list[int] | None, rate: float) -> Plan:
        return self.plan(change_of(**change), parse(q), None if ids is None else tuple(ids), rate)

    def _refuse_draining(self) -> None:
        if self._broker.is_draining:
            raise ServiceUnavailable("The server is draining and starts no bulk changes. Nothing was changed.")

    @staticmethod
    def runnable_plan(dry_run: Task) -> Plan:
        """Return the plan of *dry_run*; raise NotFound if it has none, or Forbidden if the principal may not run it."""
        plan = dry_run.subject_as(Plan)
        if not dry_run.is_controlled_by(principal()):
            raise Forbidden("Only admins, and the user who started the preview, may carry it out.")
        return plan

    @staticmethod
    def refuse_unfinished(dry_run: Task) -> None:
        """Raise Conflict unless *dry_run* has counted every job."""
        if dry_run.state != "done":
            raise Conflict("The preview did not finish, so the effect of this change is not known. Start it again.")

    def back(self, plan: Plan) -> str:
        """Return the target of the page's Cancel link."""
        if plan.tube.encode() in self._broker.tubes:
            if plan.ids is None and plan.query.is_about_errors:
                return url_for("tube_errors", tube=plan.tube, state=plan.query.state or None)
            return url_for("tube", tube=plan.tube, state=plan.query.state or None)
        return url_for("search", q=str(plan.query)) if plan.query.terms else url_for("overview")

    def promise(self, plan: Plan) -> str:
        """Return the sentence that says whether the counted change could be undone."""
        return self._saved_changes.promise(self._undo_refusal(plan), is_deletion=plan.is_destructive)

    def _undo_refusal(self, plan: Plan) -> str:
        """Return why the counted change could not be undone; empty if it could."""
        if plan.parts:
            return next((one.refusal for one in plan.parts.values() if one.refusal), "")
        jobs, saved = plan.hit + plan.held, self._saved_changes
        return saved.deletion_refusal(jobs, plan.size) if plan.is_destructive else saved.change_refusal(jobs)

    def _count(self, task: Task, plan: Plan) -> None:
        """Count the jobs for the dry run. Switches."""
        for job, _ in self._select(task, plan):
            task.matched += 1
            if not plan.change.applies_to(job):
                plan.others += 1
                continue
            plan.size += job.size
            if job.state == RESERVED:
                plan.held += 1
            else:
                plan.hit += 1
                if len(plan.sample) < SAMPLE_SIZE:
                    plan.sample[job.id] = self._broker.ids.shard

    def _audited(self, task: Task, plan: Plan, is_forced: bool, work: Callable[[Task], None]) -> None:
        """Do *work*, and write the audit entries. Switches."""
        details: dict[str, str | int] = {"task": task.id, "action": plan.change.key, "query": plan.predicate}
        details |= {"tube": plan.tube} | plan.change.audit_details()
        if plan.rate:
            details["rate"] = f"{plan.rate:g}"
        counted = {"jobs": plan.hit + plan.held * is_forced} if plan.hit or plan.held or plan.others else {}
        self._audit.note("bulk/run", **details, **counted, forced=int(is_forced))
        try:
            work(task)
        finally:
            self._audit.note("bulk/end", **details, jobs=task.done)

    def _work(self, task: Task, plan: Plan, is_forced: bool, whole: str = "") -> None:
        """Change the jobs, those of this shard of the change *whole* if that is not empty. Switches."""
        recording = self._record(task, plan, whole)
        try:
            self._change(task, plan, is_forced, recording)
            self._commit_or_fail(task)
        except TaskCancelled:
            self._commit()
            raise
        finally:
            task.change_number = recording.close()
            task.message = f"{task.message} {recording.outcome}".strip()

    def _record(self, task: Task, plan: Plan, whole: str) -> Recording:
        """Begin to save the jobs of *plan* for an undo."""
        jobs = plan.hit + plan.held
        if plan.is_destructive:
            return self._saved_changes.record_deletion(task.title, jobs, plan.size, whole)
        return self._saved_changes.record_change(task.title, jobs, whole=whole)

    def _change(self, task: Task, plan: Plan, is_forced: bool, recording: Recording) -> None:
        uncommitted_bytes = unread = refused = 0
        throttle = Throttle(plan.rate)

        def applies_to(job: Job) -> bool:
            return plan.change.applies_to(job) and (job.state != RESERVED or is_forced)

        wants_body = (
            applies_to if plan.change.action.field_name or recording.wants_bodies else never_wants_body
        )  # the record of a changed job includes the body, and so does that of a deleted job that an undo may restore
        for job, body in self._select(task, plan, wants_body):
            task.matched += 1
            if not applies_to(job):
                continue
            if throttle.seconds_left >= MIN_THROTTLE:
                self._commit_or_fail(task)
                uncommitted_bytes = 0
                throttle.wait(task.checkpoint)
            self._stop_if_refused(task)
            before = recording.encode(job, body)
            outcome = plan.change.apply(self._broker, job.id, body, is_forced, self._clock())
            if outcome == EditOutcome.DONE:
                recording.add(before, self._broker.jobs.get(job.id))
            if outcome == EditOutcome.NO_ROOM and plan.change.key != "redrive":
                raise TaskFailed(f"The journal has no room for more records. {_so_far(task)}")
            task.done += outcome == EditOutcome.DONE
            unread += outcome == EditOutcome.BODY_ON_DISK
            refused += outcome == EditOutcome.NO_ROOM
            task.skipped = unread + refused
            throttle.note_change()
            uncommitted_bytes += RECORD_OVERHEAD + (job.size if plan.change.action.field_name else 0)
            if uncommitted_bytes >= COMMIT_BATCH_BYTES:
                self._commit_or_fail(task)
                uncommitted_bytes = 0
            if recording.is_full and recording.flush():
                raise TaskFailed(f"The change has stopped. {_so_far(task)}")
        if unread:
            task.message = f"{task.message} {_stay(unread)}: the body cannot be read back from the disk.".strip()
        if refused:
            why = "the tube that the job came from is full, or a limit of the server is reached"
            task.message = f"{task.message} {_stay(refused)}: {why}.".strip()

    def _select(
        self, task: Task, plan: Plan, wants_body: Callable[[Job], bool] = never_wants_body
    ) -> Iterator[tuple[Job, bytes | None]]:
        """Yield the jobs of *plan*, each as it is now, with its body where *wants_body* says so. Switches."""
        ids: Iterable[int]
        if plan.ids is None:
            task.total, ids = candidate_ids(self._broker, plan.query)
        else:
            ids = [id for id in plan.ids if id in self._broker.jobs]
            task.total = len(ids)
        matcher, who = JobMatcher(self._broker, plan.query, plan.at, task.checkpoint, wants_body), principal()
        for id, job, body in matcher.match(ids):
            if job is not None and self._broker.ids.is_older(id, plan.below) and plan.change.is_allowed(job, who):
                yield job, body
            task.scanned += 1
        task.total = task.scanned  # jobs may have been deleted before the task reached them
        task.message = matcher.warning

    def _stop_if_refused(self, task: Task) -> None:
        """Raise TaskFailed if the journal cannot be written, or the server is draining."""
        error = self._broker.journal.write_error
        if error is not None:
            raise TaskFailed(f"The journal cannot be written: {error}. {_so_far(task)}")
        if self._broker.is_draining:
            raise TaskFailed(f"The server is draining. {_so_far(task)}")

    def _commit_or_fail(self, task: Task) -> None:
        """Commit the changes so far; raise TaskFailed if that takes too long. Switches."""
        if not self._commit():
            raise TaskFailed(f"The disk does not keep up: the last changes may not survive a crash. {_so_far(task)}")


def _plain(plan: Plan) -> dict[str, Any]:
    """Return *plan* as plain JSON, for Bulk._plan_of."""
    return {"change": plan.change.plain(), "q": str(plan.query), "ids": plan.ids, "rate": plan.rate}


def _stay(count: int) -> str:
    return "1 job stays as it is" if count == 1 else f"{text.number(count)} jobs stay as they are"


def _uncapitalized(title: str) -> str:
    return title[0].lower() + title[1:]


def _so_far(task: Task) -> str:
    return f"{text.counted(task.done, 'job')} {'was' if task.done == 1 else 'were'} changed before that."
