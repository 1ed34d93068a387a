"""The forms of actions on one job: their confirmations, stale edits, and any body."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from html import unescape

import pytest
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse, encode_multipart

from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import RESERVED, SECOND, Job
from greenstalk_server.core.operations import editing, finishing, kicking, putting, reserving
from greenstalk_server.web.features.jobs.pages.edit import as_lines, from_lines, line_ends
from greenstalk_server.web.framework.fields import MAX_PUT
from tests.support import invariants

from .conftest import Queue
from .forms import SAME_ORIGIN, done, post, refused
from .table import Page

HELD = "reserved"


class Jobs:
    """A job in each state, all in the tube `mail`, and the worker that holds the reserved one."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        ready, buried, reserved = queue.put("mail", count=3)
        (delayed,) = queue.put("mail", delay=60)
        finishing.bury_job(queue.broker, buried, queue.now)
        self.worker: Client = queue.connect()
        reserving.reserve_job(queue.broker, self.worker, reserved, queue.now)
        self.ids = {"ready": ready, "delayed": delayed, "buried": buried, HELD: reserved}

    def __getitem__(self, state: str) -> Job:
        return self.queue.broker.jobs[self.ids[state]]

    def confirm(self, state: str) -> dict[str, str]:
        """Return the form field of the ticked confirmation box, if the job has one."""
        return {"confirm": "1"} if state == HELD else {}

    def look(self) -> list[tuple[object, ...]]:
        invariants.check(self.queue.broker)
        return [
            (job.id, job.tube.name, job.state, job.pri, job.ttr, job.delay, job.deadline, job.body)
            for job in self.queue.broker.jobs.values()
        ]


@pytest.fixture
def jobs(queue: Queue) -> Jobs:
    return Jobs(queue)


def edit(client: FlaskClient, id: int, **changed: str) -> TestResponse:
    """Load the edit form, change some fields, and submit it as a browser does, with CRLF line ends."""
    form = load(client, id) | changed
    if "body" in form:
        form["body"] = form["body"].replace("\r\n", "\n").replace("\n", "\r\n")
    boundary, data = encode_multipart(form)
    kind = f"multipart/form-data; boundary={boundary}"
    return client.post("/job/edit", data=data, headers=SAME_ORIGIN, content_type=kind)


def load(client: FlaskClient, id: int, **query: str) -> dict[str, str]:
    """Return the initial fields of the edit form, with the box unticked."""
    response = client.get("/job/form", query_string={"id": id} | query)
    assert response.status_code == 200
    return form_of(response.text)


def form_of(html: str) -> dict[str, str]:
    """Return the fields of the edit form as a browser would submit them."""
    inputs = Page(html).elements
    form = {
        str(a["name"]): a.get("value") or ""
        for tag, a in inputs
        if tag == "input" and a.get("name") in ("id", "version", "pri", "ttr", "delay") and a.get("id") != "jump"
    }
    area = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", html, re.DOTALL)
    if area is not None:
        form["body"] = unescape(area[1])
        form["encoding"] = "base64" if 'value="base64" selected' in html else "text"
    return form


# Kick, bury, release, delete


FORCED: dict[str, dict[str, str]] = {
    "job/bury": {},
    "job/release": {},
    "job/delete": {},
    "job/move": {"tube": "other"},
}


@pytest.mark.parametrize("action", FORCED)
@pytest.mark.parametrize("confirm", [{}, {"confirm": ""}, {"confirm": "2"}, {"confirm": "yes"}])
def test_held_job_is_not_changed_without_confirmation(
    client: FlaskClient, jobs: Jobs, action: str, confirm: dict[str, str]
) -> None:
    before = jobs.look()
    message = refused(post(client, f"/{action}", id=jobs[HELD].id, **FORCED[action], **confirm), 409)
    assert "for at most 1\xa0min more" in message
    assert f"Job {jobs[HELD].id} was not " in message and "Held by a worker" in message, "the page of the job"
    assert jobs.look() == before


@pytest.mark.parametrize("action", FORCED)
def test_confirmation_is_valid_for_one_reservation(queue: Queue, client: FlaskClient, jobs: Jobs, action: str) -> None:
    job, other = jobs[HELD], queue.connect()
    shown = Page(client.get("/job", query_string={"id": job.id}).text).elements
    (confirm,) = {a.get("value") for tag, a in shown if tag == "input" and a.get("name") == "confirm"}
    finishing.release(queue.broker, jobs.worker, job.id, job.pri, 0, queue.now)
    reserving.reserve_job(queue.broker, other, job.id, queue.now)
    message = refused(post(client, f"/{action}", id=job.id, confirm=confirm, **FORCED[action]), 409)
    assert "another client has since reserved it" in message
    assert job.holder is other


def test_edit_of_a_held_job_requires_confirmation(client: FlaskClient, jobs: Jobs) -> None:
    job, before = jobs[HELD], jobs.look()
    response = edit(client, job.id, pri="7", body="typed")
    assert response.status_code == 409
    assert form_of(response.text) | {"body": "typed", "pri": "7"} == form_of(response.text)
    assert "a client holds it, for at most 1\xa0min more" in Page(response.text).text
    assert jobs.look() == before
    assert done(edit(client, job.id, pri="7", body="typed", confirm="1"), "/job") == ("edited-job", job.id)
    new = jobs[HELD]
    assert (new.pri, new.body, new.state, new.holder, new.deadline) == (
        7,
        b"typed",
        RESERVED,
        jobs.worker,
        job.deadline,
    )
    assert jobs.worker.reserved == {job.id: new}
    jobs.look()


# Copy


def test_job_deleted_before_the_redirect(queue: Queue, jobs: Jobs, visit: Callable[..., FlaskClient]) -> None:
    def commit() -> bool:
        for id in list(queue.broker.jobs):
            finishing.delete_job(queue.broker, id, queue.now, is_forced=True)
        return True

    response = post(visit(commit=commit), "/job/kick", id=jobs["buried"].id)
    assert done(response, "/") == ("kicked-job", jobs.ids["buried"])
    assert client_sees(visit(), response) == f"Job {jobs.ids['buried']} was retried: it is ready."


def client_sees(client: FlaskClient, response: TestResponse) -> str:
    html = client.get(response.headers["Location"]).text
    found = re.search(r'<p class="banner done"[^>]*>\s*(.*?)\n', html)
    assert found is not None
    return unescape(found[1])


# Edit


@pytest.mark.parametrize("other_change", ["edit", "move", "kick", "reserve"])
def test_stale_edit_is_refused_and_shows_both_versions(
    queue: Queue, client: FlaskClient, jobs: Jobs, other_change: str
) -> None:
    job, broker = jobs["delayed"], queue.broker
    form = load(client, job.id) | {"body": "mine <b>", "pri": "77"}
    if other_change == "edit":
        editing.edit_job(broker, job.id, queue.now, body=b"theirs <i>")
    elif other_change == "move":
        editing.edit_job(broker, job.id, queue.now, tube=b"elsewhere")
    elif other_change == "kick":
        kicking.kick_job(broker, job.id, queue.now)
    else:
        reserving.reserve_job(broker, queue.connect(), job.id, queue.now)
    before = jobs.look()
    response = client.post("/job/edit", data=form, headers=SAME_ORIGIN)
    message = refused(response, 409)
    assert "has changed since you opened the form" in message
    assert jobs.look() == before
    again = form_of(response.text)
    assert (again["body"], again["pri"]) == ("mine <b>", "77")
    assert ("theirs <i>" if other_change == "edit" else "body") in message
    assert {"move": "elsewhere", "kick": "ready", "reserve": "reserved", "edit": "10 bytes"}[other_change] in message
    response = client.post("/job/edit", data=again | jobs.confirm("reserved"), headers=SAME_ORIGIN)
    assert done(response, "/job") == ("edited-job", job.id)
    assert (jobs["delayed"].body, jobs["delayed"].pri) == (b"mine <b>", 77)


def test_refused_edit_returns_the_input(client: FlaskClient, jobs: Jobs) -> None:
    response = edit(client, jobs["ready"].id, body="long work\non it", pri="x")
    assert "“pri” must be a whole number" in refused(response, 400)
    again = form_of(response.text)
    assert (again["body"].replace("\r\n", "\n"), again["pri"]) == ("long work\non it", "x")


BODIES = {
    "empty": b"",
    "script": b"<script>alert(1)</script></textarea><script>",
    "template": b"{{ 7*7 }}{% endblock %}&amp;&lt;",
    "first line empty": b"\n\nx\n",
    "crlf": b"one\r\ntwo\r\n",
    "lf": b"one\ntwo\n",
    "cr": b"one\rtwo",
    "mixed": b"one\r\ntwo\nthree",
    "tab": b"\tx\t",
    "nul": b"a\0b",
    "invalid": b"\xff\xfe<",
    "escape": b"\x1b[31m",
    "bom": "\ufeffx".encode(),
    "surrogate": b"\xed\xa0\x80",
    "noncharacter": "\ufffe\uffff\U0001ffff".encode(),
    "separators": "\u2028\u2029\u0085\u202e".encode(),
    "deep": b"[" * 30000 + b"]" * 30000,
    "64 KiB of text": b"x" * 65535,
    "64 KiB of lines": b"\n" * 65535,
    "64 KiB of anything": bytes(range(256)) * 255 + bytes(255),
    "big integers": b'{"id":123456789012345678901234567890,"id":2,"x":1.10}',
}


def test_form_indents_json_on_request(queue: Queue, client: FlaskClient) -> None:
    id = putting.put_into(queue.broker, b"mail", 5, 0, SECOND, BODIES["big integers"], queue.now)
    assert "encoding=indented" in client.get(f"/job/form?id={id}").text
    indented = '{\n  "id": 123456789012345678901234567890,\n  "id": 2,\n  "x": 1.10\n}'
    assert load(client, id, encoding="indented")["body"] == indented


@pytest.mark.parametrize("name", BODIES)
def test_any_body_survives_edit_and_copy(queue: Queue, client: FlaskClient, name: str) -> None:
    body = BODIES[name]
    id = putting.put_into(queue.broker, b"mail", 5, 0, SECOND, body, queue.now)
    assert done(edit(client, id, pri="6"), "/job") == ("edited-job", id)
    assert (queue.broker.jobs[id].body, queue.broker.jobs[id].pri) == (body, 6)
    form = load(client, id, encoding="base64")
    assert base64.b64decode(form["body"]) == body
    form["pri"] = "7"
    assert done(client.post("/job/edit", data=form, headers=SAME_ORIGIN), "/job")[0] == "edited-job"
    assert queue.broker.jobs[id].body == body
    _, copy = done(post(client, "/job/copy", id=id, delay="0"), "/job")
    assert queue.broker.jobs[copy].body == body
    common = ["/static/times.js", "/static/menu.js", "/static/keys.js", "/static/combobox.js", "/static/palette.js"]
    for path, scripts in (("/job/form", common), ("/job", [*common, "/static/live.js"])):
        elements = Page(client.get(path, query_string={"id": id}).text).elements
        assert [a.get("src") for tag, a in elements if tag == "script"] == scripts
        assert not any(attribute.startswith("on") for _, a in elements for attribute in a)


@settings(max_examples=200, deadline=None)
@given(st.binary() | st.text().map(str.encode) | st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"x"])).map(b"".join))
def test_text_round_trips_or_is_not_offered(body: bytes) -> None:
    lines = as_lines(body)
    if lines is not None:
        assert "\r" not in lines
        sent = lines.replace("\n", "\r\n")
        assert from_lines(sent, line_ends(body)) == body


def test_body_too_large_for_a_form_cannot_be_edited(queue: Queue) -> None:
    queue.broker.max_job_size = 8 * MAX_PUT
    client = queue.app().test_client()
    body = b"x" * (MAX_PUT + 1)
    id = putting.put_into(queue.broker, b"mail", 5, 0, SECOND, body, queue.now)
    form = load(client, id)
    assert "body" not in form
    assert "larger than 1,048,576 bytes" in Page(client.get("/job/form", query_string={"id": id}).text).text
    assert done(client.post("/job/edit", data=form | {"pri": "9"}, headers=SAME_ORIGIN), "/job") == ("edited-job", id)
    assert (queue.broker.jobs[id].body, queue.broker.jobs[id].pri) == (body, 9)
    whole = putting.put_into(queue.broker, b"mail", 5, 0, SECOND, b"\n" * MAX_PUT, queue.now)
    assert done(edit(client, whole, pri="9"), "/job")[0] == "edited-job"
    assert queue.broker.jobs[whole].body == b"\n" * MAX_PUT


# Permissions


def test_hidden_bodies_stay_hidden(queue: Queue, jobs: Jobs, visit: Callable[..., FlaskClient]) -> None:
    client, job = visit(hides_bodies=True), jobs["ready"]
    editing.edit_job(queue.broker, job.id, queue.now, body=b"c0nfidential")
    for path in ("/job", "/job/form"):
        response = client.get(path, query_string={"id": job.id})
        assert response.status_code == 200
        assert "c0nfidential" not in response.text
    assert "hidden from you" in Page(client.get("/job", query_string={"id": job.id}).text).text
    assert "c0nfidential" not in client.get("/tube?tube=mail").text
    refused(client.get("/job/body", query_string={"id": job.id}), 403)
    form = load(client, job.id) | {"pri": "4"}
    assert "body" not in form
    assert done(client.post("/job/edit", data=form, headers=SAME_ORIGIN), "/job") == ("edited-job", job.id)
    assert (jobs["ready"].pri, jobs["ready"].body) == (4, b"c0nfidential")
    form = load(client, job.id)
    refused(client.post("/job/edit", data=form | {"body": "x", "encoding": "text"}, headers=SAME_ORIGIN), 403)
    stale = client.post("/job/edit", data=form | {"version": "0", "body": "x"}, headers=SAME_ORIGIN)
    assert "c0nfidential" not in stale.text
    assert jobs["ready"].body == b"c0nfidential"
