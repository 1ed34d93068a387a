"""A raw beanstalk client, and figures of the server's process."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psutil

from tests.support.daemon import TIMEOUT, Daemon

MIB = 1 << 20


class Peer:
    """A connection with a timeout on every wait."""

    def __init__(self, server: Daemon | socket.socket, port: int | None = None) -> None:
        """*server* may be a connected socket. *port* is needed if the server has several ports."""
        if isinstance(server, socket.socket):
            self.sock = server
        else:
            self.sock = socket.create_connection(("127.0.0.1", server.port if port is None else port), TIMEOUT)
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
        """Return the next line without its CRLF, or the rest if the server closes."""
        while b"\r\n" not in self._unread and (data := self.sock.recv(65536)):
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\r\n")
        return line

    def read(self, size: int) -> bytes:
        """Return the next *size* bytes."""
        while len(self._unread) < size:
            data = self.sock.recv(65536)
            assert data, "closed by the server"
            self._unread += data
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def read_to_end(self) -> bytes:
        """Return all bytes until the server closes or resets the connection."""
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
        """Return the reply to stats, stats-tube or stats-job as a dict."""
        status, size = self.ask(request).split()
        assert status == b"OK"
        lines = self.read(int(size) + 2).decode().splitlines()
        return dict(line.split(": ", 1) for line in lines if ": " in line)


def rss(server: Daemon) -> int:
    """Return the resident memory of the server in bytes."""
    size: int = psutil.Process(server.process.pid).memory_info().rss
    return size


def open_files(server: Daemon) -> int:
    """Return the number of open file descriptors of the server."""
    count: int = psutil.Process(server.process.pid).num_fds()
    return count


def eventually(is_so: Callable[[], bool], what: str, pause: float = 0.01) -> None:
    """Wait until *is_so* returns True, which is asked every *pause* seconds; fail after TIMEOUT seconds."""
    deadline = time.monotonic() + TIMEOUT
    while not is_so():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(pause)


def connections(server: Daemon) -> int:
    """Return the number of the server's connections, without the one of this query."""
    with Peer(server) as peer:
        return int(peer.stats()["current-connections"]) - 1
