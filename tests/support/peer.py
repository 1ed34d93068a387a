"""A raw client, and what the system says of the server's process."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psutil

from tests.support.daemon import PATIENCE, Daemon

MIB = 1 << 20


class Peer:
    """A connection whose every wait is bounded."""

    def __init__(self, server: Daemon | socket.socket, port: int | None = None) -> None:
        """*port* is another than the server's only one. A socket, if that is given, is connected already."""
        if isinstance(server, socket.socket):
            self.sock = server
        else:
            self.sock = socket.create_connection(("127.0.0.1", server.port if port is None else port), PATIENCE)
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def read_line(self) -> bytes:
        """The next line without its end; what there is of it if the server closes."""
        while b"\r\n" not in self._unread and (data := self.sock.recv(65536)):
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\r\n")
        return line

    def read(self, size: int) -> bytes:
        """The next *size* bytes."""
        while len(self._unread) < size:
            data = self.sock.recv(65536)
            assert data, "closed by the server"
            self._unread += data
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def read_to_end(self) -> bytes:
        """All that comes until the server closes, in order or not."""
        try:
            while data := self.sock.recv(65536):
                self._unread += data
        except ConnectionResetError:
            pass
        return self._unread

    def ask(self, request: bytes) -> bytes:
        """Send a command; return the first line of its reply."""
        self.send(request + b"\r\n")
        return self.read_line()

    def stats(self, request: bytes = b"stats") -> dict[str, str]:
        """The reply to stats, stats-tube or stats-job."""
        status, size = self.ask(request).split()
        assert status == b"OK"
        lines = self.read(int(size) + 2).decode().splitlines()
        return dict(line.split(": ", 1) for line in lines if ": " in line)


def rss(server: Daemon) -> int:
    """Resident memory of the server, bytes."""
    size: int = psutil.Process(server.process.pid).memory_info().rss
    return size


def open_files(server: Daemon) -> int:
    """How many file descriptors the server has open."""
    count: int = psutil.Process(server.process.pid).num_fds()
    return count


def eventually(is_so: Callable[[], bool], what: str) -> None:
    """Return as soon as *is_so*; fail if it does not come about."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.01)


def connections(server: Daemon) -> int:
    """How many connections the server has, the asking one left out."""
    with Peer(server) as peer:
        return int(peer.stats()["current-connections"]) - 1
