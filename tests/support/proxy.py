"""The way from one server to the database, which can be cut or lose its connections: data then comes late or never."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from math import inf
from typing import Final

CHUNK: Final = 65536


class _Side:
    """One end of a connection: what it sent goes to *other*, waits while the way is cut, or is lost if it is silent.

    sent    bytes since the other end last sent something.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock: socket.socket = sock
        self.other: _Side = self
        self.waiting: bytearray = bytearray()
        self.is_silent: bool = False
        self.sent: int = 0


class Proxy:
    """Forwards to a port of this machine, in a thread of its own."""

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
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def cut(self) -> None:
        """Let nothing through; connections stay open, and new ones are taken, as by a network that drops packets."""
        with self._lock:
            self._is_cut = True

    def silence(self) -> None:
        """Let nothing through on the connections there are, nor the news of their end; new ones work.

        So does a firewall that restarts and forgets them, or a machine that is lost while another takes its place.
        """
        with self._lock:
            for side in self._sides:
                side.is_silent = True

    def lose_in_batch(self, size: int) -> None:
        """Wait until one request has sent *size* bytes, and the rest is to come; then be silent and cut."""
        self._has_lost.clear()
        self._loses_after = size
        assert self._has_lost.wait(60), "no batch is as large"

    def mend(self, is_late: bool) -> None:
        """Let all through again: what was held comes now if *is_late*, else those connections break."""
        with self._lock:
            self._is_cut = False
            for side in [side for side in self._sides if not side.is_silent]:
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
        """Count what was sent, and be silent and cut if that is the middle of a batch that is to be lost."""
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
        """Close both ends, or a silent one alone; what one of them had sent still comes, unless the way is cut."""
        for end in (side,) if side.is_silent else (side, side.other):
            if end in self._sides:
                self._sides.discard(end)
                self._selector.unregister(end.sock)
                with suppress(OSError):
                    end.sock.close()
