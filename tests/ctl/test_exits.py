"""The exit codes, and the one line that comes with each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from greenstalkctl.address import Address, parse
from greenstalkctl.cli import cli
from tests.conformance.servers import Server, peer
from tests.ctl.test_looking import wait_for_look
from tests.ctl.world import COMMAND, address, connect, ctl, finish, run, spawn
from tests.daemon import PATIENCE, REPOSITORY, Daemon


def test_help_has_the_exit_codes() -> None:
    done = run("--help")
    assert done.code == 0
    for code in ("0 ", "1 ", "2 ", "3 ", "4 ", "130 "):
        assert f"\n    {code}" in done.text


@pytest.mark.parametrize("command", list(cli.commands))
def test_every_command_has_a_help(command: str) -> None:
    done = run(command, "--help")
    assert (done.code, "Global options:" in done.text) == (0, True)


def test_without_arguments_there_is_the_help() -> None:
    done = run()
    assert (done.code, "Commands:" in done.err) == (2, True)


def test_the_version() -> None:
    assert run("--version").text.startswith("greenstalkctl, version ")


@pytest.mark.parametrize(
    "arguments",
    [
        "nonsense",
        "peek",
        "peek 1 --tube mail",
        "peek 1 --ready",
        "peek 0",
        "peek one",
        "kick",
        "kick 1 --tube mail --all",
        "kick 1 --count 2",
        "kick --tube mail",
        "kick --tube mail --count 2 --all",
        "kick --tube mail --count 0",
        "bury --tube mail --state buried --all",
        "delete --tube mail --all",
        "delete --tube mail --state reserved --all",
        "clear",
        "move mail mail",
        "move mail post --count 3",
        "pause mail",
        "pause mail soon",
        "pause mail 50000d",
        "put x --pri -1",
        "put x --pri 4294967296",
        "put x --lines",
        "put --file /nonexistent",
        "tubes --sort colour",
        "top",
        "tail mail --interval 0",
        "drain-to nowhere:0",
        "completion csh",
        "--server 127.0.0.1:99999 stats",
        "--server unix: stats",
        "--timeout 0 stats",
    ],
)
def test_usage_is_one_line_and_2(one: Server, arguments: str) -> None:
    done = ctl(one, *arguments.split(), "--yes") if arguments != "nonsense" else ctl(one, arguments)
    assert done.code == 2
    assert done.out == b""
    (line,) = done.err.splitlines()
    assert line.startswith("greenstalkctl: ")


@pytest.mark.parametrize("arguments", ["delete 1", "clear mail", "delete --tube mail --state ready --all",
                                       "tail mail --consume", "drain-to {}"])  # fmt: skip
def test_without_a_terminal_nothing_is_destroyed_without_yes(server: Server, other: Server, arguments: str) -> None:
    with connect(server, "mail") as mail:
        job_id = mail.put(b"dear")
        done = ctl(server, *arguments.format(address(other)).split())
        assert (done.code, "--yes" in done.err) == (2, True)
        assert mail.peek(job_id).body == b"dear"


def test_nobody_there_is_3() -> None:
    done = run("--server", "127.0.0.1:1", "stats")
    assert (done.code, done.err) == (
        3,
        "greenstalkctl: cannot connect to 127.0.0.1:1: Connection refused; is it running, and --server right?\n",
    )
    assert run("--server", "unix:/nonexistent", "stats").code == 3
    assert run("--server", "host.invalid:11300", "stats").code == 3
    assert run("--server", "x" * 70, "stats").code == 3


def test_no_answer_in_time_is_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run("--server", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.2", "stats")
    assert (done.code, "--timeout" in done.err) == (3, True)


@pytest.mark.parametrize("where", ["before", "after", "environment"])
def test_where_the_server_may_be_named(server: Server, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    if where == "environment":
        monkeypatch.setenv("GREENSTALKCTL_SERVER", address(server))
        done = run("stats", "--json")
    else:
        monkeypatch.setenv("GREENSTALKCTL_SERVER", "127.0.0.1:1")
        option = ["--server", address(server)]
        done = run(*option, "stats", "--json") if where == "before" else run("stats", "--json", *option)
    assert done.json["pid"] == server.pid


def test_a_refusal_is_4(server: Server) -> None:
    done = ctl(server, "put", "x" * 65536)
    assert (done.code, "JOB_TOO_BIG" in done.err, len(done.err.splitlines())) == (4, True, 1)


def test_draining_is_4() -> None:
    draining = Server(peer())
    try:
        draining.signal(signal.SIGUSR1)
        done = ctl(draining, "put", "x")
        assert (done.code, "DRAINING" in done.err) == (4, True)
        assert ctl(draining, "tail", "default").code == 1  # where nothing can be put, it guesses the newest id
    finally:
        draining.close()


def test_ctrl_c_is_130(one: Server) -> None:
    process = spawn(one, "tail", "mail", "--follow", "--interval", "0.05")
    with connect(one) as client:
        wait_for_look(client)
    done = finish(process, signal.SIGINT)
    assert (done.code, done.err) == (130, "greenstalkctl: interrupted\n")


def test_a_reader_that_has_enough_ends_it_quietly(one: Server) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "--server", address(one), "stats"],
        cwd=REPOSITORY,
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        timeout=PATIENCE,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with Daemon("-l", f"unix:{path}", "--no-web"):
        assert run("--server", f"unix:{path}", "put", "hello", "--tube", "mail").code == 0
        assert run("--server", f"unix:{path}", "peek", "--tube", "mail", "--raw").out == b"hello"


def test_a_body_of_any_bytes_as_argument(one: Server) -> None:
    done = finish(spawn(one, "put", os.fsdecode(b"\xff\xfe")))
    assert ctl(one, "peek", done.text.strip(), "--raw").out == b"\xff\xfe"


def test_a_locale_without_the_characters(one: Server) -> None:
    job_id = ctl(one, "put", stdin="schön ☺".encode()).text.strip()
    done = subprocess.run(
        [*COMMAND, "--server", address(one), "tail", "default"],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout) == (0, f"{job_id}\tready\tschön \\u263a\n".encode("latin-1"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("queue:11301", Address("queue", 11301)),
        ("queue", Address("queue", 11300)),
        ("[::1]:11301", Address("::1", 11301)),
        ("[::1]", Address("::1", 11300)),
        ("unix:/run/a:b", Address(path="/run/a:b")),
    ],
)
def test_addresses(written: str, meant: Address) -> None:
    assert parse(written) == meant
    assert parse(str(meant)) == meant


@pytest.mark.parametrize("written", ["", ":1", "::1", "a:", "a:b", "a:0", "a:65536", "a b", "unix:", "[::1"])
def test_what_is_no_address(written: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse(written)
