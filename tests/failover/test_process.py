"""The process of a server with a journal in PostgreSQL: signals, sockets, options, and executing the program again."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import gevent
import psutil
import pytest
from gevent.event import Event

from greenstalk_server.cluster.leadership import Candidate, make_lease
from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.config.command_line import parse
from greenstalk_server.config.options import Options
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job_table import JobTable
from greenstalk_server.journal import record
from greenstalk_server.journal.postgresql.connection import conninfo_of
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.journal.postgresql.rows import Rows
from greenstalk_server.journal.postgresql.writer import DatabaseJournalWriter
from greenstalk_server.runtime.clock import Clock
from tests.postgresql.test_journal import Member
from tests.support.cluster import Cluster
from tests.support.daemon import REPOSITORY, TIMEOUT, ask, environment
from tests.support.nodes import ACTIVE, Node, Nodes, hand_over, run_command, wait_until
from tests.support.peer import Peer
from tests.support.world import make_broker

PUT = b"put 0 0 600 1\r\na\r\n"


@pytest.fixture
def flags(request: pytest.FixtureRequest) -> list[str]:
    """The flags of each server."""
    return ["--journal-name", request.node.name]


def test_standby_exits_soon_while_the_database_does_not_answer(
    cluster: Cluster, tmp_path: Path, flags: list[str]
) -> None:
    with Nodes.behind_proxies(cluster, tmp_path, *flags) as nodes:
        active = nodes.wait_for_roles()
        (standby,) = [node for node in nodes.nodes if node is not active]
        assert standby.proxy is not None
        standby.proxy.cut()
        wait_until(lambda: standby.gauge("replication_lag_seconds") > 1, lambda: standby.log)
        began = time.monotonic()
        assert standby.stop() == 0
        took = time.monotonic() - began
        assert took < 8, took


def test_standby_that_cannot_read_the_journal_exits_without_leading(
    cluster: Cluster, tmp_path: Path, flags: list[str]
) -> None:
    """A leader that cannot read the journal would serve nothing, and would keep others from serving."""
    later = bytearray(record.SegmentHeader(b"salt", 99, 1, 1).encode()[:-4])
    later[8:10] = (record.VERSION + 1).to_bytes(2, "little")
    later += crc32(later).to_bytes(4, "little")
    with pytest.raises(record.OtherVersion):
        record.decode_segment_header(bytes(later))
    with Nodes.behind_proxies(cluster, tmp_path, *flags) as nodes:
        active = nodes.wait_for_roles()
        (standby,) = [node for node in nodes.nodes if node is not active]
        journal = f"SELECT id, 99, 0, false, '\\x{later.hex()}' FROM greenstalk_journal WHERE name = '{flags[1]}'"  # noqa: S608
        cluster.ask(f"INSERT INTO greenstalk_batch {journal}")
        assert standby.process is not None and standby.process.wait(TIMEOUT) == 10
        assert "a later version of the server has written the journal; use that version" in standby.log
        assert active.role == ACTIVE


class CyclicQueue:
    """A queue in a reference cycle, like one with a dashboard."""

    def __init__(self, rows: Rows, clock: Clock) -> None:
        self.rows: Rows = rows
        self.broker: Broker = make_broker()
        self.journal: DatabaseJournalWriter = DatabaseJournalWriter(rows, 4096, 0, os.urandom)
        self.itself: CyclicQueue = self

    def prepare(self, role: Callable[[], ClusterStatus]) -> None:
        pass

    def discard(self) -> None:
        pass


def wait_for(is_so: Callable[[], bool]) -> None:
    """Let greenlets run until *is_so*."""
    with gevent.Timeout(TIMEOUT):
        while not is_so():
            gevent.sleep(0.01)


def test_standby_that_reads_from_the_start_frees_what_it_had_read(cluster: Cluster, flags: list[str]) -> None:
    leader = Member(cluster.url, flags[1], "leader")
    leader.lead()
    leader.put(b"a")
    leader.commit()
    made: list[weakref.ref[CyclicQueue]] = []
    gc.collect()
    before = {id(table): table for table in tables()}  # kept, so that none of an earlier test is freed meanwhile

    def make(rows: Rows, clock: Clock) -> CyclicQueue:
        queue = CyclicQueue(rows, clock)
        made.append(weakref.ref(queue))
        return queue

    candidate = Candidate(
        LeaderLease(conninfo_of(cluster.url, "--journal"), flags[1], "standby", 60.0), make, is_strict=False
    )
    stopping, thresholds = Event(), gc.get_threshold()
    gc.set_threshold(0)  # no collection in between
    standby = gevent.spawn(candidate.run, stopping)
    try:
        wait_for(lambda: candidate.status().behind is not None)
        cluster.ask(f"UPDATE greenstalk_batch SET segment = segment + 1 WHERE journal = {leader.lease.journal}")  # noqa: S608
        wait_for(lambda: len(made) == 2 and candidate.status().behind is not None)
        wait_for(lambda: candidate.status().leader == "leader")
        assert [queue() is None for queue in made] == [True, False]
        assert len([table for table in tables() if id(table) not in before]) == 1
    finally:
        gc.set_threshold(*thresholds)
        stopping.set()
        standby.get()
        for connection in candidate.connections:
            connection.close()
        leader.close()


def tables() -> list[JobTable]:
    """Return the job tables in memory."""
    return [
        one for one in gc.get_objects() if type(one) is JobTable
    ]  # isinstance takes every mapping for a compiled one


def test_server_name_contains_only_characters_that_a_database_accepts() -> None:
    options = parse(["--journal", "postgresql://db/jobs"], {})
    assert isinstance(options, Options)
    assert make_lease(options, "unix:/run/\udcff\n").name == f"{socket.gethostname()}:unix:/run/??"


def test_server_that_cannot_execute_its_program_again_exits(tmp_path: Path) -> None:
    """The executable may have been removed. The server must not continue with stale jobs in memory."""
    script = """
import sys
from types import SimpleNamespace
from greenstalk_server.cluster.leadership import ProcessLifetime
sys.executable = "/nowhere/python"
ProcessLifetime(SimpleNamespace(lead=None, links=[], lease=SimpleNamespace(holder_id="me"))).execute_again()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 10
    assert "/nowhere/python" in done.stderr and "Traceback" not in done.stderr


def test_every_socket_works_after_each_handover_even_with_a_long_lease(
    cluster: Cluster, tmp_path: Path, flags: list[str]
) -> None:
    """Each server has two TCP sockets and a Unix socket; those of a standby refuse connections."""
    flags += ["-l", "127.0.0.2", "--lease", "3600"]
    servers = [Node(f"node-{number}", cluster.url, tmp_path, *flags, "-l", unix(tmp_path, number)) for number in (0, 1)]
    with Nodes(servers) as nodes:
        for taken in range(3):
            active = nodes.wait_for_roles()
            (standby,) = [node for node in servers if node is not active]
            for family, address in addresses(active, tmp_path, servers.index(active)):
                with socket.socket(family) as sock:
                    sock.connect(address)
                    assert ask(sock, PUT).startswith(b"INSERTED")
            for family, address in addresses(standby, tmp_path, servers.index(standby)):
                with socket.socket(family) as sock, pytest.raises(ConnectionRefusedError):
                    sock.connect(address)
            if taken < 2:
                wait_until(partial(is_known, standby, active), lambda: "the standby is not known")
                assert run_command(active, "handover").returncode == 0
                for _ in range(10):  # while the program starts again, a signal must not have its default action
                    active.signal(signal.SIGUSR2)
                    time.sleep(0.05)


def test_standby_reads_the_policies_again_at_sighup_and_applies_them_when_it_leads(
    cluster: Cluster, tmp_path: Path, flags: list[str]
) -> None:
    file = tmp_path / "greenstalk.toml"
    file.write_text('[policies.all]\ntubes = ["*"]\nmax_attempts = 9\n')
    flags += ["--config", str(file)]
    with Nodes([Node(f"node-{number}", cluster.url, tmp_path, *flags) for number in range(2)]) as nodes:
        active = nodes.wait_for_roles()
        (standby,) = [node for node in nodes.nodes if node is not active]
        file.write_text('[policies.all]\ntubes = ["*"]\nmax_attempts = 1\ndead_letter = "failed"\nmax_job_size = 1\n')
        standby.signal(signal.SIGHUP)
        applied = f"applied the reloadable settings of {file} (SIGHUP), policies: 1; "
        wait_until(lambda: applied in standby.log, lambda: standby.log)
        with Peer(socket.create_connection(("127.0.0.1", active.port), 60)) as peer:
            assert peer.ask(b"put 0 0 600 2\r\nhi") == b"INSERTED 1"
            assert peer.ask(b"reserve-job 1") == b"RESERVED 1 2"
            assert peer.read_line() == b"hi"
            assert peer.ask(b"release 1 0 0") == b"RELEASED"
        hand_over(active, standby)
        with Peer(socket.create_connection(("127.0.0.1", standby.port), 60)) as peer:
            assert peer.ask(b"put 0 0 600 2\r\nhi") == b"JOB_TOO_BIG"
            assert peer.ask(b"use failed") == b"USING failed"
            assert peer.ask(b"peek-ready") == b"FOUND 1 2"


def resident(node: Node) -> int:
    """Return the resident memory of the server in bytes."""
    size: int = psutil.Process(node.process.pid).memory_info().rss
    return size


def unix(directory: Path, number: int) -> str:
    return f"unix:{directory}/{number}"


def is_known(standby: Node, active: Node) -> bool:
    """Whether the overview of *active* lists *standby*."""
    return f"127.0.0.1:{standby.port}, " in active.ask("")[1]


def addresses(node: Node, directory: Path, number: int) -> list[tuple[socket.AddressFamily, Any]]:
    """Return all addresses of *node*."""
    tcp = [(socket.AF_INET, (host, node.port)) for host in ("127.0.0.1", "127.0.0.2")]
    return [*tcp, (socket.AF_UNIX, unix(directory, number).removeprefix("unix:"))]


def test_standby_that_reads_from_the_start_keeps_its_memory_for_jobs(
    cluster: Cluster, tmp_path: Path, flags: list[str]
) -> None:
    """The standby is stopped while everything that it has read is removed and replaced."""
    jobs, body = 100, b"a" * 60_000
    put = b"put 0 0 600 %d\r\n%b\r\n" % (len(body), body)
    limit = ["--memory-limit", "200000000", "-s", "4096"]
    journal = f"(SELECT id FROM greenstalk_journal WHERE name = '{flags[1]}')"  # noqa: S608

    def segments() -> list[int]:
        rows: Any = cluster.ask(f"SELECT segment FROM greenstalk_batch WHERE journal = {journal}")  # noqa: S608
        return [segment for (segment,) in rows]

    with Nodes([Node(f"node-{number}", cluster.url, tmp_path, *flags, *limit) for number in range(2)]) as nodes:
        active = nodes.wait_for_roles()
        (standby,) = [node for node in nodes.nodes if node is not active]
        started = resident(standby)
        with socket.create_connection(("127.0.0.1", active.port), 60) as sock, sock.makefile("rb") as replies:

            def send(commands: bytes) -> bytes:
                sock.sendall(commands)
                return [replies.readline() for _ in range(jobs)][-1]

            assert send(put * jobs) == b"INSERTED %d\r\n" % jobs
            wait_until(lambda: resident(standby) > started + jobs * len(body) / 2, lambda: standby.log)
            standby.signal(signal.SIGSTOP)
            read = max(segments())
            assert send(b"".join(b"delete %d\r\n" % (number + 1) for number in range(jobs))) == b"DELETED\r\n"
            assert send(put * jobs) == b"INSERTED %d\r\n" % (2 * jobs)
            wait_until(lambda: min(segments()) > read, lambda: active.log)
        standby.signal(signal.SIGCONT)
        wait_until(lambda: "reading the journal from the start" in standby.log, lambda: standby.log)
        before = active.gauge("memory_limit_bytes")
        hand_over(active, standby)
        assert standby.gauge("memory_limit_bytes") > before - jobs * len(body) / 2
