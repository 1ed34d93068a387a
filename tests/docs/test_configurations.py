"""Tables of configuration files on the pages, and their pipelines, are valid."""

from __future__ import annotations

import hashlib
import hmac
import tomllib
from pathlib import Path

import psycopg
import pytest
import yaml

from greenstalk_server.config.command_line import parse
from greenstalk_server.config.definitions import DEFINITIONS
from greenstalk_server.config.options import Options
from greenstalkctl import named_servers
from tests.support.cluster import Cluster
from tests.support.daemon import REPOSITORY, Daemon
from tests.support.pages import block, path_with_commands, run_in_shell
from tests.support.ports import free_ports

TIMEOUT = 60.0
"""Maximum run time of commands in seconds."""

TABLES = [
    block("alerts.md", "toml", "[alerts.chat]"),
    block("configuration.md", "toml", "[attention]"),
    block("dashboard.md", "toml", "[roles.billing]"),
    block("dashboard.md", "toml", "[oidc]"),
    block("dashboard.md", "toml", "[servers.frankfurt]"),
]


@pytest.mark.parametrize("text", TABLES, ids=lambda text: text.partition("]")[0].strip("["))
def test_tables_of_the_configuration_file_are_valid(text: str, tmp_path: Path) -> None:
    """Each secret is in a file or in a variable."""
    secret = tmp_path / "secret"
    secret.write_text("https://chat.example.com/hook\n")
    secret.chmod(0o600)
    for table in tomllib.loads(text).values():
        for entry in [table, *table.values()]:
            for key, name in entry.items() if isinstance(entry, dict) else ():
                text = text.replace(f'"{name}"', f'"{secret}"') if str(key).endswith("_file") else text
    path = tmp_path / "greenstalk.toml"
    path.write_text(text)
    variables = {"ALERTS_SECRET": "secret", "LOCAL_TOKEN": "token"}
    assert isinstance(parse(["--config", str(path)], variables), Options)


def test_entries_of_servers_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "greenstalkctl.toml"
    path.write_text(block("greenstalkctl.md", "toml", "default = "))
    monkeypatch.setenv(named_servers.CONFIG_VARIABLE, str(path))
    loaded = named_servers.load()
    assert list(loaded.servers) == ["test", "production"]
    assert loaded.default_server is loaded.servers["test"]


def test_receiver_verifies_the_signature_of_a_message() -> None:
    """tests/web/test_alerts.py checks that the server makes this signature."""
    source = block("alerts.md", "python", "expected = ").replace("...  # refuse", "refused = True")
    body = block("alerts.md", "json", "{").encode()
    for secret, refused in ((b"secret", False), (b"other", True)):
        headers = {"X-Greenstalk-Signature": f"sha256={hmac.new(b'secret', body, hashlib.sha256).hexdigest()}"}
        scope = {"hashlib": hashlib, "hmac": hmac, "secret": secret, "body": body, "headers": headers, "refused": False}
        exec(source, scope)  # noqa: S102
        assert scope["refused"] is refused


# Pipelines


def test_steps_of_a_github_workflow_start_a_server_for_the_tests(tmp_path: Path) -> None:
    *_, installation, tests = yaml.safe_load(block("ci.md", "yaml", "steps:"))["steps"]
    assert installation["run"] == "pip install --find-links wheels greenstalk-server"
    script = tests["run"]
    assert script.endswith("\npytest\n")
    (port,) = free_ports(1)
    variables = {"GREENSTALK_LISTEN_PORT": str(port), "GREENSTALKCTL_SERVER": f"127.0.0.1:{port}"}
    commands = script.replace("\npytest\n", "\ngreenstalkctl put hello\nkill $!\n")
    out, _ = run_in_shell(f"set -e\n{commands}", tmp_path, path_with_commands(tmp_path / "bin"), TIMEOUT, **variables)
    assert out.endswith("\n1\n")


def test_services_of_pipelines_are_as_the_image_expects() -> None:
    """The image listens on these ports, and the variables are options."""
    (github,) = yaml.safe_load(block("ci.md", "yaml", "jobs:"))["jobs"].values()
    gitlab = yaml.safe_load(block("ci.md", "yaml", "test:"))["test"]
    service, (other,) = github["services"]["queue"], gitlab["services"]
    options = {definition.variable for definition in DEFINITIONS}
    assert service["env"].keys() | other["variables"].keys() <= options
    image = (REPOSITORY / "deploy" / "Dockerfile").read_text()
    exposed = " ".join(port.partition(":")[0] for port in service["ports"])
    assert f"\nEXPOSE {exposed}\n" in image
    assert github["steps"][-1]["env"]["QUEUE"] == "127.0.0.1:11300"
    assert gitlab["variables"]["QUEUE"] == f"{other['alias']}:11300"


# Commands and queries


@pytest.mark.parametrize("is_valid", [True, False])
def test_configuration_file_is_checked(is_valid: bool, tmp_path: Path) -> None:
    path = tmp_path / "greenstalk.toml"
    path.write_text("port = 11301\n" if is_valid else "port = 0.5\n")
    command = block("configuration.md", "sh", "greenstalk-server config --check")
    assert "/etc/greenstalk.toml" in command
    commands = path_with_commands(tmp_path / "bin")
    out, err = run_in_shell(command.replace("/etc/greenstalk.toml", str(path)), tmp_path, commands, TIMEOUT)
    assert ("the configuration is valid" in out) == is_valid, err


def test_command_of_the_page_prints_a_valid_hash(tmp_path: Path) -> None:
    command = block("configuration.md", "sh", "echo ")
    out, err = run_in_shell(command, tmp_path, path_with_commands(tmp_path / "bin"), TIMEOUT)
    path = tmp_path / "greenstalk.toml"
    path.write_text(f'[users.bea]\nrole = "viewer"\npassword_hash = "{out.strip()}"\n')
    assert isinstance(parse(["--config", str(path)], {}), Options), (out, err)


def test_dated_export_is_a_file_in_the_directory(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    script = block("backup.md", "sh", "mkdir backups") + "ls backups\n"
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", "-b", str(tmp_path / "queue")):
        out, err = run_in_shell(script, tmp_path, path_with_commands(tmp_path / "bin"), TIMEOUT)
    assert (out.startswith("greenstalk-"), out.count("\n"), err) == (True, 1, "")


def test_relays_that_run_at_the_same_time_take_different_rows(cluster: Cluster) -> None:
    table, take = block("outbox.md", "sql", "CREATE TABLE outbox").split("\n\n")
    cluster.ask(table)
    try:
        cluster.ask("INSERT INTO outbox (tube, body) SELECT 'mail', 'hello' FROM generate_series(1, 150)")
        with psycopg.connect(cluster.url) as first, psycopg.connect(cluster.url) as second:
            rows = [row for relay in (first, second) for row in relay.execute(take.encode()).fetchall()]
        assert sorted(row[0] for row in rows) == list(range(1, 151))
    finally:
        cluster.ask("DROP TABLE outbox")
