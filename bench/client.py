"""A client of the beanstalk protocol that pipelines commands."""

import socket
from collections.abc import Iterable
from itertools import islice
from typing import Final, Self

from .errors import BenchError

TIMEOUT: Final = 120.0
"""Seconds that a reply may take."""

BATCH: Final = 500
"""Requests that a client sends before it reads their replies."""


class Client:
    """A connection of the beanstalk protocol. Replies are counted in lines."""

    def __init__(self, port: int) -> None:
        self.sock: socket.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT)

    def send(self, data: bytes) -> Self:
        """Send *data*."""
        self.sock.sendall(data)
        return self

    def read_lines(self, count: int) -> bytes:
        """Return the next *count* lines. All other replies must have been read."""
        data = bytearray()
        while count > 0:
            part = self.read()
            count -= part.count(b"\n")
            data += part
        return bytes(data)

    def read(self) -> bytes:
        """Return what has arrived, after waiting for some of it."""
        part = self.sock.recv(1 << 20)
        if not part:
            raise BenchError("the server has closed the connection")
        return part

    def ask(self, requests: bytes, lines: int = 1) -> bytes:
        """Send *requests*, whose replies have *lines* lines; return the replies."""
        return self.send(requests).read_lines(lines)

    def stats(self) -> bytes:
        """Return the reply to stats."""
        reply = self.ask(b"stats\r\n")
        size = int(reply.split()[1])
        while len(reply) < reply.index(b"\n") + 1 + size + 2:
            reply += self.sock.recv(1 << 16)
        return reply

    def ask_all(self, requests: Iterable[bytes], lines: int = 1) -> None:
        """Send *requests* in batches; the replies to each have *lines* lines."""
        rest = iter(requests)
        while part := list(islice(rest, BATCH)):
            self.ask(b"".join(part), lines * len(part))

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()
