"""The page of a task: its progress, and the form that cancels it; and the list of tasks."""

from __future__ import annotations

from typing import Any

from flask import Flask, current_app, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.tasks import Task, Tasks
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.fields import Fields, own_path
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.live.hub import LiveHub, State


class TaskPages:
    """The pages `/task`, and the form on them."""

    def __init__(self, tasks: Tasks, clock: Clock) -> None:
        self._tasks: Tasks = tasks
        self._clock: Clock = clock

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add the pages to *app*, and register the live page."""
        app.add_url_rule("/task", "task", self.page)
        app.add_url_rule("/task/cancel", "task_cancel", self.cancel, methods=["POST"])
        live.register("task", self.live)

    def page(self) -> str:
        """`/task?id=`: one task and its progress; without `id`, all tasks."""
        if not request.args.get("id"):
            return render_template(
                "task.html",
                task=None,
                tasks=[(task, progress_texts(task, self._clock())) for task in self._tasks.all()],
            )
        task = self._tasks.find(request.args, "id")
        return render_template(
            "task.html", task=task, texts=progress_texts(task, self._clock()), started=text.time_tag(task.started_at)
        )

    def live(self, args: Fields, now: int) -> State:
        """Return the live state of `/task?id=`."""
        return live_state(self._tasks.find(args, "id"), now)

    @open_to(OPERATOR)
    def cancel(self) -> Response:
        """Form `id`, `back`: cancel a task, and redirect to the path `back`, by default the task's page. May switch.

        Changes that are already made are kept.
        """
        task = self._tasks.find(request.form, "id")
        self._tasks.stop(task)
        own = url_for(task.endpoint, task=task.id) if task.endpoint else url_for("task", id=task.id)
        return redirect(own_path(request.form, "back", url_for("overview")) if request.form.get("back") else own, 303)


def progress_texts(task: Task, now: int) -> dict[str, str]:
    """Return the texts of a task's page, by field name."""
    seconds = ((task.ended_at or now) - task.started_at) // SECOND
    return {
        "task-state": task.state,
        "task-scanned": f"scanned {text.number(task.scanned)} of {text.counted(task.total, task.noun)}",
        "task-percent": str(100 * task.scanned // task.total if task.total else 0),
        "task-matched": text.number(task.matched),
        "task-done": text.number(task.done),
        "task-time": text.duration(max(0, seconds)),
        "task-left": _time_left(task, now),
        "task-message": task.message,
    }


def _time_left(task: Task, now: int) -> str:
    """Return an estimate of the remaining time, `, about 9 s left`; empty if there is none."""
    elapsed = now - task.started_at
    if not task.is_running or not 0 < task.scanned < task.total or elapsed < SECOND:
        return ""
    left = elapsed * (task.total - task.scanned) // task.scanned
    return f", about {text.duration(max(1, left // SECOND))} left"


def live_state(task: Task, now: int) -> State:
    """Return the live state of *task*, in the format that web.live.hub describes."""
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
