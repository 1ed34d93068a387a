"""The way from one server to the database, which can be cut: what is under way then comes late or never."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from typing import Final

CHUNK: Final = 65536


class _Side:
    """One end of a connection: what it sent goes to *other*, or waits while the way is cut."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock: socket.socket = sock
        self.other: _Side = self
        self.waiting: bytearray = bytearray()


class Proxy:
    """Forwards to a port of this machine, in a thread of its own."""

    def __init__(self, target: int) -> None:
        self._target: int = target
        self._listener: socket.socket = socket.create_server(("127.0.0.1", 0))
        self._selector: selectors.BaseSelector = selectors.DefaultSelector()
        self._lock: threading.RLock = threading.RLock()
        self._sides: set[_Side] = set()
        self._is_cut: bool = False
        self._is_over: bool = False
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread: threading.Thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def cut(self) -> None:
        """Let nothing through; connections stay open, and new ones are taken, as by a network that drops packets."""
        with self._lock:
            self._is_cut = True

    def mend(self, is_late: bool) -> None:
        """Let all through again: what was held comes now if *is_late*, else those connections break."""
        with self._lock:
            self._is_cut = False
            for side in list(self._sides):
                if is_late:
                    self._send(side.other, bytes(side.waiting))
                    side.waiting.clear()
                else:
                    self._close(side)

    def close(self) -> None:
        """End."""
        self._is_over = True
        self._thread.join()
        self._listener.close()
        for side in list(self._sides):
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
        if not data:
            self._close(side)
        elif self._is_cut:
            side.waiting += data
        else:
            self._send(side.other, data)

    def _send(self, side: _Side, data: bytes) -> None:
        try:
            side.sock.sendall(data)
        except OSError:
            self._close(side)

    def _close(self, side: _Side) -> None:
        """Close both ends; what one of them sent before it was cut short still comes, unless the way is cut."""
        for end in (side, side.other):
            if end in self._sides:
                self._sides.discard(end)
                self._selector.unregister(end.sock)
                with suppress(OSError):
                    end.sock.close()
