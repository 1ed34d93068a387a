"""Many connections, tubes, jobs and disconnects; afterwards memory and files are free again."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack

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
