"""An internal error in one connection is logged and closes only that connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from greenstalk_server.core import invariants
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import READY
from greenstalk_server.net.connection import Connection
from greenstalk_server.net.server import Server
from tests.net.in_process import is_readable, listen, read_to_end, start_server, wait_until
from tests.net.test_hang_up import FACTS, Pair, UnwrittenJournal
from tests.support.daemon import TIMEOUT

COUNT = 10
VICTIM = 3


@pytest.fixture
def broker() -> Broker:
    return Broker(FACTS)


class Served:
    """A server, and COUNT peers in the order of their connections."""

    def __init__(self, broker: Broker, stack: ExitStack) -> None:
        self.listener = stack.enter_context(listen())
        self.server: Server = start_server(broker, [self.listener])
        stack.callback(self.server.stop)
        self.peers = [
            stack.enter_context(socket.create_connection(self.listener.sock.getsockname(), TIMEOUT))
            for _ in range(COUNT)
        ]
        wait_until(lambda: len(self.server.connections) == COUNT)
        self.connections: list[Connection] = sorted(self.server.connections, key=lambda one: one.client.number)

    def ask(self, peer: socket.socket, request: bytes) -> bytes:
        peer.sendall(request)
        return self.reply(peer)

    def reply(self, peer: socket.socket) -> bytes:
        wait_until(lambda: is_readable(peer))
        return peer.recv(4096)


@pytest.fixture
def served(broker: Broker) -> Iterator[Served]:
    with ExitStack() as stack:
        yield Served(broker, stack)


def raise_error(client: Client) -> None:
    raise RuntimeError("on_leave")


@pytest.mark.parametrize("leaves_by", ["quit", "close"])
def test_error_in_on_leave_ends_only_that_connection(
    broker: Broker, served: Served, leaves_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    victim = served.peers[VICTIM]
    assert served.ask(victim, b"put 0 0 60 1\r\nx\r\n") == b"INSERTED 1\r\n"
    assert served.ask(victim, b"reserve\r\n") == b"RESERVED 1 1\r\nx\r\n"

    served.connections[VICTIM].on_leave = raise_error
    for number, peer in enumerate(served.peers):  # the poller serves them in one batch
        if number != VICTIM:
            peer.sendall(b"list-tube-used\r\n")
        elif leaves_by == "quit":
            peer.sendall(b"quit\r\n")
        else:
            peer.shutdown(socket.SHUT_WR)
    others = [peer for peer in served.peers if peer is not victim]
    assert [served.reply(peer) for peer in others] == [b"USING default\r\n"] * len(others)
    assert read_to_end(victim) == b""
    assert len(served.server.connections) == len(broker.clients) == len(others)
    assert broker.jobs[1].state == READY
    invariants.check(broker)
    assert [served.ask(peer, b"list-tube-used\r\n") for peer in others] == [b"USING default\r\n"] * len(others)
    assert caplog.text.count("internal error: the connection is closed") == 1


def test_error_while_held_replies_are_sent_does_not_reach_the_committer() -> None:
    journal = UnwrittenJournal()
    broker = Broker(FACTS, journal)
    pair = Pair(broker, journal)
    pair.send(b"put 0 0 60 1\r\nx\r\n")
    assert journal.holders == [pair.connection]
    pair.connection.on_leave = raise_error
    pair.peer.close()
    pair.connection.release(journal.promised)
    pair.settle()
    assert pair.client.is_closed
    assert not broker.clients
