"""An internal error in one connection is logged and closes only that connection."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import READY
from tests.net.in_process import is_readable, listen, read_to_end, start_server, wait_until
from tests.net.test_hang_up import FACTS, Pair, UnwrittenJournal
from tests.support import invariants
from tests.support.daemon import TIMEOUT


def raise_error(client: Client) -> None:
    raise RuntimeError("on_leave")


@pytest.mark.parametrize("leaves_by", ["quit", "close"])
def test_error_in_on_leave_ends_only_that_connection(leaves_by: str, caplog: pytest.LogCaptureFixture) -> None:
    """The poller serves both connections in one batch."""
    broker = Broker(FACTS)
    with listen() as listener, ExitStack() as stack:
        server = start_server(broker, [listener])
        stack.callback(server.stop)
        address = listener.sock.getsockname()
        victim, other = (stack.enter_context(socket.create_connection(address, TIMEOUT)) for _ in range(2))
        victim.sendall(b"put 0 0 60 1\r\nx\r\nreserve\r\n")
        wait_until(lambda: len(server.connections) == 2 and broker.jobs.get(1) is not None)
        (failing,) = [connection for connection in server.connections if connection.client.reserved]
        failing.on_leave = raise_error
        if leaves_by == "quit":
            victim.sendall(b"quit\r\n")
        else:
            victim.shutdown(socket.SHUT_WR)
        other.sendall(b"list-tube-used\r\n")
        assert read_to_end(victim).endswith(b"RESERVED 1 1\r\nx\r\n")
        wait_until(lambda: is_readable(other))
        assert other.recv(4096) == b"USING default\r\n"
        assert len(server.connections) == len(broker.clients) == 1
        assert broker.jobs[1].state == READY
        invariants.check(broker)
    assert caplog.text.count("internal error: the connection is closed") == 1


def test_quit_gives_the_job_to_a_client_that_waits() -> None:
    broker = Broker(FACTS)
    with listen() as listener, ExitStack() as stack:
        server = start_server(broker, [listener])
        stack.callback(server.stop)
        address = listener.sock.getsockname()
        holder, waiter = (stack.enter_context(socket.create_connection(address, TIMEOUT)) for _ in range(2))
        holder.sendall(b"put 0 0 60 1\r\nx\r\nreserve\r\n")
        wait_until(lambda: broker.totals.reserved == 1)
        waiter.sendall(b"reserve\r\n")
        wait_until(lambda: broker.waiting_count == 1)
        holder.sendall(b"quit\r\n")
        wait_until(lambda: is_readable(waiter))
        assert waiter.recv(4096) == b"RESERVED 1 1\r\nx\r\n"


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
