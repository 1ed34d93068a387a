"""The API of a real server: over real sockets, with real protocol clients, a real journal and a real browser."""

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

from ..browser import Browser
from ..visit import AXE, AXE_VIOLATIONS, FLAGS, is_too_wide
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


def test_stream_continues_while_jobs_are_put(daemon: Daemon) -> None:
    connection = connect(daemon)
    connection.request("GET", f"{ROOT}/events", headers=SENT)
    response = connection.getresponse()
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert response.readline() == b"retry: 2000\n"
    ask(daemon, "POST", "/jobs", {"tube": "streamed"})
    while b'"streamed"' not in response.readline():
        pass
    connection.close()


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


def test_policies_and_redriven_jobs_survive_a_kill(tmp_path: Path) -> None:
    flags = (*FLAGS, "-b", str(tmp_path), "-f", "0")
    policy = {"tubes": ["mail"], "max_attempts": 1, "dead_letter": "failed"}
    with Daemon(*flags, environ=environment(GREENSTALK_API_TOKEN=TOKEN)) as daemon:
        assert ask(daemon, "PUT", "/policies/mail", policy)[0] == 200
        assert ask(daemon, "PUT", "/policies/gone", policy)[0] == 200
        assert ask(daemon, "DELETE", "/policies/gone")[0] == 204
        with greenstalk.Client(("127.0.0.1", daemon.port), use="mail", watch="mail") as client:
            ids = [client.put("a"), client.put("b")]
            for _ in ids:
                client.release(client.reserve(5))
        assert ask(daemon, "POST", f"/jobs/{ids[0]}/redrive", {})[0] == 200
        daemon.stop(signal.SIGKILL)
    with Daemon(*flags, environ=environment(GREENSTALK_API_TOKEN=TOKEN)) as daemon:
        _, found = ask(daemon, "GET", "/policies")
        assert [(one["name"], one["document"]) for one in found["policies"]] == [("mail", policy | {"priority": 0})]
        jobs = [ask(daemon, "GET", f"/jobs/{id}")[1] for id in ids]
        assert [(job["tube"], job["dead_letter"] is None) for job in jobs] == [("mail", True), ("failed", False)]
        assert [job["events"][-1]["kind"] for job in jobs] == ["redriven", "dead-lettered"]
        assert ask(daemon, "GET", "/tube?tube=mail")[1]["policy"]["max_attempts"] == {"value": 1, "policy": "mail"}


def test_page_of_the_api_in_a_browser(chromium: Browser, daemon: Daemon) -> None:
    """It fits a phone's screen, and axe finds no problem, with the details open or closed."""
    for scheme, width, opened in (("light", 1280, "details:first-of-type"), ("dark", 360, "details")):
        with chromium.tab(daemon.dashboard, width, color_scheme=scheme) as tab:
            tab.page.goto(daemon.dashboard)
            with tab.page.expect_navigation():
                tab.page.get_by_role("link", name="API", exact=True).click()
            tab.page.evaluate(f"document.querySelectorAll('{opened}').forEach(one => {{ one.open = true }})")
            tab.screenshot(f"api-{scheme}")
            assert not is_too_wide(tab)
            tab.page.evaluate(AXE)
            assert tab.page.evaluate(AXE_VIOLATIONS) == []
            assert (tab.console, tab.elsewhere) == ([], [])
