"""`journal reshard` of a queue in a database: every job keeps its id and attributes, in one transaction."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from greenstalk_server.core.tube_shards import shard_of_tube
from greenstalk_server.journal.postgresql.dashboard import CREATE
from tests.cluster.test_cluster import connect, put
from tests.cluster.test_reshard import source
from tests.support.cluster import Cluster
from tests.support.daemon import run_here
from tests.support.nodes import Node, Nodes, run_command, wait_until

__all__ = ["source"]


class Database:
    """The queue *name* on *cluster*, by the commands of the server. Exports are in *directory*."""

    def __init__(self, cluster: Cluster, name: str, directory: Path) -> None:
        self.cluster: Cluster = cluster
        self.directory: Path = directory
        self.name: str = name

    def run(self, verb: str, *words: str, name: str = "") -> subprocess.CompletedProcess[str]:
        return run_here("journal", verb, *words, GREENSTALK_JOURNAL_NAME=name or self.name)

    def reshard(self, shards: int, *flags: str) -> subprocess.CompletedProcess[str]:
        return self.run("reshard", self.cluster.url, "--shards", str(shards), *flags)

    def lines(self, *journals: str) -> list[dict[str, Any]]:
        """Return the lines of the exports of *journals*, without the first and the last of each."""
        found: list[dict[str, Any]] = []
        for journal in journals:
            target = self.directory / "export.jsonl"
            done = self.run("export", self.cluster.url, "-o", str(target), name=journal)
            assert done.returncode == 0, done.stderr
            found += [json.loads(line) for line in target.read_text().splitlines()[1:-1]]
        return sorted(found, key=json.dumps)

    def journals(self) -> list[str]:
        """Return the names of the journals of the queue."""
        found = [str(name) for (name,) in self.cluster.ask("SELECT name FROM greenstalk_journal ORDER BY name")]
        return [name for name in found if name.partition("/")[0] == self.name]


@pytest.fixture
def database(cluster: Cluster, source: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Database:
    """A queue of one shard with the jobs of *source*, which no server with links has led."""
    archive = tmp_path / "jobs.jsonl"
    assert run_here("journal", "export", str(source), "-o", str(archive)).returncode == 0
    database = Database(cluster, request.node.name.replace("_", "-")[:40], tmp_path)
    done = database.run("import", cluster.url, str(archive))
    assert done.returncode == 0, done.stderr
    return database


def test_all_jobs_keep_their_ids_and_attributes(database: Database) -> None:
    before = database.lines(database.name)
    assert len(before) == 25
    for shards in (3, 2, 1, 4):
        done = database.reshard(shards)
        assert done.returncode == 0, done.stderr
        names = [f"{database.name}/{shard}" for shard in range(shards)] if shards > 1 else [database.name]
        assert database.journals() == names
        assert database.lines(*names) == before
        for shard, name in enumerate(names):
            tubes = {line["tube"].encode() for line in database.lines(name) if "tube" in line}
            assert {shard_of_tube(tube, shards) for tube in tubes} <= {shard}


def test_pins_are_changed_with_the_same_number_of_shards(database: Database) -> None:
    assert database.reshard(2).returncode == 0
    done = database.reshard(2, "--pin", "tube-*=1")
    assert done.returncode == 0, done.stderr
    assert {line["tube"] for line in database.lines(f"{database.name}/1")} == {f"tube-{n}" for n in range(6)}
    again = database.reshard(2, "--pin", "tube-*=1")
    assert again.returncode == 0
    assert again.stderr == f"the queue {database.name} has 2 shards and these pins already\n"


def test_failed_change_leaves_the_queue_as_it_was(database: Database) -> None:
    assert database.reshard(2).returncode == 0
    before = database.lines(*database.journals())
    lock = "CREATE TRIGGER fails BEFORE INSERT ON greenstalk_journal FOR EACH ROW EXECUTE FUNCTION fails()"
    database.cluster.ask("CREATE FUNCTION fails() RETURNS trigger AS 'BEGIN RAISE ''no room''; END' LANGUAGE plpgsql")
    database.cluster.ask(lock)
    try:
        done = database.reshard(3)
    finally:
        database.cluster.ask("DROP FUNCTION fails CASCADE")
    assert (done.returncode, done.stderr) == (10, "greenstalk-server: journal reshard: PostgreSQL: no room\n")
    assert database.lines(*database.journals()) == before


def test_dashboard_keeps_its_data_but_that_for_undo(database: Database) -> None:
    assert database.reshard(2).returncode == 0
    database.cluster.ask(CREATE)
    database.cluster.ask("""
        INSERT INTO greenstalk_dashboard
        SELECT id, kind, 1, convert_to(name, 'UTF8'), ''
        FROM greenstalk_journal, unnest(ARRAY['change', 'test']) AS kind WHERE name LIKE 'test-dashboard-%'""")
    assert database.reshard(1).returncode == 0
    left = database.cluster.ask("""
        SELECT kind, convert_from(name, 'UTF8') FROM greenstalk_dashboard
        WHERE kind IN ('change', 'test') AND name LIKE 'test-dashboard-%'""")
    assert left == [("test", f"{database.name}/0")]


def test_queue_of_an_earlier_version_is_found_and_migrated(database: Database, tmp_path: Path) -> None:
    assert database.reshard(2).returncode == 0
    database.cluster.ask("ALTER TABLE greenstalk_process DROP COLUMN relays")
    assert database.reshard(1).returncode == 0
    flags = ("--journal-name", database.name, "--link", "127.0.0.1:0", "--no-web")
    node = Node("node", database.cluster.url, tmp_path, *flags)
    database.cluster.ask("ALTER TABLE greenstalk_process DROP COLUMN IF EXISTS relays")
    assert "shards: 1" in run_command(node, "cluster").stdout
    with Nodes([node]):
        wait_until(node.listens, lambda: node.log)
        assert database.cluster.ask("SELECT DISTINCT relays FROM greenstalk_process") == [("",)]


def test_missing_queue_is_refused(cluster: Cluster, database: Database) -> None:
    done = Database(cluster, "nothing", database.directory).reshard(2)
    assert (done.returncode, done.stderr) == (10, "greenstalk-server: journal reshard: there is no queue nothing\n")


def test_servers_continue_on_the_new_shards_and_prevent_a_change(database: Database, tmp_path: Path) -> None:
    assert database.reshard(2).returncode == 0
    flags = ("--journal-name", database.name, "--shards", "2", "--link", "127.0.0.1:0", "--no-web")
    nodes = [Node(f"node-{number}", database.cluster.url, tmp_path, *flags) for number in range(2)]
    highest = max(line["id"] for line in database.lines(*database.journals()) if "id" in line)
    with Nodes(nodes):
        wait_until(lambda: all(node.listens() for node in nodes), lambda: nodes[0].log)
        with connect(nodes[0]) as client:
            for number in range(6):
                assert put(client, b"tube-%d" % number) > highest
                assert client.stats(b"stats-tube tube-%d" % number)[b"current-jobs-ready"] >= b"3"
            assert client.ask(b"delete 1") == b"DELETED"
        done = database.reshard(3)
        assert done.returncode == 10
        assert f"journal reshard: the queue {database.name} is in use by 127.0.0.1:" in done.stderr
        assert [node.stop() for node in nodes] == [0, 0]
    done = database.reshard(1)
    assert done.returncode == 0, done.stderr
    assert f"{24 + 6 - 1} jobs are now divided among 1 shard" in done.stderr
