"""Large replies, long pipelines and closes of one connection do not delay the others."""

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
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gevent
import pytest

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.operations import connecting, finishing, kicking, putting
from greenstalk_server.journal.batch import Batch
from greenstalk_server.journal.files import Directory
from greenstalk_server.journal.record import UPDATE_SIZE
from greenstalk_server.journal.startup import recover
from greenstalk_server.journal.writer import JournalWriter
from greenstalk_server.net.committer import MAX_UNCOMMITTED, Committer
from greenstalk_server.net.connection import STREAM_BATCH
from greenstalk_server.net.poller import BUDGET, COMMAND_QUANTUM
from greenstalk_server.runtime.clock import steady_clock
from tests.net.in_process import is_readable, wait_until
from tests.net.test_hang_up import FACTS, Pair, UnwrittenJournal
from tests.support.daemon import TIMEOUT, Daemon
from tests.support.peer import Peer, eventually

LARGE = 20_000_000


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web") as started:
        yield started


@contextmanager
def paused(daemon: Daemon) -> Iterator[None]:
    """Stop the process of *daemon* during the block, so that input queues up."""
    os.kill(daemon.process.pid, signal.SIGSTOP)
    stat = Path(f"/proc/{daemon.process.pid}/stat")
    eventually(lambda: stat.read_text().rpartition(") ")[2][0] == "T", "the process is stopped")
    try:
        yield
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)


def has_arrived(peer: Peer) -> bool:
    """Return whether the server has acknowledged all bytes of *peer*."""
    return struct.unpack("i", fcntl.ioctl(peer.sock, termios.TIOCOUTQ, bytes(4))) == (0,)


def watch_many(pair: Pair) -> None:
    """Watch 20,000 tubes, whose list is 4 MB."""
    for start in range(0, 20_000, 100):
        pair.send(b"".join(b"watch %0200d\r\n" % number for number in range(start, start + 100)))
        assert pair.peer.recv(1 << 16).count(b"WATCHING") == 100


def test_loop_runs_between_the_pieces_of_a_large_reply() -> None:
    """The peer reads in each iteration of the loop. There is at least one iteration per piece of the reply."""
    broker = Broker(FACTS, max_job_size=LARGE)
    pair = Pair(broker)
    pair.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * STREAM_BATCH)
    body = os.urandom(LARGE)
    client = connecting.connect(broker, lambda: None)
    assert putting.put(broker, client, broker.allocate_id(), 0, 0, 1, body, 0) > 0
    pair.peer.sendall(b"peek 1\r\nlist-tube-used\r\n")
    expected = b"FOUND 1 %d\r\n%b\r\nUSING default\r\n" % (LARGE, body)
    received, iterations = bytearray(), 0
    with gevent.Timeout(TIMEOUT):
        while len(received) < len(expected):
            try:
                received += pair.peer.recv(1 << 26)
            except BlockingIOError:
                gevent.sleep(0.000001)
                iterations += 1
    assert received == expected
    assert iterations >= LARGE // STREAM_BATCH
    pair.hang_up()


def test_disconnect_during_a_large_reply_frees_its_list() -> None:
    broker = Broker(FACTS)
    pair = Pair(broker)
    watch_many(pair)
    pair.send(b"list-tubes\r\n")
    assert broker.listed_names.names == 20_001
    pair.hang_up()
    assert broker.listed_names.names == 0


def test_unread_lists_take_little_memory() -> None:
    """Forty unread lists of 4 MB each share one list."""
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


@pytest.mark.linux_form  # it expects the order of arrival
def test_long_pipeline_does_not_delay_a_short_one(daemon: Daemon) -> None:
    put = b"put 0 0 60 1\r\nx\r\n"
    with Peer(daemon) as first, Peer(daemon) as second, Peer(daemon) as short:
        for peer in (first, second, short):
            assert peer.ask(b"list-tube-used") == b"USING default"  # the connection is accepted
        with paused(daemon):
            for peer, count in ((first, 1000), (second, 1000), (short, 1)):
                peer.send(put * count)
                eventually(partial(has_arrived, peer), "the server's kernel has all bytes")
        ids = [int(peer.read_line().split()[1]) for peer in (short, first, second)]
        assert ids[1] == 1
        assert ids[2] == 1 + COMMAND_QUANTUM
        assert ids[0] == 1 + 2 * COMMAND_QUANTUM
        for peer in (first, second):
            assert [peer.read_line().startswith(b"INSERTED ") for _ in range(999)] == [True] * 999


def test_commands_that_arrived_with_a_reset_are_executed(daemon: Daemon) -> None:
    """The reference server stops at the first reply that it cannot send."""
    with Peer(daemon) as watcher:
        with paused(daemon):
            client = socket.create_connection(("127.0.0.1", daemon.port))
            client.sendall(b"use mail\r\n" + b"put 0 0 60 1\r\nx\r\n" * 10)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        eventually(lambda: watcher.stats()["current-connections"] == "1", "the connection is closed")
        assert watcher.stats(b"stats-tube mail")["current-jobs-ready"] == "10"


def test_jobs_of_a_busy_closed_connection_are_ready_again(daemon: Daemon) -> None:
    """The connection is not read while it has unsent replies; the failing send ends it."""
    with Peer(daemon) as watcher, socket.create_connection(("127.0.0.1", daemon.port)) as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        busy.sendall(b"put 0 0 60 60000\r\n" + bytes(60_000) + b"\r\nreserve\r\n")
        busy.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                busy.send(b"peek 1\r\n" * 1000)
        busy.close()
        eventually(lambda: watcher.stats()["current-jobs-ready"] == "1", "the job is ready again")


def test_stop_waits_for_a_stream_to_be_sent() -> None:
    broker = Broker(FACTS, max_job_size=LARGE)
    pair = Pair(broker)
    body = bytes(LARGE)
    client = connecting.connect(broker, lambda: None)
    assert putting.put(broker, client, broker.allocate_id(), 0, 0, 1, body, 0) > 0
    pair.send(b"peek 1\r\n")
    pair.connection.stop()
    size = 0
    with gevent.Timeout(TIMEOUT):
        while not pair.client.is_closed:
            with suppress(BlockingIOError):
                size += len(pair.peer.recv(1 << 20))
            gevent.sleep(0)
    with suppress(BlockingIOError):
        while data := pair.peer.recv(1 << 20):
            size += len(data)
    assert size == len(b"FOUND 1 %d\r\n" % LARGE) + LARGE + 2
    pair.peer.close()


class CountingChanges(UnwrittenJournal):
    def update(self, job: Job) -> None:
        self.promised += 1

    def delete(self, job: Job) -> None:
        self.promised += 1


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (b"delete-batch " + b" ".join(b"%d" % id for id in range(1, SLICE + 2)), b"DELETED_BATCH %d 1\r\n" % SLICE),
        (b"flush-tube default", b"FLUSHED %d\r\n" % SLICE),
        (b"truncate default", b"TRUNCATED %d\r\n" % SLICE),
        (b"kick 1000", b"KICKED %d\r\n" % SLICE),
    ],
)
def test_reply_waits_for_the_records_of_earlier_slices_of_its_command(sent: bytes, reply: bytes) -> None:
    """Another client deletes the job that is left for the last slice."""
    journal = CountingChanges()
    broker = Broker(FACTS, journal)
    pair = Pair(broker, journal)
    client = connecting.connect(broker, lambda: None)
    for _ in range(SLICE + 1):
        assert putting.put(broker, client, broker.allocate_id(), 0, SECOND, 60, b"", 0) > 0
    journal.safe = journal.promised
    connection = pair.connection
    connection.serve(sent + b"\r\n", 1, COMMAND_QUANTUM)
    assert connection.collect() == b""
    assert finishing.delete(broker, None, SLICE + 1, 1)
    connection.send(connection.resume(1, COMMAND_QUANTUM))
    assert [out for _, out in connection._held_replies] == [reply]
    pair.hang_up()


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A temporary directory in memory."""
    with TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.mark.pure
def test_records_of_a_long_kick_are_committed_between_its_slices(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records of the kick would take ten times MAX_UNCOMMITTED bytes. On a slow disk, more wait for a commit.

    The loop itself runs the batches that it would pass to the thread after a slow write: while the thread waits for a
    CPU, the kick goes on and its records are pending.
    """
    files, now = Directory(str(memory_path)), steady_clock()()
    journal = JournalWriter(files, 2**25, SECOND, os.urandom)
    broker = Broker(FACTS, journal)
    recover(files, broker, journal, now, is_strict=True)
    client = connecting.connect(broker, lambda: None)
    count = 10 * MAX_UNCOMMITTED // UPDATE_SIZE
    for _ in range(count):
        assert putting.put(broker, client, broker.allocate_id(), 0, 1000 * SECOND, SECOND, b"", now) > 0
    committer = Committer(journal)
    monkeypatch.setattr(committer, "_run_in_thread", Batch.run)
    committer.start()
    assert committer.wait(TIMEOUT)
    pending, kick = list[int](), kicking.kick

    def recording_kick(*args: Any) -> int:
        kicked = kick(*args)
        pending.append(journal.pending_bytes)
        return kicked

    monkeypatch.setattr(kicking, "kick", recording_kick)
    pair = Pair(broker, committer)
    pair.send(b"kick %d\r\n" % count)
    wait_until(lambda: is_readable(pair.peer))
    assert pair.peer.recv(100) == b"KICKED %d\r\n" % count
    assert len(pending) > count // SLICE and max(pending) < 2 * MAX_UNCOMMITTED
    assert any(later < earlier for earlier, later in pairwise(pending))
    pair.hang_up()
    committer.stop()


def test_expensive_commands_end_the_poller_call() -> None:
    """A reserve on many tubes, and a disconnect with many jobs, are charged their cost."""
    broker = Broker(FACTS)
    pair = Pair(broker)
    watch_many(pair)
    pair.send(b"reserve\r\n")
    assert pair.client.is_waiting
    assert pair.poller._spent >= BUDGET
    pair.poller.spend(-pair.poller._spent)
    pair.peer.close()
    pair.settle()
    assert pair.client.is_closed
    assert pair.poller._spent >= BUDGET


def test_input_after_urgent_data_is_read(daemon: Daemon) -> None:
    """A recv stops at urgent data, and leaves input unread although it returns less than its maximum."""
    with Peer(daemon) as peer, paused(daemon):
        peer.send(b"list-tube-used\r\n")
        peer.sock.send(b"!", socket.MSG_OOB)
        peer.send(b"use mail\r\n")
        os.kill(daemon.process.pid, signal.SIGCONT)
        assert [peer.read_line(), peer.read_line()] == [b"USING default", b"USING mail"]
