"""The website whose pages the workers fetch; a test decides when a slow page is sent."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from tests.support.daemon import TIMEOUT
from tests.support.processes import join


class Website:
    """A website. The first part of the path of a page says how it is answered.

    | path | reply |
    |---|---|
    | /page/... | 200 |
    | /slow/... | 200 after `finish` |
    | /missing/... | 404 |
    | /busy/... | 503, and 200 after `finish` |
    """

    def __init__(self) -> None:
        self.requested: SimpleQueue[str] = SimpleQueue()
        self._finished: dict[str, threading.Event] = {}
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.requested.put(self.path)
                status = site._status(self.path)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for finished in list(self._finished.values()):
            finished.set()
        self._server.shutdown()
        join(self._thread)
        self._server.server_close()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def next_request(self) -> str:
        """Return the path of the next request."""
        return self.requested.get(timeout=TIMEOUT)

    def finish(self, path: str) -> None:
        """Let the requests for *path* succeed."""
        self._finish(path).set()

    def _finish(self, path: str) -> threading.Event:
        return self._finished.setdefault(path, threading.Event())

    def _status(self, path: str) -> int:
        match path.split("/")[1]:
            case "missing":
                return 404
            case "busy" if not self._finish(path).is_set():
                return 503
            case "slow":
                self._finish(path).wait(TIMEOUT)
        return 200
