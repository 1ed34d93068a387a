"""Exit codes, and the one-line message of each error."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from greenstalkctl.address import Address, parse
from greenstalkctl.cli import cli
from tests.ctl.test_looking import wait_for_poll
from tests.ctl.world import COMMAND, Done, address, connect, ctl, finish, run, spawn
from tests.support import forking
from tests.support.daemon import REPOSITORY, TIMEOUT, Daemon
from tests.support.servers import Server, peer

BUFFERED_AND_UNBUFFERED = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


def test_help_lists_the_exit_codes() -> None:
    done = run("--help")
    assert done.code == 0
    for code in ("0 ", "1 ", "2 ", "3 ", "4 ", "130 "):
        assert f"\n    {code}" in done.text


@pytest.mark.parametrize("command", list(cli.commands))
def test_help_of_a_command_explains_each_argument_and_option(command: str) -> None:
    done = run(command, "--help")
    assert (done.code, "Global options:" in done.text) == (0, True)
    for other in ((command, "-h"), ("help", command)):
        assert run(*other) == done
    own = [param for param in cli.commands[command].params if not isinstance(param, click.Option) or param.expose_value]
    assert all(getattr(param, "help", None) for param in own)
    has_arguments = any(isinstance(param, click.Argument) for param in own)
    assert ("\nPositional arguments:\n" in done.text) == has_arguments
    for line in done.text.splitlines():
        assert line.strip() not in {param.make_metavar(click.Context(cli)) for param in own}, "no explanation"


def test_help_of_an_unknown_command_suggests_a_similar_one() -> None:
    done = run("help", "tubs")
    assert (done.code, "tubes" in done.err, len(done.err.splitlines())) == (2, True, 1)


def test_error_message_is_a_sentence_followed_by_a_hint(tmp_path: Path) -> None:
    done = run("put", "--file", str(tmp_path / "missing"))
    assert done.err.endswith("No such file or directory. See greenstalkctl put --help.\n")
    assert run("tubes", "--sort", "colour").err.count(".") == run("tubes", "--sort", "colour").err.count(". ") + 1


def test_quiet_commands_write_errors_only(one: Server) -> None:
    assert ctl(one, "put", "hello", "--tube", "mail", "-q") == Done(0, b"", "")
    assert ctl(one, "--quiet", "tubes") == Done(0, b"", "")
    missing = ctl(one, "delete", "99999", "--yes", "-q")
    assert (missing.code, missing.out) == (1, b"") and "99999" in missing.err
    assert ctl(one, "tail", "mail", "--consume", "--yes", "-q").code == 2
    assert ctl(one, "delete", "mail", "--state", "ready", "--all", "--yes", "-q") == Done(0, b"", "")


def test_tubes_and_top_share_sort_columns() -> None:
    choices = {}
    for command in ("tubes", "top"):
        (sort,) = (param for param in cli.commands[command].params if param.name == "sort")
        assert isinstance(sort.type, click.Choice)
        choices[command] = set(sort.type.choices)
    assert choices["top"] < choices["tubes"]
    assert choices["tubes"] - choices["top"] == {"urgent", "total"}


def test_ping_measures_a_round_trip(server: Server) -> None:
    done = ctl(server, "ping")
    assert done.code == 0
    assert re.fullmatch(rf"{address(server)} answered in [0-9.]+ ms\n", done.text)
    found = ctl(server, "ping", "--json").json
    assert (found["server"], 0 < found["milliseconds"] < 60_000) == (address(server), True)
    assert run("-s", "127.0.0.1:1", "ping").code == 3


def test_refusal_by_an_access_rule_says_so(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text('[[access]]\ninspect = ["*"]\n')
    flags = ("--config", str(tmp_path / "rules.toml"), "-l", "127.0.0.1", "-p", "0", "--no-web")
    with Daemon(*flags) as daemon:
        done = run("--server", f"127.0.0.1:{daemon.port}", "put", "x", "--tube", "mail")
    assert (done.code, "UNKNOWN_COMMAND: its access rules refuse the command" in done.err) == (4, True)


def test_no_arguments_print_the_help() -> None:
    done = run()
    assert (done.code, "Commands:" in done.err) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        "nonsense",
        "peek",
        "peek 1 --tube mail",
        "peek 1 --ready",
        "peek 0",
        "kick 1 mail --all",
        "kick mail --tube post --all",
        "kick mail",
        "kick 1 --count 2",
        "tail",
        "tail mail post",
        "clear mail post --tube mail --yes",
        "kick",
        "kick 1 --tube mail --all",
        "kick --tube mail --count 2 --all",
        "bury --tube mail --state buried --all",
        "delete --tube mail --all",
        "clear",
        "move mail mail",
        "move mail post --count 3",
        "pause mail",
        "pause mail soon",
        "put x --lines",
        "put --file /nonexistent",
        "tubes --sort colour",
        "top",
        "tail mail --interval 0",
        "drain-to nowhere:0",
        "completion csh",
        "--server unix: stats",
        "--timeout 0 stats",
        "--timeout nan stats",
        "kick --tube mail --count 4294967296",
        "tail mail -n 99999999999999999999",
        "put --file /proc/self/mem",
    ],
)
def test_usage_error_is_one_line_and_exit_code_2(one: Server, arguments: str) -> None:
    done = ctl(one, *arguments.split(), "--yes") if arguments != "nonsense" else ctl(one, arguments)
    assert done.code == 2
    assert done.out == b""
    (line,) = done.err.splitlines()
    assert line.startswith("greenstalkctl: ")


@pytest.mark.parametrize("arguments", ["delete 1", "clear mail", "delete --tube mail --state ready --all",
                                       "tail mail --consume", "drain-to {}"])  # fmt: skip
def test_destructive_commands_need_yes_without_a_terminal(server: Server, other: Server, arguments: str) -> None:
    with connect(server, "mail") as mail:
        job_id = mail.put(b"dear")
        done = ctl(server, *arguments.format(address(other)).split())
        assert (done.code, "--yes" in done.err) == (2, True)
        assert mail.peek(job_id).body == b"dear"


def test_unreachable_server_is_exit_code_3() -> None:
    done = run("--server", "127.0.0.1:1", "stats")
    reason = "Connection refused; check that it is running and --server is right"
    assert (done.code, done.err) == (3, f"greenstalkctl: cannot connect to 127.0.0.1:1: {reason}\n")
    assert run("--server", "unix:/nonexistent", "stats").code == 3
    assert run("--server", "host.invalid:11300", "stats").code == 3
    assert run("--server", "x" * 70, "stats").code == 3


def test_timeout_is_exit_code_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run("--server", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.2", "stats")
    assert (done.code, "--timeout" in done.err) == (3, True)


@pytest.mark.parametrize("where", ["before", "after", "environment"])
def test_server_option_and_variable(server: Server, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    if where == "environment":
        monkeypatch.setenv("GREENSTALKCTL_SERVER", address(server))
        done = run("stats", "--json")
    else:
        monkeypatch.setenv("GREENSTALKCTL_SERVER", "127.0.0.1:1")
        option = ["--server", address(server)]
        done = run(*option, "stats", "--json") if where == "before" else run("stats", "--json", *option)
    assert done.json["pid"] == server.pid


def test_refusal_is_exit_code_4(server: Server) -> None:
    done = ctl(server, "put", "x" * 65536)
    assert (done.code, "JOB_TOO_BIG" in done.err, len(done.err.splitlines())) == (4, True, 1)


def test_draining_is_exit_code_4() -> None:
    draining = Server(peer())
    try:
        draining.signal(signal.SIGUSR1)
        done = ctl(draining, "put", "x")
        assert (done.code, "DRAINING" in done.err) == (4, True)
        assert ctl(draining, "tail", "default").code == 1  # the newest id is estimated, because no probe can be put
    finally:
        draining.close()


def test_ctrl_c_is_exit_code_130(one: Server) -> None:
    process = spawn(one, "tail", "mail", "--follow", "--interval", "0.05")
    with connect(one) as client:
        wait_for_poll(client)
    done = finish(process, signal.SIGINT)
    assert (done.code, done.err) == (130, "greenstalkctl: interrupted\n")


def redirected(syntax: str, *command: str, **variables: str) -> Done:
    """Run *command* with its streams redirected by the shell *syntax*."""
    words = ["sh", "-c", f'exec "$@" {syntax}', "sh", *command]
    done = forking.run(words, cwd=REPOSITORY, env=os.environ | variables, timeout=TIMEOUT)
    return Done(done.returncode, done.stdout, done.stderr.decode())


@BUFFERED_AND_UNBUFFERED
@pytest.mark.parametrize("arguments", ["stats", "--help"])
def test_full_disk_is_exit_code_1(one: Server, arguments: str, unbuffered: str) -> None:
    command = (*COMMAND, "--server", address(one), *arguments.split())
    done = redirected(">/dev/full", *command, PYTHONUNBUFFERED=unbuffered)
    assert (done.code, done.err) == (1, "greenstalkctl: cannot write to stdout: No space left on device\n")


@BUFFERED_AND_UNBUFFERED
def test_full_disk_is_exit_code_1_for_the_server(unbuffered: str) -> None:
    done = redirected(">/dev/full", sys.executable, "-m", "greenstalk_server", "config", PYTHONUNBUFFERED=unbuffered)
    assert (done.code, done.err) == (1, "greenstalk-server: cannot write to stdout: No space left on device\n")


@pytest.mark.parametrize("syntax", [">/dev/full 2>&1", "2>&-"])
def test_unwritable_stderr_keeps_the_exit_code(one: Server, syntax: str) -> None:
    assert redirected(syntax, *COMMAND, "--server", address(one), "nonsense").code == 2


@BUFFERED_AND_UNBUFFERED
def test_partially_written_job_is_not_deleted(one: Server, tmp_path: Path, unbuffered: str) -> None:
    job_id = ctl(one, "put", "x" * 5000, "--tube", "mail").text.strip()
    consume = (*COMMAND, "--server", address(one), "--yes", "tail", "mail", "--consume", "--json")
    limited = ("sh", "-c", 'ulimit -f 1 && exec "$@"', "sh", *consume)
    variables = {"PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"}
    done = redirected(f">{tmp_path}/jobs", *limited, **variables)
    assert (done.code, done.err) == (1, "greenstalkctl: cannot write to stdout: File too large\n")
    assert 0 < (tmp_path / "jobs").stat().st_size < 5000
    assert ctl(one, "peek", job_id).code == 0


@pytest.mark.parametrize("arguments", ["put", "put --file -"])
def test_closed_stdin_is_exit_code_2(one: Server, arguments: str) -> None:
    done = redirected("<&-", *COMMAND, "--server", address(one), *arguments.split())
    assert (done.code, done.err) == (2, "greenstalkctl: cannot read the input: Bad file descriptor\n")


@pytest.mark.parametrize("arguments", ["put x", "peek --tube mail --raw"])
def test_closed_stdout_discards_output(one: Server, arguments: str) -> None:
    ctl(one, "put", "hello", "--tube", "mail")
    done = redirected(">&-", *COMMAND, "--server", address(one), *arguments.split())
    assert (done.code, done.err) == (0, "")


def test_consume_refuses_a_closed_stdout(one: Server) -> None:
    job_id = ctl(one, "put", "hello", "--tube", "mail").text.strip()
    done = redirected(">&-", *COMMAND, "--server", address(one), "--yes", "tail", "mail", "--consume")
    assert (done.code, "stdout is closed" in done.err) == (2, True)
    assert ctl(one, "peek", job_id).code == 0


@BUFFERED_AND_UNBUFFERED
def test_closed_pipe_ends_the_command_quietly(one: Server, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = ("env", f"PYTHONUNBUFFERED={unbuffered}", *COMMAND, "--server", address(one), "stats")
    done = forking.run(command, cwd=REPOSITORY, stdout=writer, timeout=TIMEOUT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_server_may_be_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with Daemon("-l", f"unix:{path}", "--no-web"):
        assert run("--server", f"unix:{path}", "put", "hello", "--tube", "mail").code == 0
        assert run("--server", f"unix:{path}", "peek", "--tube", "mail", "--raw").out == b"hello"


def test_body_argument_may_contain_any_bytes(one: Server) -> None:
    done = finish(spawn(one, "put", os.fsdecode(b"\xff\xfe")))
    assert ctl(one, "peek", done.text.strip(), "--raw").out == b"\xff\xfe"


def test_characters_missing_in_the_locale_are_escaped(one: Server) -> None:
    job_id = ctl(one, "put", stdin="schön ☺".encode()).text.strip()
    command = ("env", "PYTHONIOENCODING=latin-1", *COMMAND, "--server", address(one), "tail", "default")
    done = forking.run(command, cwd=REPOSITORY, timeout=TIMEOUT)
    assert (done.returncode, done.stdout) == (0, f"{job_id}\tready\tschön \\u263a\n".encode("latin-1"))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("queue:11301", Address("queue", 11301)),
        ("queue", Address("queue", 11300)),
        ("[::1]:11301", Address("::1", 11301)),
        ("[::1]", Address("::1", 11300)),
        ("unix:/run/a:b", Address(path="/run/a:b")),
        ("tls:queue:11301", Address("queue", 11301, scheme="tls")),
        ("tls:queue", Address("queue", 11300, scheme="tls")),
        ("tls:[::1]:11301", Address("::1", 11301, scheme="tls")),
        ("plain:queue:11301", Address("queue", 11301, scheme="plain")),
        ("tls:11301", Address("tls", 11301)),
        ("tls", Address("tls", 11300)),
    ],
)
def test_address_is_parsed(written: str, expected: Address) -> None:
    assert parse(written) == expected
    assert parse(str(expected)) == expected


@pytest.mark.parametrize(
    "written",
    ["", ":1", "::1", "a:", "a:b", "a:0", "a:65536", "a b", "unix:", "[::1", "tls:", "tls:a:b",
     "tls:unix:/a", "tls:tls:a"],
)  # fmt: skip
def test_invalid_address_is_rejected(written: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse(written)


SIGNAL_DURING_A_WAIT = """
import os, signal, threading, time
from greenstalkctl.interrupt import Interrupt

def send() -> None:
    time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGTERM)

for _ in range(100):
    with Interrupt() as interrupt:
        threading.Thread(target=send).start()
        while not interrupt.wait(0):
            pass
"""


def test_signal_at_any_moment_of_a_wait_ends_it() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNAL_DURING_A_WAIT], cwd=REPOSITORY, check=False, timeout=TIMEOUT)
    assert done.returncode == 0
