"""Clients that do as they should not: the server serves the others all the time, and gets over it."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.daemon import PATIENCE, Daemon
from tests.support.peer import MIB, Peer, connections, eventually, open_files, rss

BIG = 60_000


@pytest.fixture(scope="module", autouse=True)
def warm(server: Daemon) -> None:
    """Have the server do each kind of thing once, so that what it then keeps for good is no surprise."""
    with Peer(server) as peer:
        for _ in range(300):
            peer.send(b"put 0 0 60 %d\r\n%b\r\n" % (BIG, bytes(BIG)))
            peer.read_line()
        delete_all(peer, 300)


@pytest.fixture
def good(server: Daemon) -> Iterator[Peer]:
    """Another client, who is served before, during and after; no connection and no file is left behind."""
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
    """Break the connection: the other side sees a reset, not an end."""
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
def test_gone_in_the_middle(server: Daemon, good: Peer, sent: bytes, breaks: bool) -> None:
    for _ in range(20):
        peer = Peer(server)
        peer.send(sent)
        if breaks:
            reset(peer.sock)
        else:
            peer.sock.close()
        round_trip(good)


def test_gone_with_its_jobs_and_others_get_them(server: Daemon, good: Peer) -> None:
    with Peer(server) as holder:
        ids = [holder.ask(b"put 0 0 60 1\r\nx").split()[1] for _ in range(3)]
        holder.send(b"reserve\r\n" * 3 + b"reserve\r\n")
        assert [holder.read_line().split()[0] for _ in range(6)] == [b"RESERVED", b"x"] * 3
    for id in ids:
        assert good.ask(b"reserve") == b"RESERVED %b 1" % id
        assert good.read_line() == b"x"
    for id in ids:
        assert good.ask(b"delete " + id) == b"DELETED"


def test_half_close_while_waiting_is_answered_and_closed(server: Daemon, good: Peer) -> None:
    with Peer(server) as peer:
        peer.send(b"reserve\r\nlist-tube-used\r\nreserve-with-timeout 9\r\n")
        peer.sock.shutdown(socket.SHUT_WR)
        assert peer.read_to_end() == b"TIMED_OUT\r\nUSING default\r\nTIMED_OUT\r\n"
    round_trip(good)


def test_a_body_that_never_ends(server: Daemon, good: Peer) -> None:
    """The job does not exist until its body is whole; a body too big is thrown away as it comes."""
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


def test_ten_megabytes_without_an_end_of_line(server: Daemon, good: Peer) -> None:
    before = rss(server)
    with Peer(server) as peer:
        for _ in range(10):
            peer.send(b"a" * MIB)
            round_trip(good)
        assert rss(server) < before + 4 * MIB
        peer.send(b"\r\nlist-tube-used\r\n")
        assert [peer.read_line(), peer.read_line()] == [b"BAD_FORMAT", b"USING default"]


def send_without_reading(peer: Peer, data: bytes) -> int:
    """Send as much as the server takes while nobody reads its replies; return how much that is."""
    peer.sock.setblocking(False)
    sent = 0
    while sent < len(data) and select.select([], [peer.sock], [], 0.5)[1]:
        with contextlib.suppress(BlockingIOError):
            sent += peer.sock.send(data[sent : sent + 65536])
    peer.sock.settimeout(PATIENCE)
    return sent


@pytest.mark.parametrize("command", [b"reserve\r\n", b"peek-ready\r\n", b"stats\r\n", b"list-tubes\r\n"])
def test_a_client_that_pipelines_and_never_reads(server: Daemon, good: Peer, command: bytes) -> None:
    """What is kept for it is bounded: neither do its replies pile up, nor its commands."""
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


def test_memory_of_deleted_jobs_is_used_again(server: Daemon, good: Peer) -> None:
    """It need not go back to the system, but the same load once more needs no more of it."""

    def load() -> int:
        for _ in range(1000):
            assert good.ask(b"put 9 0 600 %d\r\n%b" % (BIG, bytes(BIG))).startswith(b"INSERTED")
        size = rss(server)
        delete_all(good, 1000)
        return size

    first = load()
    assert max(load() for _ in range(3)) < first + 4 * MIB


def test_a_slow_reader_gets_every_reply_in_order(server: Daemon, good: Peer) -> None:
    count = 300
    bodies = [b"%06d" % number * (BIG // 6) for number in range(count)]
    ids = [good.ask(b"put 0 0 600 %d\r\n%b" % (BIG, body)).split()[1] for body in bodies]
    with Peer(server) as slow:
        slow.send(b"reserve\r\n" * count + b"list-tube-used\r\n")
        for id, body in zip(ids, bodies, strict=True):
            round_trip(good)
            assert slow.read_line() == b"RESERVED %b %d" % (id, BIG)
            assert slow.read(BIG + 2) == body + b"\r\n"
        assert slow.read_line() == b"USING default"
    eventually(lambda: good.stats()["current-jobs-ready"] == str(count), "its jobs are ready again")
    delete_all(good, count)


def test_a_waiting_client_that_keeps_sending_is_not_read_for_ever(server: Daemon, good: Peer) -> None:
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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.binary(min_size=1, max_size=2000)
        | st.sampled_from(
            [b"\r\n", b"put 0 0 1 3\r\n", b"stats\r\n", b"reserve-with-timeout 0\r\n", b"\0" * 500, b"kick 9\r\n"]
        ),
        max_size=20,
    )
)
def test_random_bytes(server: Daemon, good: Peer, pieces: list[bytes]) -> None:
    """Every line is answered until the client ends; then the server closes."""
    with Peer(server) as peer:
        with contextlib.suppress(ConnectionError):  # the bytes may hold a quit
            for piece in pieces:
                peer.send(piece)
            peer.sock.shutdown(socket.SHUT_WR)
        replies = peer.read_to_end()
    assert b"INTERNAL_ERROR" not in replies
    round_trip(good)


def test_a_hundred_clients_of_random_bytes_at_once(server: Daemon, good: Peer) -> None:
    rng = random.Random(1)  # noqa: S311  (a seed, no secret)
    peers = [Peer(server) for _ in range(100)]
    for _ in range(20):
        for peer in peers:
            with contextlib.suppress(ConnectionError):
                peer.send(rng.randbytes(rng.randrange(1, 1500)))
        round_trip(good)
    for peer in peers:
        reset(peer.sock)


def test_a_waiter_that_sent_too_much_and_broke_off_is_noticed(server: Daemon, good: Peer) -> None:
    """Nobody reads it any more, so nobody is told that its connection broke."""
    before = connections(server)
    deaf = Peer(server)
    send_without_reading(deaf, b"watch nobody\r\nignore default\r\nreserve\r\n" + b"use x\r\n" * 100_000)
    assert connections(server) == before + 1
    reset(deaf.sock)
    eventually(lambda: connections(server) == before, "the broken connection is closed")
    round_trip(good)


def test_memory_of_deleted_jobs_goes_back_to_the_system() -> None:
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web") as fresh, Peer(fresh) as peer:
        before = rss(fresh)
        for _ in range(1000):
            peer.send(b"put 0 0 60 %d\r\n%b\r\n" % (BIG, bytes(BIG)))
            peer.read_line()
        assert rss(fresh) > before + 50 * MIB
        delete_all(peer, 1000)
        eventually(lambda: rss(fresh) < before + 10 * MIB, "memory is given back")


def test_a_client_that_pipelines_first_and_reads_afterwards(server: Daemon, good: Peer) -> None:
    """Its commands are still coming while its replies leave, piece by piece; it gets all of them, in order."""
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
