"""HTTP clients that flood, stall, or send ambiguous requests: the queue is served, and resources are freed."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import gevent
import gevent.socket
import pytest

from greenstalk_server.core.limits import LimitCounters
from greenstalk_server.net import http
from greenstalk_server.net.acceptor import DescriptorBudget, WebServer
from greenstalk_server.net.http import MAX_HEAD, MAX_WAKES, RequestHandler
from greenstalk_server.web.live.peer import descriptor_of
from tests.support.daemon import COMMAND, TIMEOUT, Daemon
from tests.support.peer import Peer, eventually
from tests.support.processes import join
from tests.web.turns import LoopIterations, until

FLAGS = ("-l", "127.0.0.1", "-p", "0", "--web-host", "127.0.0.1", "--web-port", "0")

FLOODS = {
    "a body of tiny chunks": (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 20_000),
    "a body without end": (b"POST / HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n", bytes(2**18)),
    "requests without end": (b"", b"GET /healthz HTTP/1.1\r\n\r\n" * 2000),
}


def to_web(server: Daemon) -> socket.socket:
    """A connection to the dashboard's port."""
    parts = urlsplit(server.dashboard)
    return socket.create_connection((parts.hostname, parts.port), TIMEOUT)


@pytest.mark.parametrize("flood", FLOODS)
def test_http_flood_does_not_delay_the_queue(flood: str) -> None:
    """The flooding clients are not logged in."""
    head, body = FLOODS[flood]
    with Daemon(*FLAGS) as server, Peer(server) as good, to_web(server) as flooder:
        flooder.sendall(head)

        def send() -> None:
            with suppress(OSError):
                while True:
                    flooder.sendall(body)

        def read() -> None:
            with suppress(OSError):
                while flooder.recv(2**20):
                    pass

        threads = [threading.Thread(target=each, daemon=True) for each in (send, read)]
        for thread in threads:
            thread.start()
        for _ in range(300):  # each would wait for the end of the flood, which does not end
            assert good.ask(b"list-tube-used") == b"USING default"
        flooder.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            join(thread)


def test_http_connections_do_not_keep_workers_out() -> None:
    limited = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *COMMAND)
    with Daemon(*FLAGS, command=limited) as server, ExitStack() as silent:
        for _ in range(220):
            silent.enter_context(to_web(server))
        with Peer(server) as worker:
            worker.sock.settimeout(10)
            assert worker.ask(b"list-tube-used") == b"USING default"
        silent.close()
        connection = HTTPConnection(urlsplit(server.dashboard).netloc, timeout=TIMEOUT)
        connection.request("GET", "/api/v1/server")
        with connection.getresponse() as answer:
            assert json.load(answer)["limited"]["files"] > 0
        connection.close()


PARTS = b"--a\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n" * 1100 + b"--a--\r\n"


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nid=1",
        b"Content-Type: multipart/form-data; boundary=a\r\nContent-Length: %d\r\n\r\n%b" % (len(PARTS), PARTS),
    ],
    ids=["breaks off", "too many parts"],
)
def test_malformed_form_is_a_client_error(rest: bytes) -> None:
    """The error page would link back to the subject of the form."""
    head = b"POST /delete HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://elsewhere\r\nConnection: close\r\n"
    with Daemon(*FLAGS) as server, to_web(server) as sock:
        sock.sendall(head + rest)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1000).startswith(b"HTTP/1.1 403")
        said = server.stop()[1]
        assert "Traceback" not in said and "ERROR" not in said


class Served:
    """An app that reports the size of each body, served by the handler in a thread."""

    def __init__(self) -> None:
        self.limited = LimitCounters()
        self.is_ready, self.is_over = threading.Event(), threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self.is_ready.wait(TIMEOUT)

    def _run(self) -> None:
        def app(environ: Any, start_response: Any) -> list[bytes]:
            start_response("200 OK", [("Content-Type", "text/plain")])
            if environ["PATH_INFO"] == "/large":
                return [bytes(2**26)]
            if environ["PATH_INFO"] == "/unread":
                return [b"the body is not read"]
            where = f" {environ['PATH_INFO']} ?{environ['QUERY_STRING']} {environ.get('HTTP_HOST')} "
            told = f"{len(environ['wsgi.input'].read())} bytes{where}{descriptor_of(environ) is None}"
            return [told.encode()]

        listener = gevent.socket.socket()
        listener.bind(("127.0.0.1", 0))
        server = WebServer(listener, app, log=None, handler_class=RequestHandler)
        server.files = DescriptorBudget(1000, self.limited)
        server.start()
        self.port = server.server_port
        self.is_ready.set()
        while not self.is_over.is_set():
            gevent.sleep(0.01)
        server.stop(timeout=1)

    def ask(self, request: bytes) -> bytes:
        """Return the whole response to *request*, until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), 20) as sock:
            sock.sendall(request)
            answer = b""
            with suppress(ConnectionResetError):
                while data := sock.recv(65536):
                    answer += data
            return answer

    def close(self) -> None:
        self.is_over.set()
        join(self._thread)


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.close()


@pytest.mark.parametrize(
    "begun",
    [
        b"GET",
        b"GET / HTTP/1.1\r\nHost: a",
        b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
def test_incomplete_request_times_out(served: Served, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT", 0.2)
    monkeypatch.setattr(http, "IDLE_TIMEOUT", 0.4)
    served.ask(begun)
    eventually(lambda: served.limited.counts()["request_timeout"] == 1, "it is counted")


def test_idle_http_connection_is_closed_and_not_counted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "IDLE_TIMEOUT", 0.2)
    assert served.ask(b"") == b""
    assert served.ask(b"GET / HTTP/1.1\r\n\r\n").count(b"200 OK") == 1
    assert served.limited.counts()["request_timeout"] == 0


@pytest.mark.parametrize("have_input", [True, False])
def test_a_bounded_number_of_connections_is_woken_per_iteration(have_input: bool) -> None:
    """A hundred sockets get input, or time out, at once; the loop never wakes more than MAX_WAKES greenlets at once."""
    readiness, woken, waiting = http.Readiness(), 0, 0
    pairs = [socket.socketpair() for _ in range(100)]

    def wait(ours: socket.socket) -> None:
        nonlocal woken, waiting
        waiting += 1
        with nullcontext() if have_input else pytest.raises(TimeoutError):
            readiness.wait(ours.fileno(), TIMEOUT if have_input else 0)
        woken += 1

    greenlets = [gevent.spawn(wait, ours) for ours, _ in pairs]
    until(lambda: waiting == len(pairs))
    for _, theirs in pairs if have_input else ():
        theirs.send(b"x")
    with LoopIterations(lambda: woken) as loop:
        gevent.joinall(greenlets, timeout=TIMEOUT, raise_error=True)
    assert woken == len(pairs) and loop.max_progress <= 2 * MAX_WAKES
    for pair in pairs:
        for end in pair:
            end.close()


@pytest.mark.parametrize(("connections", "pipelined"), [(30, 1), (1, 30), (10, 3)])
def test_one_request_is_answered_per_iteration(connections: int, pipelined: int) -> None:
    answered = 0

    def app(environ: Any, start_response: Any) -> list[bytes]:
        nonlocal answered
        answered += 1
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"x"]

    listener = gevent.socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = WebServer(listener, app, log=None, handler_class=RequestHandler)
    server.files = DescriptorBudget(1000, LimitCounters())
    server.start()
    with ExitStack() as at_exit, LoopIterations(lambda: answered) as loop:
        at_exit.callback(server.stop, timeout=1)
        for _ in range(connections):
            client = socket.create_connection(("127.0.0.1", server.server_port), TIMEOUT)
            at_exit.callback(client.close)
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * pipelined)
        until(lambda: answered == connections * pipelined)
    assert loop.max_progress == 1


def test_wait_for_input_times_out_and_leaves_nothing_behind() -> None:
    readiness = http.Readiness()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                readiness.wait(ours.fileno(), 0.001)
        theirs.close()
        readiness.wait(ours.fileno(), TIMEOUT)
    assert readiness._timer.active
    until(lambda: not readiness._timer.active)


def test_request_that_trickles_times_out(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each byte arrives soon after the previous one, but the whole request takes too long."""
    monkeypatch.setattr(http, "REQUEST_TIMEOUT", 0.5)
    with socket.create_connection(("127.0.0.1", served.port), TIMEOUT) as sock, suppress(OSError):
        sock.sendall(b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
        sock.setblocking(False)
        eventually(lambda: _drip(sock), "it is closed")
    eventually(lambda: served.limited.counts()["request_timeout"] == 1, "it is counted")
    assert capsys.readouterr().err == "", "a client's mistake is not an error of the server"


def _drip(sock: socket.socket) -> bool:
    """Send a byte; return whether the server has closed."""
    sock.send(b"x")
    with suppress(BlockingIOError):
        return sock.recv(1000) == b""
    return False


def test_client_that_does_not_read_the_response_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SEND_TIMEOUT", 0.2)
    with socket.create_connection(("127.0.0.1", served.port), TIMEOUT) as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        eventually(lambda: served.limited.counts()["request_timeout"] == 1, "it is given up")


def test_head_above_the_maximum_is_refused(served: Served) -> None:
    fields = b"".join([b"X-%d: %b\r\n" % (number, b"x" * 1000) for number in range(MAX_HEAD // 1000 + 1)])
    assert served.ask(b"GET / HTTP/1.1\r\n%b\r\n" % fields).startswith(b"HTTP/1.1 400")
    assert served.ask(b"GET / HTTP/1.1\r\nConnection: close\r\nX: %b\r\n\r\n" % (b"x" * 50000)).startswith(
        b"HTTP/1.1 200"
    )


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 5\r\nContent-Length: 0\r\n",
        b"Content-Length: 5\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 1_0\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: \xb2\r\n",
        b"Content-Length : 5\r\n",
        b"X\r\nContent-Length: 5\r\n",
        b"X: a\rContent-Length: 5\r\n",
        b"X: a\r\n Content-Length: 5\r\n",
        b"\0X: a\r\nContent-Length: 5\r\n",
    ],
)
def test_ambiguous_request_is_refused(served: Served, fields: bytes) -> None:
    """A proxy with another interpretation would see two requests."""
    answer = served.ask(b"POST / HTTP/1.1\r\n%b\r\n0\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n" % fields)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_truncated_head_is_refused(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), TIMEOUT) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nContent-Le")
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100).startswith(b"HTTP/1.1 400")


def test_slow_reader_gets_the_whole_response(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket is not writable for longer than the timeout."""
    monkeypatch.setattr(http, "SEND_TIMEOUT", 0.5)
    with socket.create_connection(("127.0.0.1", served.port), TIMEOUT) as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\nConnection: close\r\n\r\n")
        size = 0
        for _ in range(80):  # four seconds, with less than half a megabyte in any half second
            size += len(sock.recv(32768))
            time.sleep(0.05)
        while data := sock.recv(2**20):
            size += len(data)
    assert size > 2**26
    assert served.limited.counts()["request_timeout"] == 0


def test_web_socket_request_is_an_ordinary_request(served: Served) -> None:
    answer = served.ask(b"POST / HTTP/1.1\r\nUpgrade: websocket\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc")
    assert b"3 bytes" in answer
    assert b"False" in answer, "it is known by which socket it came, so that a stream ends when the reader has gone"


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\n%b\r\n" % (b"X: y\r\n" * 200),
        b"GET /\r\n",
        b"GET / HTTP/1\r\n\r\n",
        b"GET / HTTP/1.1.1\r\n\r\n",
        b"\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http://a@b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET https://? HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_malformed_request_is_not_a_server_error(
    served: Served, caplog: pytest.LogCaptureFixture, request_: bytes
) -> None:
    assert served.ask(request_).startswith(b"HTTP/1.1 400")
    assert [record for record in caplog.records if record.levelno > 10] == []


BAD_CHUNKS = [
    b"\r\n", b"\r\n\r\n", b";x\r\n", b"x\r\n", b"-1\r\n", b"f" * 17 + b"\r\n", b"1\r\nxy", b"0\r\n\0:\r\n\r\n",
    b"fff\r\nab",
]  # fmt: skip


@pytest.mark.parametrize("chunks", BAD_CHUNKS)
@pytest.mark.parametrize("path", [b"/", b"/unread"], ids=["read by the app", "discarded"])
def test_malformed_chunks_end_the_connection_without_a_log_line(
    served: Served, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], path: bytes, chunks: bytes
) -> None:
    rest = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), TIMEOUT) as sock:
        sock.sendall(b"POST %b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" % path + chunks + rest)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(ConnectionResetError):
            while data := sock.recv(1000):
                answer += data
    assert answer.count(b"HTTP/1.1 ") <= 1, "what follows is not read as a request"
    assert [record for record in caplog.records if record.levelno > 10] == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("keep", [b"Connection: keep-alive\r\n", b""])
def test_chunks_in_http_1_0_are_refused(served: Served, keep: bytes) -> None:
    head = b"POST / HTTP/1.0\r\n%bTransfer-Encoding: chunked\r\n\r\n" % keep
    answer = served.ask(head + b"0\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_one_empty_line_before_a_request_is_skipped(served: Served) -> None:
    answer = served.ask(
        b"\r\nPOST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n"
    )
    assert answer.count(b"200 OK") == 2


def test_empty_line_does_not_begin_a_request(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends an empty line after a body may be idle for as long as any other."""
    monkeypatch.setattr(http, "REQUEST_TIMEOUT", 0.1)
    monkeypatch.setattr(http, "IDLE_TIMEOUT", 0.5)
    assert served.ask(b"GET / HTTP/1.1\r\n\r\n\r\n").count(b"200 OK") == 1
    assert served.limited.counts()["request_timeout"] == 0


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (b"http://example.com:8080/a%20b?c=/d", b"/a b ?c=/d example.com:8080"),
        (b"HTTPS://[::1]/", b"/ ? [::1]"),
        (b"http://example.com", b"/ ? example.com"),
        (b"http://example.com?q", b"/ ?q example.com"),
        (b"/http://other/", b"/http://other/ ? a"),
    ],
)
def test_absolute_form_sets_path_and_host(served: Served, target: bytes, told: bytes) -> None:
    answer = served.ask(b"GET %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" % target)
    assert told in answer
