"""Actions: only POST from our own pages changes something, and the response waits for the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.broker import SLICE
from greenstalk_server.core.job_attributes import DeadLetter, DeadLetterReason
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND
from greenstalk_server.web.changes import operations
from greenstalk_server.web.features.jobs.pages.actions import ACTIONS
from greenstalk_server.web.features.jobs.pages.edit import version
from tests.support import invariants

from .conftest import Queue
from .forms import SAME_ORIGIN, done, post, refused


def states(queue: Queue, ids: list[int]) -> list[int | None]:
    invariants.check(queue.broker)
    return [job.state if (job := queue.broker.jobs.get(id)) else None for id in ids]


@pytest.fixture
def dead_letter(queue: Queue, ids: list[int]) -> int:
    """Make the buried job a dead letter of the tube `orders`."""
    job = queue.broker.jobs[ids[2]]
    job.dead_letter = DeadLetter(DeadLetterReason.ATTEMPTS, b"orders", 5, queue.now, queue.now).pack()
    return job.id


UNTOUCHED = [READY, DELAYED, BURIED, RESERVED]


def test_kick_all_lets_others_run(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=3 * SLICE, delay=60)
    seen: list[int] = []

    def watch() -> None:
        while not seen or seen[-1] < 3 * SLICE:
            seen.append(queue.broker.tubes[b"mail"].ready.count)
            gevent.sleep(0)

    other = gevent.spawn(watch)
    assert done(post(client, "/tube/kick", tube="mail", state="delayed", all="1", confirm="1")) == ("kicked", 3 * SLICE)
    other.join()
    assert {SLICE, 2 * SLICE, 3 * SLICE} <= set(seen)


def test_clear_keeps_jobs_put_meanwhile(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=2 * SLICE)
    new: list[int] = []
    other = gevent.spawn(lambda: new.extend(queue.put("mail", pri=0, count=3)))
    assert done(post(client, "/tube/clear", tube="mail", state="ready", confirm="mail")) == ("cleared", 2 * SLICE)
    other.join()
    assert list(queue.broker.jobs) == new


def test_clear_and_kick_wait_for_the_journal_between_batches(
    queue: Queue, visit: Callable[..., FlaskClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "COMMIT_BATCH", 2 * SLICE)
    waits: list[int] = []
    client = visit(commit=lambda: not waits.append(queue.broker.tubes[b"mail"].delayed.count))
    queue.put("mail", count=5 * SLICE + 1, delay=60)
    queue.put("mail")
    assert done(post(client, "/tube/kick", tube="mail", state="delayed", count=3 * SLICE, confirm="1")) == (
        "kicked",
        3 * SLICE,
    )
    assert waits == [3 * SLICE + 1, 2 * SLICE + 1]
    waits.clear()
    cleared = done(post(client, "/tube/clear", tube="mail", state="delayed", confirm="mail"))
    assert cleared == ("cleared", 2 * SLICE + 1)
    assert waits == [1, 0]


def test_clear_stops_when_the_journal_does_not_keep_up(
    queue: Queue, visit: Callable[..., FlaskClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "COMMIT_BATCH", SLICE)
    client = visit(commit=lambda: False)
    queue.put("mail", count=3 * SLICE)
    post(client, "/tube/clear", tube="mail", state="ready", confirm="mail")
    assert queue.broker.tubes[b"mail"].ready.count == 2 * SLICE


def test_clear_of_the_last_job_redirects_to_the_overview(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    response = post(client, "/tube/clear", tube="mail", state="ready", confirm="mail")
    assert done(response, "/") == ("cleared", 1)
    assert "1 job deleted." in client.get(response.headers["Location"]).text


@pytest.mark.parametrize("confirm", ["", "Mail", "mail.", "default", "ready"])
def test_clear_requires_the_tube_name(queue: Queue, client: FlaskClient, ids: list[int], confirm: str) -> None:
    message = refused(post(client, "/tube/clear", tube="mail", state="ready", confirm=confirm), 400)
    assert "“confirm” must be the tube's name, “mail”" in message
    assert states(queue, ids) == UNTOUCHED


def test_put(queue: Queue, client: FlaskClient) -> None:
    form = {"tube": "new/tube", "pri": "7", "delay": "0", "ttr": "30", "body": "one\r\ntwo é"}
    notice, id = done(post(client, "/tube/put", **form))
    job = queue.broker.jobs[id]
    assert (notice, job.tube.name, job.pri, job.ttr, job.state) == ("put", b"new/tube", 7, 30 * SECOND, READY)
    assert job.body == "one\ntwo é".encode()
    _, id = done(post(client, "/tube/put", **form | {"delay": "9"}))
    assert queue.broker.jobs[id].state == DELAYED
    invariants.check(queue.broker)


def test_put_of_the_largest_and_a_too_large_body(queue: Queue, client: FlaskClient) -> None:
    form: dict[str, Any] = {"tube": "x", "pri": 0, "delay": 0, "ttr": 1}
    headers, kind = SAME_ORIGIN, "multipart/form-data"
    largest = client.post("/tube/put", data=form | {"body": "x" * 65535}, headers=headers, content_type=kind)
    assert done(largest)[0] == "put"
    more = client.post("/tube/put", data=form | {"body": "x" * 65536}, headers=headers, content_type=kind)
    assert "“body” must be at most 65,535 bytes, but has 65,536" in refused(more, 400)
    flood = client.post("/tube/put", data=form | {"body": "x" * 500_000}, headers=headers, content_type=kind)
    assert "exceeds the dashboard's size limit" in refused(flood, 413)


def first_version() -> str:
    """Return the `version` in the edit form of the first of the jobs `ids`."""
    queue = Queue()
    return version(queue.broker.jobs[queue.put("mail")[0]], b"body", sees_bodies=True)


GOOD: dict[str, dict[str, str]] = {
    "tube/pause": {"tube": "mail", "seconds": "5"},
    "tube/resume": {"tube": "mail"},
    "tube/kick": {"tube": "mail", "state": "buried", "count": "1"},
    "tube/clear": {"tube": "mail", "state": "ready", "confirm": "mail"},
    "tube/put": {"tube": "mail", "pri": "1", "delay": "0", "ttr": "1", "body": ""},
    "job/kick": {"id": "2"},
    "job/bury": {"id": "1"},
    "job/delete": {"id": "1"},
    "job/release": {"id": "3", "confirm": "1"},
    "job/move": {"id": "1", "tube": "other"},
    "job/edit": {"id": "1", "version": first_version(), "pri": "9", "ttr": "60"},
    "job/copy": {"id": "1", "delay": "0"},
    "job/redrive": {"id": "2"},
    "connection/close": {"number": "3", "confirm": "3"},
}


def look(queue: Queue) -> list[object]:
    jobs = [(job.id, job.tube, job.pri, job.state, job.kicks, job.buries) for job in queue.broker.jobs.values()]
    return [jobs, [(tube.name, tube.cmd_pause_tube) for tube in queue.broker.tubes.values()]]


@pytest.mark.parametrize("action", ACTIONS)
def test_actions_accept_only_same_origin_posts(queue: Queue, client: FlaskClient, ids: list[int], action: str) -> None:
    before = look(queue)
    for headers in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        refused(client.post(f"/{action}", data=GOOD[action], headers=headers), 403)
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        response = client.open(f"/{action}", method=method, query_string=GOOD[action], headers=SAME_ORIGIN)
        assert response.status_code == 405
    assert client.post(f"/{action}", query_string=GOOD[action], headers=SAME_ORIGIN).status_code == 400
    assert look(queue) == before


@pytest.mark.parametrize("action", ACTIONS)
def test_every_change_waits_for_the_journal(
    queue: Queue, visit: Callable[..., FlaskClient], ids: list[int], dead_letter: int, action: str
) -> None:
    before, seen = look(queue), []

    def commit() -> bool:
        seen.append(look(queue))
        return False

    response = post(visit(commit=commit), f"/{action}", **GOOD[action])
    assert response.status_code == 303
    assert len(seen) == 1
    assert seen != [before]
    assert "late=1" in response.headers["Location"]


@pytest.mark.parametrize("action", ACTIONS)
def test_missing_tube_or_job_cannot_be_changed(client: FlaskClient, action: str) -> None:
    if action != "tube/put":
        reason = "is not open" if action == "connection/close" else "does not exist"
        assert reason in refused(post(client, f"/{action}", **GOOD[action]), 404)
