"""Actions: POST requests that change something, sent by plain forms and answered by a redirect.

An action reads its form, calls its operation (changes.operations), waits until the journal has made the change
durable, and redirects to a page with a notice. So each action may switch greenlets, and must look up tubes and jobs
again afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlencode

from flask import Flask, make_response, redirect, render_template, request, url_for
from werkzeug.exceptions import BadRequest, Conflict, HTTPException
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import ADMIN, OPERATOR
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, MAX_ID, READY, RESERVED, SECOND, STATE_NAMES, Job
from greenstalk_server.core.travel import is_moving
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.operations import MAX_REASON_LENGTH, Changed, Operations, Put
from greenstalk_server.web.changes.saved_changes import Recording
from greenstalk_server.web.features.connections.connections import Connections
from greenstalk_server.web.features.jobs.pages.details import reservation
from greenstalk_server.web.features.jobs.pages.edit import edit_page, read_changes, submitted_form, version
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.fields import MAX_NUMBER
from greenstalk_server.web.framework.notices import NO_UNDO
from greenstalk_server.web.framework.presets import pause_seconds
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.reads.jobs.bodies import load_job_with_body
from greenstalk_server.web.reads.jobs.job_list import count_jobs
from greenstalk_server.web.reads.lookup import find_job, find_tube

ACTIONS: Final = (
    "tube/pause",
    "tube/resume",
    "tube/kick",
    "tube/clear",
    "tube/put",
    "job/kick",
    "job/bury",
    "job/release",
    "job/delete",
    "job/move",
    "job/edit",
    "job/copy",
    "job/redrive",
    "connection/close",
)
"""The path of each action. With `_` instead of `/`, it also names the endpoint and the method of Actions."""

MAX_UNCONFIRMED: Final = 100
"""Maximum jobs of a kick without confirmation. A larger kick may overload workers, so a page shows the number first."""


class Actions:
    """The actions of one broker's dashboard.

    *commit* waits until every change is as durable as an acknowledged command. It returns False on timeout, else True.
    """

    def __init__(
        self, broker: Broker, clock: Clock, commit: Callable[[], bool], operations: Operations, connections: Connections
    ) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit
        self._operations: Operations = operations
        self._connections: Connections = connections

    def init_app(self, app: Flask) -> None:
        """Add the actions to *app*."""
        for action in ACTIONS:
            endpoint = action.replace("/", "_")
            app.add_url_rule(f"/{action}", endpoint, getattr(self, endpoint), methods=["POST"])

    # Tubes

    @open_to(OPERATOR)
    def tube_pause(self) -> Response:
        """`tube`, `seconds` or `preset`, `reason`: prevent reserves from the tube for that time. May switch.

        `preset` is the key of one of PAUSE_PRESETS. For TOMORROW, `utc-offset` gives the principal's time zone.
        """
        tube = self._tube()
        reason = fields.line(request.form, "reason", MAX_REASON_LENGTH)
        seconds = pause_seconds(request.form, self._clock())
        self._operations.pause(tube, seconds, reason)
        return self._to_tube(tube.name, "", "paused", seconds)

    @open_to(OPERATOR)
    def tube_resume(self) -> Response:
        """`tube`: end the pause of the tube. May switch."""
        tube = self._tube()
        self._operations.resume(tube)
        return self._to_tube(tube.name, "", "resumed", 0)

    @open_to(OPERATOR)
    def tube_kick(self) -> Response:
        """`tube`, `state`, and `count` or `all`: kick that many buried or delayed jobs of the tube. May switch.

        For more than MAX_UNCONFIRMED jobs, `confirm` must be 1. Without it, the response is a confirmation page.
        """
        tube = self._tube()
        state = fields.state(request.form, (BURIED, DELAYED))
        present = bound = count_jobs(tube, state)
        if not request.form.get("all"):
            bound = min(bound, fields.number(request.form, "count", 1, MAX_NUMBER))
        if bound > MAX_UNCONFIRMED and request.form.get("confirm") != "1":
            return self._confirm_kick(tube, state, bound, present)
        kicked = self._operations.kick(tube, state, bound)
        return self._to_tube(tube.name, STATE_NAMES[state], *_bulk_notice("kicked", kicked, tube, state, bound))

    def _confirm_kick(self, tube: Tube, state: int, bound: int, present: int) -> Response:
        page = render_template(
            "kick.html",
            tube=tube.name.decode(),
            state=STATE_NAMES[state],
            bound=bound,
            jobs=text.counted(bound, "job"),
            present=text.number(present),
            is_idle=not tube.watching,
            is_paused=tube.paused_until > self._clock(),
        )
        return make_response(page)

    @open_to(OPERATOR)
    def tube_clear(self) -> Response:
        """`tube`, `state`, `confirm`: delete the current ready, delayed or buried jobs of the tube. May switch."""
        tube = self._tube()
        state = fields.state(request.form, (READY, DELAYED, BURIED))
        typed = request.form.get("confirm", "").strip()
        if typed != tube.name.decode():
            name = tube.name.decode()
            raise BadRequest(f"“confirm” must be the tube's name, “{name}”, to delete its jobs. Nothing was deleted.")
        bound = count_jobs(tube, state)
        cleared = self._operations.clear(tube, state)
        return self._to_tube(tube.name, STATE_NAMES[state], *_bulk_notice("cleared", cleared, tube, state, bound))

    @open_to(OPERATOR)
    def tube_put(self) -> Response:
        """`tube`, `pri`, `delay`, `ttr`, `body`, and optional tags: put a job. CRLF in the body becomes LF."""
        new = Put(
            fields.tube_name(request.form),
            fields.number(request.form, "pri", 0, MAX_NUMBER),
            fields.number(request.form, "delay", 0, MAX_NUMBER),
            fields.number(request.form, "ttr", 1, MAX_NUMBER),
            request.form.get("body", "").replace("\r\n", "\n").encode(errors="replace"),
            fields.tags(request.form),
        )
        if len(new.body) > self._broker.max_job_size:
            allowed = text.size(self._broker.max_job_size)
            raise BadRequest(f"“body” must be at most {allowed}, but has {text.number(len(new.body))} bytes.")
        added = self._operations.put(new)
        notice = "duplicate" if added.is_duplicate else "put"
        job = self._broker.jobs.get(added.id)  # None if this is a duplicate of a finished job
        return self._to_tube(new.tube, STATE_NAMES[job.state if job is not None else READY], notice, added.id)

    # Jobs

    @open_to(OPERATOR)
    def job_kick(self) -> Response:
        """`id`: kick the job. May switch."""
        job = self._job()
        return self._to_job(job, "kicked-job", self._operations.kick_job(job))

    @open_to(OPERATOR)
    def job_bury(self) -> Response:
        """`id`, and `confirm` if the job is reserved: bury the job. May switch."""
        job = self._job()
        return self._to_job(job, "buried-job", self._operations.bury_job(job, self._is_forced(job, "buried")))

    @open_to(OPERATOR)
    def job_release(self) -> Response:
        """`id`, `confirm`: take the job from its client and make it ready."""
        job = self._job()
        self._operations.release_job(job, self._is_forced(job, "released"))
        return self._to_job(job, "released-job")

    @open_to(OPERATOR)
    def job_delete(self) -> Response:
        """`id`, and `confirm` if the job is reserved: delete the job. May switch."""
        job = self._job()
        name, state = job.tube.name, STATE_NAMES[job.state]
        recording = self._operations.delete_job(self._job, lambda found: self._is_forced(found, "deleted"))
        return self._to_tube(name, state, "deleted-job", job.id, Changed.of(1, recording))

    @open_to(OPERATOR)
    def job_move(self) -> Response:
        """`id`, `tube`, and `confirm` if the job is reserved: move the job to `tube`, in its current state."""
        job, body = load_job_with_body(self._broker, self._job)
        name = fields.tube_name(request.form)
        # A move to the job's own tube is refused even if confirmed, so report that error first.
        is_forced = name != job.tube.name and self._is_forced(job, "moved")
        return self._to_job(job, "moved-job", self._operations.move_job(job, body, name, is_forced))

    @open_to(OPERATOR)
    def job_edit(self) -> Response:
        """`id`, `version`, `pri`, `ttr`, `delay`, `encoding`, `body`, and `confirm` if reserved: edit the job.

        A refused form comes back as it was sent, so that no input is lost.
        """
        job, body = load_job_with_body(self._broker, self._job)
        try:
            recording = self._edit(job, body)
        except (BadRequest, Conflict) as error:
            return make_response(self._refused_form(job, body, error), error.code)
        return self._to_job(job, "edited-job" if recording is not None else "unchanged-job", recording)

    @open_to(OPERATOR)
    def job_copy(self) -> Response:
        """`id`, `delay`: put a copy of the job, with an id of its own, into the same tube."""
        job, body = load_job_with_body(self._broker, self._job)
        id = self._operations.copy_job(job, body, fields.number(request.form, "delay", 0, MAX_NUMBER))
        return self._to_job(self._broker.jobs[id], "copied-job")

    @open_to(OPERATOR)
    def job_redrive(self) -> Response:
        """`id`: move the dead-lettered job back to the tube that it came from. May switch."""
        job = self._job()
        return self._to_job(job, "redriven-job", self._operations.redrive_job(job))

    # Connections

    @open_to(ADMIN)
    def connection_close(self) -> Response:
        """`number`, `confirm`: close the connection; the jobs that it holds become ready. Switches."""
        number = fields.number(request.form, "number", 1, MAX_ID)
        if request.form.get("confirm") != str(number):
            raise BadRequest(f"“confirm” is missing. Tick the box on the page of connection {number} to close it.")
        self._connections.close(number)
        return _redirect("connections", self._query("closed", number))

    # Helpers

    def _tube(self) -> Tube:
        return find_tube(self._broker, request.form)

    def _job(self) -> Job:
        return find_job(self._broker, request.form)

    def _edit(self, job: Job, body: bytes) -> Recording | None:
        """Apply the changes in the form; return None if it has none. Raise BadRequest or Conflict if it is refused."""
        form, sees_bodies = request.form, principal().sees_bodies
        if form.get("version") != version(job, body, sees_bodies):
            raise Conflict(
                f"Job {job.id} has changed since you opened the form, or was reserved. Compare with its current values."
            )
        changes = read_changes(form, job, body, self._broker.max_job_size, sees_bodies)
        if not changes.names():
            return None
        return self._operations.edit_job(job, body, changes, self._is_forced(job, "changed"))

    def _refused_form(self, job: Job, body: bytes, error: HTTPException) -> str:
        return edit_page(
            job, body, submitted_form(job, body, request.form, principal().sees_bodies), self._clock(), error
        )

    def _is_forced(self, job: Job, done: str) -> bool:
        """Return whether *job* is reserved and the principal confirmed the change; raise Conflict if unconfirmed.

        The confirmation names the reservation that the principal saw: another worker may hold the job by now.
        """
        if job.state != RESERVED or is_moving(job.travel):
            return False
        if request.form.get("confirm") == reservation(job):
            return True
        left = text.duration(max(0, job.deadline - self._clock()) // SECOND)
        holder = "another client has since reserved it" if request.form.get("confirm") else "a client holds it"
        raise Conflict(
            f"Job {job.id} was not {done}: {holder}, for at most {left} more. Wait until the client finishes or the"
            " reservation times out, or tick the box to make the change now, although a worker may be processing it."
        )

    def _to_tube(self, name: bytes, state: str, notice: str, number: int, changed: Changed | None = None) -> Response:
        """Redirect to the tube's page, or to the overview if the tube no longer exists. May switch.

        The notice offers to undo the change of jobs, or says that this is not possible.
        """
        query = self._query(notice, number, changed)
        return self._tube_or_overview(name, ({"state": state} if state else {}) | query)

    def _to_job(self, job: Job, notice: str, recording: Recording | None = None) -> Response:
        """Redirect to the job's page, or to its tube's if the job has been deleted meanwhile. May switch.

        The notice offers to undo the change of *recording*, or says that this is not possible.
        """
        query = self._query(notice, job.id, Changed.of(1, recording) if recording is not None else None)
        if job.id in self._broker.jobs and principal().sees(job.tube.name):
            return _redirect("job", {"id": str(job.id)} | query)
        return self._tube_or_overview(job.tube.name, query)

    def _tube_or_overview(self, name: bytes, query: dict[str, str]) -> Response:
        """Redirect to the page of the tube *name*, or to the overview if no such tube is visible to the principal."""
        if name in self._broker.tubes and principal().sees(name):
            return _redirect("tube", {"tube": name.decode()} | query)
        return _redirect("overview", query)

    def _query(self, notice: str, number: int, changed: Changed | None = None) -> dict[str, str]:
        """Return the query of the notice, once all changes are durable. May switch."""
        is_late = not self._commit()
        undo = {} if changed is None or not changed.jobs else {"undo": str(changed.change_number or NO_UNDO)}
        return {"notice": notice, "n": str(number)} | undo | ({"late": "1"} if is_late else {})


def _redirect(endpoint: str, query: Mapping[str, str]) -> Response:
    return redirect(f"{url_for(endpoint)}?{urlencode(query)}", 303)


def _bulk_notice(done: str, changed: Changed, tube: Tube, state: int, bound: int) -> tuple[str, int, Changed]:
    is_part = changed.jobs < bound and count_jobs(tube, state) > 0
    end = "-stopped" if changed.is_stopped else "-part" if is_part else ""
    return f"{done}{end}", changed.jobs, changed
