"""Accept connections of the beanstalk protocol and of HTTP, and pause while no file descriptor is free.

If connections used every file descriptor, the journal could not open a segment and puts would fail. So `RESERVED`
descriptors are never given to connections. While only those are left, or the system has no descriptor or memory, new
connections wait in the system's accept queue. Open connections are served as usual.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import gevent
from gevent.pywsgi import WSGIServer
from gevent.server import StreamServer

from greenstalk_server.core.limits import LimitCounters
from greenstalk_server.net.connection import run_then
from greenstalk_server.net.http import Readiness
from greenstalk_server.net.listeners import listen, of_dashboard
from greenstalk_server.net.poller import BUDGET, AcceptHandler, Poller
from greenstalk_server.runtime.exit_codes import StartError
from greenstalk_server.runtime.scheduling import FairQueue

log = logging.getLogger(__name__)

RESERVED: Final = 64
"""File descriptors for the journal, its locks and directories, and the files that are open from the start."""

ACCEPT_RETRY_INTERVAL: Final = 0.1
"""Seconds that accepting pauses when it fails or no descriptor is free."""

ACCEPT_COST: Final = BUDGET // 16
"""Cost of accepting a connection; see Poller.spend."""

_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Errors of `accept` that pass when other connections close."""


class DescriptorBudget:
    """The file descriptors that connections may use, in total and by HTTP.

    open             connections that are open, of both protocols.
    limit_counters   count the times that accepting paused.
    """

    def __init__(self, limit: int, limit_counters: LimitCounters) -> None:
        """*limit* is the number of files that the process may have open."""
        self._maximum: int = max(limit - RESERVED, limit // 2)
        self.limit_counters: LimitCounters = limit_counters
        self.open: int = 0

    def shortage(self) -> str:
        """Return why no connection may be accepted, or an empty string if one may."""
        if self.open < self._maximum:
            return ""
        return f"{self.open} connections are open, as many as the limit on open files allows"

    def web_shortage(self, count: int) -> str:
        """Return why HTTP, which has *count* connections, may not accept another, or an empty string if it may.

        HTTP may use half of the budget, so that it does not keep workers out.
        """
        if count < self._maximum // 2:
            return ""
        return f"{count} HTTP connections are open, the maximum for HTTP: half of what the limit on open files allows"

    def note_pause(self, reason: str) -> None:
        """Count that accepting pauses for *reason*."""
        self.limit_counters.note("files", what=reason)


class _Backpressure:
    """Mixin for a gevent server: accepts only while a file descriptor is free. Retries after ACCEPT_RETRY_INTERVAL."""

    files: DescriptorBudget
    socket: socket.socket

    def start(self) -> None:
        """Listen, and start to accept; raise StartError if another program has begun to listen on the address."""
        listen(self.socket)
        super().start()  # type: ignore[misc]

    def do_read(self) -> Any:
        shortage = self.files.shortage()
        if shortage:
            self.files.note_pause(shortage)
        else:
            try:
                accepted = super().do_read()  # type: ignore[misc]
            except ConnectionAbortedError:  # no event announces the next connections in the accept queue
                pass
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self.files.note_pause(error.strerror or str(error))
            else:
                if accepted is not None:
                    self.files.open += 1
                return accepted
        self._pause_accepting()
        return None

    def do_close(self, *args: Any) -> None:
        super().do_close(*args)  # type: ignore[misc]
        self.files.open -= 1

    def _pause_accepting(self: Any) -> None:
        self.stop_accepting()
        self._timer = self.loop.timer(ACCEPT_RETRY_INTERVAL)
        self._timer.start(self._start_accepting_if_started)


class _Plain(StreamServer):  # type: ignore[misc]
    """Accepts plain non-blocking sockets: each gevent socket would have two watchers that are not used."""

    def do_read(self) -> tuple[socket.socket, object] | None:
        try:
            fd, address = self.socket._accept()
        except BlockingIOError:
            return None
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return sock, address


Admit = Callable[[socket.socket, object], Callable[[], None] | None]
"""Admit a socket from an address: return the function that its greenlet runs, or None if the connection is refused."""


class Acceptor(_Backpressure, _Plain):
    """Accepts beanstalk connections. The poller calls it, so accepts are ordered with the input of connections."""

    def __init__(
        self, listener: socket.socket, admit: Admit, files: DescriptorBudget, poller: Poller, batch_size: int
    ) -> None:
        """*batch_size* is the maximum number of connections accepted before other handlers are served."""
        super().__init__(listener, admit)
        self.files: DescriptorBudget = files
        self.max_accept: int = batch_size
        self._admit: Admit = admit
        self._poller: Poller = poller
        self._fd: int = listener.fileno()
        self._handler: AcceptHandler = AcceptHandler(poller, self._accept_batch, self._on_error)
        self._is_added: bool = False
        self._is_accepting: bool = False
        self._may_have_more: bool = False

    def start_accepting(self) -> None:
        self._is_accepting = True
        if not self._is_added:
            self._is_added = True
            self._poller.add(self._fd, self._handler)
        else:
            self._poller.queue(self._handler)

    def stop_accepting(self) -> None:
        self._is_accepting = False
        super().stop_accepting()

    def close(self) -> None:
        self._poller.remove(self._fd)
        super().close()

    def do_read(self) -> Any:
        accepted = super().do_read()
        self._may_have_more = accepted is not None
        return accepted

    def do_handle(self, sock: socket.socket, address: object) -> None:
        self._poller.spend(ACCEPT_COST)
        try:
            run = self._admit(sock, address)
        except BaseException:
            self.do_close(sock, address)
            raise
        if run is None:
            self.do_close(sock, address)
        else:
            gevent.spawn_raw(run_then, run, partial(self.do_close, sock, address))

    def _accept_batch(self) -> bool:
        """Accept a batch of connections; return whether there may be more."""
        if not self._is_accepting:
            return False
        self._do_read()
        self._poller.arm(self._fd)
        return self._may_have_more

    def _on_error(self, error: Exception) -> None:
        """Log *error*, and retry after `ACCEPT_RETRY_INTERVAL`."""
        log.error("internal error: accepting pauses for %s s", ACCEPT_RETRY_INTERVAL, exc_info=error)
        self._pause_accepting()


class WebServer(_Backpressure, WSGIServer):  # type: ignore[misc]
    """gevent's HTTP server. Set `files` before it starts.

    turns       a FairQueue shared by all of its connections, for their reads and answers; see `http`.
    readiness   wakes the connections that have input.
    """

    max_accept: int = 8  # connections in each iteration of the event loop

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.turns: FairQueue = FairQueue()
        self.readiness: Readiness = Readiness()
        self._count: int = 0

    def start(self) -> None:
        """Listen, and start to accept; raise StartError."""
        try:
            super().start()
        except StartError as error:
            raise of_dashboard(error) from error

    def do_read(self) -> Any:
        shortage = self.files.web_shortage(self._count)
        if shortage:
            self.files.note_pause(shortage)
            self._pause_accepting()
            return None
        accepted = super().do_read()
        if accepted is not None:
            self._count += 1
        return accepted

    def do_close(self, *args: Any) -> None:
        super().do_close(*args)
        self._count -= 1
