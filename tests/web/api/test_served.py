"""The API of a real server: over real sockets, with real protocol clients and a real journal."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import greenstalk
import pytest

from tests.support.daemon import Daemon, environment

from ..visit import FLAGS
from .conftest import ROOT, TOKEN, bearer

SENT = {**bearer(TOKEN), "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(*FLAGS, environ=environment(GREENSTALK_API_TOKEN=TOKEN)) as daemon:
        yield daemon


def connect(daemon: Daemon) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(daemon.dashboard).netloc, timeout=20)


def ask(daemon: Daemon, method: str, path: str, body: object = None) -> tuple[int, Any]:
    connection = connect(daemon)
    connection.request(method, f"{ROOT}{path}", None if body is None else json.dumps(body), SENT)
    response = connection.getresponse()
    raw = response.read()
    connection.close()
    return response.status, json.loads(raw) if raw else None


def raw(daemon: Daemon, request: bytes) -> tuple[int, dict[str, Any]]:
    """Send *request*, which may be incomplete, and read the response."""
    at = urlsplit(daemon.dashboard)
    with socket.create_connection((at.hostname, at.port), 20) as sock:
        sock.sendall(request)
        response = http.client.HTTPResponse(sock)
        response.begin()
        return response.status, json.loads(response.read())


def head(length: str) -> bytes:
    lines = [f"POST {ROOT}/jobs HTTP/1.1", "Host: localhost", *[f"{name}: {value}" for name, value in SENT.items()]]
    return "\r\n".join([*lines, length, "", ""]).encode()


def test_large_request_is_refused_before_the_body_is_sent(daemon: Daemon) -> None:
    """The response comes before the first byte of the body."""
    status, problem = raw(daemon, head("Content-Length: 1000000000"))
    assert (status, problem["status"]) == (413, 413)


def test_chunked_request_is_read_up_to_the_limit(daemon: Daemon) -> None:
    body = b'{"tube": "chunked", "body": "x"}'
    status, found = raw(daemon, head("Transfer-Encoding: chunked") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert (status, found["tube"]) == (201, "chunked")
    chunk = b"10000\r\n%b\r\n" % (b" " * 65536)
    status, problem = raw(daemon, head("Transfer-Encoding: chunked") + chunk * 25 + b"0\r\n\r\n")
    assert (status, problem["status"]) == (413, 413)


@pytest.mark.parametrize(
    "length", ["Content-Length: -1", "Content-Length: x", "Content-Length: 5\r\nContent-Length: 6"]
)
def test_invalid_content_length_is_refused(daemon: Daemon, length: str) -> None:
    at = urlsplit(daemon.dashboard)
    with socket.create_connection((at.hostname, at.port), 20) as sock:
        sock.sendall(head(length) + b"{}")
        sock.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(sock)
        response.begin()
        assert response.status in (400, 413)


def test_producer_over_the_api_and_worker_over_the_protocol(daemon: Daemon) -> None:
    with greenstalk.Client(("127.0.0.1", daemon.port), watch="a/b", encoding=None) as worker:
        status, put = ask(daemon, "POST", "/jobs", {"tube": "a/b", "body": "grüß", "pri": 5})
        assert status == 201
        job = worker.reserve(timeout=10)
        assert (job.id, job.body) == (put["id"], "grüß".encode())
        status, found = ask(daemon, "GET", f"/jobs/{job.id}")
        assert (status, found["state"]) == (200, "reserved")
        status, connection = ask(daemon, "GET", f"/connections/{found['held_by']}")
        assert (status, connection["jobs"][0]["id"]) == (200, job.id)
        assert ask(daemon, "DELETE", f"/jobs/{job.id}")[0] == 409
        assert ask(daemon, "DELETE", f"/connections/{found['held_by']}")[0] == 204
        with pytest.raises((ConnectionError, greenstalk.Error)):
            worker.stats()
    assert ask(daemon, "DELETE", f"/jobs/{job.id}") == (204, None)


def test_acknowledged_changes_survive_a_kill(tmp_path: Path) -> None:
    """With a sync before each response, a killed server still has every job that it has acknowledged."""
    flags = (*FLAGS, "-b", str(tmp_path), "-f", "0")
    with Daemon(*flags, environ=environment(GREENSTALK_API_TOKEN=TOKEN)) as daemon:
        _, found = ask(daemon, "POST", "/jobs", [{"tube": "kept", "body": str(at)} for at in range(500)])
        ids = [job["id"] for job in found]
        assert ask(daemon, "DELETE", f"/jobs/{ids[0]}")[0] == 204
        assert ask(daemon, "PATCH", f"/jobs/{ids[1]}", {"body": "new"})[0] == 200
        daemon.stop(signal.SIGKILL)
    with Daemon(*flags, environ=environment(GREENSTALK_API_TOKEN=TOKEN)) as daemon:
        _, page = ask(daemon, "GET", "/jobs?tube=kept&limit=1000")
        assert [job["id"] for job in page["jobs"]] == ids[1:]
        assert [job["body"] for job in page["jobs"]][:2] == ["new", "2"]
        _, audit = ask(daemon, "GET", "/audit")
        assert {entry["what"] for entry in audit["entries"]} <= {"tube/put", "job/delete", "job/edit"}
