"""Misbehaving clients: the server keeps serving the others, and leaks no connection, file or memory."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
from collections.abc import Iterator

import pytest

from greenstalk_server.runtime.gc_tuning import MIN_TRIM
from tests.support.daemon import COMMAND, TIMEOUT, Daemon
from tests.support.peer import MIB, Peer, connections, eventually, open_files, rss

BIG = 60_000


@pytest.fixture(scope="module", autouse=True)
def warm(server: Daemon) -> None:
    """Put and delete many jobs, so that the memory and files that the server keeps are allocated."""
    with Peer(server) as peer:
        for _ in range(300):
            peer.send(b"put 0 0 60 %d\r\n%b\r\n" % (BIG, bytes(BIG)))
            peer.read_line()
        delete_all(peer, 300)


@pytest.fixture
def good(server: Daemon) -> Iterator[Peer]:
    """A well-behaved client, served before, during and after a test that may leave no connection or file open."""
    eventually(lambda: connections(server) == 0, "all earlier connections are closed")
    files = open_files(server)
    with Peer(server) as peer:
        round_trip(peer)
        yield peer
        round_trip(peer)
    eventually(lambda: connections(server) == 0, "all connections are closed")
    eventually(lambda: open_files(server) <= files, "all files are closed")


def round_trip(peer: Peer) -> None:
    """Put a job, reserve it and delete it."""
    peer.send(b"use good\r\nwatch good\r\nignore default\r\nput 0 0 60 1\r\nx\r\n")
    assert [peer.read_line().split()[0] for _ in range(4)] == [b"USING", b"WATCHING", b"WATCHING", b"INSERTED"]
    _, id, _ = peer.ask(b"reserve-with-timeout 0").split()
    assert peer.read_line() == b"x"
    assert peer.ask(b"delete " + id) == b"DELETED"
    peer.send(b"use default\r\nwatch default\r\nignore good\r\n")
    assert [peer.read_line() for _ in range(3)] == [b"USING default", b"WATCHING 2", b"WATCHING 1"]


def delete_all(peer: Peer, count: int) -> None:
    """Delete *count* ready jobs of the used tube."""
    for _ in range(count):
        _, id, size = peer.ask(b"peek-ready").split()
        peer.read(int(size) + 2)
        assert peer.ask(b"delete " + id) == b"DELETED"


def reset(sock: socket.socket) -> None:
    """Close the connection with a reset instead of a FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("breaks", [False, True], ids=["closes", "resets"])
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"sta",
        b"stats\r",
        b"put 0 0 60 100\r\nabc",
        b"put 0 0 60 99999\r\nabc",
        b"a" * 999,
        b"reserve\r\n",
        b"stats\r\n",
    ],
)
def test_disconnect_in_the_middle_of_a_command(server: Daemon, good: Peer, sent: bytes, breaks: bool) -> None:
    for _ in range(20):
        peer = Peer(server)
        peer.send(sent)
        if breaks:
            reset(peer.sock)
        else:
            peer.sock.close()
        round_trip(good)


def test_endless_body_takes_bounded_memory(server: Daemon, good: Peer) -> None:
    """A job exists once its body is complete. A body that is too big is discarded as it arrives."""
    before = rss(server)
    with Peer(server) as small, Peer(server) as big:
        small.send(b"put 0 0 60 65535\r\n")
        big.send(b"put 0 0 60 4294967295\r\n")
        for _ in range(6):
            for _ in range(100):
                small.send(b"b" * 100)
                big.send(b"b" * 65536)
            round_trip(good)
        assert rss(server) < before + 8 * MIB
        assert good.stats()["current-jobs-ready"] == "0"


def test_line_of_ten_megabytes_is_refused(server: Daemon, good: Peer) -> None:
    before = rss(server)
    with Peer(server) as peer:
        for _ in range(10):
            peer.send(b"a" * MIB)
            round_trip(good)
        assert rss(server) < before + 4 * MIB
        peer.send(b"\r\nlist-tube-used\r\n")
        assert [peer.read_line(), peer.read_line()] == [b"BAD_FORMAT", b"USING default"]


def send_without_reading(peer: Peer, data: bytes) -> int:
    """Send *data* until the server stops reading, because its replies are unread; return the number of bytes sent."""
    peer.sock.setblocking(False)
    sent = 0
    while sent < len(data) and select.select([], [peer.sock], [], 0.5)[1]:
        with contextlib.suppress(BlockingIOError):
            sent += peer.sock.send(data[sent : sent + 65536])
    peer.sock.settimeout(TIMEOUT)
    return sent


@pytest.mark.parametrize("command", [b"reserve\r\n", b"peek-ready\r\n", b"stats\r\n", b"list-tubes\r\n"])
def test_client_that_never_reads_takes_bounded_memory(server: Daemon, good: Peer, command: bytes) -> None:
    """The server bounds both its replies and its commands."""
    count = 1000
    for _ in range(count):
        assert good.ask(b"put 9 0 600 %d\r\n%b" % (BIG, bytes(BIG))).startswith(b"INSERTED")
    before = rss(server)
    with Peer(server) as greedy:
        greedy.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        send_without_reading(greedy, command * 100_000)
        for _ in range(50):
            round_trip(good)
            assert rss(server) < before + 6 * MIB
    eventually(lambda: good.stats()["current-jobs-ready"] == str(count), "its jobs are ready again")
    assert rss(server) < before + 6 * MIB
    delete_all(good, count)


def test_input_of_a_waiting_client_is_bounded(server: Daemon, good: Peer) -> None:
    before = rss(server)
    commands = b"list-tube-used\r\n" * 200_000
    with Peer(server) as eager:
        eager.send(b"watch never\r\nignore default\r\nreserve\r\n")
        sent = send_without_reading(eager, commands)
        round_trip(good)
        assert rss(server) < before + 4 * MIB
        good.ask(b"use never")
        assert good.ask(b"put 0 0 60 0\r\n").startswith(b"INSERTED")
        assert [eager.read_line().split()[0] for _ in range(3)] == [b"WATCHING", b"WATCHING", b"RESERVED"]
        assert eager.read_line() == b""
        whole = sent // len(b"list-tube-used\r\n")
        assert eager.read(whole * len(b"USING default\r\n")) == b"USING default\r\n" * whole
        good.ask(b"use default")


def test_hundred_concurrent_clients_send_random_bytes(server: Daemon, good: Peer) -> None:
    rng = random.Random(1)  # noqa: S311  not for security
    peers = [Peer(server) for _ in range(100)]
    for _ in range(20):
        for peer in peers:
            with contextlib.suppress(ConnectionError):
                peer.send(rng.randbytes(rng.randrange(1, 1500)))
        round_trip(good)
    for peer in peers:
        reset(peer.sock)


def test_disconnect_of_a_waiting_client_that_is_not_read_is_detected(server: Daemon, good: Peer) -> None:
    """The connection is not read, so no event reports that the peer disconnected."""
    before = connections(server)
    unreading = Peer(server)
    send_without_reading(unreading, b"watch nobody\r\nignore default\r\nreserve\r\n" + b"use x\r\n" * 100_000)
    assert connections(server) == before + 1
    reset(unreading.sock)
    eventually(lambda: connections(server) == before, "the reset connection is closed")
    round_trip(good)


def test_memory_of_deleted_jobs_returns_to_the_system() -> None:
    """A server that is a fork of another process shares the heap of that process, and returns less.

    Up to MIN_TRIM freed bytes stay (docs/memory.md).
    """
    command = ("env", *COMMAND)
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", command=command) as fresh, Peer(fresh) as peer:
        before = rss(fresh)
        for _ in range(1000):
            peer.send(b"put 0 0 60 %d\r\n%b\r\n" % (BIG, bytes(BIG)))
            peer.read_line()
        assert rss(fresh) > before + 50 * MIB
        delete_all(peer, 1000)
        eventually(lambda: rss(fresh) < before + MIN_TRIM + 4 * MIB, "the memory has returned to the system")


def test_client_may_pipeline_before_it_reads(server: Daemon, good: Peer) -> None:
    """Commands still arrive while replies are sent in pieces. The client gets all replies, in order."""
    request = b"peek-ready\r\n"
    with Peer(server) as late:
        late.send(b"use late\r\nput 0 0 60 %d\r\n%b\r\n" % (BIG, bytes(BIG)))
        assert late.read_line() == b"USING late"
        id = late.read_line().split()[1]
        sent = send_without_reading(late, request * 20_000)
        late.send(request[sent % len(request) :])
        for _ in range(1 + sent // len(request)):
            assert late.read_line() == b"FOUND %b %d" % (id, BIG)
            late.read(BIG + 2)
        assert late.ask(b"delete " + id) == b"DELETED"
