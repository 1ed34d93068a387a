"""The database of a queue with links is away, for all servers or for one of them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import pytest

from greenstalk_server.cluster.membership import Membership
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.tube_shards import shard_of_tube
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.journal.postgresql.members import Members, Snapshot
from tests.cluster.test_cluster import connect, name_of, put
from tests.support.cluster import Cluster
from tests.support.load import Gone
from tests.support.nodes import Node, Nodes, wait_until
from tests.support.ports import free_ports
from tests.support.proxy import Proxy

LEASE: Final = 1
OUTAGE_WAIT: Final = 12
FLAGS: Final = ("--shards", "2", "--link", "127.0.0.1:0", "--no-web", "--lease", str(LEASE))
OVER: Final = "ERROR the lease is over: "
TUBES: Final = [next(b"t%d" % n for n in range(9) if shard_of_tube(b"t%d" % n, 2) == shard) for shard in range(2)]


class Queue:
    """Two shards, and three servers, each behind a proxy to *database*."""

    def __init__(self, database: Cluster, logs: Path, name: str, outage_wait: int = OUTAGE_WAIT) -> None:
        self.database: Cluster = database
        flags = ("--journal-name", name, *FLAGS, "--outage-wait", str(outage_wait))
        proxies = [Proxy(database.port) for _ in range(3)]
        self.servers: Nodes = Nodes(
            [
                Node(f"node-{number}", Cluster.url_by(proxy.port), logs, *flags, proxy=proxy)
                for number, proxy in enumerate(proxies)
            ]
        )
        self._rows: str = f"FROM greenstalk_journal WHERE name LIKE '{name}/%' ORDER BY name"

    def __enter__(self) -> Self:
        self.servers.__enter__()
        wait_until(lambda: all(node.listens() for node in self.nodes), lambda: self.logs)
        wait_until(lambda: len([owner for owner in self.owners() if owner]) == 2, lambda: self.logs)
        return self

    def __exit__(self, *error: object) -> None:
        self.servers.close()

    def owners(self) -> list[str]:
        """Return the name of the owner of each shard."""
        return [str(name) for (name,) in self.database.ask(f"SELECT holder_name {self._rows}")]

    def holders(self) -> list[str]:
        """Return the id of the process that leads each shard."""
        return [str(id) for (id,) in self.database.ask(f"SELECT holder {self._rows}")]

    @property
    def nodes(self) -> list[Node]:
        return self.servers.nodes

    def owner(self, shard: int) -> Node:
        """Return the owner of *shard*."""
        return next(node for node in self.nodes if name_of(node) == self.owners()[shard])

    def standby(self) -> Node:
        """Return the server that leads no shard."""
        return next(node for node in self.nodes if name_of(node) not in self.owners())

    @property
    def logs(self) -> str:
        return "\n".join([f"{node.name}:\n{node.log}" for node in self.nodes])


@pytest.fixture(scope="module")
def database() -> Iterator[Cluster]:
    """A PostgreSQL server that the tests of this module stop."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def queue(database: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with Queue(database, tmp_path, request.node.name[:20]) as queue:
        yield queue
        assert "Traceback" not in queue.logs and "internal error" not in queue.logs, queue.logs


def test_outage_that_is_longer_than_the_lease_changes_no_owner_and_closes_no_connection(queue: Queue) -> None:
    owners = queue.owners()
    holders = queue.holders()
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(node)) for node in queue.nodes for _ in TUBES]
        ids = [put(client, tube) for client, tube in zip(clients, TUBES * len(queue.nodes), strict=True)]
        queue.database.stop()
        wait_until(lambda: queue.logs.count(OVER) == 2, lambda: queue.logs, 20)
        for client, id in zip(clients, ids, strict=True):
            client.send(b"peek %d\r\ndelete %d\r\n" % (id, id))
        time.sleep(LEASE)  # in which no reply may arrive
        assert not any(client.has_input() for client in clients)
        queue.database.start()
        for client, id in zip(clients, ids, strict=True):
            assert client.read_line() == b"FOUND %d 1" % id
            assert client.read(1) == b"x"
            assert client.read_line() == b"DELETED"
    assert queue.owners() == owners
    assert queue.holders() == holders


def test_owner_that_alone_loses_the_database_is_replaced_and_its_clients_close(queue: Queue) -> None:
    owner, standby = queue.owner(0), queue.standby()
    with connect(owner) as own, connect(standby) as other:
        id = put(own, TUBES[0])
        assert owner.proxy is not None
        owner.proxy.cut()
        wait_until(lambda: OVER in owner.log, lambda: queue.logs)
        own.send(b"delete %d\r\n" % id)
        began = time.monotonic()
        with pytest.raises((OSError, Gone)):
            own.read_line()
        assert time.monotonic() - began < OUTAGE_WAIT / 2
        assert other.stats(b"stats-job %d" % id)[b"state"] == b"ready"
    assert queue.owner(0) is standby


def test_server_that_was_counted_as_dead_closes_its_clients(queue: Queue) -> None:
    standby = queue.standby()
    with connect(standby) as client:
        queue.database.ask(f"DELETE FROM greenstalk_process WHERE name = '{name_of(standby)}'")  # noqa: S608
        with pytest.raises((OSError, Gone)):
            client.read_line()
    wait_until(standby.listens, lambda: standby.log)
    assert "the other servers have counted this one as dead" in standby.log


def test_process_is_counted_as_dead_only_without_a_heartbeat(database: Cluster) -> None:
    leases = [LeaderLease(database.url, "heartbeats/0", name, LEASE) for name in ("one", "other")]
    members = [Members(lease, "heartbeats", 2, machine="m", address=lease.name) for lease in leases]
    for each in members:
        each.open()
        assert each.report(None)
    one, other = members
    [_, silent] = [each.id for each in one.read().processes]
    one.forget([silent])
    assert other.report(None)
    database.ask("UPDATE greenstalk_process SET seen = seen - interval '11 s' WHERE name = 'other'")
    one.forget([silent])
    assert not other.report(None)
    assert [each.name for each in one.read().processes] == ["one"]
    for each in members:
        each.connection.close()
    for lease in leases:
        lease.close()


class InterruptedMembers(Members):
    """The connection of the lease breaks when all else was read for the first time."""

    database: Cluster
    reads = 0

    def read(self) -> Snapshot:
        snapshot = super().read()
        self.reads += 1
        if self.reads == 1:
            self.time()
            self.database.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%extract(epoch FROM clock%'"
                " AND pid <> pg_backend_pid()"
            )
        return snapshot


def test_start_is_repeated_when_any_connection_to_the_database_breaks(database: Cluster) -> None:
    lease = LeaderLease(database.url, "starts/0", "one", LEASE)
    members = InterruptedMembers(lease, "starts", 2, machine="m", address="one")
    members.database = database
    membership = Membership(members, lease.holder_id.hex)
    assert membership.open(bool)
    assert members.reads == 2
    assert abs(membership.time - time.time_ns()) < 60 * SECOND
    members.connection.close()
    lease.close()


def test_server_that_reaches_no_owner_of_a_shard_is_not_ready(cluster: Cluster, tmp_path: Path) -> None:
    ports, nodes, proxies = free_ports(2), [], []
    flags = ("--journal-name", "unreached", "--shards", "2", "--outage-wait", str(LEASE))
    for number, port in enumerate(ports):
        proxies.append(Proxy(port))
        link = ("--link", f"127.0.0.1:{proxies[-1].port}", "--link-listen", f"127.0.0.1:{port}")
        nodes.append(Node(f"node-{number}", cluster.url, tmp_path, *flags, *link))
    with Nodes(nodes):
        wait_until(lambda: all(node.ask("readyz")[0] == 200 for node in nodes), lambda: nodes[0].log)
        wait_until(lambda: all(re.search(r"(leads|linked to) shard", node.log) for node in nodes), lambda: nodes[0].log)
        for proxy in proxies:
            proxy.close()
        wait_until(lambda: all(node.ask("readyz")[0] == 503 for node in nodes), lambda: nodes[0].log)
        texts = {node.ask("readyz")[1] for node in nodes}
        assert texts == {f"cannot reach the owner of shard {shard}\n" for shard in range(2)}


def test_owner_gives_up_after_the_outage_wait(database: Cluster, tmp_path: Path) -> None:
    with Queue(database, tmp_path, "long-outage", outage_wait=2 * LEASE) as queue:
        owner = queue.owner(1)
        with connect(owner) as client:
            id = put(client, TUBES[1])
            database.stop()
            try:
                client.send(b"delete %d\r\n" % id)
                with pytest.raises((OSError, Gone)):
                    client.read_line()
            finally:
                database.start()
        assert "lost leadership: " in owner.log
        wait_until(owner.listens, lambda: queue.logs)
        with connect(owner) as client:
            assert client.stats(b"stats-tube " + TUBES[1])[b"current-jobs-ready"] == b"1"
