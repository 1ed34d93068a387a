"""The history of the dashboard in the database: a takeover continues it, and only the leader writes."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from greenstalk_server.journal.postgresql.connection import NotLeader, conninfo_of
from greenstalk_server.journal.postgresql.history import HistoryRows
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.web.features.history.archive import HOURS, MINUTES, SERVER, Archive
from greenstalk_server.web.features.history.history import History
from greenstalk_server.web.features.history.rings import HOUR, WEEK
from greenstalk_server.web.features.marks.marks import Marks
from tests.support.cluster import Cluster
from tests.support.nodes import Node, Nodes, wait_until
from tests.web.conftest import Queue
from tests.web.served import work


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
        self.archive = Archive(HistoryRows(lease))
        self.marks = Marks(self.archive, self.queue.clock)
        self.history = History(self.queue.broker, self.queue.clock, self.archive, on_restored=self.marks.restore)
        self.history.restore()

    def wait(self) -> None:
        """Wait until all is written."""
        self.archive._writer.join()


def test_takeover_continues_the_history(leases: tuple[LeaderLease, LeaderLease], cluster: Cluster) -> None:
    one, two = leases
    first = Server(one)
    first.marks.add("deployed 4.2")
    work(first.queue, first.history, 1.5, "mail")
    first.wait()
    assert first.archive.trouble == ""
    expected = {span: first.history.columns(b"mail", span).series for span in (HOUR, WEEK)}
    take_over(two, cluster)
    second = Server(two, first.queue.now)
    for span, series in expected.items():
        found = second.history.columns(b"mail", span).series
        assert repr(found) == repr(series)
    assert [mark.text for mark in second.marks.find("mail", 0, second.queue.now)] == ["deployed 4.2"]
    work(second.queue, second.history, 0.5, "mail")
    second.wait()
    puts = second.history.columns(b"mail", WEEK).series["put"]
    assert puts[-2] == expected[WEEK]["put"][-1]
    assert puts[-1] > 0.9, "the hour has both halves"
    rows = cluster.ask(f"SELECT count(*) FROM greenstalk_history WHERE journal = {one.journal} AND kind = 1")  # noqa: S608
    assert rows == [(2,)], "the frames of ended hours are replaced by chunks; those of the day are two"


def test_former_leader_writes_nothing(leases: tuple[LeaderLease, LeaderLease], cluster: Cluster) -> None:
    one, two = leases
    rows = HistoryRows(one)
    rows.append(MINUTES, 0, 1, b"mine")
    take_over(two, cluster)
    with pytest.raises(OSError, match=r"terminating connection|taken over"):
        rows.append(MINUTES, 0, 1, b"late")
    with pytest.raises(NotLeader):
        rows.append(MINUTES, 0, 1, b"late")
    with pytest.raises(NotLeader):
        rows.seal(MINUTES, 0, {SERVER: b"late"})
    with pytest.raises(NotLeader):
        rows.save_marks(b"late")
    found = HistoryRows(two)
    assert found.load(MINUTES) == [(0, [b"mine"])]
    assert found.read(MINUTES, 0, 9, [SERVER]) == []
    assert found.load_marks() == b""


def test_old_blocks_are_removed(leases: tuple[LeaderLease, LeaderLease]) -> None:
    rows = HistoryRows(leases[0])
    for block in range(HOURS.kept + 5):
        rows.append(HOURS, block, block * HOURS.length, b"frame")
        rows.seal(HOURS, block, {SERVER: b"%d" % block, b"mail": b"chunk"})
    found = rows.read(HOURS, 0, 999, [SERVER])
    assert sorted(block for block, _, _ in found) == list(range(4, HOURS.kept + 5))
    assert rows.load(HOURS) == []


def test_damaged_rows_are_left_out(leases: tuple[LeaderLease, LeaderLease], cluster: Cluster) -> None:
    rows = HistoryRows(leases[0])
    rows.append(MINUTES, 0, 1, b"one")
    rows.append(MINUTES, 0, 2, b"two")
    rows.save_marks(b"[]")
    damaged = f"journal = {leases[0].journal} AND (tier < 0 OR get_byte(part, 7) = 1)"
    cluster.ask(f"UPDATE greenstalk_history SET data = set_byte(data, 5, 0) WHERE {damaged}")  # noqa: S608
    assert rows.load(MINUTES) == [(0, [b"two"])]
    assert rows.load_marks() == b""


def test_server_that_takes_over_shows_the_marks(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Real servers: the first one is killed, and the second one has its marks, and one for the takeover."""
    with Nodes.behind_proxies(cluster, tmp_path, "--journal-name", request.node.name, "--lease", "2") as nodes:
        active = nodes.wait_for_roles()
        (standby,) = [node for node in nodes.nodes if node is not active]
        wait_until(lambda: len(texts_of(active)) == 1, lambda: str(texts_of(active)))  # its own takeover
        body = json.dumps({"text": "deployed 4.2"}).encode()
        url = f"http://127.0.0.1:{active.web_port}/api/v1/marks"
        post = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(post, timeout=10) as response:  # noqa: S310  our own server
            assert response.status == 201
        stored = """SELECT FROM greenstalk_history JOIN greenstalk_journal ON id = journal
                    WHERE tier < 0 AND position('deployed 4.2'::bytea IN data) > 0 AND name = """
        query = f"{stored}'{request.node.name}'"
        wait_until(lambda: len(cluster.ask(query)) == 1, lambda: active.log)
        active.kill()
        nodes.nodes.remove(active)
        nodes.wait_for_roles()
        wait_until(lambda: len(texts_of(standby)) == 3, lambda: str(texts_of(standby)))
        texts = texts_of(standby)
        assert texts[0].startswith(f"127.0.0.1:{active.port} took over, epoch 1, version ")
        assert texts[1] == "deployed 4.2"
        assert texts[2].startswith(f"127.0.0.1:{standby.port} took over, epoch 2, version ")


def texts_of(node: Node) -> list[str]:
    """Return the texts of all marks of the active server *node*."""
    return [mark["text"] for mark in json.loads(node.ask("api/v1/marks")[1])["marks"]]
