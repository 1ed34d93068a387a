"""Connections share the server: large replies, long pipelines and closes of one do not keep others waiting."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import gevent
import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import Job
from greenstalk_server.core.transitions import SLICE
from greenstalk_server.net.connection import STREAM_BATCH
from greenstalk_server.net.poller import BUDGET, PORTION
from tests.net.test_hang_up import FACTS, Pair, Slow
from tests.support.daemon import PATIENCE, Daemon
from tests.support.peer import Peer, eventually

LARGE = 20_000_000


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web") as started:
        yield started


@contextmanager
def paused(daemon: Daemon) -> Iterator[None]:
    """Stop the process of *daemon*; what is sent meanwhile queues up."""
    os.kill(daemon.process.pid, signal.SIGSTOP)
    stat = Path(f"/proc/{daemon.process.pid}/stat")
    eventually(lambda: stat.read_text().rpartition(") ")[2][0] == "T", "it is stopped")
    try:
        yield
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)


def has_arrived(peer: Peer) -> bool:
    """Whether the other side has acknowledged all that *peer* has sent."""
    return struct.unpack("i", fcntl.ioctl(peer.sock, termios.TIOCOUTQ, bytes(4))) == (0,)


def watch_many(pair: Pair) -> None:
    """Have 20,000 tubes whose list is 4 MB."""
    for start in range(0, 20_000, 100):
        pair.send(b"".join(b"watch %0200d\r\n" % number for number in range(start, start + 100)))
        assert pair.peer.recv(1 << 16).count(b"WATCHING") == 100


def test_a_large_reply_leaves_turns_to_others() -> None:
    """The reader takes whatever has arrived in each turn of the loop; as many turns as pieces are left to others."""
    broker = Broker(FACTS, max_job_size=LARGE)
    pair = Pair(broker)
    pair.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * STREAM_BATCH)
    body = os.urandom(LARGE)
    client = broker.connect(lambda: None)
    assert broker.put(client, broker.allocate_id(), 0, 0, 1, body, 0) > 0
    pair.peer.sendall(b"peek 1\r\nlist-tube-used\r\n")
    expected = b"FOUND 1 %d\r\n%b\r\nUSING default\r\n" % (LARGE, body)
    came, turns = bytearray(), 0
    with gevent.Timeout(PATIENCE):
        while len(came) < len(expected):
            try:
                came += pair.peer.recv(1 << 26)
            except BlockingIOError:
                gevent.sleep(0.000001)
                turns += 1
    assert came == expected
    assert turns >= LARGE // STREAM_BATCH
    pair.hang_up()


def test_a_client_that_leaves_in_a_large_reply_frees_its_list() -> None:
    broker = Broker(FACTS)
    pair = Pair(broker)
    watch_many(pair)
    pair.send(b"list-tubes\r\n")
    assert broker.listed_names.names == 20_001
    pair.hang_up()
    assert broker.listed_names.names == 0


def test_unread_lists_take_little_memory() -> None:
    """Forty lists of 4 MB each that nobody reads."""
    broker = Broker(FACTS)
    with ExitStack() as stack:
        pairs = [Pair(broker) for _ in range(40)]
        for pair in pairs:
            stack.callback(pair.hang_up)
        watch_many(pairs[0])
        for pair in pairs:
            pair.send(b"list-tubes\r\n")
        assert broker.listed_names.names == 20_001
        assert sum(len(pair.connection._unsent) for pair in pairs) < len(pairs) * 70_000


def test_a_long_pipeline_does_not_delay_a_short_one(daemon: Daemon) -> None:
    put = b"put 0 0 60 1\r\nx\r\n"
    with Peer(daemon) as first, Peer(daemon) as second, Peer(daemon) as short:
        for peer in (first, second, short):
            assert peer.ask(b"list-tube-used") == b"USING default"  # it is accepted
        with paused(daemon):
            for peer, count in ((first, 1000), (second, 1000), (short, 1)):
                peer.send(put * count)
                eventually(partial(has_arrived, peer), "the server's system has all of it")
        ids = [int(peer.read_line().split()[1]) for peer in (short, first, second)]
        assert ids[1] == 1
        assert ids[2] == 1 + len(PORTION)
        assert ids[0] == 1 + 2 * len(PORTION)
        for peer in (first, second):
            assert [peer.read_line().startswith(b"INSERTED ") for _ in range(999)] == [True] * 999


def test_commands_that_arrived_with_a_reset_are_executed(daemon: Daemon) -> None:
    """The peer, beanstalkd, stops at the first reply that it cannot send."""
    with Peer(daemon) as watcher:
        with paused(daemon):
            leaving = socket.create_connection(("127.0.0.1", daemon.port))
            leaving.sendall(b"use mail\r\n" + b"put 0 0 60 1\r\nx\r\n" * 10)
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaving.close()
        eventually(lambda: watcher.stats()["current-connections"] == "1", "it has left")
        assert watcher.stats(b"stats-tube mail")["current-jobs-ready"] == "10"


def test_a_busy_connection_that_is_closed_gives_its_jobs_back(daemon: Daemon) -> None:
    """It is not read while it has unsent replies, and it is the failing send that ends it."""
    with Peer(daemon) as watcher, socket.create_connection(("127.0.0.1", daemon.port)) as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        busy.sendall(b"put 0 0 60 60000\r\n" + bytes(60_000) + b"\r\nreserve\r\n")
        busy.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                busy.send(b"peek 1\r\n" * 1000)
        busy.close()
        eventually(lambda: watcher.stats()["current-jobs-ready"] == "1", "the job is ready again")


def test_the_server_stops_once_a_stream_has_left() -> None:
    broker = Broker(FACTS, max_job_size=LARGE)
    pair = Pair(broker)
    body = bytes(LARGE)
    client = broker.connect(lambda: None)
    assert broker.put(client, broker.allocate_id(), 0, 0, 1, body, 0) > 0
    pair.send(b"peek 1\r\n")
    pair.connection.stop()
    came = 0
    with gevent.Timeout(PATIENCE):
        while not pair.client.is_closed:
            with suppress(BlockingIOError):
                came += len(pair.peer.recv(1 << 20))
            gevent.sleep(0)
    with suppress(BlockingIOError):
        while data := pair.peer.recv(1 << 20):
            came += len(data)
    assert came == len(b"FOUND 1 %d\r\n" % LARGE) + LARGE + 2
    pair.peer.close()


def test_a_reply_waits_for_what_an_earlier_slice_of_its_command_has_recorded() -> None:
    """A kick of more jobs than one call moves; when it goes on none are left."""

    class Recording(Slow):
        def update(self, job: Job) -> None:
            self.promised += 1

    journal = Recording()
    broker = Broker(FACTS, journal)
    pair = Pair(broker, journal)
    client = broker.connect(lambda: None)
    for _ in range(2 * SLICE + 1):
        id = broker.allocate_id()
        assert broker.put(client, id, 0, 0, 60, b"", 0) > 0
        assert broker.bury_job(id, 0)
    journal.safe = journal.promised
    connection = pair.connection
    connection.serve(b"kick 1000\r\n", 1, PORTION)
    assert connection.collect() == b""
    for job in list(broker.tubes[b"default"].buried.values()):
        assert broker.delete(None, job.id, 1)
    assert connection.resume(1, PORTION) == b""
    assert [out for _, out in connection._held] == [b"KICKED %d\r\n" % SLICE]
    pair.hang_up()


def test_commands_that_take_long_end_the_call_of_the_loop() -> None:
    """A reserve that waits at many tubes, and a client that leaves with many jobs, count as what they cost."""
    broker = Broker(FACTS)
    pair = Pair(broker)
    watch_many(pair)
    pair.send(b"reserve\r\n")
    assert pair.client.is_waiting
    assert pair._poller._spent >= BUDGET
    pair.connection._poller.spend(-pair._poller._spent)
    pair.peer.close()
    pair.settle()
    assert pair.client.is_closed
    assert pair._poller._spent >= BUDGET


def test_what_follows_urgent_data_is_read(daemon: Daemon) -> None:
    """A recv stops at urgent data, so that it leaves something unread though it returned less than it could."""
    with Peer(daemon) as peer, paused(daemon):
        peer.send(b"list-tube-used\r\n")
        peer.sock.send(b"!", socket.MSG_OOB)
        peer.send(b"use mail\r\n")
        os.kill(daemon.process.pid, signal.SIGCONT)
        assert [peer.read_line(), peer.read_line()] == [b"USING default", b"USING mail"]
