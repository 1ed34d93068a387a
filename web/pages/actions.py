"""The changes: each by POST, as a form without a script sends it, and answered by a redirect to a page that says so.

An action reads its form, calls its operation (operations.operations), waits until the journal has made it safe, and
then redirects.
So each may switch greenlets; what one knew of a tube or a job before is looked up anew after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlencode

from flask import Flask, make_response, redirect, request, url_for
from werkzeug.exceptions import BadRequest, Conflict, HTTPException, NotFound
from werkzeug.wrappers import Response

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import BURIED, DELAYED, READY, RESERVED, SECOND, STATE_NAMES, Job
from greenstalk_server.core.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web import fields, text
from greenstalk_server.web.auth.access import visitor
from greenstalk_server.web.connection_queries import find_client
from greenstalk_server.web.fields import MAX_NUMBER
from greenstalk_server.web.jobs.bodies import load_job_with_body
from greenstalk_server.web.jobs.job_list import count_jobs
from greenstalk_server.web.operations.operations import LONGEST_REASON, Operations, Put
from greenstalk_server.web.pages.details import reservation
from greenstalk_server.web.pages.edit import Changes, edit_page, read_changes, submitted_form, version

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
    "connection/close",
)
"""Each the address, and with `_` for `/` the endpoint and the method."""


class Unconfirmed(BadRequest):
    """A refused confirmation: *typed* is not the name of *tube*, whose jobs in *state* were to be deleted."""

    def __init__(self, tube: Tube, state: int, typed: str) -> None:
        name = tube.name.decode()
        super().__init__(f"“confirm” must be the tube's name, “{name}”, to delete its jobs. Nothing was deleted.")
        self.tube: Tube = tube
        self.state: int = state
        self.typed: str = typed


class Actions:
    """The changes that the dashboard of *broker* makes.

    *commit* returns when what has been changed is as safe as an acknowledged command's; False if it takes too long.
    """

    def __init__(self, broker: Broker, clock: Clock, commit: Callable[[], bool], operations: Operations) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit
        self._operations: Operations = operations

    def init_app(self, app: Flask) -> None:
        """Add the actions to *app*."""
        for action in ACTIONS:
            endpoint = action.replace("/", "_")
            app.add_url_rule(f"/{action}", endpoint, getattr(self, endpoint), methods=["POST"])

    # Tubes

    def tube_pause(self) -> Response:
        """`tube`, `seconds`, `reason`: let no job of the tube be reserved for so long. May switch."""
        tube = self._tube()
        seconds = fields.number(request.form, "seconds", 1, MAX_NUMBER)
        self._operations.pause(tube, seconds, fields.line(request.form, "reason", LONGEST_REASON))
        return self._to_tube(tube.name, "", "paused", seconds)

    def tube_resume(self) -> Response:
        """`tube`: end its pause. May switch."""
        tube = self._tube()
        self._operations.resume(tube)
        return self._to_tube(tube.name, "", "resumed", 0)

    def tube_kick(self) -> Response:
        """`tube`, `state`, and `count` or `all`: make that many of its buried or delayed jobs ready. May switch."""
        tube = self._tube()
        state = fields.state(request.form, (BURIED, DELAYED))
        bound = count_jobs(tube, state)
        if not request.form.get("all"):
            bound = min(bound, fields.number(request.form, "count", 1, MAX_NUMBER))
        kicked = self._operations.kick(tube, state, bound)
        return self._to_tube(tube.name, STATE_NAMES[state], *_bulk_notice("kicked", kicked, tube, state, bound))

    def tube_clear(self) -> Response:
        """`tube`, `state`, `confirm`: delete its ready, delayed or buried jobs, those there are now. May switch."""
        tube = self._tube()
        state = fields.state(request.form, (READY, DELAYED, BURIED))
        typed = request.form.get("confirm", "").strip()
        if typed != tube.name.decode():
            raise Unconfirmed(tube, state, typed)
        bound = count_jobs(tube, state)
        cleared = self._operations.clear(tube, state)
        return self._to_tube(tube.name, STATE_NAMES[state], *_bulk_notice("cleared", cleared, tube, state, bound))

    def tube_put(self) -> Response:
        """`tube`, `pri`, `delay`, `ttr`, `body`: put a job. A browser sends line ends as CRLF; the job gets LF."""
        new = Put(
            fields.tube_name(request.form),
            fields.number(request.form, "pri", 0, MAX_NUMBER),
            fields.number(request.form, "delay", 0, MAX_NUMBER),
            fields.number(request.form, "ttr", 1, MAX_NUMBER),
            request.form.get("body", "").replace("\r\n", "\n").encode(errors="replace"),
        )
        if len(new.body) > self._broker.max_job_size:
            allowed = text.size(self._broker.max_job_size)
            raise BadRequest(f"“body” must be at most {allowed}, and has {text.number(len(new.body))}.")
        job = self._operations.put(new)
        return self._to_tube(new.tube, "delayed" if new.delay else "ready", "put", job.id)

    # Jobs

    def job_kick(self) -> Response:
        """`id`: make it ready."""
        job = self._job()
        self._operations.kick_job(job)
        return self._to_job(job, "kicked-job")

    def job_bury(self) -> Response:
        """`id`, and `confirm` if it is reserved: set it aside."""
        job = self._job()
        self._operations.bury_job(job, self._is_forced(job, "buried"))
        return self._to_job(job, "buried-job")

    def job_release(self) -> Response:
        """`id`, `confirm`: take it from the client that holds it, and make it ready."""
        job = self._job()
        self._operations.release_job(job, self._is_forced(job, "released"))
        return self._to_job(job, "released-job")

    def job_delete(self) -> Response:
        """`id`, and `confirm` if it is reserved: remove it for good."""
        job = self._job()
        name, state = job.tube.name, STATE_NAMES[job.state]
        self._operations.delete_job(job, self._is_forced(job, "deleted"))
        return self._to_tube(name, state, "deleted-job", job.id)

    def job_move(self) -> Response:
        """`id`, `tube`, and `confirm` if it is reserved: have it in that tube, in the state that it is in."""
        job, body = load_job_with_body(self._broker, self._job)
        name = fields.tube_name(request.form)
        # What is there already is told first: no box would help.
        is_forced = name != job.tube.name and self._is_forced(job, "moved")
        self._operations.move_job(job, body, name, is_forced)
        return self._to_job(job, "moved-job")

    def job_edit(self) -> Response:
        """`id`, `version`, `pri`, `ttr`, `delay`, `encoding`, `body`, and `confirm` if it is reserved: change those.

        If it cannot be, the form comes back as it was sent, so that nothing that was typed is lost.
        """
        job, body = load_job_with_body(self._broker, self._job)
        try:
            changes = self._changes(job, body)
        except (BadRequest, Conflict) as error:
            return make_response(self._form_again(job, body, error), error.code)
        return self._to_job(job, "edited-job" if changes.names() else "unchanged-job")

    def job_copy(self) -> Response:
        """`id`, `delay`: put a job like it into its tube, with an id of its own."""
        job, body = load_job_with_body(self._broker, self._job)
        copy = self._operations.copy_job(job, body, fields.number(request.form, "delay", 0, MAX_NUMBER))
        return self._to_job(copy, "copied-job")

    # Connections

    def connection_close(self) -> Response:
        """`number`, `confirm`: end that connection; the jobs that it holds turn ready. Switches."""
        client = find_client(self._broker, request.form)
        if request.form.get("confirm") != str(client.number):
            raise BadRequest(
                f"“confirm” is missing: tick the box on the page of connection {client.number} to close it."
            )
        self._operations.close(client)
        return _see("connections", self._query("closed", client.number))

    # What they share

    def _tube(self) -> Tube:
        return find_tube(self._broker, request.form)

    def _job(self) -> Job:
        return find_job(self._broker, request.form)

    def _changes(self, job: Job, body: bytes) -> Changes:
        """Make the changes that the form asks for; raise BadRequest or Conflict if they cannot be made."""
        form, sees_bodies = request.form, visitor().sees_bodies
        if form.get("version") != version(job, body, sees_bodies):
            raise Conflict(f"Job {job.id} has changed since you began, or has been taken. See what it is now.")
        changes = read_changes(form, job, body, self._broker.max_job_size, sees_bodies)
        if changes.names():
            self._operations.edit_job(job, body, changes, self._is_forced(job, "changed"))
        return changes

    def _form_again(self, job: Job, body: bytes, error: HTTPException) -> str:
        return edit_page(
            job, body, submitted_form(job, body, request.form, visitor().sees_bodies), self._clock(), error
        )

    def _is_forced(self, job: Job, done: str) -> bool:
        """Whether *job* is held, and to be changed all the same; raise Conflict if it is held and not.

        What confirms it names the reservation that was seen: the job may be another worker's by now.
        """
        if job.state != RESERVED:
            return False
        if request.form.get("confirm") == reservation(job):
            return True
        left = text.duration(max(0, job.deadline - self._clock()) // SECOND)
        since = "another client has reserved it since, and has it" if request.form.get("confirm") else (
            "a client holds it,"
        )  # fmt: skip
        raise Conflict(
            f"Job {job.id} was not {done}: {since} for {left} more at most. It can be once that client is done with"
            " it, or its time is up; or at once, if you tick the box that says so, though its worker may be at it."
        )

    def _to_tube(self, name: bytes, state: str, notice: str, number: int) -> Response:
        """Redirect to the tube's page; to the overview if the tube is gone with its last job. May switch."""
        query = self._query(notice, number)
        if name not in self._broker.tubes:
            return _see("overview", query)
        return _see("tube", {"tube": name.decode()} | ({"state": state} if state else {}) | query)

    def _to_job(self, job: Job, notice: str) -> Response:
        """Redirect to the job's page; to that of its tube if a worker is done with the job already. May switch."""
        query = self._query(notice, job.id)
        if job.id in self._broker.jobs:
            return _see("job", {"id": str(job.id)} | query)
        name = job.tube.name
        return _see("tube", {"tube": name.decode()} | query) if name in self._broker.tubes else _see("overview", query)

    def _query(self, notice: str, number: int) -> dict[str, str]:
        is_late = not self._commit()
        return {"notice": notice, "n": str(number)} | ({"late": "1"} if is_late else {})


def _see(endpoint: str, query: Mapping[str, str]) -> Response:
    return redirect(f"{url_for(endpoint)}?{urlencode(query)}", 303)


def find_tube(broker: Broker, given: fields.Fields) -> Tube:
    """The tube that the field `tube` names; raise NotFound if there is none."""
    tube = broker.tubes.get(given.get("tube", "").encode(errors="replace"))
    if tube is None:
        name = fields.tube_name(given)
        raise NotFound(
            f"There is no tube “{name.decode()}” now. A tube exists while it holds jobs or a client uses or watches it;"
            " it comes back with the next put."
        )
    return tube


def find_job(broker: Broker, given: fields.Fields) -> Job:
    """The job that the field `id` names; raise NotFound if there is none."""
    id = fields.job_id(given)
    job = broker.jobs.get(id)
    if job is None:
        said = "it was deleted, most likely because a worker is done with it" if id < broker.next_id else (
            f"no job has had this id yet; the next gets {broker.next_id}"
        )  # fmt: skip
        raise NotFound(f"There is no job {id}: {said}.")
    return job


def _bulk_notice(done: str, number: int, tube: Tube, state: int, bound: int) -> tuple[str, int]:
    is_part = number < bound and count_jobs(tube, state) > 0
    return f"{done}-part" if is_part else done, number
