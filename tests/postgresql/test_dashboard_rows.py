"""The dashboard's rows in the database: a takeover continues them, and only the leader writes."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from greenstalk import Client, NotFoundError

from greenstalk_server.journal.postgresql.connection import NotLeader, conninfo_of
from greenstalk_server.journal.postgresql.dashboard import CREATE, MAX_BATCH, DashboardRows
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.web.features.history.archive import Archive
from greenstalk_server.web.features.history.history import History
from greenstalk_server.web.features.history.rings import HOUR, WEEK
from greenstalk_server.web.store.rows import MAX_NUMBER
from greenstalk_server.web.store.store import Store
from tests.support.cluster import Cluster
from tests.support.nodes import Node, Nodes, wait_until
from tests.web.conftest import Queue
from tests.web.served import work

ALL = (0, MAX_NUMBER, None)


@pytest.fixture
def leases(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[tuple[LeaderLease, LeaderLease]]:
    """Two servers of one journal, of which the first one leads."""
    conninfo = conninfo_of(cluster.url, "--journal")
    one, two = (LeaderLease(conninfo, request.node.name, name, 60.0) for name in ("one", "two"))
    one.open()
    two.open()
    assert one.acquire(one.read_state()) == 1
    yield one, two
    for lease in (one, two):
        for connection in lease.others:
            connection.close()
        lease.close()


def take_over(lease: LeaderLease, cluster: Cluster) -> None:
    cluster.ask(f"UPDATE greenstalk_journal SET lease_until = 'epoch' WHERE id = {lease.journal}")  # noqa: S608
    assert lease.acquire(lease.read_state()) is not None


class Server:
    """A history in the database, with a fake clock."""

    def __init__(self, lease: LeaderLease, now: int | None = None) -> None:
        self.queue = Queue()
        self.queue.now = now if now is not None else self.queue.now
        self.store = Store(DashboardRows(lease), is_kept=True)
        self.store.restore()
        self.history = History(self.queue.broker, self.queue.clock, Archive(self.store))
        self.history.restore()


def test_rows_are_found_replaced_removed_and_trimmed(leases: tuple[LeaderLease, LeaderLease]) -> None:
    rows = DashboardRows(leases[0])
    large = bytes(MAX_BATCH)
    rows.write([("x", 1, b"a", b"1"), ("x", 2, b"b", large), ("x", 3, b"\0", large), ("y", 1, b"a", b"2")], {})
    rows.write([("x", 1, b"a", b"11"), ("x", 2, b"b", None), ("x", 4, b"", b"4")], {"y": 1})
    assert rows.read("x", *ALL) == [(1, b"a", b"11"), (3, b"\0", large), (4, b"", b"4")]
    assert rows.read("x", 1, 3, [b"a", b"b"]) == [(1, b"a", b"11")]
    assert rows.latest("x", 4, 1) == [(3, b"\0", large)]
    assert rows.sizes("x") == {1: 2, 3: MAX_BATCH, 4: 1}
    assert rows.read("y", *ALL) == []


def test_statement_whose_session_breaks_is_repeated(leases: tuple[LeaderLease, LeaderLease], cluster: Cluster) -> None:
    rows = DashboardRows(leases[0])
    rows.write([("x", 1, b"a", b"1")], {})
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '% store'"
    assert cluster.ask(ended) == [(True,)]
    assert rows.read("x", *ALL) == [(1, b"a", b"1")]


def test_owners_of_two_shards_create_the_table_at_the_same_time(
    leases: tuple[LeaderLease, LeaderLease], cluster: Cluster
) -> None:
    cluster.ask("DROP TABLE IF EXISTS greenstalk_dashboard")
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE '% store'"
    with ThreadPoolExecutor() as pool, psycopg.connect(cluster.url) as other:
        other.execute(CREATE)
        reading = pool.submit(DashboardRows(leases[0]).read, "x", *ALL)
        wait_until(lambda: reading.done() or bool(cluster.ask(waiting)), lambda: "the other server does not wait")
        assert not reading.done()
        other.commit()
        assert reading.result() == []


def test_takeover_continues_the_history(leases: tuple[LeaderLease, LeaderLease], cluster: Cluster) -> None:
    one, two = leases
    first = Server(one)
    work(first.queue, first.history, 1.5, "mail")
    first.store.save()
    assert first.store.last_error == ""
    expected = {span: first.history.columns(b"mail", span).series for span in (HOUR, WEEK)}
    take_over(two, cluster)
    second = Server(two, first.queue.now)
    for span, series in expected.items():
        assert repr(second.history.columns(b"mail", span).series) == repr(series)
    work(second.queue, second.history, 0.5, "mail")
    puts = second.history.columns(b"mail", WEEK).series["put"]
    assert puts[-2] == expected[WEEK]["put"][-1]
    assert puts[-1] > 0.9, "the hour has both halves"
    second.store.flush()
    first.store.flush()


def test_former_leader_writes_nothing(leases: tuple[LeaderLease, LeaderLease], cluster: Cluster) -> None:
    one, two = leases
    rows = DashboardRows(one)
    rows.write([("x", 1, b"", b"mine")], {})
    take_over(two, cluster)
    with pytest.raises(NotLeader):
        rows.write([("x", 2, b"", b"late")], {})
    rows.write([("x", 1, b"", None)], {"x": 1})
    assert DashboardRows(two).read("x", *ALL) == [(1, b"", b"mine")]


def test_server_that_takes_over_has_the_data_of_its_predecessor(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Real servers: the first one is killed. The second one has its marks, searches and audit log."""
    with Nodes.behind_proxies(cluster, tmp_path, "--journal-name", request.node.name, "--lease", "2") as nodes:
        active = nodes.wait_for_roles()
        (standby,) = [node for node in nodes.nodes if node is not active]
        wait_until(lambda: len(texts_of(active)) == 1, lambda: str(texts_of(active)))  # its own takeover
        post(active, "marks", {"text": "deployed 4.2"})
        post(active, "saved-searches", {"name": "stuck", "q": "age:>2h"})
        stored = f"""SELECT FROM greenstalk_dashboard JOIN greenstalk_journal ON id = journal
                     WHERE kind = 'audit' AND greenstalk_journal.name = '{request.node.name}'"""
        wait_until(lambda: len(cluster.ask(stored)) == 2, lambda: active.log)
        active.kill()
        nodes.nodes.remove(active)
        nodes.wait_for_roles()
        wait_until(lambda: len(texts_of(standby)) == 3, lambda: str(texts_of(standby)))
        texts = texts_of(standby)
        assert texts[0].startswith(f"127.0.0.1:{active.port} took over, epoch 1, version ")
        assert texts[1] == "deployed 4.2"
        assert texts[2].startswith(f"127.0.0.1:{standby.port} took over, epoch 2, version ")
        assert [search["name"] for search in of(standby, "saved-searches")["searches"]] == ["stuck"]
        assert [entry["what"] for entry in of(standby, "audit")["entries"]] == ["search/save", "mark/add"]


def test_changes_are_undone_after_a_takeover_and_the_jobs_survive_another(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with Nodes.behind_proxies(cluster, tmp_path, "--journal-name", request.node.name, "--lease", "2") as nodes:
        active = nodes.wait_for_roles()
        (standby,) = [node for node in nodes.nodes if node is not active]
        with Client(("127.0.0.1", active.port)) as client:
            ids = [client.put(str(at), priority=7) for at in range(3)]
        post(active, f"jobs/{ids[0]}/move", {"tube": "other"})
        post(active, "tube/clear?tube=default", {"state": "ready"})
        active.kill()
        nodes.nodes.remove(active)
        nodes.wait_for_roles()
        changes = of(standby, "changes")["changes"]
        with Client(("127.0.0.1", standby.port)) as client:
            with pytest.raises(NotFoundError):
                client.peek(ids[1])
            for change in changes:
                post(standby, f"changes/{change['number']}/undo", {})
            wait_until(lambda: all(one["undone_at"] for one in of(standby, "changes")["changes"]), lambda: standby.log)
        standby.kill()
        standby.start()
        nodes.wait_for_roles()
        with Client(("127.0.0.1", standby.port)) as client:
            assert [client.peek(id).body for id in ids] == ["0", "1", "2"]
            assert {client.stats_job(id)["tube"] for id in ids} == {"default"}
            assert client.put("") not in ids


def post(node: Node, path: str, body: dict[str, str]) -> None:
    url = f"http://127.0.0.1:{node.web_port}/api/v1/{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310  our own server
        assert response.status in (200, 201, 202)


def of(node: Node, path: str) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = json.loads(node.ask(f"api/v1/{path}")[1])
    return found


def texts_of(node: Node) -> list[str]:
    """Return the texts of all marks of the active server *node*."""
    return [mark["text"] for mark in of(node, "marks")["marks"]]
