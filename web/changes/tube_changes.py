"""Changes of many tubes: pause, resume or kick every tube whose name matches a pattern.

A change takes two steps, as a bulk change of jobs does (bulk.py). The dry run lists the tubes that the change would
affect, with their numbers of jobs. The run changes exactly these tubes, except those that no longer exist, or that the
principal who starts the run may not operate. Both are tasks, with a part on each shard.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from heapq import heappush, heappushpop, nlargest
from typing import Annotated, Any, Final, Literal

from flask import url_for
from msgspec import Meta, convert
from werkzeug.exceptions import Conflict, Forbidden

from greenstalk_server.core.jobs.job import BURIED, READY, STATE_NAMES
from greenstalk_server.core.operations import editing
from greenstalk_server.core.tube_names import to_regex
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.changes.operations import kick_slice, to_nanoseconds
from greenstalk_server.web.changes.queue_changes import QueueChanges
from greenstalk_server.web.changes.saved_changes import Recording
from greenstalk_server.web.changes.task_parts import TaskParts
from greenstalk_server.web.changes.tasks import Fact, Task, TaskCancelled, TaskFailed
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.values import Count, ResponseModel, TubeName
from greenstalk_server.web.reads.jobs.job_list import count_jobs

SAMPLE_SIZE: Final = 100
"""Maximum tubes in the confirmation, which shows the tubes with the most jobs."""

MAX_TUBES: Final = 100_000
"""Maximum tubes that one change may affect on one shard."""

COMMIT_BATCH: Final = 4096
"""Tubes or jobs changed between two commits: less than a megabyte of journal records."""

DRY_RUN: Final = "tubes-dry-run"
RUN: Final = "tubes-run"
"""The kinds of the parts of a change of all shards."""

TubeAction = Literal["pause", "resume", "kick"]

PAUSE: Final = "pause"
RESUME: Final = "resume"
KICK: Final = "kick"


@dataclass(frozen=True, slots=True)
class TubeChange:
    """The change to make to each tube.

    key             PAUSE, RESUME or KICK.
    seconds         length of the pause.
    reason          reason for the pause.
    state           state of the jobs to kick: BURIED or DELAYED.
    """

    key: TubeAction
    seconds: float = 0.0
    reason: str = ""
    state: int = BURIED

    @property
    def label(self) -> str:
        """The verb on buttons and in titles."""
        return "Retry" if self.key == KICK else self.key.capitalize()

    @property
    def done(self) -> str:
        """The participle, as in `12 tubes paused`; a retry counts jobs."""
        return {PAUSE: "paused", RESUME: "resumed", KICK: "jobs retried"}[self.key]

    @property
    def means(self) -> str:
        """The effect on a tube, as a sentence."""
        if self.key == PAUSE:
            return f"Each is paused for {text.duration(round(self.seconds))}: workers cannot reserve its jobs."
        if self.key == RESUME:
            return "The pause of each ends: workers can reserve its jobs again."
        return f"The {STATE_NAMES[self.state]} jobs of each become ready."

    @property
    def unaffected(self) -> str:
        """The reason why a matching tube is not changed."""
        return "not paused" if self.key == RESUME else f"without {STATE_NAMES[self.state]} jobs"

    @property
    def jobs_noun(self) -> str:
        """The jobs that the plan counts: `buried job`."""
        return f"{STATE_NAMES[self.state if self.key == KICK else READY]} job"

    def applies_to(self, tube: Tube) -> bool:
        """Return whether the change would affect *tube*."""
        if self.key == RESUME:
            return bool(tube.paused_until)
        return self.key == PAUSE or self.count(tube) > 0

    def count(self, tube: Tube) -> int:
        """Return the number of jobs of *tube* that the change affects: those to kick, else the ready ones."""
        return count_jobs(tube, self.state if self.key == KICK else READY)

    def audit_details(self) -> dict[str, str | int]:
        """Return the values for the audit log."""
        if self.key == PAUSE:
            return {"seconds": f"{self.seconds:g}", "reason": self.reason}
        return {"state": STATE_NAMES[self.state]} if self.key == KICK else {}


class AffectedTube(ResponseModel):
    """A tube that a change affects."""

    tube: TubeName
    jobs: Annotated[Count, Meta(description="Its jobs: those to kick, otherwise the ready ones.")]


class CountedTubes(ResponseModel):
    """The tubes that a change of many tubes affects, and the task that makes the change."""

    action: TubeAction
    pattern: str
    matched: Annotated[Count, Meta(description="Tubes that match the pattern and that you may operate.")]
    tubes: Annotated[Count, Meta(description="Tubes that the change would affect.")]
    jobs: Annotated[Count, Meta(description="The jobs of these tubes: those to kick, otherwise the ready ones.")]
    sample: Annotated[list[AffectedTube], Meta(description=f"Up to {SAMPLE_SIZE} of them, most jobs first.")]
    undo: Annotated[
        str | None,
        Meta(description="Of the dry run of a kick: whether it can be undone, as a sentence; otherwise null."),
    ]
    run: Annotated[str | None, Meta(description="Id of the task that makes the change; null if it has not started.")]


@dataclass(frozen=True, slots=True)
class CountedPart:
    """The tubes that a dry run has found on one shard.

    dry_run         id of the part.
    tubes           number of the tubes; the other fields are those of TubePlan.
    refusal         why the change of the shard's jobs could not be undone; empty if it could.
    """

    dry_run: str
    tubes: int
    matched: int
    jobs: int
    sample: list[tuple[int, str]]
    refusal: str


@dataclass(slots=True)
class TubePlan:
    """A change, the pattern, and the tubes that its dry run found.

    tubes           number of jobs by tube, for each tube of this shard that the change affects.
    affected        number of the tubes that it affects.
    matched         tubes that match and that the principal operates.
    jobs            sum of the jobs of *tubes*.
    sample          a heap of up to SAMPLE_SIZE pairs of number of jobs and name, from *tubes*.
    run             id of the task of the run; empty until it has started. Invariant: a plan runs at most once.
    parts           the tubes of each shard, if there are several.
    """

    change: TubeChange
    pattern: str
    tubes: dict[bytes, int] = field(default_factory=dict)
    affected: int = 0
    matched: int = 0
    jobs: int = 0
    sample: list[tuple[int, bytes]] = field(default_factory=list)
    run: str = ""
    parts: dict[int, CountedPart] = field(default_factory=dict)

    def merge(self, results: Mapping[int, Any]) -> None:
        """Add up the tubes of the shards."""
        self.parts = {shard: convert(result, CountedPart) for shard, result in results.items()}
        found = self.parts.values()
        self.affected = sum([one.tubes for one in found])
        self.matched = sum([one.matched for one in found])
        self.jobs = sum([one.jobs for one in found])
        self.sample = nlargest(SAMPLE_SIZE, [(jobs, name.encode()) for one in found for jobs, name in one.sample])

    def add(self, tube: bytes, jobs: int) -> None:
        """Add a tube that the change affects."""
        self.tubes[tube] = jobs
        self.affected += 1
        self.jobs += jobs
        if len(self.sample) < SAMPLE_SIZE:
            heappush(self.sample, (jobs, tube))
        else:
            heappushpop(self.sample, (jobs, tube))

    def counted(self, promise: str | None) -> CountedTubes:
        """Return the tubes found so far; the sample has those that the principal may see.

        *promise* says whether the change can be undone; None for a change without jobs, and for a run.
        """
        sample = sorted(self.sample, key=lambda one: (-one[0], one[1]))
        return CountedTubes(
            action=self.change.key,
            pattern=self.pattern,
            matched=self.matched,
            tubes=self.affected,
            jobs=self.jobs,
            sample=[AffectedTube(tube=name.decode(), jobs=jobs) for jobs, name in sample if principal().sees(name)],
            undo=promise,
            run=self.run or None,
        )

    @property
    def title(self) -> str:
        """`Pause 12 tubes`, `Kick 40 buried jobs of 3 tubes`."""
        tubes = text.counted(self.affected, "tube")
        jobs = f"{text.counted(self.jobs, self.change.jobs_noun)} of " if self.change.key == KICK else ""
        return f"{self.change.label} {jobs}{tubes}"

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts for the task's page."""
        found = [Fact("Pattern", self.pattern)]
        if self.change.key == PAUSE:
            found.append(Fact("Length", text.duration(round(self.change.seconds))))
            found += [Fact("Reason", self.change.reason)] if self.change.reason else []
        elif self.change.key == KICK:
            found.append(Fact("State", STATE_NAMES[self.change.state]))
        return tuple(found)


@dataclass(slots=True)
class Changed:
    """Tubes changed, jobs kicked, and tubes whose reason was not kept because the store is full."""

    tubes: int = 0
    jobs: int = 0
    without_reason: int = 0


@dataclass(slots=True)
class TubeRun:
    """The run of *plan*.

    is_counted      a dry run has found the tubes.
    whole           name of the change of all shards of which this is the part of one; empty if it is not a part.
    changed         what has been changed so far.
    """

    plan: TubePlan
    is_counted: bool
    whole: str = ""
    changed: Changed = field(default_factory=Changed)

    def merge(self, results: Mapping[int, Any]) -> None:
        """Add up what has been changed on the shards."""
        parts = [convert(result, Changed) for result in results.values()]
        self.changed = Changed(sum([one.tubes for one in parts]), sum([one.jobs for one in parts]))


class TubeChanges(QueueChanges):
    """Dry runs and runs of changes of many tubes, of all shards."""

    def __init__(self, *changing: Any, parts: TaskParts) -> None:
        super().__init__(*changing)
        self._parts: TaskParts = parts
        parts.register(DRY_RUN, self._start_dry_run_part, self._counted_part, is_kept=True)
        parts.register(RUN, self._start_run_part, lambda task: asdict(task.subject_as(TubeRun).changed))

    def dry_run(self, change: TubeChange, pattern: str) -> Task:
        """Start a task that finds the tubes that *change* would affect. Does not switch."""
        plan = TubePlan(change, pattern)
        work: Callable[[Task], None] = partial(self._count, plan=plan)
        if self._parts.spans(""):
            asked = self._parts.everywhere(change=asdict(change), pattern=pattern)
            work = self._parts.work(DRY_RUN, asked, plan.merge)
        return self._tasks.start(
            f"Preview: {change.label.lower()} tubes that match {pattern}",
            plan,
            work,
            kind="tubes-dry-run",
            details=lambda: {"tubes": plan.counted(self.promise(plan))},
            endpoint="tube_change",
            noun="tube",
            facts=plan.facts,
        )

    def start(self, change: TubeChange, pattern: str) -> Task:
        """Start *change* of all tubes that match *pattern*, without a dry run. Does not switch."""
        plan = TubePlan(change, pattern)
        return self._start(f"{change.label} tubes that match {pattern}", plan, is_counted=False)

    def start_run(self, dry_run: Task) -> Task:
        """Start the run of *dry_run*, or return it if it has started; raise Conflict if the dry run did not finish."""
        plan = dry_run.subject_as(TubePlan)
        if not dry_run.is_controlled_by(principal()):
            raise Forbidden("Only admins, and the user who started the preview, may carry it out.")
        if plan.run:
            return self._tasks.get(plan.run)
        if dry_run.state != "done":
            raise Conflict("The preview did not finish, so the tubes are not known. Start it again.")
        match = "matches" if plan.affected == 1 else "match"
        return self._start(f"{plan.title} that {match} {plan.pattern}", plan, is_counted=True)

    def _start(self, title: str, plan: TubePlan, *, is_counted: bool) -> Task:
        run = TubeRun(plan, is_counted)
        work: Callable[[Task], None] = partial(self._work, run=run)
        if self._parts.spans(""):
            work = self._work_of_all(title, run)
        task = self._tasks.start(
            title,
            plan,
            lambda task: self._audited(task, run, work),
            kind="tubes-change",
            details=lambda: {"tubes": plan.counted(None)},
            back=lambda: url_for("overview"),
            verb=plan.change.done,
            noun="tube",
            facts=plan.facts,
        )
        plan.run = task.id
        return task

    def _work_of_all(self, title: str, run: TubeRun) -> Callable[[Task], None]:
        """Return the work of a run on all shards."""
        plan, asked = run.plan, dict[int, Mapping[str, Any]]()
        same = {"title": title, "change": asdict(plan.change), "pattern": plan.pattern, "whole": secrets.token_hex(8)}
        for shard, given in self._parts.everywhere(**same).items():
            asked[shard] = {**given, "dry_run": plan.parts[shard].dry_run if shard in plan.parts else ""}
        return self._parts.work(RUN, asked, run.merge)

    def _start_dry_run_part(self, change: dict[str, Any], pattern: str) -> Task:
        plan = TubePlan(TubeChange(**change), pattern)
        return self._tasks.start("", plan, partial(self._count, plan=plan), endpoint="tube_change", is_part=True)

    def _counted_part(self, dry_run: Task) -> CountedPart:
        plan = dry_run.subject_as(TubePlan)
        sample = [(jobs, name.decode()) for jobs, name in plan.sample]
        return CountedPart(dry_run.id, plan.affected, plan.matched, plan.jobs, sample, self._undo_refusal(plan))

    def _start_run_part(self, title: str, change: dict[str, Any], pattern: str, whole: str, dry_run: str) -> Task:
        """Start the part of this shard: of the part *dry_run* if it is not empty, else of the tubes as they are now."""
        plan = self._tasks.part(dry_run).subject_as(TubePlan) if dry_run else TubePlan(TubeChange(**change), pattern)
        run = TubeRun(plan, bool(dry_run), whole)
        return self._tasks.start(title, run, partial(self._work, run=run), verb=plan.change.done, is_part=True)

    def promise(self, plan: TubePlan) -> str | None:
        """Return the sentence that says whether the change could be undone; None for a change of no jobs."""
        if plan.change.key != KICK:
            return None
        refusal = next((one.refusal for one in plan.parts.values() if one.refusal), "")
        return self._saved_changes.promise(refusal or self._undo_refusal(plan), is_deletion=False)

    def _undo_refusal(self, plan: TubePlan) -> str:
        """Return why the change of this shard's jobs could not be undone; empty if it could."""
        return self._saved_changes.change_refusal(0 if plan.parts else plan.jobs) if plan.change.key == KICK else ""

    def _count(self, task: Task, plan: TubePlan) -> None:
        """Find the tubes of *plan*. Switches."""
        for tube in self._matching(task, plan.pattern):
            plan.matched += 1
            if plan.change.applies_to(tube):
                plan.add(tube.name, plan.change.count(tube))
            if len(plan.tubes) > MAX_TUBES:
                raise TaskFailed(f"More than {MAX_TUBES:,} tubes match, the maximum. Use a narrower pattern.")

    def _matching(self, task: Task, pattern: str) -> Iterator[Tube]:
        """Yield the tubes that match *pattern* and that the principal of *task* operates. Switches."""
        matches = re.compile(to_regex(pattern).encode()).fullmatch
        names = list(self._broker.tubes)
        task.total = len(names)
        for name in names:
            task.checkpoint()
            tube = self._broker.tubes.get(name)
            is_here = tube is not None and not self._broker.is_elsewhere(name)  # each shard has `default`
            if tube is not None and is_here and matches(name) and task.who.operates(name):
                task.matched += 1
                yield tube
            task.scanned += 1

    def _audited(self, task: Task, run: TubeRun, work: Callable[[Task], None]) -> None:
        """Do *work*, and write the audit entries. Switches."""
        plan = run.plan
        details: dict[str, str | int] = {"task": task.id, "action": plan.change.key, "pattern": plan.pattern}
        details |= plan.change.audit_details()
        self._audit.note("tubes/run", **details, **({"counted": plan.affected} if run.is_counted else {}))
        try:
            work(task)
        finally:
            counts = {"tubes": run.changed.tubes} | ({"jobs": run.changed.jobs} if plan.change.key == KICK else {})
            self._audit.note("tubes/end", **details, **counts)

    def _work(self, task: Task, run: TubeRun) -> None:
        """Change the tubes of this shard. Switches."""
        plan = run.plan
        if not run.is_counted:
            self._count(task, plan)
        recording = self._saved_changes.record_change(task.title, plan.jobs, whole=run.whole)
        try:
            self._change(task, plan, run.changed, recording)
            self._commit_or_fail(task)
        except TaskCancelled:
            self._commit()
            raise
        finally:
            if plan.change.key == KICK:  # the other actions change no jobs
                task.change_number = recording.close()
                task.message = f"{task.message} {recording.outcome}".strip()
            self._saved.save()

    def _change(self, task: Task, plan: TubePlan, changed: Changed, recording: Recording) -> None:
        uncommitted = 0
        task.total, task.scanned, task.matched = len(plan.tubes), 0, len(plan.tubes)
        for name, jobs in plan.tubes.items():
            task.checkpoint()
            task.scanned += 1
            tube = self._broker.tubes.get(name)
            if tube is None or not principal().operates(name):
                task.skipped += 1
                continue
            if (error := self._broker.journal.write_error) is not None:
                raise TaskFailed(f"The journal cannot be written: {error}. {text.number(task.done)} {task.verb}.")
            for count in self._apply(task, plan.change, tube, jobs, changed, recording):
                task.done += count
                changed.jobs += count
                uncommitted += count
                if uncommitted >= COMMIT_BATCH:
                    self._commit_or_fail(task)
                    uncommitted = 0
                if recording.is_full and recording.flush():
                    raise TaskFailed(f"The change has stopped. {text.number(task.done)} {task.verb} before that.")
            changed.tubes += 1
        if task.skipped:
            task.message = f"{text.counted(task.skipped, 'tube')} skipped: deleted since, or you may not operate them."
        if changed.without_reason:
            task.message += (
                f" {text.counted(changed.without_reason, 'tube')} paused without the reason: no room for it."
            )
        task.message = task.message.strip()

    def _apply(
        self, task: Task, change: TubeChange, tube: Tube, jobs: int, changed: Changed, recording: Recording
    ) -> Iterator[int]:
        """Change *tube*; yield the numbers of tubes paused or resumed, or of jobs kicked. May switch."""
        if change.key == KICK:
            while jobs and self._broker.tubes.get(tube.name) is tube:
                kicked = kick_slice(self._broker, tube, change.state, jobs, recording, self._clock())
                if not kicked:
                    return
                jobs -= kicked
                yield kicked
                task.checkpoint()
            return
        now, name = self._clock(), tube.name
        editing.pause_tube(self._broker, name, to_nanoseconds(change.seconds) if change.key == PAUSE else 0, now)
        self._saved.set_reason(name.decode(), change.reason, tube.paused_until, now)
        changed.without_reason += self._saved.reason(name.decode(), tube.paused_until) != change.reason
        yield 1

    def _commit_or_fail(self, task: Task) -> None:
        """Commit the changes so far; raise TaskFailed if that takes too long. Switches."""
        if not self._commit():
            raise TaskFailed(
                "The disk does not keep up: the last changes may not survive a crash."
                f" {text.number(task.done)} {task.verb} before that."
            )
