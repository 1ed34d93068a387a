"""A scenario of hostile requests, and the server that it is played to."""

import os
import signal
import socket
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, Self

from bench.errors import BenchError
from bench.servers import Server

TIMEOUT: Final = 120.0
"""Seconds that a reply may take."""

BATCH: Final = 500
"""Requests that a client sends before it reads their replies."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Hostile requests.

    play        sets up what they need, yields, and sends them. The measurement begins at the yield, and ends when the
                server is idle after the end of *play*.
    options     options of the server; {dir} is replaced by an empty directory.
    config      the server's configuration file; the server has none if this is empty.
    has_web     whether the server has its dashboard, at `Target.web_port`.
    has_tls     whether the server has a listener with TLS too, at `Target.tls_port`.
    """

    play: Callable[["Target"], Generator[None, None, None]]
    options: tuple[str, ...] = ()
    config: str = ""
    has_web: bool = False
    has_tls: bool = False


class Target:
    """The server under attack, and the connections to it, which are closed at the end of the scenario."""

    def __init__(self, server: Server, at_exit: ExitStack, tls_port: int | None) -> None:
        self.pid: int = server.pid
        self.port: int = server.port
        self.web_port: int | None = server.web_port
        self.tls_port: int | None = tls_port
        self.reload: Callable[[str], None] = server.set_policies
        """Replace the configuration file by the given text, and have the server read it."""
        self._at_exit: ExitStack = at_exit

    def connect(self, port: int | None = None) -> "Client":
        """Return a new connection of the beanstalk protocol, by default to `port`."""
        client = Client(self.port if port is None else port)
        self._at_exit.callback(client.close)
        return client

    def connect_many(self, count: int) -> list["Client"]:
        """Return *count* connections, all of which the server has accepted."""
        clients = [self.connect() for _ in range(count)]
        clients[-1].ask(b"list-tube-used\r\n")
        return clients

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the server during the block, so that it finds at once all that was sent in the block."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


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
            part = self.sock.recv(1 << 20)
            if not part:
                raise BenchError("the server has closed the connection")
            count -= part.count(b"\n")
            data += part
        return bytes(data)

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

    def ask_all(self, requests: Iterable[bytes]) -> None:
        """Send *requests* in batches; each reply is one line."""
        rest = list(requests)
        for begin in range(0, len(rest), BATCH):
            part = rest[begin : begin + BATCH]
            self.ask(b"".join(part), len(part))

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()
