"""The progress of a task as the texts and the live state of a page."""

from __future__ import annotations

from typing import Any

from flask import current_app

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.changes.tasks import Task
from greenstalk_server.web.framework import text
from greenstalk_server.web.live.hub import State


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
