"""The commands of docs/high-availability.md, run with PostgreSQL, its synchronous standby, and two servers.

The commands, configuration lines and queries run as written, with other addresses, ports and directories: both machines
of PostgreSQL, and both servers, are processes on this machine. tests/deploy runs the block of HAProxy.
"""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.failover.test_roles import PUT
from tests.support.cluster import Cluster, bin_directory
from tests.support.daemon import REPOSITORY, Daemon, ask
from tests.support.nodes import Node, Nodes, wait_until
from tests.support.pages import block, path_with_commands, run_in_shell

from .examples import examples

PAGE = (REPOSITORY / "docs" / "high-availability.md").read_text()
PASSWORD = "change-me"  # noqa: S105
METRICS_TOKEN = "t0ken"  # noqa: S105
TIMEOUT = 60.0
"""Maximum run time of a block of commands in seconds."""

SUDO = """\
#!/bin/sh
# Runs a command as the database administrator, and types the password twice.
test "$1 $2" = "-u postgres" || exit 1
shift 2
if [ "$(id -u)" = 0 ]; then set -- setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; fi
printf '%s\\n%s\\n' "$TYPED" "$TYPED" | "$@"
"""


CREATE = block("high-availability.md", "sh", "sudo -u postgres createuser greenstalk")
SERVE = block("high-availability.md", "sh", "export DATABASE_URL=")
MOVE = block("high-availability.md", "sh", "greenstalk-server journal export")
BASE_BACKUP = block("high-availability.md", "sh", "sudo -u postgres pg_basebackup")
BACKUP_TO = "/var/lib/postgresql/15/main"
HANDOVER = block("high-availability.md", "sh", "greenstalk-server handover")
COMMANDS = (CREATE, SERVE, MOVE, BASE_BACKUP, HANDOVER)

SETTINGS, ALLOW_SERVERS = block("high-availability.md", "text", "# postgresql.conf; requires a restart").split("\n\n")
STANDBY = block("high-availability.md", "text", "# pg_hba.conf\nhost  replication")
ALLOW_REPLICATION, WAIT_FOR_STANDBY = STANDBY.split("\n\n")
WHO_LEADS, SESSIONS = block("high-availability.md", "sql", "SELECT name, holder_name").split("\n\n")
CREATE_REPLICATOR = "sudo -u postgres createuser --replication --pwprompt replicator"
SYNC_STATE = "SELECT application_name, sync_state FROM pg_stat_replication"
RELEASE_LEAD = "UPDATE greenstalk_journal SET holder = NULL"
TERMINATE = "SELECT pg_terminate_backend(PID)"


class Backup(Cluster):
    """The standby `db2`, created by the page's command, which *shell* runs."""

    def __init__(self, shell: Shell, upstream: Cluster) -> None:
        self._shell: Shell = shell
        self._upstream: Cluster = upstream
        super().__init__(upstream=upstream)

    def _run(self, program: str, *arguments: str) -> None:
        if program == "pg_basebackup":
            local = {"host=db1": f"host=127.0.0.1 port={self._upstream.port}", BACKUP_TO: str(self.directory / "data")}
            self._shell.run(replaced(BASE_BACKUP, local), TYPED=PASSWORD)
        else:
            super()._run(program, *arguments)


class Shell:
    """bash in a separate directory, in which `sudo -u postgres` runs commands as the administrator of *cluster*."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        self.work: Path = directory / "work"
        self.work.mkdir()
        self.path: str = f"{path_with_commands(directory / 'bin')}:{bin_directory()}"
        sudo = directory / "bin" / "sudo"
        sudo.write_text(SUDO)
        sudo.chmod(0o755)
        self._administrator: dict[str, str] = {"PGHOST": str(cluster.directory), "PGPORT": str(cluster.port)}

    def run(self, commands: str, **variables: str) -> str:
        """Run *commands* and return their output; fail if one of them fails."""
        script = f"set -e\ncd {shlex.quote(str(self.work))}\n{commands}\necho; echo done"
        out, err = run_in_shell(script, Path("/"), self.path, TIMEOUT, **self._administrator, **variables)
        assert out.endswith("\ndone\n"), f"{commands}\n{out}{err}"
        return out.removesuffix("\ndone\n")


class Machine(Node):
    """A server started by the page's commands."""

    def __init__(self, name: str, site: Site, logs: Path, **variables: Any) -> None:
        super().__init__(name, "", logs, GREENSTALK_METRICS_TOKEN=METRICS_TOKEN, PATH=site.shell.path, **variables)
        self._variables |= {"GREENSTALK_LISTEN_PORT": str(self.port), "PORT": str(self.web_port)}
        self._variables["PYTHONPATH"] = str(REPOSITORY)
        self._site: Site = site

    def command(self, *words: str) -> list[str]:
        del words
        script = self._site.local(SERVE).replace("greenstalk-server", "exec greenstalk-server")
        return ["bash", "-euc", script]


class Site(NamedTuple):
    """PostgreSQL on `db1` and `db2`, set up by the page's commands, and a shell that can connect to them."""

    db1: Cluster
    db2: Backup
    shell: Shell

    def local(self, commands: str) -> str:
        """Return *commands* with the addresses of this site, for the user of both servers."""
        hosts = f"127.0.0.1:{self.db1.port},127.0.0.1:{self.db2.port}"
        return replaced(commands, {"db1,db2": hosts, "10.0.0.5": "127.0.0.1"})

    @property
    def url(self) -> str:
        (assignment,) = re.findall(r"DATABASE_URL=(\S+)", self.local(SERVE))
        return str(assignment)

    def two_servers(self, logs: Path, **variables: str) -> Nodes:
        return Nodes([Machine(f"server-{name}", self, logs, **variables) for name in "ab"])


def replaced(text: str, written: dict[str, str]) -> str:
    """Return *text* with each key of *written* replaced; fail if one is missing."""
    for old, new in written.items():
        assert old in text, f"{old} is not in {text}"
        text = text.replace(old, new)
    return text


def allow_access(cluster: Cluster, lines: str) -> None:
    """Insert *lines* of the page at the top of pg_hba.conf, with the address of this machine."""
    file = cluster.directory / "data" / "pg_hba.conf"
    file.write_text(re.sub(r"10\.0\.0\.\d+/32", "127.0.0.1/32", lines) + "\n" + file.read_text())


def append_settings(cluster: Cluster, lines: str) -> None:
    """Append *lines* to postgresql.conf, and reload it."""
    with (cluster.directory / "data" / "postgresql.conf").open("a") as file:
        file.write(f"{lines.rstrip()}\n")
    with psycopg.connect(cluster.admin_url, autocommit=True) as connection:
        connection.execute("SELECT pg_reload_conf()")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Set up PostgreSQL by the page: the role and database, access, the standby, synchronous commits."""
    with Cluster() as db1:
        shell = Shell(tmp_path_factory.mktemp("site"), db1)
        with psycopg.connect(db1.admin_url, autocommit=True) as connection:
            connection.execute("DROP DATABASE greenstalk")  # the page creates it
        shell.run(CREATE, TYPED=PASSWORD)
        append_settings(db1, SETTINGS)
        allow_access(db1, ALLOW_SERVERS)
        db1.stop()
        db1.start()
        shell.run(CREATE_REPLICATOR, TYPED=PASSWORD)
        allow_access(db1, ALLOW_REPLICATION)
        append_settings(db1, "")
        with Backup(shell, db1) as db2:
            append_settings(db1, WAIT_FOR_STANDBY)
            wait_until(lambda: db1.ask(SYNC_STATE) == [("db2", "sync")], lambda: db1.log)
            yield Site(db1, db2, shell)


def put(node: Node) -> bytes:
    with socket.create_connection(("127.0.0.1", node.port), TIMEOUT) as sock:
        return ask(sock, PUT)


def lead(site: Site, journal: str) -> tuple[object, ...]:
    """Return the leader of *journal* from the page's query, without the journal's name."""
    (row,) = [row for row in site.db1.ask(WHO_LEADS) if row[0] == journal]
    return row[1:]


def status_command(*nodes: Node) -> str:
    """Return the page's command that shows the active server, for *nodes*."""
    (command,) = re.findall(r"`(curl -s http\S+; curl -s \S+)`", PAGE)
    addresses = zip(("10.0.0.5:8080", "10.0.0.6:8080"), nodes, strict=True)
    return replaced(command, {written: f"127.0.0.1:{node.web_port}" for written, node in addresses})


def test_every_command_of_the_page_is_run_or_excluded_with_a_reason() -> None:
    assert sorted(COMMANDS) == sorted([one.commands for one in examples(PAGE)])
    for command in (CREATE_REPLICATOR, SYNC_STATE, RELEASE_LEAD, TERMINATE):
        assert f"`{command}" in PAGE


def test_two_servers_hand_over_and_the_queries_show_who_leads(site: Site, tmp_path: Path) -> None:
    with site.two_servers(tmp_path) as nodes:
        first = nodes.wait_for_roles()
        (second,) = [node for node in nodes.nodes if node is not first]
        assert put(first) == b"INSERTED 1"
        assert [node.gauge("leader") for node in (first, second)] == [1, 0]
        output = site.shell.run(status_command(first, second))
        assert re.fullmatch(rf"ready\nstandby of .*:{first.port} is active, [0-9.]+ s behind\n", output)
        holder_name, uuid, _epoch, _until, is_over = lead(site, "default")
        assert str(holder_name).endswith(f":{first.port}")
        assert is_over is False
        named = {str(row[1]) for row in site.db1.ask(SESSIONS)}
        purposes = {words[2] for words in map(str.split, named) if words[:2] == ["greenstalk-server", str(uuid)]}
        assert {"lease", "append"} <= purposes <= {"lease", "append", "read", "side", "store"}, named

        site.shell.run(HANDOVER, DATABASE_URL=site.url)
        assert nodes.wait_for_roles() is second
        assert put(second) == b"INSERTED 2"
        assert str(lead(site, "default")[0]).endswith(f":{second.port}")


def test_jobs_of_a_directory_are_imported(site: Site, tmp_path: Path) -> None:
    directory = tmp_path / "directory"
    directory.mkdir()
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", "-b", str(directory)) as server:
        assert server.ask(b"put 0 0 600 5\r\nhello\r\n") == b"INSERTED 1"
    commands = replaced(MOVE, {"/var/lib/greenstalk": str(directory)})
    variables = {"DATABASE_URL": site.url, "GREENSTALK_JOURNAL_NAME": "moved"}
    site.shell.run(commands, **variables)
    back = site.shell.run('greenstalk-server journal export "$DATABASE_URL"', **variables)
    assert '"id":1,"tube":"default"' in back


def test_long_lease_can_be_released_when_its_holder_is_down(site: Site, tmp_path: Path) -> None:
    variables = {"GREENSTALK_JOURNAL_NAME": "released", "GREENSTALK_LEASE_SECONDS": "600"}
    with site.two_servers(tmp_path, **variables) as nodes:
        first = nodes.wait_for_roles()
        (second,) = [node for node in nodes.nodes if node is not first]
        first.kill()
        wait_until(lambda: not first.listens(), lambda: first.log)
        holder_name, *_, is_over = lead(site, "released")
        assert is_over is False and str(holder_name).endswith(f":{first.port}")
        site.db1.ask(f"{RELEASE_LEAD} WHERE name = 'released'")
        wait_until(lambda: second.role == "active", lambda: second.log)
        assert put(second) == b"INSERTED 1"


def test_table_of_alerts_matches_the_rules_file() -> None:
    rules = (REPOSITORY / "docs" / "prometheus-alerts.yml").read_text().partition("greenstalk-high-availability")[2]
    rows = re.findall(r"^\| `(Greenstalk\w+)` \| (.*?) \|", PAGE, re.MULTILINE)
    assert [name for name, _ in rows] == re.findall(r"alert: (\w+)", rules)
    for _, condition in rows:
        for expression in re.findall(r"`([^`]+)`", condition):
            assert f"expr: {expression}\n" in rules
