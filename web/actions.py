"""The changes: each by POST, as a form without a script sends it, and answered by a redirect to a page that says so.

An action calls the broker as the protocol does, waits until the journal has made it safe, and then redirects. Long
ones go a slice at a time and let others run in between, so each may switch greenlets; what one knew of a tube
or a job before is looked up anew after.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlencode

import gevent
from flask import Flask, make_response, redirect, request, url_for
from werkzeug.exceptions import BadRequest, Conflict, HTTPException, NotFound, ServiceUnavailable
from werkzeug.wrappers import Response

from greenstalk_server.broker import DONE, NO_ROOM, Broker
from greenstalk_server.clock import Clock
from greenstalk_server.job import BURIED, DELAYED, READY, RESERVED, SECOND, STATE_NAMES, Job
from greenstalk_server.tube import Tube
from web import fields, text
from web.access import visitor
from web.audit import Audit
from web.connections import find_client
from web.details import reservation
from web.edit import Changes, edit_page, given, read, version
from web.fields import MAX_NUMBER
from web.jobs import count
from web.store import Store

BULK_AT_MOST: Final = 20.0
"""Seconds that one request may go on; what is left after that takes another."""

LONGEST_REASON: Final = 200
"""Characters, of why a tube is paused."""

CLOSED_WITHIN: Final = 1.0
"""Seconds that a connection which is to be closed may take to be; it takes the next turn of the loop."""

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


class Actions:
    """The changes that the dashboard of *broker* makes.

    *commit* returns when what has been changed is as safe as an acknowledged command's; False if it takes too long.
    """

    def __init__(self, broker: Broker, clock: Clock, commit: Callable[[], bool], audit: Audit, store: Store) -> None:
        self._store: Store = store
        self._audit: Audit = audit
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit

    def install(self, app: Flask) -> None:
        """Add the actions to *app*."""
        for action in ACTIONS:
            endpoint = action.replace("/", "_")
            app.add_url_rule(f"/{action}", endpoint, getattr(self, endpoint), methods=["POST"])

    # Tubes

    def tube_pause(self) -> Response:
        """`tube`, `seconds`, `reason`: let no job of the tube be reserved for so long. May switch."""
        tube = self._tube()
        seconds = fields.number(request.form, "seconds", 1, MAX_NUMBER)
        reason, now = fields.line(request.form, "reason", LONGEST_REASON), self._clock()
        self._broker.pause_tube(tube.name, seconds * SECOND, now)
        self._store.set_reason(tube.name.decode(), reason, tube.paused_until, now)
        self._audit.note("tube/pause", tube=tube.name.decode(), seconds=seconds, reason=reason)
        self._store.save()
        return self._to_tube(tube.name, "", "paused", seconds)

    def tube_resume(self) -> Response:
        """`tube`: end its pause. May switch."""
        tube = self._tube()
        now = self._clock()
        self._broker.pause_tube(tube.name, 0, now)
        self._store.set_reason(tube.name.decode(), "", 0, now)
        self._audit.note("tube/resume", tube=tube.name.decode())
        self._store.save()
        return self._to_tube(tube.name, "", "resumed", 0)

    def tube_kick(self) -> Response:
        """`tube`, `state`, and `count` or `all`: make that many of its buried or delayed jobs ready. May switch."""
        tube = self._tube()
        state = fields.state(request.form, (BURIED, DELAYED))
        bound = count(tube, state)
        if not request.form.get("all"):
            bound = min(bound, fields.number(request.form, "count", 1, MAX_NUMBER))
        kicked = self._in_slices(tube, bound, lambda found, left: self._broker.kick(found, state, left, self._clock()))
        self._audit.note("tube/kick", tube=tube.name.decode(), state=STATE_NAMES[state], jobs=kicked)
        return self._to_tube(tube.name, STATE_NAMES[state], *_bulk_notice("kicked", kicked, tube, state, bound))

    def tube_clear(self) -> Response:
        """`tube`, `state`, `confirm`: delete its ready, delayed or buried jobs, those there are now. May switch."""
        tube = self._tube()
        state = fields.state(request.form, (READY, DELAYED, BURIED))
        if request.form.get("confirm", "").strip() != tube.name.decode():
            raise BadRequest(
                f"“confirm” must be the tube's name, “{tube.name.decode()}”: type it to delete its jobs."
                " Nothing was deleted."
            )
        bound, below = count(tube, state), self._broker.next_id

        def clear(found: Tube, left: int) -> int:
            return self._broker.clear(found, state, left, below, self._clock())

        cleared = self._in_slices(tube, bound, clear)
        self._audit.note("tube/clear", tube=tube.name.decode(), state=STATE_NAMES[state], jobs=cleared)
        return self._to_tube(tube.name, STATE_NAMES[state], *_bulk_notice("cleared", cleared, tube, state, bound))

    def tube_put(self) -> Response:
        """`tube`, `pri`, `delay`, `ttr`, `body`: put a job. A browser sends line ends as CRLF; the job gets LF."""
        name = fields.tube_name(request.form)
        pri = fields.number(request.form, "pri", 0, MAX_NUMBER)
        delay = fields.number(request.form, "delay", 0, MAX_NUMBER)
        ttr = fields.number(request.form, "ttr", 1, MAX_NUMBER)
        body = request.form.get("body", "").replace("\r\n", "\n").encode(errors="replace")
        broker = self._broker
        if len(body) > broker.max_job_size:
            raise BadRequest(
                f"“body” must be at most {text.size(broker.max_job_size)}, and has {text.number(len(body))}."
            )
        if broker.is_draining:
            raise ServiceUnavailable("The server is draining: it takes no new jobs. Nothing was put.")
        id = broker.put_into(name, pri, delay * SECOND, ttr * SECOND, body, self._clock())
        if not id:
            trouble = broker.journal.trouble or "there is no room for it on the disk"
            raise ServiceUnavailable(f"The journal cannot take the job: {trouble}. Nothing was put.")
        self._audit.note("tube/put", tube=name.decode(), id=id, bytes=len(body))
        return self._to_tube(name, "delayed" if delay else "ready", "put", id)

    # Jobs

    def job_kick(self) -> Response:
        """`id`: make it ready."""
        job = self._job()
        if not self._broker.kick_job(job.id, self._clock()):
            raise Conflict(f"Job {job.id} is {STATE_NAMES[job.state]}. Only a buried or delayed job can be kicked.")
        self._audit.note("job/kick", id=job.id, tube=job.tube.name.decode())
        return self._to_job(job, "kicked-job")

    def job_bury(self) -> Response:
        """`id`, and `confirm` if it is reserved: set it aside."""
        job = self._job()
        if job.state == BURIED:
            raise Conflict(f"Job {job.id} is buried already.")
        self._broker.bury_job(job.id, self._clock(), self._is_forced(job, "buried"))
        self._audit.note("job/bury", id=job.id, tube=job.tube.name.decode())
        return self._to_job(job, "buried-job")

    def job_release(self) -> Response:
        """`id`, `confirm`: take it from the client that holds it, and make it ready."""
        job = self._job()
        if job.state != RESERVED:
            raise Conflict(f"Job {job.id} is {STATE_NAMES[job.state]}. Only a reserved job can be released.")
        self._is_forced(job, "released")
        self._broker.release_job(job.id, self._clock())
        self._audit.note("job/release", id=job.id, tube=job.tube.name.decode())
        return self._to_job(job, "released-job")

    def job_delete(self) -> Response:
        """`id`, and `confirm` if it is reserved: remove it for good."""
        job = self._job()
        is_forced = self._is_forced(job, "deleted")
        name, state = job.tube.name, STATE_NAMES[job.state]
        self._broker.delete_job(job.id, self._clock(), is_forced)
        self._audit.note("job/delete", id=job.id, tube=name.decode())
        return self._to_tube(name, state, "deleted-job", job.id)

    def job_move(self) -> Response:
        """`id`, `tube`, and `confirm` if it is reserved: have it in that tube, in the state that it is in."""
        job = self._job()
        name, old = fields.tube_name(request.form), job.tube.name
        if name == old:
            raise Conflict(f"Job {job.id} is in the tube “{name.decode()}” already.")
        is_forced = self._is_forced(job, "moved")
        self._refuse_no_room(self._broker.edit_job(job.id, self._clock(), tube=name, is_forced=is_forced))
        self._audit.note("job/move", id=job.id, tube=old.decode(), to=name.decode())
        return self._to_job(job, "moved-job")

    def job_edit(self) -> Response:
        """`id`, `version`, `pri`, `ttr`, `delay`, `encoding`, `body`, and `confirm` if it is reserved: change those.

        If it cannot be, the form comes back as it was sent, so that nothing that was typed is lost.
        """
        job = self._job()
        try:
            changes = self._changes(job)
        except (BadRequest, Conflict) as error:
            return make_response(self._form_again(job, error), error.code)
        if not changes.names():
            return self._to_job(job, "unchanged-job")
        self._audit.note("job/edit", id=job.id, tube=job.tube.name.decode(), changed=changes.names())
        return self._to_job(job, "edited-job")

    def job_copy(self) -> Response:
        """`id`, `delay`: put a job like it into its tube, with an id of its own."""
        job = self._job()
        delay = fields.number(request.form, "delay", 0, MAX_NUMBER) * SECOND
        self._refuse_puts()
        broker, name = self._broker, job.tube.name
        id = broker.put_into(name, job.pri, delay, job.ttr, job.body, self._clock())
        self._refuse_no_room(DONE if id else NO_ROOM)
        self._audit.note("job/copy", id=id, of=job.id, tube=name.decode(), bytes=len(job.body))
        return self._to_job(broker.jobs[id], "copied-job")

    # Connections

    def connection_close(self) -> Response:
        """`number`, `confirm`: end that connection; the jobs that it holds turn ready. Switches."""
        client = find_client(self._broker, request.form)
        if request.form.get("confirm") != str(client.number):
            raise BadRequest(
                f"“confirm” is missing: tick the box on the page of connection {client.number} to close it."
            )
        held = len(client.reserved)
        client.hang_up()
        with gevent.Timeout(CLOSED_WITHIN, False):
            while not client.is_closed:
                gevent.sleep(CLOSED_WITHIN / 1000)
        if not client.is_closed:
            raise ServiceUnavailable(f"Connection {client.number} was told to close, and has not yet.")
        self._audit.note("connection/close", number=client.number, address=client.address, jobs=held)
        return _see("connections", self._query("closed", client.number))

    # What they share

    def _tube(self) -> Tube:
        return find_tube(self._broker, request.form)

    def _job(self) -> Job:
        return find_job(self._broker, request.form)

    def _changes(self, job: Job) -> Changes:
        """Make the changes that the form asks for; raise BadRequest or Conflict if they cannot be made."""
        form, sees_bodies = request.form, visitor().sees_bodies
        if form.get("version") != version(job, sees_bodies):
            raise Conflict(f"Job {job.id} has changed since you began, or has been taken. See what it is now.")
        changes = read(form, job, self._broker.max_job_size, sees_bodies)
        if changes.names():
            is_forced = self._is_forced(job, "changed")
            done = self._broker.edit_job(
                job.id,
                self._clock(),
                pri=changes.pri,
                delay=changes.delay,
                ttr=changes.ttr,
                body=changes.body,
                is_forced=is_forced,
            )
            self._refuse_no_room(done)
        return changes

    def _form_again(self, job: Job, error: HTTPException) -> str:
        return edit_page(job, given(job, request.form, visitor().sees_bodies), self._clock(), error)

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

    def _refuse_puts(self) -> None:
        if self._broker.is_draining:
            raise ServiceUnavailable("The server is draining: it takes no new jobs. Nothing was put.")

    def _refuse_no_room(self, done: int) -> None:
        if done == NO_ROOM:
            trouble = self._broker.journal.trouble or "there is no room for it on the disk"
            raise ServiceUnavailable(f"The journal cannot take the job: {trouble}. Nothing was changed.")

    def _in_slices(self, tube: Tube, bound: int, move: Callable[[Tube, int], int]) -> int:
        """Have *move* called with how many are left, until *bound* jobs have moved or none does. May switch."""
        moved, until = 0, time.monotonic() + BULK_AT_MOST
        while moved < bound and self._broker.tubes.get(tube.name) is tube:
            slice = move(tube, bound - moved)
            if not slice:
                break
            moved += slice
            gevent.sleep(0)
            if time.monotonic() > until:
                break
        return moved

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
    is_part = number < bound and count(tube, state) > 0
    return f"{done}-part" if is_part else done, number
