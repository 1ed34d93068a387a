"""Servers with names in a configuration file: addresses, defaults, precedence, tokens, and warnings about secrets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ctl.world import WithApi, address, connect, run
from tests.support.daemon import Daemon, environment
from tests.support.servers import Server

TOKEN = {"GREENSTALK_API_TOKEN": "secret"}
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write the text to a file that only its owner can read, and make it the configuration."""

    def write(text: str) -> Path:
        path = tmp_path / "ctl.toml"
        path.write_text(text)
        path.chmod(0o600)
        monkeypatch.setenv("GREENSTALKCTL_CONFIG", str(path))
        return path

    return write


def test_name_and_default_select_a_server(server: Server, other: Server, write: Write) -> None:
    write(
        f'default = "here"\n[servers.here]\naddress = "{address(server)}"\n'
        f'[servers.there]\naddress = "{address(other)}"\n'
    )
    assert run("ping", "--json").json["server"] == address(server)
    assert run("--server", "there", "ping", "--json").json["server"] == address(other)
    assert run("put", "hello", "--tube", "mail").code == 0
    assert run("drain-to", "there", "--yes").code == 0
    with connect(other, "mail") as mail:
        assert mail.peek_ready().body == b"hello"
    assert run("servers", "--json").json == [
        {"name": "here", "address": address(server), "api": None, "default": True},
        {"name": "there", "address": address(other), "api": None, "default": False},
    ]


def test_entry_of_the_user_replaces_that_of_the_system(
    one: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GREENSTALKCTL_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("greenstalkctl.named_servers.SYSTEM_FILE", tmp_path / "system.toml")
    (tmp_path / "system.toml").write_text('[servers.a]\naddress = "a:1"\ncafile = "x"\n[servers.b]\naddress = "b:2"\n')
    (tmp_path / "greenstalk").mkdir()
    (tmp_path / "greenstalk" / "greenstalkctl.toml").write_text(f'[servers.a]\naddress = "{address(one)}"\n')
    assert [(row["name"], row["address"]) for row in run("servers", "--json").json] == [
        ("a", address(one)),
        ("b", "b:2"),
    ]
    assert run("-s", "a", "ping").code == 0


def test_entry_overrides_the_variables_and_the_command_line_overrides_the_entry(
    with_api: WithApi, one: Server, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREENSTALKCTL_API", "http://127.0.0.1:1")
    write(
        f'[servers.plain]\naddress = "{address(one)}"\n'
        f'[servers.full]\naddress = "{address(with_api)}"\napi = "{with_api.dashboard}"\n'
    )
    assert run("-s", "plain", "ping", "--json").json["server"] == address(one)
    assert run("-s", "full", "ping", "--json").json["server"] == with_api.dashboard
    assert run("-s", "plain", "--api", with_api.dashboard, "ping", "--json").json["server"] == with_api.dashboard
    monkeypatch.setenv("GREENSTALKCTL_SERVER", "full")
    assert run("ping", "--json").json["server"] == with_api.dashboard
    monkeypatch.setenv("GREENSTALKCTL_SERVER", "plain")
    assert run("--api", with_api.dashboard, "ping", "--json").json["server"] == with_api.dashboard


def test_target_does_not_use_the_files_of_the_other_server(one: Server, write: Write) -> None:
    write(
        f'[servers.here]\naddress = "{address(one)}"\ncafile = "missing.pem"\n'
        '[servers.there]\naddress = "tls:127.0.0.1:1"\n'
    )
    done = run("-s", "here", "drain-to", "there", "--yes")
    assert (done.code, "missing.pem" in done.err) == (3, False), done.err


def test_token_of_the_entry_is_used_and_that_of_the_variable_is_not_sent(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("-l", "127.0.0.1", "-p", "0", "--web-port", "0")
    with Daemon(*options, environ=environment(**TOKEN)) as daemon:
        server = f'address = "127.0.0.1:{daemon.port}"\napi = "{daemon.dashboard}"'
        (tmp_path / "token").write_text("secret\n")
        (tmp_path / "token").chmod(0o600)
        path = write(f'[servers.a]\n{server}\ntoken = "secret"\n[servers.b]\n{server}\ntoken_file = "token"\n')
        for name in ("a", "b"):
            done = run("-s", name, "ping")
            assert (done.code, done.err) == (0, "")
        (tmp_path / "token").chmod(0o604)
        assert f"warning: {tmp_path / 'token'} has a secret that all users" in run("-s", "b", "ping").err
        path.chmod(0o644)
        assert f"run: chmod o-r {path}\n" in run("-s", "a", "ping").err
        monkeypatch.setenv("GREENSTALKCTL_API_TOKEN", "secret")
        write(f"[servers.c]\n{server}\n")
        assert run("-s", "c", "ping").code == 4


def test_directory_that_cannot_be_searched_and_missing_home_are_no_configuration(
    one: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GREENSTALKCTL_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/" + "x" * 300)  # like a directory that may not be searched
    assert run("-s", address(one), "ping").code == 0
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "~nobody-of-this-name")
    assert run("-s", address(one), "ping").code == 0


def test_file_of_an_unknown_user_is_one_line_error(write: Write) -> None:
    write('[servers.a]\naddress = "tls:127.0.0.1:1"\ncafile = "~nobody-of-this-name/a.pem"\n')
    done = run("-s", "a", "ping")
    assert (done.code, "~nobody-of-this-name/a.pem" in done.err, len(done.err.splitlines())) == (2, True, 1), done.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[servers.a]\naddress = "a"\nport = 1\n', "unknown field `port`"),
        ('[servers.a]\naddress = "a:0"\n', "'a:0' is not HOST:PORT"),
        ('[servers.a]\napi = "http://a"\n', "missing required field `address`"),
        ('default = "b"\n', "the default server 'b' is not in"),
        ("[servers", "cannot use"),
    ],
)
def test_invalid_configuration_is_an_error(text: str, message: str, write: Write) -> None:
    write(text)
    done = run("ping")
    assert (done.code, message in done.err, len(done.err.splitlines())) == (2, True, 1), done.err
