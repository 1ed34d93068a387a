"""The pages of connections, and closing one: over a broker with a fake clock, and over real sockets."""

from __future__ import annotations

import os
import re
import socket
from html import unescape
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import READY, SECOND
from greenstalk_server.core.operations import connecting, reserving
from greenstalk_server.web.features.connections.pages import MAX_ROWS
from greenstalk_server.web.reads.connections import BATCH_SIZE, MAX_JOBS_LISTED, MAX_SCANNED_JOBS, MAX_TUBES_LISTED
from tests.support import invariants
from tests.support.daemon import TIMEOUT, Daemon

from .conftest import Queue
from .forms import done, post, refused
from .table import Page
from .turns import LoopIterations

NBSP = "\N{NO-BREAK SPACE}"


def connect(
    queue: Queue, *, uses: str = "", watches: tuple[str, ...] = (), address: str = "", name: str = ""
) -> Client:
    client = queue.connect()
    client.address, client.name = address or client.address, name
    if uses:
        connecting.use(queue.broker, client, uses.encode())
    for tube in watches:
        connecting.watch(queue.broker, client, tube.encode())
    return client


def reserve(queue: Queue, client: Client, count: int = 1) -> list[int]:
    """Let *client* reserve *count* new jobs of a tube that it watches."""
    tube = next(reversed(client.watched)).decode()
    ids = queue.put(tube, count=count)
    for id in ids:
        assert reserving.reserve_job(queue.broker, client, id, queue.now)
    connecting.note_worker(queue.broker, client)
    return ids


def look(client: FlaskClient, path: str = "/connections", **query: object) -> str:
    response = client.get(path, query_string=query or None)
    assert response.status_code == 200, response.text
    return response.text


def text(html: str) -> str:
    return " ".join(Page(html).text.split())


def collapsed(html: str) -> str:
    return "".join(Page(html).text.split())


def rows(html: str) -> list[str]:
    """Return the text of each row of the list, with whitespace collapsed."""
    found = re.findall(r"<tr>\s*<th scope=\"row\".*?</tr>", html, re.DOTALL)
    return [" ".join(unescape(re.sub(r"<[^>]*>", "", row)).split()) for row in found]


def numbers(html: str) -> list[int]:
    return [int(number) for number in re.findall(r'class="number" href="/connection\?number=(\d+)"', html)]


# The list


def test_list_shows_connected_clients(queue: Queue, client: FlaskClient) -> None:
    producer = connect(queue, uses="mail", address="10.0.0.1:4000")
    connecting.note_producer(queue.broker, producer)
    worker = connect(queue, watches=("a", "b", "c"), address="unix", name="python3, process 77")
    queue.now += 90 * SECOND
    ids = reserve(queue, worker, 5)
    queue.now += 10 * SECOND
    waiting = connect(queue, watches=("z",), address="[::1]:5000")
    reserving.wait(queue.broker, waiting, queue.now + 60 * SECOND, queue.now)
    queue.now += 4 * SECOND
    one, two, three = rows(look(client))
    assert one == f"1 10.0.0.1:4000 producer 1{NBSP}min 44{NBSP}s mail default – –".replace(NBSP, " ")
    assert two.startswith("2 unix python3, process 77 worker")
    assert "default a b and 1 more" in two
    assert f"{ids[0]} 46 s {ids[1]} 46 s {ids[2]} 46 s and 2 more" in two
    assert "[::1]:5000" in three
    assert three.endswith("4 s at most 56 s more")
    queue.now += 46 * SECOND
    assert rows(look(client))[2].endswith("50 s at most 10 s more")
    queue.now += SECOND
    assert rows(look(client))[2].endswith(" 51 s"), "a wait of less than 10 s is not shown"


def test_list_is_one_page_and_the_filter_finds_the_rest(queue: Queue, client: FlaskClient) -> None:
    clients = [connect(queue) for _ in range(MAX_ROWS + 20)]
    html = look(client)
    assert numbers(html) == [one.number for one in clients[:MAX_ROWS]]
    assert "first 100 of 120 connections, by number" in text(html)
    assert numbers(look(client, q=clients[-1].address)) == [clients[-1].number]


def test_many_connections_let_others_run(queue: Queue, client: FlaskClient, short_steps: None) -> None:
    for at in range(10_000):
        connect(queue, watches=(f"tube-{at % 500}",))
    for query in ({}, {"sort": "held", "desc": "1"}, {"q": "tube-4"}, {"q": "nothing"}):
        with LoopIterations() as turns:
            html = look(client, **query)
        assert "connections" in text(html)
        assert turns.count >= 10_000 // BATCH_SIZE, query


# One connection


def test_connection_page_shows_every_fact(queue: Queue, client: FlaskClient) -> None:
    worker = connect(queue, uses="out", watches=("a", "b"), address="unix", name="worker.py, process 7")
    (id,) = reserve(queue, worker)
    queue.now += 20 * SECOND
    shown = collapsed(look(client, "/connection", number=worker.number))
    for message in (
        f"Connection {worker.number}", "Connected for 20 s", "Holds 1 job", "Waiting –", "Watches 3 tubes",
        "Program worker.py, process 7", "Role worker", "Connected 2027-01-15 08:00:00 UTC",
        f"{id} 40 s 20 s 2000 4 b", "This connection puts jobs into out.", "reserves jobs from 3 tubes: default a b",
    ):  # fmt: skip
        assert "".join(message.split()) in shown, message


def test_lists_of_one_connection_are_bounded(queue: Queue, client: FlaskClient) -> None:
    worker = connect(queue, watches=tuple(f"t{at}" for at in range(2 * MAX_TUBES_LISTED)))
    reserve(queue, worker, MAX_SCANNED_JOBS + 1)
    html = look(client, "/connection", number=worker.number)
    assert html.count('<td class="left"') == MAX_JOBS_LISTED
    assert "the first 100 of 5,001 jobs, soonest timeout first, among the first 5,000 that it reserved" in text(html)
    assert "the first 500 of 1,001 tubes" in text(html)
    assert html.split('<ul class="names">')[1].count("<li>") == MAX_TUBES_LISTED


def test_closed_connection_is_not_found(queue: Queue, client: FlaskClient) -> None:
    worker = connect(queue, address="10.7.7.7:1")
    connecting.note_worker(queue.broker, worker)
    connecting.disconnect(queue.broker, worker, queue.now)
    assert "it came from 10.7.7.7:1 and has ended" in refused(client.get(f"/connection?number={worker.number}"), 404)
    assert "never existed" in refused(client.get("/connection?number=99"), 404)
    assert "“number” must be" in refused(client.get("/connection?number=x"), 400)


# The holder of a job


def test_job_page_shows_current_and_last_holder(queue: Queue, client: FlaskClient) -> None:
    worker = connect(queue, watches=("mail",), address="10.1.2.3:4")
    (id,) = reserve(queue, worker)
    queue.now += 5 * SECOND
    html = look(client, "/job", id=id)
    assert f'href="/connection?number={worker.number}"' in html
    assert f"connection{worker.number},10.1.2.3:4" in collapsed(html)
    assert client.get(f"/job/holder?id={id}").headers["Location"] == f"/connection?number={worker.number}"
    listed = look(client, "/tube", tube="mail", state="reserved")
    assert "10.1.2.3:4" in text(listed)
    assert f'href="/job/holder?id={id}"' in listed
    connecting.disconnect(queue.broker, worker, queue.now)
    html = look(client, "/job", id=id)
    assert f"Last held by connection {worker.number}, disconnected, from 10.1.2.3:4" in text(html)
    assert f'href="/connection?number={worker.number}"' not in html
    assert client.get(f"/job/holder?id={id}").headers["Location"] == f"/job?id={id}"


# Closing a connection


def test_close_ends_the_connection(queue: Queue) -> None:
    app = queue.app()
    client = app.test_client()
    worker, other = connect(queue, watches=("mail",)), connect(queue, watches=("mail",))
    ids = reserve(queue, worker, 3)
    reserve(queue, other)
    response = post(client, "/connection/close", number=worker.number, confirm=worker.number)
    assert done(response, "/connections") == ("closed", worker.number)
    assert worker.is_closed
    assert not other.is_closed
    assert [queue.broker.jobs[id].state for id in ids] == [READY] * 3
    invariants.check(queue.broker)
    (entry,) = app.extensions["dashboard"].audit.entries
    assert (entry.what, entry.details) == (
        "connection/close", {"number": worker.number, "address": worker.address, "jobs": 3}
    )  # fmt: skip
    assert f"Connection {worker.number} was closed." in text(client.get(response.headers["Location"]).text)


@pytest.mark.parametrize("confirm", [{}, {"confirm": "1"}])
def test_close_requires_confirmation(queue: Queue, client: FlaskClient, confirm: dict[str, str]) -> None:
    connect(queue)
    worker = connect(queue)
    assert "Tick the box" in refused(post(client, "/connection/close", number=worker.number, **confirm), 400)
    assert not worker.is_closed


def test_refused_close_is_not_reported_as_done(queue: Queue, client: FlaskClient) -> None:
    worker = connect(queue)
    worker.hang_up = lambda: None
    message = refused(post(client, "/connection/close", number=worker.number, confirm=worker.number), 503)
    assert "was asked to close and is still open" in message


# Over real sockets


class Dashboard:
    """A daemon's dashboard over plain HTTP."""

    def __init__(self, daemon: Daemon) -> None:
        self._host = urlsplit(daemon.dashboard).netloc

    def get(self, path: str, status: int = 200) -> str:
        return self._ask("GET", f"/{path}", status)[1]

    def post(self, path: str, **form: Any) -> str:
        """Post a form, and return the page that it redirects to."""
        where, _ = self._ask("POST", f"/{path}", 303, urlencode(form))
        return self._ask("GET", where, 200)[1]

    def _ask(self, method: str, path: str, status: int, body: str | None = None) -> tuple[str, str]:
        connection = HTTPConnection(self._host, timeout=TIMEOUT)
        headers = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        message = response.read().decode()
        connection.close()
        assert response.status == status, message
        return response.headers.get("Location", ""), message


def dial(address: Any) -> socket.socket:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family)
    sock.settimeout(TIMEOUT)
    sock.connect(address)
    return sock


def say(sock: socket.socket, request: bytes, reply: bytes) -> bytes:
    """Send *request*, and read until the data ends with *reply*."""
    sock.sendall(request)
    came = b""
    while not came.endswith(reply):
        data = sock.recv(65536)
        assert data, came
        came += data
    return came


@pytest.mark.parametrize("kind", ["::1", "unix"])
def test_addresses_are_real_and_a_close_ends_the_socket(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    listen = f"unix:{path}" if kind == "unix" else kind
    with Daemon("-l", listen, "-p", "0", "--web-port", "0") as daemon:
        address: Any = path if kind == "unix" else (kind, daemon.port)
        dashboard = Dashboard(daemon)
        with dial(address) as worker, dial(address) as other:
            say(worker, b"put 0 0 600 1\r\nx\r\nput 0 0 600 1\r\ny\r\n", b"INSERTED 2\r\n")
            say(worker, b"reserve\r\nreserve\r\n", b"RESERVED 2 1\r\ny\r\n")
            say(other, b"watch mail\r\n", b"WATCHING 2\r\n")
            other.sendall(b"ignore default\r\nreserve\r\n")
            say(other, b"", b"WATCHING 1\r\n")
            own = worker.getsockname()
            comm = Path("/proc/self/comm").read_text().strip()
            shown = "unix" if kind == "unix" else f"[{own[0]}]:{own[1]}" if kind == "::1" else f"{own[0]}:{own[1]}"
            one, two = rows(dashboard.get("connections"))
            assert one.startswith(f"1 {shown} ")
            assert (f"{comm}, process {os.getpid()}" in one) == (kind == "unix")
            assert "producer and worker" in one
            assert "no timeout" in two
            assert "9 min 59 s" in one.replace(NBSP, " ")
            html = dashboard.post("connection/close", number=1, confirm=1)
            assert "Connection 1 was closed. The jobs it held are ready again." in text(html)
            assert len(rows(html)) == 1
            assert worker.recv(1) == b""
            dashboard.post("connection/close", number=2, confirm=2)
            assert other.recv(100) == b""
            with dial(address) as next_one:
                say(next_one, b"reserve-with-timeout 0\r\n" * 2, b"RESERVED 2 1\r\ny\r\n")
                assert "Last held" not in text(dashboard.get("job?id=1"))
                assert "Returned on disconnect by connection 1" in text(dashboard.get("job?id=1"))
            dashboard.get("connection?number=1", 404)
