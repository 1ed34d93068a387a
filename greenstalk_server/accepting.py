"""Accepting connections, of the beanstalk protocol and of HTTP: with patience, when no file descriptor is left.

A server that accepts until none is left could not open a file of its journal any more, and would refuse puts. So some
descriptors are kept back, and whoever connects when only those are left waits in the system's queue. The same
where the system has none, or no memory: nobody who is connected notices.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any, Final

import gevent
from gevent.pywsgi import WSGIServer
from gevent.server import StreamServer

from greenstalk_server.limits import Limited
from greenstalk_server.turns import Turns

KEPT_BACK: Final = 64
"""File descriptors for the journal, its locks and directories, and what is open from the start."""

LOOK_AGAIN: Final = 0.1
"""Seconds until it is tried again."""

_WITHOUT_MEANS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Files:
    """The file descriptors that connections take, of those there may be."""

    def __init__(self, limit: int, limited: Limited) -> None:
        """*limit* is how many the process may have open."""
        self._most: int = max(limit - KEPT_BACK, limit // 2)
        self.limited: Limited = limited
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
            except ConnectionAbortedError:  # it has left the queue before we came to it
                return None
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


class Acceptor(_Patient, _Plain):
    """Accepts clients of the beanstalk protocol, each for a greenlet that runs *handle* with its socket and address."""

    def __init__(
        self, listener: socket.socket, handle: Callable[[socket.socket, object], None], files: Files, at_once: int
    ) -> None:
        """*at_once* are accepted at most, before others have their turn."""
        super().__init__(listener, handle, spawn=gevent.spawn_raw)
        self.files: Files = files
        self.max_accept: int = at_once


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
