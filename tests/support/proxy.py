"""A proxy between one server and the database that can delay data, drop it, or close connections."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from math import inf
from typing import Final

from tests.support.processes import join

CHUNK: Final = 65536


class _Side:
    """One end of a connection. Its data goes to *other*, waits while the proxy is cut, or is dropped by a silent side.

    sent    bytes since the other end last sent something.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock: socket.socket = sock
        self.other: _Side = self
        self.waiting: bytearray = bytearray()
        self.is_silent: bool = False
        self.sent: int = 0


class Proxy:
    """Forwards connections to a port of this machine, in a thread."""

    def __init__(self, target: int) -> None:
        self._target: int = target
        self._listener: socket.socket = socket.create_server(("127.0.0.1", 0))
        self._selector: selectors.BaseSelector = selectors.DefaultSelector()
        self._lock: threading.RLock = threading.RLock()
        self._sides: set[_Side] = set()
        self._is_cut: bool = False
        self._loses_after: float = inf
        self._has_lost: threading.Event = threading.Event()
        self._is_over: bool = False
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread: threading.Thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port on which the proxy listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def cut(self) -> None:
        """Forward nothing; connections stay open, and new ones are accepted, as in a network that drops packets."""
        with self._lock:
            self._is_cut = True

    def silence(self) -> None:
        """Forward nothing on existing connections, not even their end; new connections work.

        This is the effect of a firewall that restarts and loses its connection table, or of a machine that is replaced.
        """
        with self._lock:
            for side in self._sides:
                side.is_silent = True

    def lose_in_batch(self, size: int) -> None:
        """Wait until a request has sent *size* bytes and is incomplete; then silence its connection, and cut."""
        self._has_lost.clear()
        self._loses_after = size
        assert self._has_lost.wait(60), f"no batch has more than {size} bytes"

    def mend(self, is_late: bool) -> None:
        """Forward everything again: send held data now if *is_late*, else close those connections."""
        with self._lock:
            self._is_cut = False
            for side in [side for side in self._sides if not side.is_silent]:
                if is_late:
                    self._send(side.other, bytes(side.waiting))
                    side.waiting.clear()
                else:
                    self._close(side)

    def close(self) -> None:
        """Stop the proxy."""
        self._is_over = True
        join(self._thread)
        self._listener.close()
        for side in list(self._sides):
            side.is_silent = False
            self._close(side)

    def _run(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select(0.1):
                with self._lock:
                    if key.data is None:
                        self._accept()
                    elif key.data in self._sides:
                        self._forward(key.data)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        try:
            upstream = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            sock.close()
            return
        near, far = _Side(sock), _Side(upstream)
        near.other, far.other = far, near
        for side in (near, far):
            side.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sides.add(side)
            self._selector.register(side.sock, selectors.EVENT_READ, side)

    def _forward(self, side: _Side) -> None:
        try:
            data = side.sock.recv(CHUNK)
        except OSError:
            data = b""
        self._count(side, len(data))
        if not data:
            self._close(side)
        elif side.is_silent:
            pass
        elif self._is_cut:
            side.waiting += data
        else:
            self._send(side.other, data)

    def _count(self, side: _Side, size: int) -> None:
        """Count the bytes sent; silence and cut in the middle of the batch that `lose_in_batch` waits for."""
        side.sent, side.other.sent = side.sent + size, 0
        if side.sent > self._loses_after:
            self._loses_after = inf
            self.silence()
            self._is_cut = True
            self._has_lost.set()

    def _send(self, side: _Side, data: bytes) -> None:
        try:
            side.sock.sendall(data)
        except OSError:
            self._close(side)

    def _close(self, side: _Side) -> None:
        """Close both ends, or only a silent one; data that the other end has sent is still forwarded, unless cut."""
        for end in (side,) if side.is_silent else (side, side.other):
            if end in self._sides:
                self._sides.discard(end)
                self._selector.unregister(end.sock)
                with suppress(OSError):
                    end.sock.close()
