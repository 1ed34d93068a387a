"""Run commands of the documentation in a shell."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from struct import unpack
from textwrap import dedent
from typing import Final, NamedTuple

import psutil

from tests.support import forking
from tests.support.daemon import REPOSITORY, environment

MAX_CALL: Final = 1 << 17
"""Maximum bytes of the program's name, the directory, the arguments and the environment of a call."""

PROGRAMS: Final = {"greenstalk-server": "greenstalk_server", "greenstalkctl": "greenstalkctl"}
"""The commands, and the modules that they run."""

AWAIT: Final = "until-it-listens"
"""A command for scripts: wait until the process with the id in $1 listens; fail if it has ended."""

_FENCE: Final = re.compile(
    r"(?:^ *<!-- (?P<note>[^>\n]*) -->\n\n?)?^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)

_CALL: Final = """\
#!{python} -ISE
import os, signal, socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect({address!r})
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: sock.send(b"%d" % number))
variables = [f"{{name}}={{text}}" for name, text in os.environ.items()]
words = [{name!r}, os.getcwd(), str(len(sys.argv) - 1), *sys.argv[1:], *variables]
socket.send_fds(sock, ["\\0".join(words).encode(errors="surrogateescape")], [0, 1, 2])
os._exit(int(sock.recv(8)))
"""
"""A program that lets `_Calls` run the command in its place."""


def run_in_shell(script: str, work: Path, path: str, timeout: float, **variables: str) -> tuple[str, str]:
    """Run *script* with bash in *work* for at most *timeout* seconds; return stdout and stderr; leave no process."""
    with subprocess.Popen(
        ["bash", "-uc", script],
        cwd=work,
        env=environment(PATH=path, PYTHONPATH=str(REPOSITORY), **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            return shell.communicate(timeout=timeout)
        finally:
            with suppress(ProcessLookupError):  # no process is left
                os.killpg(shell.pid, signal.SIGKILL)


def path_with_commands(directory: Path) -> str:
    """Create *directory* with the commands of this checkout, AWAIT and Python; return a PATH with beanstalkd too."""
    path = f"{directory}:{os.environ['PATH']}:/usr/sbin"
    assert shutil.which("beanstalkd", path=path), "beanstalkd is missing: apt-get install beanstalkd"
    directory.mkdir(exist_ok=True)
    calls = {n: _CALL.format(python=sys.executable, address=_calls().address, name=n) for n in (*PROGRAMS, AWAIT)}
    for name, text in (calls | {"python3": f'#!/bin/sh\nexec {sys.executable} "$@"\n'}).items():
        command = directory / name
        command.write_text(text)
        command.chmod(0o755)
    return path


class _Calls:
    """Runs a command as a fork for each call of the program `_CALL`: an exec would take ten times the CPU.

    _pids   the process ids of the forks, by those of the callers.
    """

    def __init__(self) -> None:
        self._pids: dict[int, int] = {}
        self.address: Final = f"\0greenstalkctl-{os.getpid()}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.address)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Run the command, and answer with its exit code."""
        with connection:
            data, streams, _, _ = socket.recv_fds(connection, MAX_CALL, 3)
            name, directory, count, *words = data.decode(errors="surrogateescape").split("\0")
            arguments, variables = words[: int(count)], words[int(count) :]
            process = None if name == AWAIT else _start(PROGRAMS[name], arguments, directory, variables, streams)
            for stream in streams:
                os.close(stream)
            if process is None:
                code = self._wait_until_listening(int(arguments[0]))
            else:
                caller, _, _ = unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                self._pids[caller] = process.pid
                threading.Thread(target=self._pass_signals, args=(connection, process), daemon=True).start()
                code = process.wait()
            with suppress(OSError):  # the caller was killed
                connection.send(b"%d" % (code if code >= 0 else 128 - code))

    def _wait_until_listening(self, pid: int) -> int:
        """Wait until the process *pid*, or the fork that runs in its place, listens; return 1 if it has ended."""
        with suppress(psutil.NoSuchProcess):
            while (process := psutil.Process(self._pids.get(pid, pid))).status() != psutil.STATUS_ZOMBIE:
                if process.net_connections("tcp"):
                    return 0
                time.sleep(0.05)
        return 1

    def _pass_signals(self, connection: socket.socket, process: forking.Process) -> None:
        while process.returncode is None:
            try:
                data = connection.recv(8)
            except OSError:  # closed after the answer
                return
            process.send_signal(int(data) if data else signal.SIGKILL)
            if not data:
                return


def _start(
    module: str, arguments: list[str], directory: str, variables: list[str], streams: list[int]
) -> forking.Process:
    environ = dict(each.split("=", 1) for each in variables)
    environ.pop("PYTHONPATH", None)  # the process has imported the program
    stdin, stdout, stderr = streams
    command = (sys.executable, "-m", module, *arguments)
    return forking.Process(command, cwd=directory, env=environ, stdin=stdin, stdout=stdout, stderr=stderr)


@cache
def _calls() -> _Calls:
    return _Calls()


class Block(NamedTuple):
    """A fenced block of a page: its first line, language and text, the comment above it, and whether it is output."""

    line: int
    language: str
    text: str
    note: str
    is_output: bool
    """Whether it is text or JSON, directly below a block of commands."""


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of docs/*page*, which may begin with `../`."""
    found: list[Block] = []
    text, end = (REPOSITORY / "docs" / page).read_text(), 0
    for match in _FENCE.finditer(text):
        follows = bool(found) and found[-1].language == "sh" and not text[end : match.start()].strip()
        is_output = follows and match["language"] in ("text", "json")
        line, end = text.count("\n", 0, match.start("text")) + 1, match.end()
        content = dedent(match["text"]) if match["indent"] else match["text"]
        found.append(Block(line, match["language"], content, match["note"] or "", is_output))
    return found


def block(page: str, language: str, opening: str) -> str:
    """Return the only block of docs/*page* in *language* that begins with *opening*.

    A test that runs or checks a block takes it from here, with constants: tests/docs/test_blocks.py finds the calls.
    """
    found = [one.text for one in blocks(page) if one.language == language and one.text.startswith(opening)]
    assert len(found) == 1, f"docs/{page} has {len(found)} blocks in {language} that begin with {opening!r}"
    return found[0]
