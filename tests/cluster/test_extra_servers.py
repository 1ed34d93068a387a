"""Extra servers for shards without owner and standby, with real processes, a real database and kills."""

from __future__ import annotations

import json
import logging
import re
import resource
import signal
import time
from contextlib import ExitStack
from typing import Final, cast

import psutil
import pytest

from greenstalk_server.cluster import parent
from greenstalk_server.cluster.extra_server import (
    MAX_GAP,
    SPARE_OWNER_FOR,
    SPARE_STANDBY_FOR,
    VACANT_FOR,
    ExtraServers,
)
from greenstalk_server.cluster.membership import Membership
from greenstalk_server.cluster.placement import VACANT, Placement
from greenstalk_server.core.tube_shards import shard_of_tube
from greenstalk_server.journal.postgresql.members import Process, ShardState, Snapshot
from tests.support.cluster import Cluster
from tests.support.daemon import COMMAND, MINDING_SIGNALS, TIMEOUT, Daemon, environment
from tests.support.load import Connection
from tests.support.nodes import wait_until
from tests.support.ports import free_ports

SHARDS: Final = 4
QUEUE: Final = "extra"
TUBES: Final = [next(b"t%d" % n for n in range(99) if shard_of_tube(b"t%d" % n, SHARDS) == at) for at in range(SHARDS)]
OWNERS: Final = f"""
    SELECT holder_name FROM greenstalk_journal
    WHERE name LIKE '{QUEUE}/%' AND holder IS NOT NULL AND lease_until > clock_timestamp()"""  # noqa: S608


def start(cluster: Cluster) -> Daemon:
    """Start a parent with two servers, and with ports for the links of two more."""
    ports = free_ports(4 * SHARDS)
    link = next(port for port in ports if {port, port + 1, port + 2, port + 3} <= set(ports))
    flags = ("--processes", "2", "--shards", str(SHARDS), "--lease", "1", "--journal-name", QUEUE)
    where = ("-l", "127.0.0.1", "-p", "0", "--no-web", "--link", f"127.0.0.1:{link}")
    return Daemon(*flags, *where, command=(*MINDING_SIGNALS, *COMMAND), environ=environment(DATABASE_URL=cluster.url))


def children(machine: Daemon) -> list[psutil.Process]:
    return psutil.Process(machine.process.pid).children()


def settle(cluster: Cluster, *machines: Daemon) -> None:
    """Wait until each of *machines* has two servers, and all shards have owners."""

    def is_settled() -> bool:
        exists = cluster.ask("SELECT FROM pg_tables WHERE tablename = 'greenstalk_journal'")
        return bool(exists) and {len(children(each)) for each in machines} == {2} and len(cluster.ask(OWNERS)) == SHARDS

    wait_until(is_settled, lambda: f"{[children(each) for each in machines]}")


def test_remaining_machine_serves_all_shards_until_the_other_returns(cluster: Cluster) -> None:
    with ExitStack() as stack:
        stays, dies = [stack.enter_context(start(cluster)) for _ in range(2)]
        settle(cluster, stays, dies)
        with Connection(stays.port, TIMEOUT) as client:
            for tube in TUBES:
                assert client.ask(b"put-in-tube %b 0 0 600 1\r\nx" % tube).startswith(b"INSERTED")
        servers = children(dies)
        for process in (psutil.Process(dies.process.pid), *servers):  # a living parent would restart its servers
            process.suspend()
        for process in (*servers, psutil.Process(dies.process.pid)):
            process.kill()
        prefix = f"127.0.0.1:{stays.port}-"

        def led() -> int:
            """Return the number of shards that the first machine leads."""
            return len([name for (name,) in cluster.ask(OWNERS) if str(name).startswith(prefix)])

        wait_until(lambda: led() == SHARDS, lambda: f"{led()}")
        with Connection(stays.port, TIMEOUT) as client:
            for tube in TUBES:
                assert client.stats(b"stats-tube " + tube)[b"current-jobs-ready"] == b"1"
                assert client.ask(b"put-in-tube %b 0 0 600 1\r\nx" % tube).startswith(b"INSERTED")
        returned = stack.enter_context(start(cluster))
        settle(cluster, stays, returned)
        assert led() == 2
        with Connection(returned.port, TIMEOUT) as client:
            for tube in TUBES:
                assert client.ask(b"flush-tube " + tube) == b"FLUSHED 2"
        code, log = stays.stop(signal.SIGTERM)
    assert code == 0
    for number in (3, 4):
        assert re.search(f"started until others return: .*server {number}", log)
        assert f"server {number}, an extra one: process " in log
    assert "Traceback" not in log and "is restarted" not in log, log


# Decisions of a server


class View:
    """A membership that the test sets, and a record of the actions of the process "me". Time is in leases."""

    def __init__(self, is_extra: bool) -> None:
        self.me = "me"
        self.shard: int | None = 0
        self.read_at = 100.0
        self.reports: list[bytes] = []
        self.moves: list[tuple[int, str]] = []
        self.ends = 0
        self.snapshot: Snapshot
        self.servers = ExtraServers(cast("Membership", self), 1.0, self.reports.append, self._end if is_extra else None)

    def request_move(self, shard: int, process: str) -> None:
        self.moves.append((shard, process))

    def _end(self) -> None:
        self.ends += 1

    def show(self, *owners: str, **followers: int) -> None:
        """Show a shard for each of *owners*, free if that is empty, and processes with the shards that they follow."""
        shards = {owner: at for at, owner in enumerate(owners) if owner} | followers
        self.snapshot = Snapshot(
            tuple([ShardState(owner, owner, not owner, 1) for owner in owners]),
            tuple([Process(id, id, "", "", "", shard, None, True, 0.0) for id, shard in shards.items()]),
        )

    def wait(self, leases: float) -> None:
        """Call `look` every half lease."""
        for _ in range(round(leases / 0.5)):
            self.servers.look()
            self.read_at += 0.5


def test_shard_without_owner_and_standby_is_reported_after_a_while() -> None:
    view = View(is_extra=False)
    view.show("me", "")
    view.wait(VACANT_FOR)
    assert view.reports == []
    view.wait(1)
    assert view.reports == [VACANT + json.dumps([1]).encode()]


def test_shards_that_lost_their_owners_within_a_lease_are_reported_together() -> None:
    view = View(is_extra=False)
    view.show("me", "", "b", "c")
    view.wait(0.5)
    view.show("me", "", "", "c")
    view.wait(VACANT_FOR - 2)
    view.show("me", "", "", "")
    view.wait(3)
    assert view.reports[0] == VACANT + json.dumps([1, 2]).encode()


def test_shard_with_a_standby_is_not_reported() -> None:
    view = View(is_extra=False)
    view.show("me", "", other=1)
    view.wait(2 * VACANT_FOR)
    assert view.reports == []


def test_time_in_which_the_database_was_away_does_not_count() -> None:
    view = View(is_extra=False)
    view.show("me", "")
    view.wait(VACANT_FOR - 1)
    view.read_at += MAX_GAP + 1
    view.wait(VACANT_FOR)
    assert view.reports == []


def test_extra_standby_ends_when_all_shards_have_had_owners_for_a_while() -> None:
    view = View(is_extra=True)
    view.show("a", "", me=0)
    view.wait(9)
    view.show("a", "b", me=0)
    view.wait(SPARE_STANDBY_FOR)
    assert view.ends == 0
    view.wait(5)
    assert view.ends == 1 and view.moves == []


def test_extra_owner_moves_its_shard_to_a_standby_later_than_an_extra_standby_ends() -> None:
    view = View(is_extra=True)
    view.show("me", "b")
    view.wait(9)
    view.show("me", "b", a=1, c=0)
    view.wait(SPARE_OWNER_FOR)
    assert view.moves == []
    view.wait(1)
    assert set(view.moves) == {(0, "c")} and view.ends == 0
    assert SPARE_OWNER_FOR > SPARE_STANDBY_FOR


def test_server_that_is_not_an_extra_one_stays() -> None:
    view = View(is_extra=False)
    view.show("a", "b", me=0)
    view.wait(99)
    view.show("me", "b", a=1)
    view.wait(99)
    assert view.ends == 0 and view.moves == []


# Decisions of the parent


def test_extra_server_needs_memory(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    started: list[int] = []

    class Child(parent._Child):
        def start(self) -> None:
            started.append(self.number)
            self.pid = psutil.Process().pid

    def make(number: int) -> Child:
        return Child(Placement(number, 2, "", (), 5), [], {})

    family = parent._Parent([make(0), make(1)], lambda: None, {}, make)
    family._children[0].start()
    size = psutil.Process().memory_info().rss
    monkeypatch.setattr(parent, "free_memory", lambda: size)
    for _ in range(2):
        family._start_extra([1, 3], 100.0)
    assert started == [0]
    [refusal] = caplog.messages
    assert refusal.startswith("shards without owner and standby: 1, 3; cannot start an extra server: ")
    monkeypatch.setattr(parent, "free_memory", lambda: 4 * size)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            family._start_extra([1, 3], 100.0)
    assert started == [0, 2, 3]
    family._note_end(family._children[2], -signal.SIGKILL)
    family._start_extra([1, 3], 100.0)
    assert started == [0, 2, 3] and [child.number for child in family._children] == [0, 1, 3]


def test_process_that_the_system_refuses_is_due_again(caplog: pytest.LogCaptureFixture) -> None:
    child = parent._Child(Placement(0, 2, "", (), 5), [], {})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        child.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (child.pid, child.control) == (0, None)
    assert child.due_at <= time.monotonic() + parent.MAX_DELAY
    assert caplog.messages == ["server 1: cannot start a process: [Errno 24] Too many open files; trying again"]
