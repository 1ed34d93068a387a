"""Behaviour on a terminal: confirmations, keys, colours, progress bars, and shell completion."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ctl.test_drain import fill_many
from tests.ctl.world import COMMAND, Terminal, address, connect, ctl, finish, jobs, run
from tests.support import forking
from tests.support.daemon import MINDING_SIGNALS, REPOSITORY, TIMEOUT
from tests.support.processes import ending
from tests.support.servers import Server


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 1, 1), ("\n", 1, 1), ("\x04", 1, 1)])
def test_destructive_command_asks_for_confirmation(one: Server, answer: str, code: int, left: int) -> None:
    ctl(one, "put", "dear", "--tube", "mail")
    with Terminal("--server", address(one), "clear", "mail") as terminal:
        assert f"delete 1 job of mail from {address(one)}" in terminal.wait_for(r"\[y/N\]: ")
        terminal.press(answer)
        assert terminal.end()[0] == code
    assert len(jobs(one, "mail")) == left


def test_ctrl_c_at_the_confirmation_deletes_nothing(one: Server) -> None:
    ctl(one, "put", "dear", "--tube", "mail")
    with Terminal("--server", address(one), "clear", "mail") as terminal:
        terminal.wait_for(r"\[y/N\]: ")
        terminal.interrupt()
        assert terminal.end()[0] == 130
    assert len(jobs(one, "mail")) == 1


def test_long_command_shows_a_progress_bar(one: Server) -> None:
    fill_many(one)
    with Terminal("--server", address(one), "move", "mail", "post") as terminal:
        terminal.wait_for("/900")
        code, view = terminal.end()
    assert (code, "moved 900 jobs to tube post" in view) == (0, True)


def test_top_sorts_by_key_and_quits_with_q(one: Server) -> None:
    with connect(one, "aa") as client:
        client.put(b"")
        client.use("zz")
        client.put(b"")
        client.put(b"")
        with Terminal("--server", address(one), "top", "--interval", "60") as terminal:
            first = terminal.wait_for(r"zz[^\n]*\n")
            assert first.index("aa ") < first.index("zz ")
            terminal.press("r")
            sorted_by_ready = terminal.wait_for(r"by ready(.|\n)*default[^\n]*\n")
            assert sorted_by_ready.index("zz ") < sorted_by_ready.index("aa ")
            terminal.press("r")
            reversed_ = terminal.wait_for(r"by ready(.|\n)*zz[^\n]*\n")
            assert reversed_.index("aa ") < reversed_.index("zz ")
            terminal.press("q")
            code, view = terminal.end()
    assert (code, "\x1b[?1049l" in view, "Traceback" in view) == (0, True, False)


def test_top_updates_periodically(one: Server) -> None:
    with connect(one, "mail") as client, Terminal("--server", address(one), "top", "--interval", "0.1") as terminal:
        terminal.wait_for(r"mail +\x1b\[2m +0")
        client.put(b"")
        terminal.wait_for(r"mail +1 ")


def test_ctrl_c_quits_top_with_exit_code_0(one: Server) -> None:
    with Terminal("--server", address(one), "top", "--interval", "60") as terminal:
        terminal.wait_for(r"default[^\n]*\n")
        terminal.interrupt()
        code, view = terminal.end()
    assert (code, "\x1b[?1049l" in view, "interrupted" in view, "Traceback" in view) == (0, True, False, False)


def test_watched_command_is_repeated_in_place_until_ctrl_c(one: Server) -> None:
    with (
        connect(one, "mail") as client,
        Terminal("--server", address(one), "tubes", "--watch", "100ms") as terminal,
    ):
        terminal.wait_for(r"tubes every 0.1 s(.|\n)*mail +\S* *0")
        client.put(b"")
        terminal.wait_for(r"mail +1 ")
        terminal.interrupt()
        code, view = terminal.end()
    assert (code, "\x1b[?1049l" in view, "Traceback" in view) == (0, True, False)


@pytest.mark.parametrize(
    ("arguments", "variables", "is_coloured"),
    [([], {}, True), (["--no-color"], {}, False), ([], {"NO_COLOR": "1"}, False)],
)
def test_colours_can_be_disabled(
    one: Server, arguments: list[str], variables: dict[str, str], is_coloured: bool
) -> None:
    with Terminal("--server", address(one), "stats", *arguments, variables=variables) as terminal:
        code, view = terminal.end()
    assert (code, "\x1b[" in view) == (0, is_coloured)


INTERRUPTIBLE = """
import os
import sys

import greenstalkctl.__main__ as program

install = program.signal.signal

def announced(*args):
    result = install(*args)
    os.write(1, b"x")
    return result

program.signal.signal = announced
sys.exit(program.run())
"""
"""Run the program, and write a byte once it has installed its SIGINT handler."""


@pytest.mark.parametrize("milliseconds", [0, 20, 100, 200])
def test_ctrl_c_during_imports_is_one_line(milliseconds: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [*MINDING_SIGNALS, sys.executable, "-c", INTERRUPTIBLE, "--server", server, "stats"],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with ending(process):
            assert process.stdout is not None
            assert process.stdout.read(1) == b"x"
            time.sleep(milliseconds / 1000)
            done = finish(process, signal.SIGINT)
    assert (done.code, done.err.lstrip("\n")) == (130, "greenstalkctl: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [([], "Type the body, then press Ctrl-D"), (["--lines"], "Type a job on each line, then press Ctrl-D")],
)
def test_put_prompts_on_a_terminal(one: Server, arguments: list[str], hint: str) -> None:
    with Terminal("--server", address(one), "put", "--tube", "mail", *arguments) as terminal:
        terminal.wait_for(hint)
        terminal.press("hello\n\x04")
        code, view = terminal.end()
    assert code == 0, view
    assert [body.strip() for _, body, *_ in jobs(one, "mail")] == [b"hello"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    done = run("completion", shell)
    assert (done.code, f"_GREENSTALKCTL_COMPLETE={shell}_complete" in done.text) == (0, True)


def complete(one: Server, words: str) -> list[str]:
    """Return the shell's completions for the last of *words*."""
    environ = {
        "_GREENSTALKCTL_COMPLETE": "bash_complete",
        "COMP_WORDS": f"greenstalkctl {words}",
        "COMP_CWORD": str(len(f"greenstalkctl {words}".split(" ")) - 1),
        "GREENSTALKCTL_SERVER": address(one),
    }
    done = forking.run(COMMAND, cwd=REPOSITORY, env=os.environ | environ, text=True, timeout=TIMEOUT)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_completion_offers_named_servers(one: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ctl.toml").write_text(f'[servers.production]\naddress = "{address(one)}"\n')
    monkeypatch.setenv("GREENSTALKCTL_CONFIG", str(tmp_path / "ctl.toml"))
    assert complete(one, "--server pro") == ["production"]
    assert complete(one, "drain-to pro") == ["production"]


def test_completion_offers_commands_options_and_tubes(one: Server) -> None:
    ctl(one, "put", "x", "--tube", "mail")
    assert complete(one, "dr") == ["drain-to", "drain"]
    assert complete(one, "lease ") == ["delete", "release", "bury", "touch", "show"]
    assert "--until-empty" in complete(one, "work mail --u")
    assert "--consume" in complete(one, "tail --c")
    assert complete(one, "tube ma") == ["mail"]
    assert complete(one, "put --tube ") == ["default", "mail"]
    assert complete(one, "--server 127.0.0.1:1 tube ma") == []
