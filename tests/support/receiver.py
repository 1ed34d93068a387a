"""An HTTP or HTTPS server that records requests and gives the responses that a test has chosen."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.support.daemon import TIMEOUT
from tests.support.processes import join


@dataclass(frozen=True, slots=True)
class Received:
    """A request; the names of its headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """A server on a free port of loopback. `answer` is called with each request's handler, after it was recorded."""

    def __init__(self, secured: ssl.SSLContext | None = None) -> None:
        self.answer: Callable[[BaseHTTPRequestHandler], None] = answer(200)
        self.hangs = threading.Event()
        self._requests: list[Received] = []
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client may leave
        if secured is not None:
            self._server.socket = secured.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port: int = self._server.server_port
        self.url = f"http{'s' if secured is not None else ''}://localhost:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hangs.set()
        self._server.shutdown()
        self._server.server_close()
        join(self._thread)

    def record(self, request: Received) -> None:
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()

    @property
    def requests(self) -> list[Received]:
        with self._changed:
            return list(self._requests)

    def wait_for(self, count: int) -> list[Received]:
        """Return the requests once there are at least *count*. Blocks the thread."""
        until = time.monotonic() + TIMEOUT
        with self._changed:
            while len(self._requests) < count:
                left = until - time.monotonic()
                assert left > 0, f"{len(self._requests)} requests, not {count}"
                self._changed.wait(left)
            return list(self._requests)

    def hang(self, handler: BaseHTTPRequestHandler) -> None:
        """Send nothing until the test ends."""
        self.hangs.wait(TIMEOUT)
        handler.close_connection = True

    def drip(self, handler: BaseHTTPRequestHandler) -> None:
        """Send a header line that never ends, a byte at a time."""
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not self.hangs.wait(0.05):
            handler.wfile.write(b"x")
        handler.close_connection = True


def answer(status: int, body: bytes = b"", **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return an `answer` with these values; underscores in header names become hyphens."""

    def respond(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return respond


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.record(Received(self.command, self.path, headers, body))
            receiver.answer(self)

        do_GET = do_POST  # noqa: N815

        def log_message(self, *args: Any) -> None:
            pass

    return Handler
