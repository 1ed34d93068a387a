"""`Client.hang_up` closes a connection in each of its states, closes its socket, and makes its jobs ready."""

from __future__ import annotations

import socket
from typing import Any

import gevent
import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.counters import ServerFacts
from greenstalk_server.core.jobs.job import READY, SECOND, Job
from greenstalk_server.core.journal import NullJournal
from greenstalk_server.core.operations import connecting, putting
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.connection import MAX_HELD_REPLIES, Connection
from greenstalk_server.net.poller import Poller
from greenstalk_server.protocol.costs import COMMAND_SLICE
from greenstalk_server.runtime.clock import steady_clock
from tests.support import invariants

FACTS = ServerFacts("0" * 16, 1, "1", "pure Python", "host", "os", "platform", 0, lambda: (0.0, 0.0))


class UnwrittenJournal(NullJournal):
    """A journal and its committer, which has written no record yet. `holders` are the connections with held replies."""

    def __init__(self) -> None:
        super().__init__()
        self.holders: list[Connection] = []

    def put(self, job: Job) -> bool:
        self.promised += 1
        return True

    def hold(self, holder: Connection) -> None:
        self.holders.append(holder)

    def limit_records(self) -> None:
        pass


class Pair:
    """A served connection and its peer."""

    def __init__(self, broker: Broker, committer: UnwrittenJournal | Committer | None = None) -> None:
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.peer.setblocking(False)
        self.connection: Connection
        self._broker, self._committer, self.poller = broker, committer, Poller(steady_clock())
        self.poller.start()
        gevent.spawn_raw(self._serve, ours)
        self.settle()

    @property
    def client(self) -> Client:
        return self.connection.client

    def send(self, data: bytes) -> None:
        self.peer.sendall(data)
        self.settle()

    def settle(self) -> None:
        for _ in range(5):
            gevent.sleep(0.001)
        self.connection.check()

    def is_at_end(self) -> bool:
        """Return whether the peer sees the end of the stream after reading all replies."""
        try:
            while data := self.peer.recv(1 << 20):
                assert data
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        return True

    def hang_up(self) -> None:
        self.client.hang_up()
        self.settle()
        assert self.client.is_closed
        assert self.is_at_end()
        self.peer.close()

    def _serve(self, sock: socket.socket) -> None:
        parts: tuple[Any, ...] = (self.poller, self._committer, lambda *_: None)
        self.connection = Connection(self._broker, sock, "", steady_clock(), *parts)
        self.connection.start()
        try:
            self.connection.run()
        finally:
            self.connection.close()


def test_hang_up_of_an_idle_client_with_jobs() -> None:
    broker = Broker(FACTS)
    pair = Pair(broker)
    pair.send(b"put 0 0 60 1\r\nx\r\n" * 3 + b"reserve\r\n" * 3)
    assert len(pair.client.reserved) == 3
    assert not pair.is_at_end()
    pair.hang_up()
    assert [job.state for job in broker.jobs.values()] == [READY] * 3
    invariants.check(broker)


def test_hang_up_of_a_waiting_client() -> None:
    broker = Broker(FACTS)
    pair = Pair(broker)
    pair.send(b"watch other\r\nreserve\r\n")
    assert pair.client.is_waiting
    pair.hang_up()
    assert not broker.clients
    invariants.check(broker)


def test_hang_up_in_the_middle_of_a_body() -> None:
    broker = Broker(FACTS)
    pair = Pair(broker)
    pair.send(b"put 0 0 60 5000\r\nx")
    pair.hang_up()
    assert not broker.jobs


def test_hang_up_of_a_client_that_reads_nothing() -> None:
    broker = Broker(FACTS)
    pair = Pair(broker)
    pair.send(b"put 0 0 60 60000\r\n" + bytes(60000) + b"\r\n" + b"peek 1\r\n" * 200)
    pair.hang_up()
    invariants.check(broker)


def test_hang_up_while_replies_wait_for_the_journal() -> None:
    journal = UnwrittenJournal()
    broker = Broker(FACTS, journal)
    pair = Pair(broker, journal)
    for _ in range(MAX_HELD_REPLIES):
        pair.send(b"put 0 0 60 1\r\nx\r\n")
    assert len(journal.holders) == MAX_HELD_REPLIES
    pair.hang_up()
    for holder in journal.holders:
        holder.release(journal.promised)
    assert pair.connection.receive() is None  # else it would use a descriptor that may be another socket's


def test_job_of_an_unwritten_put_is_not_sent_at_the_end_of_input() -> None:
    journal = UnwrittenJournal()
    broker = Broker(FACTS, journal)
    pair = Pair(broker, journal)
    pair.send(b"reserve\r\n")
    producer = connecting.connect(broker, lambda: None)
    assert putting.put(broker, producer, broker.allocate_id(), 0, 0, SECOND, b"x", 0) > 0
    assert pair.connection.serve(b"", 0, COMMAND_SLICE) == b""
    assert journal.holders == [pair.connection]
    assert pair.client.is_closed and not pair.is_at_end()
    journal.holders[0].release(journal.promised)
    pair.settle()
    assert pair.peer.recv(100) == b"RESERVED 1 1\r\nx\r\n"
    assert pair.is_at_end()
    pair.peer.close()


class PromptJournal(UnwrittenJournal):
    """A journal that has written everything by the next loop iteration."""

    def hold(self, holder: Connection) -> None:
        gevent.spawn_raw(holder.release, self.promised)


def test_held_replies_are_sent_before_later_ones() -> None:
    """The reply to the put is held with the others of its slice, and released just before the next slice is served."""
    journal = PromptJournal()
    pair = Pair(Broker(FACTS, journal), journal)
    rest = COMMAND_SLICE - 1
    pair.send(b"put 0 0 60 1\r\nx\r\n" + b"list-tube-used\r\n" * rest + b"watch other\r\n")
    assert pair.peer.recv(1 << 20) == b"INSERTED 1\r\n" + b"USING default\r\n" * rest + b"WATCHING 2\r\n"
    pair.hang_up()


class FailingJournal(NullJournal):
    """A journal that raises an unexpected exception."""

    def put(self, job: Job) -> bool:
        raise LookupError("put failed")


def test_internal_error_ends_the_connection_in_its_greenlet() -> None:
    broker = Broker(FACTS, FailingJournal())
    pair, other = Pair(broker), Pair(broker)
    pair.send(b"put 0 0 60 1\r\nx\r\n")
    assert isinstance(pair.connection.crash, LookupError) and str(pair.connection.crash) == "put failed"
    assert pair.is_at_end() and pair.client.is_closed
    other.send(b"list-tube-used\r\n")
    assert other.peer.recv(100) == b"USING default\r\n"
    other.hang_up()
    pair.peer.close()


def test_closed_connection_never_uses_its_descriptor_again() -> None:
    """The descriptor belongs to another connection by then."""
    pair = Pair(Broker(FACTS))
    pair.hang_up()
    near, far = socket.socketpair()
    far.setblocking(False)
    others = [near]
    while near.fileno() != pair.connection._fd and len(others) < 20:
        near = near.dup()
        others.append(near)
    assert near.fileno() == pair.connection._fd
    with pytest.raises(OSError, match="Bad file descriptor"):
        pair.connection._send(b"x")
    with pytest.raises(OSError, match="Bad file descriptor"):
        pair.connection._recv(1)
    with pytest.raises(BlockingIOError):
        far.recv(1)
    for other in [*others, far]:
        other.close()
