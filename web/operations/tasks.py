"""Long work on the server: each a greenlet that goes in small steps, tells how far it is, and can be cancelled.

A task belongs to the server, not to the page that started it: the page may be closed, and others may look. It ends with
the server. Only so many are kept, and only so many run at once.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import gevent
from flask import Flask, current_app, g, redirect, render_template, request, url_for
from gevent.event import Event
from werkzeug.exceptions import Forbidden, NotFound, ServiceUnavailable
from werkzeug.wrappers import Response

from greenstalk_server.core.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web import text
from greenstalk_server.web.auth.access import Visitor, visitor
from greenstalk_server.web.cooperative import Pace
from greenstalk_server.web.fields import Fields
from greenstalk_server.web.live.hub import LiveHub, State
from greenstalk_server.web.operations.audit import Audit

KEPT: Final = 50
"""Tasks of a kind (searches, dry runs, changes) that can be looked at, those that run among them."""

RUNNING_AT_MOST: Final = 4
"""At once, whoever started them."""

RUNNING: Final = "running"
DONE: Final = "done"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"

log = logging.getLogger(__name__)


class Stopped(Exception):
    """Ends a task before its work is done; the message says why, for people."""


class Cancelled(Exception):
    """Ends a task that somebody has cancelled."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled text on the page of a task; *tube* is the name of the tube to link to, or empty."""

    label: str
    text: str
    tube: str = ""


class Task:
    """One piece of work.

    id              cannot be guessed, and means nothing to another server.
    title           what it does, for people.
    subject         what it works on and finds, for the module that started it.
    endpoint        of the page that shows what it found, with `task` in its address; empty if its own page does.
    needs_bodies    it tells of what is in bodies.
    who, started_at who started it, and when; ended_at is 0 while it runs.
    total, scanned  jobs to look at, and looked at so far; matched are those of them that it is about.
    done            jobs changed so far; *verb* names the change: `deleted`, `moved`.
    facts           labelled progress_texts for its page.
    is_cancelled    it is to end at its next rest.
    message         what else to know, once it has ended.
    back            gives the address of what it is about, or None.
    """

    def __init__(self, title: str, subject: object, endpoint: str, needs_bodies: bool, who: Visitor, now: int) -> None:
        self.id: str = secrets.token_hex(8)
        self.title: str = title
        self.subject: object = subject
        self.endpoint: str = endpoint
        self.needs_bodies: bool = needs_bodies
        self.who: Visitor = who
        self.started_at: int = now
        self.ended_at: int = 0
        self.state: str = RUNNING
        self.total: int = 0
        self.scanned: int = 0
        self.matched: int = 0
        self.done: int = 0
        self.verb: str = "changed"
        self.facts: tuple[Fact, ...] = ()
        self.message: str = ""
        self.back: Callable[[], str] | None = None
        self.greenlet: Any = None
        self.is_cancelled: bool = False
        self._has_ended: Event = Event()
        self._pace: Pace = Pace()

    @property
    def is_running(self) -> bool:
        return self.state == RUNNING

    def rest(self) -> None:
        """Let others run if it is time to; raise Cancelled if this is to end. Called between two jobs. May switch."""
        if self.is_cancelled:
            raise Cancelled
        self._pace.yield_if_due()

    def cancel(self) -> None:
        """Have it end at its next rest. Does not switch."""
        self.is_cancelled = True

    def end(self, state: str, message: str, now: int) -> None:
        """Note how it has ended."""
        self.state, self.message, self.ended_at = state, message or self.message, now
        self._has_ended.set()

    def wait(self, seconds: float) -> None:
        """Return when it has ended, or after *seconds*. May switch."""
        self._has_ended.wait(seconds)


Work = Callable[[Task], None]


class Tasks:
    """The tasks of one server."""

    def __init__(self, clock: Clock, audit: Audit) -> None:
        self._audit: Audit = audit
        self._clock: Clock = clock
        self._kept: dict[str, Task] = {}

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add their pages to *app*, and have *live* keep them live."""
        app.add_url_rule("/task", "task", self.page)
        app.add_url_rule("/task/cancel", "task_cancel", self.cancel, methods=["POST"])
        live.register("task", self.live)

    def start(
        self,
        title: str,
        subject: object,
        work: Work,
        *,
        endpoint: str = "",
        needs_bodies: bool = False,
        back: Callable[[], str] | None = None,
        verb: str = "changed",
        facts: tuple[Fact, ...] = (),
    ) -> Task:
        """Start *work* for the current visitor; raise ServiceUnavailable if too much is running. Does not switch.

        *back* is the address of what the task is about, now.
        """
        running = [task for task in self._kept.values() if task.is_running]
        most = RUNNING_AT_MOST if visitor().is_admin else RUNNING_AT_MOST - 1  # one is always left for admins
        if len(running) >= most:
            raise ServiceUnavailable(
                f"{len(running)} searches or changes are running, and no more do at once: "
                + "; ".join(task.title for task in running if visitor().sees_bodies or not task.needs_bodies)
                + ". Wait for one to end, or cancel one."
            )
        task = Task(title, subject, endpoint, needs_bodies, visitor(), self._clock())
        task.back, task.verb, task.facts = back, verb, facts
        self._kept[task.id] = task
        self._forget_old(endpoint)
        app = current_app._get_current_object()  # type: ignore[attr-defined]  # a proxy, which a greenlet cannot use
        task.greenlet = gevent.spawn(self._run, app, task, work)
        return task

    def has(self, id: str) -> bool:
        """Whether the task *id* is still kept."""
        return id in self._kept

    def running(self, is_wanted: Callable[[object], bool]) -> Task | None:
        """The running task whose subject *is_wanted*, or None."""
        return next((task for task in self._kept.values() if task.is_running and is_wanted(task.subject)), None)

    def all(self) -> list[Task]:
        """Those that the current visitor may look at, the newest first."""
        sees_bodies = visitor().sees_bodies
        return [task for task in reversed(self._kept.values()) if sees_bodies or not task.needs_bodies]

    def find(self, given: Fields, name: str = "task") -> Task:
        """The task that the field *name* has the id of; raise NotFound, or Forbidden if it tells of bodies."""
        task = self._kept.get(given.get(name, ""))
        if task is None:
            raise NotFound(
                f"There is no such task. The last {KEPT} of each kind are kept, and none longer than the server runs."
                " What it was to do can be asked for again."
            )
        if task.needs_bodies and not visitor().sees_bodies:
            raise Forbidden("This is about what is in jobs, which is not shown to you.")
        return task

    def page(self) -> str:
        """`/task?id=`: one task, and how far it is; without `id` all of them."""
        if not request.args.get("id"):
            return render_template(
                "task.html", task=None, tasks=[(task, progress_texts(task, self._clock())) for task in self.all()]
            )
        task = self.find(request.args, "id")
        return render_template(
            "task.html", task=task, texts=progress_texts(task, self._clock()), started=text.instant(task.started_at)
        )

    def live(self, args: Fields, now: int) -> State:
        """The live state of `/task?id=`."""
        return live_state(self.find(args, "id"), now)

    def cancel(self) -> Response:
        """`id`: end a task. What it has done so far stays done. May switch."""
        task = self.find(request.form, "id")
        self.stop(task)
        return redirect(url_for(task.endpoint, task=task.id) if task.endpoint else url_for("task", id=task.id), 303)

    def stop(self, task: Task) -> None:
        """Cancel *task*, if it runs. May switch."""
        if task.is_running:
            task.cancel()
            self._audit.note("task/cancel", task=task.id, title=task.title)
            task.wait(1.0)

    def _run(self, app: Flask, task: Task, work: Work) -> None:
        state, message = FAILED, "The dashboard failed. The server's log has the details."
        with app.app_context():
            g.visitor = task.who
            try:
                work(task)
                state, message = DONE, ""
            except Cancelled:
                state, message = CANCELLED, ""
            except Stopped as why:
                message = str(why)
            except Exception:
                log.exception("task %s failed: %s", task.id, task.title)
            finally:
                task.end(state, message, self._clock())

    def _forget_old(self, endpoint: str) -> None:
        """Drop the oldest tasks of one kind that have ended, those of viewers first.

        So neither searches nor viewers evict a dry run that an admin is about to carry out.
        """
        alike = [id for id, task in self._kept.items() if task.endpoint == endpoint]
        ended = [id for id in alike if not self._kept[id].is_running]
        ended.sort(key=lambda id: self._kept[id].who.is_admin)
        for id in ended[: max(0, len(alike) - KEPT)]:
            del self._kept[id]


def progress_texts(task: Task, now: int) -> dict[str, str]:
    """What a page shows of *task*, by field."""
    seconds = ((task.ended_at or now) - task.started_at) // SECOND
    return {
        "task-state": task.state,
        "task-scanned": f"scanned {text.number(task.scanned)} of {text.counted(task.total, 'job')}",
        "task-percent": str(100 * task.scanned // task.total if task.total else 0),
        "task-matched": text.number(task.matched),
        "task-done": text.number(task.done),
        "task-time": text.duration(max(0, seconds)),
        "task-left": _time_left(task, now),
        "task-message": task.message,
    }


def _time_left(task: Task, now: int) -> str:
    """Return an estimate of the time that *task* still takes: `, about 9 s left`; empty if there is none."""
    elapsed = now - task.started_at
    if not task.is_running or not 0 < task.scanned < task.total or elapsed < SECOND:
        return ""
    left = elapsed * (task.total - task.scanned) // task.scanned
    return f", about {text.duration(max(1, left // SECOND))} left"


def live_state(task: Task, now: int) -> State:
    """The live state of *task*, as greenstalk_server.web.live.hub has it."""
    shown = progress_texts(task, now)
    macros: Any = current_app.jinja_env.get_template("task_parts.html").module
    return {
        "fields": shown,
        "parts": {"task-progress": str(macros.progress(shown)).strip()},
        "shown": {
            "task-running": task.is_running,
            "task-ended": not task.is_running,
            "task-message": bool(task.message),
        },
    }
