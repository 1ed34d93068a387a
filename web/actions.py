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
from flask import Flask, redirect, request, url_for
from werkzeug.exceptions import BadRequest, Conflict, NotFound, ServiceUnavailable
from werkzeug.wrappers import Response

from greenstalk_server.broker import Broker
from greenstalk_server.clock import Clock
from greenstalk_server.job import BURIED, DELAYED, READY, RESERVED, SECOND, STATE_NAMES, Job
from greenstalk_server.tube import Tube
from web import fields, text
from web.fields import MAX_NUMBER
from web.jobs import count

BULK_AT_MOST: Final = 20.0
"""Seconds that one request may go on; what is left after that takes another."""

ACTIONS: Final = (
    "tube/pause",
    "tube/resume",
    "tube/kick",
    "tube/clear",
    "tube/put",
    "job/kick",
    "job/bury",
    "job/delete",
)
"""Each the address, and with `_` for `/` the endpoint and the method."""


class Actions:
    """The changes that the dashboard of *broker* makes.

    *commit* returns when what has been changed is as safe as an acknowledged command's; False if it takes too long.
    """

    def __init__(self, broker: Broker, clock: Clock, commit: Callable[[], bool]) -> None:
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
        """`tube`, `seconds`: let no job of the tube be reserved for so long."""
        tube = self._tube()
        seconds = fields.number(request.form, "seconds", 1, MAX_NUMBER)
        self._broker.pause_tube(tube.name, seconds * SECOND, self._clock())
        return self._to_tube(tube.name, "", "paused", seconds)

    def tube_resume(self) -> Response:
        """`tube`: end its pause."""
        tube = self._tube()
        self._broker.pause_tube(tube.name, 0, self._clock())
        return self._to_tube(tube.name, "", "resumed", 0)

    def tube_kick(self) -> Response:
        """`tube`, `state`, and `count` or `all`: make that many of its buried or delayed jobs ready. May switch."""
        tube = self._tube()
        state = fields.state(request.form, (BURIED, DELAYED))
        bound = count(tube, state)
        if not request.form.get("all"):
            bound = min(bound, fields.number(request.form, "count", 1, MAX_NUMBER))
        kicked = self._in_slices(tube, bound, lambda found, left: self._broker.kick(found, state, left, self._clock()))
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
        cleared = self._in_slices(tube, bound, lambda found, left: self._broker.clear(found, state, left, below))
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
        return self._to_tube(name, "delayed" if delay else "ready", "put", id)

    # Jobs

    def job_kick(self) -> Response:
        """`id`: make it ready."""
        job = self._job()
        if not self._broker.kick_job(job.id, self._clock()):
            raise Conflict(f"Job {job.id} is {STATE_NAMES[job.state]}. Only a buried or delayed job can be kicked.")
        return self._to_job(job.id, "kicked-job")

    def job_bury(self) -> Response:
        """`id`: set it aside."""
        job = self._job()
        self._refuse_held(job, "buried")
        if not self._broker.bury_job(job.id):
            raise Conflict(f"Job {job.id} is buried already.")
        return self._to_job(job.id, "buried-job")

    def job_delete(self) -> Response:
        """`id`: remove it for good."""
        job = self._job()
        self._refuse_held(job, "deleted")
        name, state = job.tube.name, STATE_NAMES[job.state]
        self._broker.delete(None, job.id)
        return self._to_tube(name, state, "deleted-job", job.id)

    # What they share

    def _tube(self) -> Tube:
        return find_tube(self._broker, request.form)

    def _job(self) -> Job:
        return find_job(self._broker, request.form)

    def _refuse_held(self, job: Job, done: str) -> None:
        if job.state == RESERVED:
            left = text.duration(max(0, job.deadline - self._clock()) // SECOND)
            raise Conflict(
                f"Job {job.id} cannot be {done} now: a client holds it, for {left} more at most. It can be once"
                " that client is done with it, or its time is up."
            )

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

    def _to_job(self, id: int, notice: str) -> Response:
        """Redirect to the job's page. May switch."""
        return _see("job", {"id": str(id)} | self._query(notice, id))

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
