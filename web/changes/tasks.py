"""Tasks: long work on the server, each in a greenlet that works in small steps, reports progress, and can be cancelled.

A task belongs to the server, not to the page that started it: the user may close the page, and other users may watch. A
task ends with the server. The number of running tasks and of kept tasks is bounded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, Literal, TypeVar

import gevent
from flask import Flask, current_app, g
from gevent.event import Event
from werkzeug.exceptions import Forbidden, NotFound, ServiceUnavailable

from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.framework.access import Principal, principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.fields import Fields
from greenstalk_server.web.framework.shards import ALONE, Shards
from greenstalk_server.web.store.audit import Audit

MAX_KEPT: Final = 50
"""Tasks kept per kind (searches, dry runs, changes), running ones included."""

MAX_RUNNING: Final = 4
"""Tasks running at once, of all principals."""

INITIAL_WAIT: Final = 0.5
"""Seconds that a request waits for its task before the page shows the progress so far."""

MAX_UNASKED: Final = 30.0
"""Seconds after which the part of a whole task (task_parts) ends if its progress is not asked for."""

TaskKind = Literal["search", "dry-run", "change", "policy-dry-run", "tubes-dry-run", "tubes-change", "errors"]
Progress = Literal["running", "done", "cancelled", "failed"]

RUNNING: Final = "running"
DONE: Final = "done"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"

T = TypeVar("T")

log = logging.getLogger(__name__)


class TaskFailed(Exception):
    """Ends a task early; the message is the reason, for its page."""


class TaskCancelled(Exception):
    """Ends a task that a principal has cancelled."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled text on a task's page; *tube* is the tube to link to, or empty."""

    label: str
    text: str
    tube: str = ""


class Task:
    """One piece of work.

    id              a random id, which cannot be guessed and is unique among servers.
    kind, title     what it does, and a short description.
    subject         the input and results, for the module that started the task. It must not refer to the task, and
                    neither must *details* and *back*: an old reference cycle is never freed (gc_tuning).
    details         a function that returns the fields that only tasks of this kind have in the API (task_model).
    endpoint        the page that shows the results, with `task` in its address; empty for the task's own page.
    needs_bodies    the task shows parts of job bodies.
    who, started_at the principal who started the task, and when.
    ended_at        when the task ended; 0 while it runs.
    noun            what the task scans: `job` or `tube`.
    total, scanned  jobs or tubes to scan, and those scanned so far.
    matched         jobs or tubes that matched so far.
    done            jobs or tubes changed so far.
    skipped         jobs skipped so far, because the change was not possible.
    verb            the participle of the change: `deleted`, `moved`.
    facts           labelled texts for the page.
    is_cancelled    a principal has cancelled the task; it ends at its next `checkpoint`.
    message         reason why the task ended early, and the jobs that it skipped; empty if neither applies.
    back            a function that returns the address of the task's subject; None if there is no such page.
    is_listed       whether the task is in the list of tasks; a task that a page starts by itself is not.
    change_number   number of the change that the task has made, if it can be undone; see changes.saved_changes.
    pace            yields to the event loop; `checkpoint` also ends the task.
    """

    def __init__(
        self, id: str, title: str, subject: object, endpoint: str, needs_bodies: bool, who: Principal, now: int
    ) -> None:
        self.id: str = id
        self.kind: TaskKind = "change"
        self.title: str = title
        self.subject: object = subject
        self.endpoint: str = endpoint
        self.needs_bodies: bool = needs_bodies
        self.who: Principal = who
        self.started_at: int = now
        self.ended_at: int = 0
        self.state: Progress = RUNNING
        self.total: int = 0
        self.scanned: int = 0
        self.matched: int = 0
        self.done: int = 0
        self.skipped: int = 0
        self.verb: str = "changed"
        self.noun: str = "job"
        self.facts: tuple[Fact, ...] = ()
        self.message: str = ""
        self.back: Callable[[], str] | None = None
        self.is_listed: bool = True
        self.details: Callable[[], Mapping[str, object]] = dict
        self.change_number: int | None = None
        self.is_cancelled: bool = False
        self._has_ended: Event = Event()
        self._asked_until: float = inf
        self.pace: Pace = Pace()

    @property
    def is_running(self) -> bool:
        return self.state == RUNNING

    def subject_as(self, subject_type: type[T]) -> T:
        """Return the subject; raise NotFound unless it is a *subject_type*."""
        if not isinstance(self.subject, subject_type):
            raise NotFound("The task is of another kind.")
        return self.subject

    def checkpoint(self) -> None:
        """Yield to the event loop if it is time. Call between jobs. May switch.

        Raise TaskCancelled if cancelled, and TaskFailed if the session of the principal has ended.
        """
        if self.is_cancelled:
            raise TaskCancelled
        if not self.who.lasts():
            raise TaskFailed("The session of the user who started the task has ended.")
        if time.monotonic() > self._asked_until:
            raise TaskFailed("The process that started the task does not ask for its progress any more.")
        self.pace.yield_if_due()

    def note_asked(self) -> None:
        """Note that the progress of the task, a part of a whole one, is asked for. Does not switch."""
        self._asked_until = time.monotonic() + MAX_UNASKED

    def cancel(self) -> None:
        """Make the task end at its next `checkpoint`. Does not switch."""
        self.is_cancelled = True

    def is_controlled_by(self, who: Principal) -> bool:
        """Return whether *who* may cancel the task, or carry it out if it is a dry run."""
        return who.is_admin or (who.operates_any and who.name == self.who.name and who.shares_rights_with(self.who))

    def end(self, state: Progress, reason: str, now: int) -> None:
        """Record the end of the task. *reason*: why it ended early, the first part of `message`; otherwise empty."""
        self.state, self.message, self.ended_at = state, f"{reason} {self.message}".strip(), now
        self._has_ended.set()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the task, at most *seconds*. May switch."""
        self._has_ended.wait(seconds)


class Tasks:
    """The tasks of one server."""

    def __init__(self, clock: Clock, audit: Audit, shards: Shards = ALONE) -> None:
        self._shards: Shards = shards
        self._audit: Audit = audit
        self._clock: Clock = clock
        self._kept: dict[str, Task] = {}
        self._parts: dict[str, Task] = {}  # of whole tasks, see task_parts

    def start(
        self,
        title: str,
        subject: object,
        work: Callable[[Task], None],
        *,
        kind: TaskKind = "change",
        details: Callable[[], Mapping[str, object]] = dict,
        endpoint: str = "",
        needs_bodies: bool = False,
        back: Callable[[], str] | None = None,
        verb: str = "changed",
        noun: str = "job",
        facts: tuple[Fact, ...] = (),
        is_listed: bool = True,
        is_part: bool = False,
    ) -> Task:
        """Start *work* for the current principal; raise ServiceUnavailable if too many tasks run. Does not switch.

        A part of a whole task (task_parts) does not count. The other arguments are the fields of Task.
        """
        running = [] if is_part else [task for task in self._kept.values() if task.is_running]
        most = MAX_RUNNING if principal().is_admin else MAX_RUNNING - 1  # one is reserved for admins
        if len(running) >= most:
            raise ServiceUnavailable(
                f"{len(running)} searches or changes are running, which is the maximum: "
                + "; ".join(task.title for task in reversed(self.all()) if task.is_running)
                + ". Wait for one to end, or cancel one."
            )
        task = Task(self._shards.new_token(), title, subject, endpoint, needs_bodies, principal(), self._clock())
        task.kind, task.details = kind, details
        task.back, task.verb, task.noun, task.facts = back, verb, noun, facts
        task.is_listed = is_listed
        kept = self._parts if is_part else self._kept
        kept[task.id] = task
        _forget_old(kept, endpoint)
        app = current_app._get_current_object()  # type: ignore[attr-defined]  # a proxy, which a greenlet cannot use
        gevent.spawn(self._run, app, task, work)
        return task

    def part(self, id: str) -> Task:
        """Return the part *id* of a whole task; raise NotFound without it."""
        if (task := self._parts.get(id)) is None:
            raise NotFound("Its process has been restarted, or has dropped the task.")
        return task

    def drop_part(self, part: Task) -> None:
        """Forget *part*, whose end has been reported."""
        self._parts.pop(part.id, None)

    def has(self, id: str) -> bool:
        """Return whether the task *id* is still kept, and the current principal may see it."""
        task = self._kept.get(id)
        return task is not None and _sees(principal(), task)

    def running(self, is_wanted: Callable[[Task], bool]) -> Task | None:
        """Return a running task that *is_wanted*, or None."""
        return next((task for task in self._kept.values() if task.is_running and is_wanted(task)), None)

    def latest(self, is_wanted: Callable[[object], bool]) -> Task | None:
        """Return the most recent task whose subject *is_wanted*, or None.

        Only tasks of principals who have the same rights as the current principal are considered.
        """
        who = principal()
        found = (task for task in reversed(self._kept.values()) if task.who.shares_rights_with(who))
        return next((task for task in found if is_wanted(task.subject)), None)

    def all(self) -> list[Task]:
        """Return the listed tasks that the current principal may see, newest first."""
        who = principal()
        return [
            task
            for task in reversed(self._kept.values())
            if task.is_listed and _sees(who, task) and (who.sees_bodies or not task.needs_bodies)
        ]

    def find(self, fields: Fields, name: str = "task") -> Task:
        """Return the task whose id is in the field *name*; raise NotFound, or Forbidden if it shows hidden bodies."""
        return self.get(fields.get(name, ""))

    def get(self, id: str) -> Task:
        """Return the task *id*; raise NotFound, or Forbidden if it shows hidden bodies."""
        task = self._kept.get(id)
        if task is None or not _sees(principal(), task):
            raise NotFound(
                f"There is no such task. The server keeps the last {MAX_KEPT} of each kind until it stops. Start the"
                " search or change again."
            )
        if task.needs_bodies and not principal().sees_bodies:
            raise Forbidden("This task searches job bodies, which are hidden from you.")
        return task

    def stop(self, task: Task) -> None:
        """Cancel *task* if it is running, and wait up to a second for its end. May switch."""
        if not task.is_controlled_by(principal()):
            raise Forbidden("Only admins, and the user who started a task, may cancel it.")
        if task.is_running:
            task.cancel()
            self._audit.note("task/cancel", task=task.id, title=task.title)
            task.wait(1.0)

    def _run(self, app: Flask, task: Task, work: Callable[[Task], None]) -> None:
        state: Progress = FAILED
        message = "The dashboard failed. The server's log has the details."
        with app.app_context():
            g.principal = task.who
            try:
                work(task)
                state, message = DONE, ""
            except TaskCancelled:
                state, message = CANCELLED, ""
            except TaskFailed as why:
                message = str(why)
            except Exception:
                log.exception("task %s failed: %s", task.id, task.title)
            finally:
                task.end(state, message, self._clock())


def _forget_old(kept: dict[str, Task], endpoint: str) -> None:
    """Remove the oldest ended tasks of one kind from *kept*, the viewers' tasks first.

    So neither searches nor viewers evict a dry run whose run an admin is about to start.
    """
    alike = [id for id, task in kept.items() if task.endpoint == endpoint]
    ended = [id for id in alike if not kept[id].is_running]
    ended.sort(key=lambda id: kept[id].who.is_admin)
    for id in ended[: max(0, len(alike) - MAX_KEPT)]:
        del kept[id]


def _sees(who: Principal, task: Task) -> bool:
    """Return whether *who* may see *task*: its title and its results may name any tube that its owner may see."""
    return who.sees_all or who.shares_rights_with(task.who)
