"""Accepting connections, of the beanstalk protocol and of HTTP: with patience, when no file descriptor is left.

A server that accepts until none is left could not open a file of its journal any more, and would refuse puts. So some
descriptors are kept back, and whoever connects when only those are left waits in the system's queue. The same
where the system has none, or no memory: nobody who is connected notices.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

import gevent
from gevent.pywsgi import WSGIServer
from gevent.server import StreamServer

from greenstalk_server.core.limits import LimitCounters
from greenstalk_server.net.poller import BUDGET, Poller
from greenstalk_server.net.scheduling import Turns

log = logging.getLogger(__name__)

KEPT_BACK: Final = 64
"""File descriptors for the journal, its locks and directories, and what is open from the start."""

LOOK_AGAIN: Final = 0.1
"""Seconds until it is tried again."""

ACCEPT_COST: Final = BUDGET // 16
"""Cost of accepting a connection; see Poller.spend."""

_WITHOUT_MEANS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Files:
    """The file descriptors that connections take, of those there may be."""

    def __init__(self, limit: int, limited: LimitCounters) -> None:
        """*limit* is how many the process may have open."""
        self._most: int = max(limit - KEPT_BACK, limit // 2)
        self.limited: LimitCounters = limited
        self.open: int = 0

    def are_used_up(self) -> bool:
        """Whether there is none for one more connection; that is noted."""
        if self.open < self._most:
            return False
        self.note(f"{self.open} connections are open, as many as the limit on open files allows")
        return True

    def are_enough_for_web(self, taken: int) -> bool:
        """Whether HTTP has *taken* all that it may: half, so that it keeps no worker out; that is noted."""
        if taken < self._most // 2:
            return False
        self.note(f"{taken} HTTP connections are open, half as many as the limit on open files allows in all")
        return True

    def note(self, reason: str) -> None:
        """Note that accepting has to wait."""
        self.limited.note("files", what=reason)


class _Patient:
    """What both servers do: see to it that there is a descriptor, or look again a little later."""

    files: Files

    def do_read(self) -> Any:
        if not self.files.are_used_up():
            try:
                accepted = super().do_read()  # type: ignore[misc]
            except ConnectionAbortedError:  # others may be behind it in the queue, which no event announces again
                pass
            except OSError as error:
                if error.errno not in _WITHOUT_MEANS:
                    raise
                self.files.note(error.strerror or str(error))
            else:
                if accepted is not None:
                    self.files.open += 1
                return accepted
        self._look_again()
        return None

    def do_close(self, *args: Any) -> None:
        super().do_close(*args)  # type: ignore[misc]
        self.files.open -= 1

    def _look_again(self: Any) -> None:
        self.stop_accepting()
        self._timer = self.loop.timer(LOOK_AGAIN)
        self._timer.start(self._start_accepting_if_started)


class _Plain(StreamServer):  # type: ignore[misc]
    """Accepts plain non-blocking sockets: gevent's own would add two watchers each that nobody uses."""

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
"""Admits the connection of a socket from an address, and returns what its greenlet runs; None if it is refused."""


class Acceptor(_Patient, _Plain):
    """Accepts clients of the beanstalk protocol, as a handler of a poller: in order with what connections send."""

    def __init__(self, listener: socket.socket, admit: Admit, files: Files, poller: Poller, batch_size: int) -> None:
        """*batch_size* connections are accepted at most before others are served."""
        super().__init__(listener, admit)
        self.files: Files = files
        self.max_accept: int = batch_size
        self._admit: Admit = admit
        self._poller: Poller = poller
        self._fd: int = listener.fileno()
        self._is_added: bool = False
        self._is_accepting: bool = False
        self._may_have_more: bool = False

    def start_accepting(self) -> None:
        self._is_accepting = True
        if not self._is_added:
            self._is_added = True
            self._poller.add(self._fd, self)
        else:
            self._poller.queue(self)

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
            gevent.spawn_raw(self._run, run, sock, address)

    def _run(self, run: Callable[[], None], sock: socket.socket, address: object) -> None:
        try:
            run()
        finally:
            self.do_close(sock, address)

    # For the poller

    def receive(self) -> bytes:
        """Return what makes the poller call `serve`, in order with the other handlers of the batch."""
        return b""

    def serve(self, data: bytes, now: int, limit: range) -> bytes:
        """Accept a batch of connections."""
        return self.resume(now, limit)

    def resume(self, now: int, limit: range) -> bytes:
        """Accept a batch of connections."""
        if self._is_accepting:
            self._do_read()
            if self._may_have_more:
                self._poller.queue(self)
        return b""

    def serve_more(self, now: int) -> bool:
        """Serve nothing: no acceptor is unfinished."""
        return False

    def collect(self) -> bytes:
        """Return no replies."""
        return b""

    def send(self, out: bytes) -> None:
        """Send nothing."""

    def defer(self, data: bytes) -> None:
        """Accept in the next batch."""
        self._poller.queue(self)

    def note_unread(self) -> None:
        """Accept when the poller calls `resume`."""
        self._poller.queue(self)

    def note_hang_up(self) -> None:
        """Accept when the poller calls `resume`: errors are those of `accept`."""
        self._poller.queue(self)

    def fail(self, error: Exception) -> None:
        """Log *error*, and accept again a little later."""
        log.error("internal error: accepting pauses for %s s", LOOK_AGAIN, exc_info=error)
        self._look_again()


class WebServer(_Patient, WSGIServer):  # type: ignore[misc]
    """gevent's HTTP server; *files* is to be set before it starts.

    turns   of all its connections.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.turns: Turns = Turns()
        self._taken: int = 0

    def do_read(self) -> Any:
        if self.files.are_enough_for_web(self._taken):
            self._look_again()
            return None
        accepted = super().do_read()
        if accepted is not None:
            self._taken += 1
        return accepted

    def do_close(self, *args: Any) -> None:
        super().do_close(*args)
        self._taken -= 1
