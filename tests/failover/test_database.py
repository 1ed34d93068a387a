"""Servers with a database that hangs, is locked or was changed by hand: which one serves, with which connections."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.failover.rounds import MAX_BACKENDS, Census
from tests.failover.test_roles import PUT, connect
from tests.postgresql.test_faults import set_standbys
from tests.support.cluster import Cluster
from tests.support.daemon import ask
from tests.support.nodes import ACTIVE, Node, Nodes, wait_until
from tests.support.peer import Peer, eventually

HUNG_SECONDS = 15.0
COUNT = b"SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'greenstalk%'"


@pytest.fixture
def flags(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return ("--journal-name", request.node.name, "--lease", "2")


@pytest.fixture
def nodes(cluster: Cluster, tmp_path: Path, flags: tuple[str, ...]) -> Iterator[Nodes]:
    with Nodes.behind_proxies(cluster, tmp_path, *flags) as nodes:
        yield nodes


def test_servers_keep_few_connections_while_commits_hang_and_serve_soon_after(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """Without the synchronous standby neither puts nor renewals are answered."""
    with Cluster() as cluster, Nodes([Node(f"node-{n}", cluster.url, tmp_path, *flags) for n in range(2)]) as nodes:
        active = nodes.wait_for_roles()
        census = Census(cluster)
        census.start()
        with connect(active) as sock:
            assert ask(sock, PUT) == b"INSERTED 1"
            set_standbys(cluster, "nobody")
            sock.sendall(PUT)
            assert sock.recv(100) == b"", "an acknowledgement of what is on no standby"
        until = time.monotonic() + HUNG_SECONDS
        with psycopg.connect(cluster.admin_url, autocommit=True) as other:
            while time.monotonic() < until:
                [(count,)] = other.execute(COUNT).fetchall()
                assert count <= len(nodes.nodes) * MAX_BACKENDS
                time.sleep(0.1)
        set_standbys(cluster, "")
        wait_until(lambda: any(node.listens() for node in nodes.nodes), lambda: active.log)
        census.stop()
        assert census.most <= MAX_BACKENDS
        leader = nodes.wait_for_roles()
        with connect(leader) as sock:
            assert ask(sock, b"peek 1\r\n") == b"FOUND 1 1"
            assert ask(sock, PUT).startswith(b"INSERTED")


def test_lock_on_the_table_of_standbys_does_not_delay_a_takeover(nodes: Nodes, cluster: Cluster) -> None:
    active = nodes.wait_for_roles()
    (standby,) = [node for node in nodes.nodes if node is not active]
    with connect(active) as sock, psycopg.connect(cluster.url) as other:
        other.execute("LOCK TABLE greenstalk_standby IN ACCESS EXCLUSIVE MODE")
        assert ask(sock, PUT) == b"INSERTED 1"
        active.kill()
        wait_until(lambda: standby.role == ACTIVE, lambda: standby.log)


@pytest.mark.parametrize("tags", [b" idp:k", b""], ids=["idp", "unique"])
def test_duplicate_of_a_put_that_a_takeover_undoes_is_not_acknowledged(
    cluster: Cluster, tmp_path: Path, flags: tuple[str, ...], tags: bytes
) -> None:
    """The database does not answer the commit of the first put, and the leader dies before the answer."""
    config = tmp_path / "greenstalk.toml"
    config.write_text('[policies.once]\ntubes = ["default"]\nunique = "body"\n')
    members = [Node(f"node-{n}", cluster.url, tmp_path, *flags, "--config", str(config)) for n in range(2)]
    with Nodes(members) as nodes, psycopg.connect(cluster.url) as other:
        active = nodes.wait_for_roles()
        (standby,) = [node for node in nodes.nodes if node is not active]
        with connect(active) as first, connect(active) as second, Peer(connect(active)) as observer:
            other.execute("LOCK TABLE greenstalk_batch IN ACCESS EXCLUSIVE MODE")
            for number, sock in enumerate((first, second), 1):
                sock.sendall(b"put 0 0 60 1%b\r\nx\r\n" % tags)
                eventually(lambda number=number: observer.stats()["cmd-put"] == str(number), "it is executed")  # type: ignore[misc]
            assert observer.stats()["current-jobs-ready"] == "1"
            assert select.select([first, second], [], [], 0)[0] == [], "an acknowledgement of what is not committed"
            active.kill()
        other.rollback()
        wait_until(lambda: standby.role == ACTIVE, lambda: standby.log)
        with connect(standby) as sock:
            assert ask(sock, b"peek 1\r\n") == b"NOT_FOUND"


def test_one_failed_renewal_does_not_make_the_active_server_unready(
    cluster: Cluster, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    with Nodes([Node("alone", cluster.url, tmp_path, *flags[:2], "--lease", "20")]) as nodes:
        alone = nodes.wait_for_roles()
        with psycopg.connect(cluster.url) as other:
            other.execute("SELECT 1 FROM greenstalk_journal WHERE name = %s FOR UPDATE", (flags[1],))
            until = time.monotonic() + 6
            while time.monotonic() < until:
                assert alone.ask("readyz")[0] == 200
                time.sleep(0.05)


def test_server_whose_epoch_was_raised_by_hand_restarts_and_serves(
    cluster: Cluster, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    with Nodes([Node("alone", cluster.url, tmp_path, *flags)]) as nodes:
        alone = nodes.wait_for_roles()
        with connect(alone) as sock:
            assert ask(sock, PUT) == b"INSERTED 1"
            cluster.ask(f"UPDATE greenstalk_journal SET epoch = epoch + 1 WHERE name = '{flags[1]}'")  # noqa: S608
            wait_until(lambda: sock.recv(100) == b"", lambda: alone.log)
        wait_until(lambda: "active: epoch 3, 1 jobs" in alone.log, lambda: alone.log)
        wait_until(alone.listens, lambda: alone.log)
        with connect(alone) as sock:
            assert ask(sock, PUT).startswith(b"INSERTED")


def test_standby_reports_that_it_waits_for_the_database(nodes: Nodes) -> None:
    """The standby has read nothing yet, and cannot read for now."""
    second = nodes.nodes[1]
    nodes.wait_for_roles()
    for node in nodes.nodes:
        assert node.proxy is not None
        node.proxy.cut()
    second.kill()
    second.start()
    wait_until(lambda: "nobody is active, waiting for the database; " in second.ask("readyz")[1], lambda: second.log)
    assert "<dd>waiting for the database</dd>" in second.ask("")[1]
    for node in nodes.nodes:
        assert node.proxy is not None
        node.proxy.mend(is_late=False)
    nodes.wait_for_roles()
