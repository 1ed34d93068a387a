"""The page of the deletions of the last day, and the form that undoes one."""

from __future__ import annotations

from flask import Flask, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.web.changes.removals import Removals
from greenstalk_server.web.changes.tasks import INITIAL_WAIT
from greenstalk_server.web.changes.undo import Undo
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.rights import open_to


class RemovalPages:
    """The page `/removals`, and the form `/undo`."""

    def __init__(self, removals: Removals, undo: Undo) -> None:
        self._removals: Removals = removals
        self._undo: Undo = undo

    def init_app(self, app: Flask) -> None:
        """Add the page and the form to *app*."""
        app.add_url_rule("/removals", "removals", self.page)
        app.add_url_rule("/undo", "undo", self.undo, methods=["POST"])

    @open_to(OPERATOR)
    def page(self) -> str:
        """`/removals`: the deletions that the principal may undo, or has undone."""
        rows = [(one, text.time_tag(one.at), text.counted(one.jobs, "job")) for one in self._removals.newest()]
        return render_template("removals.html", removals=rows)

    @open_to(OPERATOR)
    def undo(self) -> Response:
        """Form `removal`: put the jobs of a deletion back, and redirect to the page of the task. May switch."""
        task = self._undo.start(fields.number(request.form, "removal", 0, 2**53))
        task.wait(INITIAL_WAIT)
        return redirect(url_for("task", id=task.id), 303)
