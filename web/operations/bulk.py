"""Changes of many jobs: those that were ticked, or all that match a query.

A change goes in two steps. The dry run counts, and changes nothing: its page says what would happen, to how many, by
which predicate. The run, which that page asks for, does it to jobs that match that very predicate and are no newer than
the dry run. Both are tasks: they go in small steps, tell how far they are, and can be cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from flask import Flask, Request, redirect, render_template, request, url_for
from werkzeug.exceptions import BadRequest, Conflict, NotFound, ServiceUnavailable
from werkzeug.wrappers import Response

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import BURIED, DELAYED, MAX_ID, READY, RESERVED, SECOND, Job
from greenstalk_server.core.outcomes import EditOutcome
from greenstalk_server.core.tube import is_tube_name
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web import fields, text
from greenstalk_server.web.fields import MAX_NUMBER
from greenstalk_server.web.jobs.bodies import none
from greenstalk_server.web.jobs.query import Query, QueryError
from greenstalk_server.web.operations.audit import Audit
from greenstalk_server.web.operations.tasks import Cancelled, Fact, Stopped, Task, Tasks
from greenstalk_server.web.pages.search import FIRST_WAIT, Matches, asked, candidates, columns, rows

SAMPLE: Final = 10
"""Jobs shown of those that a change would hit."""

TICKED_AT_MOST: Final = 1000

COMMIT_EVERY: Final = 1024 * 1024
"""Bytes that the journal is told until it is waited for, so that what it has yet to write stays small."""

RECORD: Final = 128
"""About the bytes of a record in the journal besides a body."""


@dataclass(frozen=True, slots=True)
class Action:
    """What can be done to many jobs.

    done            "3 jobs " and this is what has happened.
    noun            name of the value.
    means           what it means for a job.
    asks            the field of the form that it needs, or empty.
    changes         whether it would change a job, given the value of that field.
    forced          what it means for a job that a client holds, or empty if nothing is done to such a job ever.
    """

    label: str
    done: str
    means: str
    asks: str
    changes: Callable[[Job, bytes | int], bool]
    forced: str
    noun: str = ""


ACTIONS: Final[Mapping[str, Action]] = {
    "kick": Action(
        "Kick",
        "kicked",
        "turns ready: a worker can reserve it at once",
        "",
        lambda job, _: job.state != READY,
        "is taken from the client that holds it, and turns ready",
    ),
    "bury": Action(
        "Bury",
        "buried",
        "is set aside until somebody kicks it",
        "",
        lambda job, _: job.state != BURIED,
        "is taken from the client that holds it, and set aside",
    ),
    "delete": Action(
        "Delete",
        "deleted",
        "is gone for good: there is no way back from it",
        "",
        lambda job, _: True,
        "is taken from the client that holds it, and is gone for good",
    ),
    "move": Action(
        "Move",
        "moved",
        "goes to the tube {}, in its state; its id, age, priority and counts stay",
        "to",
        lambda job, to: job.tube.name != to,
        "counts for the tube {}; its client keeps it",
    ),
    "pri": Action(
        "Set the priority of",
        "given another priority",
        "has the priority {}",
        "pri",
        lambda job, pri: job.pri != pri,
        "has the priority {} once its client is done with it; the client keeps it",
        "priority",
    ),
    "delay": Action(
        "Set the delay of",
        "given another delay",
        "turns ready {} after the change",
        "delay",
        lambda job, _: job.state in (READY, DELAYED),
        "",
        "delay",
    ),
}


@dataclass(frozen=True, slots=True)
class Change:
    """An action with its value: a tube's name, a priority, or seconds."""

    key: str
    value: bytes | int = 0

    @property
    def action(self) -> Action:
        return ACTIONS[self.key]

    @property
    def shown(self) -> str:
        """The value, for people."""
        if isinstance(self.value, bytes):
            return f"“{self.value.decode()}”"
        return text.duration(self.value) if self.key == "delay" else text.number(self.value)

    @property
    def means(self) -> str:
        """What it means for a job."""
        return self.action.means.format(self.shown)

    def noted(self) -> dict[str, str | int]:
        """Return the value by its name, for the audit log."""
        value = self.value.decode() if isinstance(self.value, bytes) else self.value
        return {self.action.asks: value} if self.action.asks else {}

    def of(self, jobs: str) -> str:
        """Return the change of *jobs* as a title: `Move 3 jobs to “archive”`."""
        return f"{self.action.label} {jobs}" + (f" to {self.shown}" if self.action.asks else "")

    @property
    def forced(self) -> str:
        """What it means for a job that a client holds; empty if nothing is ever done to such a one."""
        return self.action.forced.format(self.shown)

    def is_for(self, job: Job) -> bool:
        """Whether it would change *job*; by force, if a client holds that."""
        return self.action.changes(job, self.value)

    def apply(self, broker: Broker, id: int, body: bytes | None, is_forced: bool, now: int) -> int:
        """Do it to the job *id*, whose body is *body*; return an EditOutcome, as `Broker.edit_job` does."""
        job = broker.jobs.get(id)
        if job is None:
            return EditOutcome.NOT_FOUND
        if job.state == RESERVED and not is_forced:
            return EditOutcome.HELD
        if isinstance(self.value, bytes):
            return broker.edit_job(id, now, tube=self.value, body=body, is_forced=is_forced)
        if self.key == "pri":
            return broker.edit_job(id, now, pri=self.value, body=body, is_forced=is_forced)
        if self.key == "delay":
            return broker.edit_job(id, now, delay=self.value * SECOND, body=body)
        return EditOutcome.DONE if self._transition(broker, job, is_forced, now) else EditOutcome.NOT_FOUND

    def _transition(self, broker: Broker, job: Job, is_forced: bool, now: int) -> bool:
        if self.key == "kick":
            return broker.release_job(job.id, now) if job.state == RESERVED else broker.kick_job(job.id, now)
        if self.key == "bury":
            return broker.bury_job(job.id, now, is_forced)
        return broker.delete_job(job.id, now, is_forced)


@dataclass(slots=True)
class Plan:
    """A change, what it is for, and what its dry run has counted.

    query           which jobs; of those with *ids* alone, unless that is None.
    at, below       time of the dry run, and the next id then: the run goes by the same time, and spares newer jobs.
    tube            the one tube it is about, or empty.
    hit             jobs it would change; held are those that clients hold, and others those it would not change.
    sample          ids of the first that it would change.
    run             the task that does it, once there is one: a plan is carried out once.
    """

    change: Change
    query: Query
    ids: tuple[int, ...] | None
    at: int
    below: int
    hit: int = 0
    held: int = 0
    others: int = 0
    sample: list[int] = field(default_factory=list)
    run: Task | None = None

    @property
    def tube(self) -> str:
        return self.query.tube

    @property
    def predicate(self) -> str:
        """Which jobs, for people."""
        which = str(self.query) or "all jobs"
        return which if self.ids is None else f"{text.counted(len(self.ids), 'ticked job')} of {which}"

    @property
    def is_destructive(self) -> bool:
        """Whether there is no way back from it."""
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
        """What has to be typed for what destroys: the tube's name, or how many jobs if they are of several."""
        return self.tube or str(self.hit + self.held)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts for the page of the task."""
        found = [Fact("Query", self.predicate)]
        if self.tube:
            found.append(Fact("Tube", self.tube, self.tube))
        if isinstance(self.change.value, bytes):
            target = self.change.value.decode()
            found.append(Fact("Target tube", target, target))
        elif self.change.action.asks:
            found.append(Fact(f"New {self.change.action.noun}", self.change.shown))
        return tuple(found)


class Bulk:
    """The changes of many jobs that the dashboard of *broker* makes; *commit* as for pages.actions."""

    def __init__(self, broker: Broker, clock: Clock, commit: Callable[[], bool], audit: Audit, tasks: Tasks) -> None:
        self._audit: Audit = audit
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit
        self._tasks: Tasks = tasks

    def install(self, app: Flask) -> None:
        """Add its pages and changes to *app*."""
        app.add_url_rule("/bulk", "bulk", self.page)
        app.add_url_rule("/bulk/preview", "bulk_preview", self.preview, methods=["POST"])
        app.add_url_rule("/bulk/run", "bulk_run", self.run, methods=["POST"])

    def preview(self) -> Response:
        """`scope` (`all`, or `ticked` with `id`s), `q`, `tube`, `state`, `action` and its value: dry run. Switches."""
        try:
            query = asked(request.form)
        except QueryError as error:
            raise BadRequest(f"“q” cannot be read. {error}") from error
        task = self.dry_run(self.plan(_change(request.form), query, _ticked(request)))
        task.wait(FIRST_WAIT)
        return redirect(url_for("bulk", task=task.id), 303)

    def page(self) -> str | Response:
        """`/bulk?task=`: what the dry run has found, and the form that has it done."""
        task = self._tasks.find(request.args)
        plan = plan_of(task)
        if task.is_running:
            return redirect(url_for("task", id=task.id), 303)
        return render_template(
            "bulk.html",
            task=task,
            plan=plan,
            back=self._back(plan),
            columns=columns(),
            rows=rows(self._broker, plan.sample, self._clock()),
        )

    def run(self) -> Response:
        """`task`, of a dry run; `force`, `confirm`: do it, once however often it is asked for. Does not switch."""
        dry_run = self._tasks.find(request.form)
        plan, is_forced = plan_of(dry_run), request.form.get("force") == "1"
        if plan.run is None:
            self.refuse_unfinished(dry_run)
            _refuse_unconfirmed(plan, is_forced)
        return redirect(url_for("task", id=self.carry_out(plan, is_forced).id), 303)

    def plan(self, change: Change, query: Query, ids: tuple[int, ...] | None) -> Plan:
        """A plan as of now."""
        return Plan(change, query, ids, self._clock(), self._broker.next_id)

    def dry_run(self, plan: Plan) -> Task:
        """Start to count what *plan* would change. Does not switch."""
        return self._tasks.start(
            f"Dry run: {_uncapitalized(plan.change.of(plan.predicate))}",
            plan,
            lambda task: self._count(task, plan),
            endpoint="bulk",
            needs_bodies=plan.query.needs_bodies,
            facts=plan.facts,
        )

    def carry_out(self, plan: Plan, is_forced: bool) -> Task:
        """Start to do what *plan* says, once however often it is asked for. Does not switch."""
        if plan.run is None:
            if self._broker.is_draining:
                raise ServiceUnavailable("The server is draining, so it begins no such change. Nothing was changed.")
            plan.run = self._tasks.start(
                plan.change.of(plan.predicate),
                plan,
                lambda task: self._work(task, plan, is_forced),
                back=lambda: self._back(plan),
                needs_bodies=plan.query.needs_bodies,
                verb=plan.change.action.done,
                facts=plan.facts,
            )
        return plan.run

    @staticmethod
    def refuse_unfinished(dry_run: Task) -> None:
        """Raise Conflict unless *dry_run* has counted all."""
        if dry_run.state != "done":
            raise Conflict("The dry run did not come to its end, so nothing is known of what this would change.")

    def _back(self, plan: Plan) -> str:
        """Where to go if it is not to be done."""
        if plan.tube.encode() in self._broker.tubes:
            return url_for("tube", tube=plan.tube, state=plan.query.state or None)
        return url_for("search", q=str(plan.query)) if plan.query.terms else url_for("overview")

    def _count(self, task: Task, plan: Plan) -> None:
        """The dry run. Switches."""
        for job, _ in self._chosen(task, plan):
            task.matched += 1
            if not plan.change.is_for(job):
                plan.others += 1
            elif job.state == RESERVED:
                plan.held += 1
            else:
                plan.hit += 1
                if len(plan.sample) < SAMPLE:
                    plan.sample.append(job.id)

    def _work(self, task: Task, plan: Plan, is_forced: bool) -> None:
        """The run. Switches."""
        told: dict[str, str | int] = {"task": task.id, "action": plan.change.key, "query": plan.predicate}
        told |= {"tube": plan.tube} | plan.change.noted()
        counted = {"jobs": plan.hit + plan.held * is_forced} if plan.hit or plan.held or plan.others else {}
        self._audit.note("bulk/run", **told, **counted, forced=int(is_forced))
        try:
            self._change(task, plan, is_forced)
            self._settle(task)
        except Cancelled:
            self._commit()
            raise
        finally:
            self._audit.note("bulk/end", **told, jobs=task.done)

    def _change(self, task: Task, plan: Plan, is_forced: bool) -> None:
        unsettled = unread = 0

        def is_for(job: Job) -> bool:
            return plan.change.is_for(job) and (job.state != RESERVED or is_forced)

        wants_body = is_for if plan.change.action.asks else none  # what is recorded anew is so with its body
        for job, body in self._chosen(task, plan, wants_body):
            task.matched += 1
            if not is_for(job):
                continue
            self._refuse_to_go_on(task)
            outcome = plan.change.apply(self._broker, job.id, body, is_forced, self._clock())
            if outcome == EditOutcome.NO_ROOM:
                raise Stopped(f"The journal has no room for more. {_so_far(task)}")
            task.done += outcome == EditOutcome.DONE
            unread += outcome == EditOutcome.BODY_ON_DISK
            unsettled += RECORD + (job.size if plan.change.action.asks else 0)
            if unsettled >= COMMIT_EVERY:
                self._settle(task)
                unsettled = 0
        if unread:
            stay = "1 job stays as it is" if unread == 1 else f"{text.number(unread)} jobs stay as they are"
            task.message = f"{task.message} {stay}: what is in there cannot be read back from the disk.".strip()

    def _chosen(
        self, task: Task, plan: Plan, wants_body: Callable[[Job], bool] = none
    ) -> Iterator[tuple[Job, bytes | None]]:
        """The jobs that *plan* is about, each as it is now, with its body if that is wanted. Switches."""
        ids: Iterable[int]
        if plan.ids is None:
            task.total, ids = candidates(self._broker, plan.query)
        else:
            task.total, ids = len(plan.ids), plan.ids
        matches = Matches(self._broker, plan.query, plan.at, task.rest, wants_body)
        for id, job, body in matches.among(ids):
            if job is not None and id < plan.below:
                yield job, body
            task.scanned += 1
        task.total = task.scanned  # some may have gone before their turn
        task.message = matches.not_looked_at

    def _refuse_to_go_on(self, task: Task) -> None:
        trouble = self._broker.journal.trouble
        if trouble is not None:
            raise Stopped(f"The journal cannot be written: {trouble}. {_so_far(task)}")
        if self._broker.is_draining:
            raise Stopped(f"The server is draining. {_so_far(task)}")

    def _settle(self, task: Task) -> None:
        """Wait until what was done is as safe as can be; raise Stopped if that takes too long. Switches."""
        if not self._commit():
            raise Stopped(f"The disk does not keep up: the last changes may not survive a crash. {_so_far(task)}")


def _refuse_unconfirmed(plan: Plan, is_forced: bool) -> None:
    """Raise BadRequest unless the form has what confirms *plan*, if something has to."""
    typed = request.form.get("confirm", "").strip()
    if (plan.is_destructive or is_forced) and typed != plan.confirm:
        raise BadRequest(f"“confirm” must be “{plan.confirm}”, not “{typed[:200]}”. Go back and type it to confirm.")


def _uncapitalized(title: str) -> str:
    return title[0].lower() + title[1:]


def _so_far(task: Task) -> str:
    return f"{text.counted(task.done, 'job')} {'was' if task.done == 1 else 'were'} changed before that."


def _change(given: fields.Fields) -> Change:
    key = given.get("action", "")
    if key not in ACTIONS:
        raise BadRequest(f"“action” must be one of {', '.join(ACTIONS)}, not “{key[:40]}”.")
    asks = ACTIONS[key].asks
    if asks == "to":
        return Change(key, _target(given))
    return Change(key, fields.number(given, asks, 0, MAX_NUMBER) if asks else 0)


def _target(given: fields.Fields) -> bytes:
    """The field `to`."""
    name = given.get("to", "").strip().encode(errors="replace")
    if not is_tube_name(name):
        raise BadRequest(
            "“to” must name the tube to move to: 1 to 200 of A–Z, a–z, 0–9 and -+/;.$_(), the first of them no hyphen."
        )
    return name


def _ticked(asking: Request) -> tuple[int, ...] | None:
    """The field `scope`: the ids that were ticked, each once; None for all that match."""
    scope = asking.form.get("scope", "")
    if scope == "all":
        return None
    if scope != "ticked":
        raise BadRequest("“scope” must be ticked or all.")
    given = asking.form.getlist("id")
    if not given:
        raise BadRequest("No job was ticked. Tick some, or choose all that match.")
    if len(given) > TICKED_AT_MOST:
        raise BadRequest(f"At most {TICKED_AT_MOST} jobs can be ticked at once.")
    return tuple(dict.fromkeys(fields.number({"id": id}, "id", 1, MAX_ID) for id in given))


def plan_of(task: Task) -> Plan:
    """What *task* has counted or done; raise NotFound if that is no such thing."""
    if not isinstance(task.subject, Plan):
        raise NotFound("That task is no dry run.")
    return task.subject
