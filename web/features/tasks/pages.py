"""The page of a task: its progress, and the form that cancels it; and the list of tasks."""

from __future__ import annotations

from flask import Flask, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.task_progress import live_state, progress_texts
from greenstalk_server.web.changes.tasks import Tasks
from greenstalk_server.web.features.tasks.listed import ListedTasks
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.fields import Fields, own_path
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.live.hub import LiveHub, State, render_blocks


class TaskPages:
    """The pages `/task`, and the form on them."""

    def __init__(self, tasks: Tasks, listed: ListedTasks, clock: Clock) -> None:
        self._tasks: Tasks = tasks
        self._listed: ListedTasks = listed
        self._clock: Clock = clock

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add the pages to *app*, and register the live page."""
        app.add_url_rule("/task", "task", self.page)
        app.add_url_rule("/task/cancel", "task_cancel", self.cancel, methods=["POST"])
        live.register("task", self.live)

    def page(self) -> str:
        """`/task?id=`: one task and its progress; without `id`, all tasks."""
        if not request.args.get("id"):
            return render_template("task.html", task=None, tasks=self._listed.rows())
        task = self._tasks.find(request.args, "id")
        return render_template(
            "task.html", task=task, texts=progress_texts(task, self._clock()), started=text.time_tag(task.started_at)
        )

    def live(self, args: Fields, now: int) -> State:
        """Return the live state of `/task?id=`."""
        task = self._tasks.find(args, "id")
        state = live_state(task, now)
        state["parts"] |= render_blocks("task.html", ("outcome",), {"task": task})
        return state

    @open_to(OPERATOR)
    def cancel(self) -> Response:
        """Form `id`, `back`: cancel a task, and redirect to the path `back`, by default the task's page. May switch.

        Changes that are already made are kept.
        """
        task = self._tasks.find(request.form, "id")
        self._tasks.stop(task)
        own = url_for(task.endpoint, task=task.id) if task.endpoint else url_for("task", id=task.id)
        return redirect(own_path(request.form, "back", url_for("overview")) if request.form.get("back") else own, 303)
