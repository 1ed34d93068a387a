"""Leases over the API: the endpoints and their errors, also with a real daemon, curl, workers and kills."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from subprocess import PIPE
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from greenstalk_server.core.counters import COUNTERS
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, SECOND
from greenstalk_server.core.operations import finishing, kicking, putting, ticking
from greenstalk_server.web.features.jobs.jobs import MAX_JSON_BODY
from greenstalk_server.web.features.leases import leases as operations
from tests.support import invariants
from tests.support.daemon import TIMEOUT, Daemon, environment
from tests.support.pages import block
from tests.support.peer import Peer, eventually
from tests.web.conftest import Queue
from tests.web.visit import FLAGS

from ..forms import SAME_ORIGIN

API = "/api/v1"
Json = dict[str, Any]


def send(client: FlaskClient, path: str, headers: dict[str, str] | None = None, **body: Any) -> TestResponse:
    return client.post(f"{API}{path}", json=body, headers=headers)


def reserve(client: FlaskClient, *tubes: str, **options: Any) -> list[Json]:
    response = send(client, "/reserve", tubes=list(tubes or ["default"]), **options)
    assert response.status_code == 200, response.text
    assert response.json is not None
    return list(response.json["jobs"])


def refused(response: TestResponse, status: int) -> str:
    """Check that *response* is a problem of *status*; return its detail."""
    assert response.status_code == status, response.text
    assert response.mimetype == "application/problem+json"
    assert response.json is not None
    return str(response.json["detail"])


def finish(client: FlaskClient, operation: str, token: str, **how: Any) -> None:
    response = send(client, f"/leases/{operation}", token=token, **how)
    assert (response.status_code, response.data) == (204, b"")


# Reserving and finishing


def test_reserved_job_has_all_its_fields(queue: Queue, client: FlaskClient) -> None:
    (id,) = queue.put("mail", pri=7)
    queue.now += 5 * SECOND
    (job,) = reserve(client, "mail")
    assert len(job["token"]) == operations.TOKEN_LENGTH
    expected = client.get(f"{API}/jobs/{id}").json
    del job["token"], expected["events"], expected["message"]
    assert job == expected
    assert (job["state"], job["pri"], job["age"], job["ttr"], job["body"]) == ("reserved", 7, 5, 60, "body")


def test_empty_request_reserves_one_job_of_default(queue: Queue, client: FlaskClient) -> None:
    all = queue.put("default", count=2)
    response = client.post(f"{API}/reserve", headers={"X-Requested-With": "curl"})
    assert [job["id"] for job in response.json["jobs"]] == all[:1]


def test_binary_and_large_bodies(queue: Queue, client: FlaskClient) -> None:
    bodies = [b"\xff\0", b"x" * (MAX_JSON_BODY + 1)]
    for body in bodies:
        putting.put_into(queue.broker, b"mail", 5, 0, 60 * SECOND, body, queue.now)
    binary, large = reserve(client, "mail", count=9)
    assert (binary["encoding"], binary["body"]) == ("base64", "/wA=")
    assert (large["encoding"], large["body"], large["size"]) == (None, None, MAX_JSON_BODY + 1)
    assert client.get(f"{API}/jobs/{large['id']}/body").data == bodies[1]


def test_release_and_bury(queue: Queue, client: FlaskClient) -> None:
    (id,) = queue.put("mail", pri=7)
    found = queue.broker.jobs[id]
    cases: list[tuple[str, dict[str, Any], tuple[int, int]]] = [
        ("release", {}, (READY, 7)),
        ("release", {"pri": 0}, (READY, 0)),
        ("release", {"pri": None}, (READY, 0)),
        ("bury", {"pri": 2**32 - 1}, (BURIED, 2**32 - 1)),
    ]
    for operation, how, then in cases:
        (job,) = reserve(client, "mail")
        finish(client, operation, job["token"], **how)
        assert (found.state, found.pri) == then
    kicking.kick_job(queue.broker, id, queue.now)
    (job,) = reserve(client, "mail")
    finish(client, "release", job["token"], pri=3, delay=5)
    assert (found.state, found.pri, found.deadline) == (DELAYED, 3, queue.now + 5 * SECOND)
    invariants.check(queue.broker)


def test_show_and_touch(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    (job,) = reserve(client, "mail")
    queue.now += 50 * SECOND
    shown = send(client, "/leases/show", token=job["token"]).json
    assert (shown["id"], shown["time_left"], shown["body"], "token" in shown) == (job["id"], 9, None, False)
    assert send(client, "/leases/touch", token=job["token"]).json["time_left"] == 59
    assert send(client, "/leases/show", token=job["token"]).json["time_left"] == 59


FINISHERS = ("show", "touch", "delete", "release", "bury")


@pytest.mark.parametrize("operation", FINISHERS)
def test_ended_lease_is_gone(queue: Queue, client: FlaskClient, operation: str) -> None:
    queue.put("mail")
    (old,) = reserve(client, "mail")
    queue.now += 60 * SECOND
    ticking.tick(queue.broker, queue.now)
    assert "The job is ready now" in refused(send(client, f"/leases/{operation}", token=old["token"]), 410)
    (new,) = reserve(client, "mail")
    assert "reserved by another worker" in refused(send(client, f"/leases/{operation}", token=old["token"]), 410)
    finish(client, "delete", new["token"])
    assert "the job is deleted" in refused(send(client, f"/leases/{operation}", token=old["token"]), 410)
    assert "This server has not issued the token" in refused(
        send(client, f"/leases/{operation}", token=old["token"][:-1]), 404
    )


def test_batch_deletes_current_leases_and_lists_the_others(queue: Queue, client: FlaskClient) -> None:
    ids = queue.put("mail", count=4)
    first, second, third, fourth = (job["token"] for job in reserve(client, "mail", count=4))
    finish(client, "release", second)
    forged = third[:-1] + ("A" if third[-1] != "A" else "B")
    response = send(client, "/leases/delete-batch", tokens=[first, second, forged, fourth, first])
    assert (response.status_code, response.json) == (200, {"deleted": 2, "lost": [second, forged, first]})
    assert [id for id in ids if id in queue.broker.jobs] == ids[1:3]


def test_largest_batch_fits_a_request(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    (job,) = reserve(client, "mail")
    response = send(client, "/leases/delete-batch", tokens=[job["token"]] * 1000)
    assert response.json["deleted"] == 1
    assert len(response.json["lost"]) == 999


# Refusals


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/reserve", {"tubes": []}, "tubes"),
        ("/reserve", {"tubes": ["t"] * 101}, "tubes"),
        ("/reserve", {"tubes": ["mail", "-x"]}, "tubes[1]"),
        ("/reserve", {"tubes": ["mail\n"]}, "tubes[0]"),
        ("/reserve", {"tubes": "mail"}, "tubes"),
        ("/reserve", {"count": 0}, "count"),
        ("/reserve", {"count": 101}, "count"),
        ("/reserve", {"wait": -1}, "wait"),
        ("/reserve", {"wait": 51}, "wait"),
        ("/reserve", {"wait": 50.001}, "wait"),
        ("/reserve", {"worker": "x" * 101}, "worker"),
        ("/reserve", {"worker": "a\nb"}, "worker"),
        ("/reserve", {"worker": "\x1b[31m"}, "worker"),
        ("/reserve", {"worker": "a\u2028b"}, "worker"),
        ("/reserve", {"tube": "mail"}, "tube"),
        ("/leases/delete", {}, "token"),
        ("/leases/delete", {"token": 5}, "token"),
        ("/leases/delete", {"token": "x" * 201}, "token"),
        ("/leases/delete-batch", {"tokens": []}, "tokens"),
        ("/leases/delete-batch", {"tokens": ["x"] * 1001}, "tokens"),
        ("/leases/delete-batch", {"tokens": ["x", "x" * 201]}, "tokens[1]"),
        ("/leases/delete-batch", {"token": "x"}, "token"),
        ("/leases/release", {"token": "x", "delay": -1}, "delay"),
        ("/leases/release", {"token": "x", "pri": 2**32}, "pri"),
        ("/leases/bury", {"token": "x", "delay": 1}, "delay"),
    ],
)
def test_invalid_field_is_named(queue: Queue, client: FlaskClient, path: str, body: Json, field: str) -> None:
    queue.put("default")
    response = send(client, path, **body)
    assert f"“{field}”" in refused(response, 400)
    assert [error["field"] for error in response.json["errors"]] == [field]
    assert not queue.broker.clients


def test_server_with_hidden_bodies_reserves_nothing(queue: Queue, visit: Callable[..., FlaskClient]) -> None:
    queue.put("mail")
    assert "--hide-bodies" in refused(send(visit(hides_bodies=True), "/reserve", tubes=["mail"]), 403)
    assert not queue.broker.clients


def test_too_many_waiting_reserves_get_retry_after(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_WAITING", 0)
    response = send(client, "/reserve", wait=1)
    assert "which is the maximum" in refused(response, 503)
    assert response.headers["Retry-After"] == "5"


@pytest.mark.parametrize("operation", ["show", "touch", "delete", "release", "bury"])
@pytest.mark.parametrize("has_ended", [False, True])
def test_every_report_on_a_lease_waits_for_the_journal(queue: Queue, operation: str, has_ended: bool) -> None:
    queue.put("mail")
    commits = []
    client = queue.app(commit=lambda: not commits.append(True)).test_client()
    (job,) = reserve(client, "mail")
    if has_ended:
        assert finishing.delete_job(queue.broker, job["id"], queue.now, is_forced=True)
    commits.clear()
    status = send(client, f"/leases/{operation}", token=job["token"]).status_code
    assert (status == 410) == has_ended
    assert len(commits) == 1


# Traces


def test_leases_are_counted_but_not_audited(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=2)
    commands = {name: getattr(queue.broker.counters, name) for name in COUNTERS if name.startswith("cmd")}
    first, second = reserve(client, "mail", count=2)
    finish(client, "delete", first["token"])
    finish(client, "release", second["token"])
    tube = queue.broker.tubes[b"mail"]
    assert (tube.total_reserves, tube.cmd_delete, tube.total_releases) == (2, 1, 1)
    assert {name: getattr(queue.broker.counters, name) for name in commands} == commands
    assert not client.application.extensions["dashboard"].audit.entries


def test_lease_is_listed_under_connections_and_can_be_closed(queue: Queue, client: FlaskClient) -> None:
    (id,) = queue.put("mail")
    (job,) = reserve(client, "mail", worker="<b>mailer</b>")
    (holder,) = queue.broker.clients
    listed = client.get("/connections?q=http").text
    assert '<bdi class="program"><span class="cut-name" title="&lt;b&gt;mailer&lt;/b&gt;, HTTP">' in listed
    assert "1 connection" in listed
    page = client.get(f"/connection?number={holder.number}").text
    assert "HTTP reserve request" in page
    assert "Later requests about these jobs are refused" in page
    assert f'number={holder.number}">' in client.get(f"/job?id={id}").text
    ours = SAME_ORIGIN
    form = {"number": holder.number, "confirm": holder.number}
    assert client.post("/connection/close", data=form, headers=ours).status_code == 303
    assert queue.broker.jobs[id].state == READY
    refused(send(client, "/leases/delete", token=job["token"]), 410)


# With a real daemon


class Request:
    """A request of a worker that is sent, and whose response is read later or never."""

    def __init__(self, daemon: Daemon, path: str, **body: Any) -> None:
        self._connection = HTTPConnection(urlsplit(daemon.dashboard).netloc, timeout=TIMEOUT)
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", f"{API}{path}", json.dumps(body), headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def answer(self) -> tuple[int, Json]:
        """Return status and JSON of the response."""
        response = self._connection.getresponse()
        message = response.read()
        self.close()
        return response.status, json.loads(message) if message else {}

    def jobs(self) -> list[Json]:
        status, message = self.answer()
        assert status == 200, message
        return list(message["jobs"])


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(*FLAGS) as daemon:
        yield daemon
        code, message = daemon.stop()
        assert code == 0
        assert "Traceback" not in message, message


@pytest.fixture
def peer(daemon: Daemon) -> Iterator[Peer]:
    """A protocol connection. At the end of the test, the server must have the same counts as before it."""
    with Peer(daemon) as peer:
        eventually(lambda: peer.stats()["current-connections"] == "1", "no other connection")
        before = settled(peer)
        yield peer
        eventually(lambda: settled(peer) == before, "the server has the same counts as before")


def settled(peer: Peer) -> dict[str, str]:
    """Return the counts that a test must leave unchanged."""
    keys = ["current-tubes", *[f"current-{who}" for who in ("connections", "workers", "waiting")]]
    keys += [f"current-jobs-{state}" for state in ("ready", "reserved", "delayed", "buried")]
    stats = peer.stats()
    return {key: stats[key] for key in keys}


def put(peer: Peer, tube: str, body: bytes = b"x", ttr: int = 60) -> int:
    """Put a job; return its id."""
    assert peer.ask(b"use " + tube.encode()) == b"USING " + tube.encode()
    reply = peer.ask(b"put 0 0 %d %d\r\n%b" % (ttr, len(body), body)).split()
    assert peer.ask(b"use default") == b"USING default"
    return int(reply[1])


def await_waiting(peer: Peer, count: int) -> None:
    eventually(lambda: peer.stats()["current-waiting"] == str(count), f"{count} wait")


def delete(daemon: Daemon, *jobs: Json) -> None:
    for job in jobs:
        assert Request(daemon, "/leases/delete", token=job["token"]).answer() == (204, {})


def test_client_that_hangs_up_during_the_wait_takes_no_job(daemon: Daemon, peer: Peer) -> None:
    request = Request(daemon, "/reserve", tubes=["vanish"], wait=50)
    await_waiting(peer, 1)
    request.close()
    await_waiting(peer, 0)
    id = put(peer, "vanish")
    assert peer.ask(b"peek %d" % id).startswith(b"FOUND")
    assert peer.read(3) == b"x\r\n"
    assert peer.stats(b"stats-job %d" % id)["reserves"] == "0"
    assert peer.ask(b"delete %d" % id) == b"DELETED"


# The examples in docs/http-jobs.md


class Worker:
    """The worker from the guide, with *work* as its work; killed at the end of the block."""

    def __init__(self, daemon: Daemon, work: str = 'print(job["body"], flush=True)') -> None:
        source = block("http-jobs.md", "python", "import json")
        source = source.replace('print(job["body"], flush=True)', work)
        env = environment(QUEUE_URL=f"{daemon.dashboard}api/v1", GREENSTALK_API_TOKEN="sesame")  # noqa: S106
        self._process = subprocess.Popen([sys.executable, "-c", source], env=env, stdout=PIPE, stderr=PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.die()

    def read_line(self) -> bytes:
        """Return the next line that the worker prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def die(self) -> tuple[bytes, bytes]:
        """Kill the worker; return the rest of its stdout and stderr."""
        self._process.kill()
        return self._process.communicate(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Daemon]:
    """A daemon whose API needs a token."""
    with Daemon(*FLAGS, environ=environment(GREENSTALK_API_TOKEN="sesame")) as daemon:  # noqa: S106
        yield daemon


def test_worker_works_and_leaves_no_trace(guarded: Daemon) -> None:
    with Peer(guarded) as peer:
        before = settled(peer)
        with Worker(guarded) as worker:
            for body in (b"one", b"two", b"three"):
                put(peer, "mail", body)
            assert [worker.read_line() for _ in range(3)] == [b"one\n", b"two\n", b"three\n"]
            await_waiting(peer, 1)
            assert worker.die() == (b"", b"")
        eventually(lambda: settled(peer) == before, "the server has the same counts as before")


def test_worker_buries_jobs_that_fail(guarded: Daemon) -> None:
    with Peer(guarded) as peer, Worker(guarded, 'raise ValueError("no such address")') as worker:
        id = put(peer, "mail")
        eventually(lambda: peer.stats(b"stats-job %d" % id)["state"] == "buried", "it is buried")
        await_waiting(peer, 1)
        assert b"no such address" in worker.die()[1]
        assert peer.ask(b"delete %d" % id) == b"DELETED"


def curl(line: str, daemon: Daemon, token: str = "") -> str:
    """Run a *line* of the guide, which must succeed; return its output."""
    env = os.environ | {"url": f"{daemon.dashboard}api/v1", "token": token}
    line = re.sub("^curl", "curl -sS --fail-with-body", line)
    done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


FIRST = re.findall("^curl.*", block("http-jobs.md", "sh", "url="), re.MULTILINE)
FINISHES = re.findall("^curl.*", block("http-jobs.md", "sh", "curl --json"), re.MULTILINE)
ANSWER = block("http-jobs.md", "json", '{"jobs"')


def test_first_curl_lines_run_as_written() -> None:
    with Daemon(*FLAGS) as daemon:
        assert json.loads(curl(FIRST[0], daemon)) == {"id": 1, "tube": "mail", "state": "ready"}
        assert [job["state"] for job in json.loads(curl(FIRST[1], daemon))] == ["ready", "delayed"]
        (job,), (shown,) = json.loads(curl(FIRST[2], daemon))["jobs"], json.loads(ANSWER)["jobs"]
        assert {name: job[name] for name in shown} == shown | {"token": job["token"], "time_left": job["time_left"]}


THEN = [None, "delayed", "buried", "reserved", "reserved"]
"""The state of the job after each line of FINISHES; None if it no longer exists."""


@pytest.mark.parametrize(("line", "then"), list(zip(FINISHES, THEN, strict=True)))
def test_other_curl_lines_run_as_written(daemon: Daemon, peer: Peer, line: str, then: str | None) -> None:
    id = put(peer, "mail")
    (job,) = Request(daemon, "/reserve", tubes=["mail"]).jobs()
    message = curl(line, daemon, job["token"])
    left = json.loads(message)["time_left"] if message else None
    assert (0 < left <= 60) if then == "reserved" else left is None
    assert then == (peer.stats(b"stats-job %d" % id)["state"] if then else None)
    if then == "reserved":
        delete(daemon, job)
    else:
        assert peer.ask(b"delete %d" % id) == (b"DELETED" if then else b"NOT_FOUND")


# Restarts


def test_stop_ends_waits_and_leases_and_no_token_was_logged(tmp_path: Path) -> None:
    flags = (*FLAGS, "-b", str(tmp_path), "-f", "0", "-V")
    with Daemon(*flags) as daemon, Peer(daemon) as peer:
        kept, gone = put(peer, "mail"), put(peer, "mail")
        first, second = Request(daemon, "/reserve", tubes=["mail"], count=2).jobs()
        assert (first["id"], second["id"]) == (kept, gone)
        delete(daemon, second)
        with Request(daemon, "/reserve", tubes=["mail"], wait=50) as waiting:
            await_waiting(peer, 1)
            code, message = daemon.stop()
            status, problem = waiting.answer()
        assert (code, status, problem["detail"]) == (0, 503, "The server is stopping.")
        assert "Traceback" not in message
        assert f"POST {API}/leases/delete" in message
        assert second["token"] not in message
    with Daemon(*flags) as daemon, Peer(daemon) as peer:
        assert peer.ask(b"peek %d" % gone) == b"NOT_FOUND"
        status, problem = Request(daemon, "/leases/delete", token=first["token"]).answer()
        assert status == 404
        page = HTTPConnection(urlsplit(daemon.dashboard).netloc, timeout=TIMEOUT)
        page.request("GET", f"{API}/jobs/{kept}")
        job = json.loads(page.getresponse().read())
        page.close()
        assert (job["state"], [event["kind"] for event in job["events"]]) == ("ready", ["reserved", "returned"])
