"""Connections keep the invariants of their states, and end: clients that pipeline, stall, wait, hang up and reset."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greenstalk_server.core.limits import Limits
from greenstalk_server.journal import startup
from greenstalk_server.journal.writer import JournalWriter
from greenstalk_server.net.acceptor import DescriptorBudget
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.connection import Connection
from greenstalk_server.net.server import Server
from greenstalk_server.protocol.session import INPUT_LIMIT
from greenstalk_server.runtime.clock import steady_clock
from tests.journal.disk import Disk
from tests.net.in_process import listen, wait_until
from tests.support import invariants
from tests.support.daemon import TIMEOUT
from tests.support.examples import examples
from tests.support.world import make_broker

CLIENTS: Final = 3
PUT: Final = b"put 0 0 60 1\r\nx\r\n"
INPUTS: Final = (
    PUT * 20,
    PUT * 600,
    b"put 0 0 60 200000\r\n%b\r\n" % bytes(200_000),
    b"put 0 0 60 9\r\nxx",
    b"peek 1\r\n" * 100,
    b"reserve-with-timeout 0\r\n" * 20,
    b"reserve\r\n",
    b"reserve\r\n" + b"list-tubes\r\n" * (INPUT_LIMIT // 12 + 1000),
    b"delete-batch %b\r\n" % b" ".join(b"%d" % id for id in range(1, 800)),
    b"watch mail\r\nuse mail\r\nstats\r\n" * 50,
    b"quit\r\n" + PUT,
)


class Place:
    """A server with three clients. Each reply waits for a sync, and the test can block syncs."""

    def __init__(self) -> None:
        disk, clock = Disk(), steady_clock()
        journal = JournalWriter(disk, 10_000_000, 0, os.urandom)
        self.broker = make_broker(max_job_size=10**6)
        self.broker.journal = journal
        startup.recover(disk, self.broker, journal, clock(), is_strict=True)
        listener = listen()
        files, limits = DescriptorBudget(1000, self.broker.limit_counters), Limits(output=100)
        self.server = Server(self.broker, [listener], clock, Committer(journal), files=files, limits=limits)
        self.may_sync = threading.Event()
        self.may_sync.set()
        disk.before = self._before
        self.server.start()
        self._address: tuple[str, int] = listener.sock.getsockname()
        self.clients = [self._connect() for _ in range(CLIENTS)]
        wait_until(lambda: len(self.server.connections) == CLIENTS)

    def _before(self, call: str) -> None:
        if call == "sync":
            self.may_sync.wait(TIMEOUT)

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(self._address)
        sock.setblocking(False)
        return sock

    def check(self) -> None:
        for _ in range(2):
            gevent.sleep(0.0005)  # the loop polls the sockets
            for connection in self.server.connections:
                connection.check()

    def send(self, number: int, data: bytes) -> None:
        with suppress(OSError):
            self.clients[number].send(data)

    def read(self, number: int) -> None:
        with suppress(OSError):
            self.clients[number].recv(1 << 20)

    def wait_with_much_input(self, number: int) -> Connection:
        """Wait for a job, with more input behind the reserve than the server keeps; return the connection."""
        self.clients[number].setblocking(True)
        self.clients[number].sendall(WAITS_TWICE)
        wait_until(lambda: any(one.is_waiting_unread for one in self.server.connections))
        return next(one for one in self.server.connections if one.is_waiting_unread)

    def end_input(self, number: int) -> None:
        with suppress(OSError):
            self.clients[number].shutdown(socket.SHUT_WR)

    def reconnect(self, number: int, is_reset: bool) -> None:
        if is_reset:
            self.clients[number].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.clients[number].close()
        self.clients[number] = self._connect()

    def close(self) -> None:
        self.may_sync.set()
        stopping = gevent.spawn(self.server.stop)
        gevent.sleep(0)
        for client in self.clients:
            client.close()
        stopping.join()
        assert not self.server.connections
        invariants.check(self.broker)
        assert not self.broker.clients


WAITS_TWICE: Final = (b"reserve\r\n" + b"list-tubes\r\n" * (INPUT_LIMIT // 12 + 10)) * 2
"""Input of which more than 64 KiB is kept during the first wait. The second wait begins before all of it is read."""

Step = Callable[[Place], None]
NUMBERS: Final = st.integers(0, CLIENTS - 1)
STEPS: Final[st.SearchStrategy[Step]] = st.one_of(
    st.builds(lambda number, data: lambda place: place.send(number, data), NUMBERS, st.sampled_from(INPUTS)),
    st.builds(lambda number, data: lambda place: place.send(number, data), NUMBERS, st.sampled_from(INPUTS)),
    st.builds(lambda number: lambda place: place.read(number), NUMBERS),
    st.builds(lambda number: lambda place: place.end_input(number), NUMBERS),
    st.builds(lambda number, is_reset: lambda place: place.reconnect(number, is_reset), NUMBERS, st.booleans()),
    st.sampled_from([lambda place: place.may_sync.clear(), lambda place: place.may_sync.set()]),
)


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
def test_client_that_closes_while_it_waits_with_much_input_is_noticed(is_reset: bool) -> None:
    """The server does not read the input behind 64 KiB, and so not the end of the stream either."""
    place = Place()
    try:
        waiting = place.wait_with_much_input(0)
        place.reconnect(0, is_reset)
        wait_until(lambda: waiting not in place.server.connections)
        assert not any(client.is_waiting for client in place.broker.clients)
        place.check()
    finally:
        place.close()


def test_client_that_closes_its_side_while_it_waits_with_much_input_gets_all_replies() -> None:
    place = Place()
    try:
        waiting = place.wait_with_much_input(0)
        place.end_input(0)
        wait_until(lambda: waiting not in place.server.connections)
        replies = place.clients[0].makefile("rb").read()
        assert replies.count(b"TIMED_OUT\r\n") == 2
        assert replies.count(b"OK ") == WAITS_TWICE.count(b"list-tubes")
    finally:
        place.close()


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(STEPS, min_size=20, max_size=40))
def test_states_keep_their_invariants_and_every_connection_ends(steps: list[Step]) -> None:
    place = Place()
    try:
        for step in steps:
            step(place)
            place.check()
    finally:
        place.close()
