"""Two servers and a database: the role that each shows, and what clients see while the database is unavailable."""

from __future__ import annotations

import re
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.runtime.clock import steady_clock
from greenstalk_server.web.app import WebOptions, create_standby_app
from tests.support.cluster import Cluster
from tests.support.daemon import ask
from tests.support.nodes import ACTIVE, STANDBY, Node, Nodes, run_command, wait_until

PUT = b"put 0 0 600 1\r\na\r\n"
TOKEN = "t0ken"  # noqa: S105


@pytest.fixture
def nodes(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    with Nodes.behind_proxies(cluster, tmp_path, "--journal-name", request.node.name, "--lease", "2") as nodes:
        yield nodes


@pytest.fixture
def alone(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    """A server that leads a journal without standbys."""
    flags = ("--journal-name", request.node.name, "--lease", "2")
    with Nodes([Node("alone", cluster.url, tmp_path, *flags, GREENSTALK_METRICS_TOKEN=TOKEN)]) as nodes:
        yield nodes.wait_for_roles()


def connect(node: Node) -> socket.socket:
    return socket.create_connection(("127.0.0.1", node.port), 60)


def test_standby_refuses_clients_and_shows_its_role(nodes: Nodes) -> None:
    active = nodes.wait_for_roles()
    (standby,) = [node for node in nodes.nodes if node is not active]
    assert active.listens() and not standby.listens()
    status, line = standby.ask("readyz")
    assert status == 503
    assert line.startswith("standby of the journal test_standby_refuses_clients_and_shows_its_role: ")
    assert re.search(rf": 127\.0\.0\.1:{active.port} is active, [0-9.]+ s behind$", line)
    assert standby.ask("healthz") == (200, "ok\n")
    assert standby.ask("api/v1/tubes")[0] == 503
    assert (active.gauge("leader"), active.gauge("replication_lag_seconds")) == (1, 0)
    assert standby.gauge("leader") == 0 < standby.gauge("replication_lag_seconds") < 60
    assert "greenstalk_uptime_seconds" in active.ask("metrics")[1]
    assert standby.ask("", host=socket.gethostname())[0] == active.ask("", host=socket.gethostname())[0] == 200
    page = standby.ask("")[1]
    assert f"127.0.0.1:{active.port}" in page and "Behind" in page
    wait_until(lambda: f"127.0.0.1:{standby.port}, " in active.ask("")[1], lambda: active.ask("")[1])
    assert "active, epoch 1" in active.ask("")[1]
    assert standby.stop() == 0
    wait_until(lambda: f"127.0.0.1:{standby.port}" not in active.ask("")[1], lambda: "it is still among the standbys")


def test_metrics_of_a_standby_require_the_token() -> None:
    role = ClusterStatus(False, "default", "here", "there", 7, 0.25)
    app = create_standby_app(lambda: role, "here", steady_clock(), WebOptions(metrics_token=TOKEN, url_prefix="/queue"))
    client = app.test_client()
    assert client.get("/metrics", headers={"Authorization": "Bearer another"}).status_code == 401
    for path in ("/metrics", "/queue/metrics"):
        answer = client.get(path, headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200 and answer.mimetype == "text/plain"
        assert answer.text.splitlines()[2::3] == ["greenstalk_leader 0.0", "greenstalk_replication_lag_seconds 0.25"]


def test_page_of_a_standby_says_why_the_database_does_not_answer() -> None:
    role = ClusterStatus(False, "default", "here", "there", 7, 0.25, "connection refused")
    page = create_standby_app(lambda: role, "here", steady_clock(), WebOptions()).test_client().get("/")
    assert "The server keeps retrying: connection refused" in page.text


def test_standby_leads_at_once_after_an_orderly_stop(nodes: Nodes) -> None:
    active = nodes.wait_for_roles()
    (standby,) = [node for node in nodes.nodes if node is not active]
    with connect(active) as sock:
        assert ask(sock, PUT) == b"INSERTED 1"
    assert active.stop() == 0
    wait_until(lambda: standby.role == ACTIVE, lambda: standby.log)
    with connect(standby) as sock:
        assert ask(sock, b"reserve-with-timeout 0\r\n") == b"RESERVED 1 1"
    assert run_command(standby, "handover").stderr == (
        "greenstalk-server: handover: no standby is up to date, so none can take over\n"
    )
    assert standby.role == ACTIVE
    assert standby.stop() == 0
    assert run_command(standby, "handover").returncode == 10


def test_active_server_drains_on_sigusr1(alone: Node) -> None:
    with connect(alone) as sock:
        assert ask(sock, PUT) == b"INSERTED 1"
        alone.signal(signal.SIGUSR1)
        wait_until(lambda: ask(sock, PUT) == b"DRAINING", lambda: alone.log)
        assert ask(sock, b"reserve-with-timeout 0\r\n") == b"RESERVED 1 1"


def test_replies_wait_while_the_database_is_down_for_less_than_a_lease(alone: Node, cluster: Cluster) -> None:
    """The database stops in order and restarts while clients put, reserve and delete: no client notices."""
    with connect(alone) as sock, connect(alone) as other:
        assert ask(sock, PUT) == b"INSERTED 1"
        ours = "application_name LIKE 'greenstalk-server %'"
        backends = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}"  # noqa: S608
        for _ in range(5):
            cluster.ask(backends)
            other.sendall(b"peek 1\r\n")
            assert ask(sock, PUT).startswith(b"INSERTED")
        assert ask(sock, b"reserve-with-timeout 0\r\n") == b"RESERVED 1 1"
    assert "lost leadership" not in alone.log


def test_clients_are_dropped_when_the_lease_ends_and_service_resumes(alone: Node, cluster: Cluster) -> None:
    with connect(alone) as sock, connect(alone) as other:
        assert [ask(sock, PUT), ask(sock, PUT)] == [b"INSERTED 1", b"INSERTED 2"]
        cluster.ask("CHECKPOINT")  # else the stop writes the data of other tests, for longer than a lease
        cluster.stop()
        try:
            sock.sendall(b"delete 1\r\n")
            assert ask(other, b"list-tube-used\r\n") == b"USING default", "clients are served until the lease ends"
            assert select.select([sock], [], [], 0.2)[0] == [], "an acknowledgement of what is not committed"
            assert sock.recv(100) == b"", "an acknowledgement of what is not committed"
            wait_until(lambda: alone.role == STANDBY or alone.ask("readyz")[0] == 503, lambda: alone.log)
        finally:
            cluster.start()
    wait_until(lambda: alone.role == ACTIVE, lambda: alone.log)
    with connect(alone) as sock:
        assert ask(sock, b"peek 1\r\n") == b"FOUND 1 1"
        assert ask(sock, PUT) == b"INSERTED 3"
    assert alone.ask("metrics", TOKEN)[0] == 200, "the environment was passed on, including secrets"
    assert alone.ask("metrics", "*****")[0] == 401
    assert "lost leadership: PostgreSQL: " in alone.log
    assert "standby: the database answers again" in alone.log


def test_database_error_is_logged_and_loses_nothing(nodes: Nodes, cluster: Cluster) -> None:
    """The database refuses rows for a while. The standby must also understand the rewrite that follows."""
    active = nodes.wait_for_roles()
    (standby,) = [node for node in nodes.nodes if node is not active]
    with connect(active) as sock, connect(active) as other:
        for number in range(3):
            assert ask(sock, PUT) == b"INSERTED %d" % (number + 1)
        cluster.ask(
            """CREATE FUNCTION refuse() RETURNS trigger AS 'BEGIN RAISE ''no room''; END' LANGUAGE plpgsql;
               CREATE TRIGGER refuse BEFORE INSERT ON greenstalk_batch FOR EACH ROW EXECUTE FUNCTION refuse()"""
        )
        sock.sendall(b"delete 1\r\n")
        wait_until(lambda: active.ask("readyz") == (503, "journal: PostgreSQL: no room\n"), lambda: active.log)
        assert ask(other, PUT) == b"OUT_OF_MEMORY"
        assert select.select([sock], [], [], 0.5)[0] == [], "an acknowledgement of what is not committed"
        cluster.ask("DROP FUNCTION refuse CASCADE")
        assert ask(sock, b"") == b"DELETED"
        assert ask(other, PUT).startswith(b"INSERTED")
    active.kill()
    wait_until(lambda: standby.role == ACTIVE, lambda: standby.log)
    with connect(standby) as sock:
        assert ask(sock, b"peek 1\r\n") == b"NOT_FOUND"
        assert ask(sock, b"peek 2\r\n") == b"FOUND 2 1"
    assert "WARNING journal" not in standby.log


def test_suspended_server_acknowledges_nothing_after_a_takeover(nodes: Nodes) -> None:
    """Commands in its socket buffer are answered by closing the connection, except for those that only read."""
    active = nodes.wait_for_roles()
    (standby,) = [node for node in nodes.nodes if node is not active]
    with connect(active) as sock:
        assert ask(sock, PUT) == b"INSERTED 1"
        active.signal(signal.SIGSTOP)
        sock.sendall(b"delete 1\r\n" + PUT + b"reserve-with-timeout 0\r\n")
        wait_until(standby.listens, lambda: standby.log)
        with connect(standby) as other:
            assert ask(other, b"reserve-with-timeout 0\r\n") == b"RESERVED 1 1"
        active.signal(signal.SIGCONT)
        received = b""
        while data := receive(sock):
            received += data
        assert received == b""
    wait_until(lambda: active.role == STANDBY, lambda: active.log)


def receive(sock: socket.socket) -> bytes:
    """Return the next data; empty if the server has closed the connection."""
    try:
        return sock.recv(4096)
    except ConnectionResetError:
        return b""
