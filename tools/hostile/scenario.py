"""A scenario of hostile requests, and the server that it is played to."""

import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.client import Client
from bench.servers import Server


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

    def connect(self, port: int | None = None) -> Client:
        """Return a new connection of the beanstalk protocol, by default to `port`."""
        client = Client(self.port if port is None else port)
        self._at_exit.callback(client.close)
        return client

    def connect_many(self, count: int) -> list[Client]:
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
