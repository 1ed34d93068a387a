"""`journal export` and `journal import`: from a directory to a database, and back."""

from __future__ import annotations

from pathlib import Path

import psycopg

from tests.support.cluster import Cluster
from tests.support.daemon import Daemon, run
from tests.support.nodes import ACTIVE, Node, Nodes, wait_until

NAME = "moved"
COMMANDS = (
    b"put 5 0 60 1\r\na\r\n",
    b"put 3 3600 60 1\r\nb\r\n",
    b"put 1 0 60 1\r\nc\r\n",
    b"delete 3\r\n",
    b"pause-tube default 3600\r\n",
)


def content_of(archive: Path) -> list[str]:
    """Return the lines of *archive* without the first, which has its time, and the last, which has its checksum."""
    lines = archive.read_text().splitlines()[1:-1]
    assert len(lines) == 3
    return lines


def test_journal_is_unchanged_after_import_into_a_database_and_export(cluster: Cluster, tmp_path: Path) -> None:
    data, first, second = tmp_path / "data", tmp_path / "first", tmp_path / "second"
    data.mkdir()
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", "-b", str(data), "-f", "0") as server:
        for command in COMMANDS:
            server.ask(command)
        server.stop()
    assert run("journal", "export", str(data), "-o", str(first)).returncode == 0
    imported = run("journal", "import", cluster.url, str(first), GREENSTALK_JOURNAL_NAME=NAME)
    assert (imported.returncode, imported.stderr) == (0, "the journal moved: 2 jobs and 1 paused tube imported\n")
    again = run("journal", "import", cluster.url, str(first), GREENSTALK_JOURNAL_NAME=NAME)
    assert (again.returncode, again.stderr) == (
        10,
        "greenstalk-server: journal import: the journal moved must be empty, and is not\n",
    )
    with Nodes([Node("alone", cluster.url, tmp_path, "--journal-name", NAME)]) as nodes:
        (node,) = nodes.nodes
        wait_until(lambda: node.role == ACTIVE, lambda: node.log)
        exported = run("journal", "export", cluster.url, "-o", str(second), GREENSTALK_JOURNAL_NAME=NAME)
        assert exported.returncode == 0 and f"in use by 127.0.0.1:{node.port}" in exported.stderr
        refused = run("journal", "import", cluster.url, str(first), GREENSTALK_JOURNAL_NAME=NAME)
        assert refused.returncode == 10 and "is active on the journal moved" in refused.stderr
    assert content_of(first) == content_of(second)


def test_damaged_archive_imports_nothing(cluster: Cluster, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_text("not an archive\n")
    done = run("journal", "import", cluster.url, str(archive), GREENSTALK_JOURNAL_NAME="nothing")
    assert done.returncode == 1 and done.stderr.endswith("; nothing was imported\n")
    done = run("journal", "export", cluster.url, GREENSTALK_JOURNAL_NAME="nothing")
    assert (done.returncode, done.stdout) == (10, "")
    assert "there is no journal nothing in postgresql://postgres@127.0.0.1" in done.stderr


def test_export_and_failed_import_create_nothing_in_a_database(cluster: Cluster) -> None:
    cluster.ask("CREATE DATABASE another")
    url = cluster.url.replace("/greenstalk", "/another")
    done = run("journal", "export", url)
    assert (done.returncode, done.stderr) == (
        10,
        f"greenstalk-server: journal export: there is no journal default in {url}\n",
    )
    done = run("handover", DATABASE_URL=url)
    assert done.returncode == 10
    assert done.stderr.startswith("greenstalk-server: handover: no server is active on the journal default; ")
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT relname FROM pg_class WHERE relname ~ '^greenstalk'").fetchall() == []


def test_errors_name_the_cause_and_hide_the_password(cluster: Cluster, tmp_path: Path) -> None:
    secret = "postgresql://ada:pa55word@127.0.0.1/jobs"  # noqa: S105
    done = run("journal", "check", secret)
    assert (done.returncode, done.stderr) == (
        5,
        (
            "greenstalk-server: journal check: postgresql://ada:***@127.0.0.1/jobs: must be a directory;"
            " use `journal export`, which reads all of a database's journal\n"
        ),
    )
    done = run("journal", "export", secret, GREENSTALK_JOURNAL_NAME="a\udcff")
    assert done.returncode == 5
    assert done.stderr.startswith(
        "greenstalk-server: GREENSTALK_JOURNAL_NAME 'a\\udcff': must be 1 to 200 printable characters"
    )
    done = run("journal", "import", cluster.url, str(tmp_path / "none"), GREENSTALK_JOURNAL_NAME="unread")
    assert (done.returncode, done.stderr) == (
        10,
        f"greenstalk-server: journal import: {tmp_path}/none: No such file or directory\n",
    )
