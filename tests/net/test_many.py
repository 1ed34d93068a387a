"""Many connections, tubes, jobs and disconnects; afterwards memory and files are free again."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.peer import MIB, Peer, connections, eventually, open_files, rss

CONNECTIONS = 5000
TUBES = 10_000


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise this process's limit on open files to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < CONNECTIONS + 500:
        pytest.skip(f"the hard limit on open files is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_server_raises_its_limit_on_open_files(many_files: None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The server inherits the limit; `many_files` sets it back. Earlier tests of this process have left files open.
    soft = len(list(Path("/proc/self/fd").iterdir())) + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web") as server:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        with ExitStack() as closing:
            peers = [closing.enter_context(Peer(server)) for _ in range(soft + 100)]
            assert {peer.ask(b"list-tube-used") for peer in peers} == {b"USING default"}


def test_five_thousand_waiting_connections_each_get_a_job(server: Daemon, many_files: None) -> None:
    eventually(lambda: connections(server) == 0, "all earlier connections are closed")
    files = open_files(server)
    with ExitStack() as closing:
        good = closing.enter_context(Peer(server))
        peers = [closing.enter_context(Peer(server)) for _ in range(CONNECTIONS)]
        for peer in peers:
            peer.send(b"reserve\r\n")
        eventually(lambda: good.stats()["current-waiting"] == str(CONNECTIONS), "all clients wait")
        for _ in range(CONNECTIONS // 100):
            good.send(b"put 0 0 600 2\r\nhi\r\n" * 100)
            assert {good.read_line().split()[0] for _ in range(100)} == {b"INSERTED"}
        ids = {peer.read_line() for peer in peers}
        assert len(ids) == CONNECTIONS
        assert good.stats()["current-jobs-reserved"] == str(CONNECTIONS)
        for peer in peers:
            assert peer.read_line() == b"hi"
    with Peer(server) as good:
        eventually(lambda: good.stats()["current-jobs-ready"] == str(CONNECTIONS), "all jobs are ready again")
        for line in ids:
            assert good.ask(b"delete " + line.split()[1]) == b"DELETED"
    eventually(lambda: open_files(server) <= files, "all files are closed")


def test_memory_of_closed_connections_is_reused(server: Daemon, many_files: None) -> None:
    """Each wave reuses the memory of the previous one, so the server does not grow."""

    def wave() -> int:
        with ExitStack() as closing:
            peers = [closing.enter_context(Peer(server)) for _ in range(2000)]
            assert {peer.ask(b"watch a") for peer in peers} == {b"WATCHING 2"}
            for peer in peers:
                peer.send(b"reserve\r\n")
            size = rss(server)
        eventually(lambda: connections(server) == 0, "all connections are closed")
        return size

    first = wave()
    assert max(wave() for _ in range(3)) < first + 4 * MIB


def test_ten_thousand_tubes_are_created_and_dropped(server: Daemon) -> None:
    with Peer(server) as peer, Peer(server) as good:
        for start in range(0, TUBES, 500):
            peer.send(b"".join(b"watch tube-%d\r\n" % number for number in range(start, start + 500)))
            for _ in range(500):
                peer.read_line()
        assert good.stats()["current-tubes"] == str(TUBES + 1)
        size = int(good.ask(b"list-tubes").split()[1])
        assert good.read(size + 2).count(b"\n- tube-") == TUBES
        good.ask(b"use tube-%d" % (TUBES - 1))
        assert good.ask(b"put 0 0 60 1\r\nx").startswith(b"INSERTED")
        _, id, _ = peer.ask(b"reserve").split()
        assert peer.read_line() == b"x"
        peer.send(b"reserve\r\n")
        eventually(lambda: good.stats()["current-waiting"] == "1", "it waits on all tubes")
        assert good.ask(b"put 0 0 60 1\r\ny").startswith(b"INSERTED")
        _, other_id, _ = peer.read_line().split()
        assert peer.read_line() == b"y"
        for job in (id, other_id):
            assert peer.ask(b"delete " + job) == b"DELETED"
    with Peer(server) as good:
        eventually(lambda: good.stats()["current-tubes"] == "1", "all tubes are dropped")


def test_closed_connections_leave_no_files_memory_or_tubes(server: Daemon) -> None:
    def churn() -> None:
        for number in range(500):
            with Peer(server) as peer:
                peer.send((b"stats\r\n", b"reserve\r\n", b"put 0 0 9 9\r\nx", b"watch a\r\n")[number % 4])

    eventually(lambda: connections(server) == 0, "all earlier connections are closed")
    files = open_files(server)
    churn()
    before = rss(server)
    for _ in range(4):
        churn()
    eventually(lambda: connections(server) == 0, "all connections are closed")
    eventually(lambda: open_files(server) <= files, "all files are closed")
    assert rss(server) < before + 2 * MIB
    with Peer(server) as peer:
        stats = peer.stats()
        assert (stats["current-waiting"], stats["current-tubes"], stats["current-jobs-ready"]) == ("0", "1", "0")


def test_deleted_jobs_do_not_accumulate_memory(server: Daemon) -> None:
    count, per_chunk = 100_000, 1000

    def load(peer: Peer) -> int:
        for _ in range(count // per_chunk):
            peer.send(b"put 0 0 60 500\r\n%b\r\n" % bytes(500) * per_chunk)
            lines = [peer.read_line() for _ in range(per_chunk)]
        last, size = int(lines[-1].split()[1]), rss(server)
        for start in range(last - count + 1, last + 1, per_chunk):
            peer.send(b"".join(b"delete %d\r\n" % id for id in range(start, start + per_chunk)))
            assert {peer.read_line() for _ in range(per_chunk)} == {b"DELETED"}
        return size

    with Peer(server) as peer:
        first = load(peer)
        assert load(peer) < first + 4 * MIB


def test_stopping_closes_all_connections() -> None:
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web") as server:
        peers = [Peer(server) for _ in range(50)]
        for peer in peers:
            peer.send(b"reserve\r\n")
        eventually(lambda: peers_wait(server, len(peers)), "all clients wait")
        code, _ = server.stop()
        assert code == 0
        for peer in peers:
            with peer:
                assert peer.read_to_end() == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))


def peers_wait(server: Daemon, count: int) -> bool:
    with Peer(server) as peer:
        return peer.stats()["current-waiting"] == str(count)
