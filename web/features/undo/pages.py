"""The page of the changes of the last day, and the form that undoes one."""

from __future__ import annotations

from flask import Flask, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.web.changes.saved_changes import SavedChanges
from greenstalk_server.web.changes.tasks import INITIAL_WAIT
from greenstalk_server.web.changes.undo import Undo
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.rights import open_to


class ChangePages:
    """The page `/changes`, and the form `/undo`."""

    def __init__(self, saved_changes: SavedChanges, undo: Undo) -> None:
        self._saved_changes: SavedChanges = saved_changes
        self._undo: Undo = undo

    def init_app(self, app: Flask) -> None:
        """Add the page and the form to *app*."""
        app.add_url_rule("/changes", "changes", self.page)
        app.add_url_rule("/undo", "undo", self.undo, methods=["POST"])

    @open_to(OPERATOR)
    def page(self) -> str:
        """`/changes`: the changes that the principal may undo, or has undone."""
        rows = [(one, text.time_tag(one.at), text.counted(one.jobs, "job")) for one in self._saved_changes.newest()]
        return render_template("changes.html", changes=rows)

    @open_to(OPERATOR)
    def undo(self) -> Response:
        """Form `change`: undo a change, and redirect to the page of the task. May switch."""
        task = self._undo.start(fields.number(request.form, "change", 0, 2**53))
        task.wait(INITIAL_WAIT)
        return redirect(url_for("task", id=task.id), 303)
