"""Clients that put, reserve, release and delete, move to another server when theirs fails, and record all replies."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Sequence
from typing import Final

from tests.failover.history import DELETE, HANG_UP, PUT, RELEASE, RESERVE, History, Step

REPLY_TIMEOUT: Final = 4.0
"""Seconds without a reply after which a client gives up a server."""

PROBE_TIMEOUT: Final = 0.7
"""The same for the client that only tests which server is active."""

TTR: Final = 3600
"""Seconds; long, so that no reservation times out."""

MAX_LIVE: Final = 400


class _Gone(Exception):
    """The server has closed the connection, or does not reply."""


class Client(threading.Thread):
    """One client, which runs until `stop`."""

    def __init__(self, number: int, ports: Sequence[int], history: History, seed: str, is_probe: bool = False) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self.failure: BaseException | None = None
        self._ports: Sequence[int] = ports
        self._history: History = history
        self._random: random.Random = random.Random(f"{seed}/{number}")  # noqa: S311  a seed, no secret
        self._prefix: str = f"{seed}/{number}"
        self._is_probe: bool = is_probe
        self._is_over: threading.Event = threading.Event()
        self._count: int = 0
        self._lives: int = 0
        self._held: list[tuple[int, bytes]] = []

    def stop(self) -> None:
        """End the client soon."""
        self._is_over.set()

    def run(self) -> None:
        try:
            while not self._is_over.is_set():
                for port in self._ports:
                    self._visit(port)
        except BaseException as error:  # noqa: BLE001  raised by the thread that joins
            self.failure = error

    @property
    def _who(self) -> str:
        """This client on this connection."""
        return f"{self.name}/{self._lives}"

    def _visit(self, port: int) -> None:
        """Use one server as long as it replies."""
        timeout = PROBE_TIMEOUT if self._is_probe else REPLY_TIMEOUT
        try:
            sock = socket.create_connection(("127.0.0.1", port), timeout)
        except OSError:
            time.sleep(0.01)
            return
        self._lives += 1
        with sock, sock.makefile("rb") as reader:
            self._sock, self._reader = sock, reader
            try:
                while not self._is_over.is_set():
                    self._work()
            except (_Gone, OSError):
                pass
            finally:
                self._history.add(Step(self._who, HANG_UP, b"", time.monotonic()))
                self._held.clear()

    def _work(self) -> None:
        if self._is_probe:
            self._put()
            time.sleep(0.02)
            return
        what = self._random.random()
        if self._held and what < 0.6:
            self._settle()
        elif what < 0.8 and len(self._held) < 5:
            self._reserve()
        else:
            self._put()

    def _ask(self, request: bytes) -> bytes:
        """Send *request*; return the first line of the reply."""
        self._sock.sendall(request)
        line: bytes = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise _Gone
        return line[:-2]

    def _put(self) -> None:
        self._count += 1
        token = f"{self._prefix}/{self._count}".encode()
        body = token + b":" + bytes(self._random.choice((0, 50, 2000)))
        step = self._history.add(Step(self._who, PUT, token, time.monotonic()))
        line = self._ask(b"put %d 0 %d %d\r\n%b\r\n" % (self._random.randrange(3), TTR, len(body), body))
        if not line.startswith(b"INSERTED "):
            self._history.wrong.append(f"a put was answered {line!r}")
            return
        step.ended, step.is_done = time.monotonic(), True
        self._history.name(int(line.split()[1]), token)

    def _reserve(self) -> None:
        begun = time.monotonic()
        line = self._ask(b"reserve-with-timeout 0\r\n")
        if line == b"TIMED_OUT":
            return
        word, id, size = line.split()
        assert word == b"RESERVED", line
        body = self._reader.read(int(size) + 2)
        if len(body) < int(size) + 2:
            raise _Gone
        token = body.partition(b":")[0]
        self._history.add(Step(self._who, RESERVE, token, begun, time.monotonic(), is_done=True))
        self._history.name(int(id), token)
        self._held.append((int(id), token))

    def _settle(self) -> None:
        id, token = self._held.pop(self._random.randrange(len(self._held)))
        kind, request = (
            (RELEASE, b"release %d 1 0\r\n" % id) if self._random.random() < 0.2 else (DELETE, b"delete %d\r\n" % id)
        )
        step = self._history.add(Step(self._who, kind, token, time.monotonic()))
        line = self._ask(request)
        if line not in (b"DELETED", b"RELEASED"):
            self._history.wrong.append(f"{request!r} of {token!r} by {self._who} was answered {line!r}")
            return
        step.ended, step.is_done = time.monotonic(), True


def put_large(port: int, size: int, history: History, token: str) -> None:
    """Put a job of *size* bytes on the server at *port*, which may be lost before it replies."""
    body = token.encode() + b":"
    body += bytes(size - len(body))
    step = history.add(Step(token, PUT, token.encode(), time.monotonic()))
    try:
        with socket.create_connection(("127.0.0.1", port), 60) as sock, sock.makefile("rb") as reader:
            sock.sendall(b"put 0 0 %d %d\r\n%b\r\n" % (TTR, size, body))
            line = reader.readline()
    except OSError:
        return
    if line.startswith(b"INSERTED "):
        step.ended, step.is_done = time.monotonic(), True
        history.name(int(line.split()[1]), token.encode())


def drain(port: int) -> list[bytes]:
    """Delete all ready jobs of the server at *port*; return their tokens."""
    tokens: list[bytes] = []
    with socket.create_connection(("127.0.0.1", port), 60) as sock, sock.makefile("rb") as reader:
        while True:
            sock.sendall(b"reserve-with-timeout 0\r\n")
            line = reader.readline()
            if line == b"TIMED_OUT\r\n":
                return tokens
            _, id, size = line.split()
            body = reader.read(int(size) + 2)
            tokens.append(body.partition(b":")[0])
            sock.sendall(b"delete %d\r\n" % int(id))
            assert reader.readline() == b"DELETED\r\n"
