"""Beside each hostile client the others are served, memory is bounded, and when it has gone nothing of it is left.

How long the others wait is measured by `python -m tests.hostile`: a busy machine makes of it what it likes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.hostile.clients import NAMES, READY, SILENT, allow_files
from tests.support.daemon import REPOSITORY, Daemon
from tests.support.peer import MIB, Peer, connections, eventually, open_files, rss
from tests.support.processes import ending

ROUND_TRIPS = 50
MEMORY = dict.fromkeys(NAMES, 24 * MIB) | {
    "slow_reader": 20 * 2 * MIB,  # for each of twenty: a slice of replies, the largest one, and what came meanwhile
    "silent": SILENT * 24 * 1024,
    "watcher": 48 * MIB,  # ten thousand tubes
    "patient_watcher": 48 * MIB,
    "pipelining_watcher": 48 * MIB,
    "pipelining_lister": 48 * MIB,
    "one_job_tubes": 50_000 * 6 * 1024,
}
"""Bytes that the server may need for each."""


@contextmanager
def hostile(name: str, server: Daemon) -> Iterator[None]:
    """Run the hostile client *name* during the block."""
    command = [sys.executable, "-m", "tests.hostile.clients", name, str(server.port)]
    with ending(subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().decode().strip() == READY
        yield
        assert process.poll() is None, "the hostile client has ended"


@pytest.fixture
def server() -> Iterator[Daemon]:
    """A new server for each test, since memory that an earlier test needed would hide the need of this one."""
    allow_files(SILENT + 500)
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web") as daemon:
        yield daemon
        code, said = daemon.stop()
        assert code == 0
        assert "Traceback" not in said and "error" not in said, said


def round_trip(peer: Peer) -> None:
    """Put a job, reserve it and delete it."""
    assert peer.ask(b"put 0 0 60 1\r\nx").startswith(b"INSERTED")
    _, id, _ = peer.ask(b"reserve").split()
    assert peer.read_line() == b"x"
    assert peer.ask(b"delete " + id) == b"DELETED"


def has_no_tubes_without_jobs(peer: Peer) -> bool:
    stats = peer.stats()
    return int(stats["current-tubes"]) <= 2 + int(stats["current-jobs-ready"])


@pytest.mark.parametrize("name", NAMES)
def test_hostile_client_does_not_affect_others_and_leaves_nothing(server: Daemon, name: str) -> None:
    with Peer(server) as good:
        good.send(b"use good\r\nwatch good\r\nignore default\r\n")
        assert [good.read_line() for _ in range(3)] == [b"USING good", b"WATCHING 2", b"WATCHING 1"]
        round_trip(good)
        files, before = open_files(server), rss(server)
        with hostile(name, server):
            for _ in range(ROUND_TRIPS):
                round_trip(good)
            assert rss(server) < before + MEMORY[name]
        eventually(lambda: connections(server) == 1, "its connections are closed")
        eventually(lambda: open_files(server) <= files, "its files are closed")
        round_trip(good)
        eventually(lambda: has_no_tubes_without_jobs(good), "its tubes are gone")
        stats = good.stats()
        assert (stats["current-waiting"], stats["current-jobs-reserved"]) == ("0", "0")
