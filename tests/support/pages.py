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
from contextlib import suppress
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Final, NamedTuple

from tests.support import forking
from tests.support.daemon import REPOSITORY, environment

MAX_CALL: Final = 1 << 17
"""Maximum bytes of the directory, the arguments and the environment of a call."""

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
words = [os.getcwd(), str(len(sys.argv) - 1), *sys.argv[1:], *variables]
socket.send_fds(sock, ["\\0".join(words).encode(errors="surrogateescape")], [0, 1, 2])
os._exit(int(sock.recv(8)))
"""
"""A program that lets `_Calls` run greenstalkctl in its place."""


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
    """Create *directory* with the two commands of this checkout and its Python; return a PATH with beanstalkd too."""
    path = f"{directory}:{os.environ['PATH']}:/usr/sbin"
    assert shutil.which("beanstalkd", path=path), "beanstalkd is missing: apt-get install beanstalkd"
    directory.mkdir()
    for name, text in (
        ("greenstalk-server", f'#!/bin/sh\nexec {sys.executable} -m greenstalk_server "$@"\n'),
        ("greenstalkctl", _CALL.format(python=sys.executable, address=_calls().address)),
        ("python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n'),
    ):
        command = directory / name
        command.write_text(text)
        command.chmod(0o755)
    return path


class _Calls:
    """Runs greenstalkctl as a fork for each call of the program `_CALL`: an exec would take ten times the CPU."""

    def __init__(self) -> None:
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
        """Start the process, pass signals on to it, and answer with its exit code."""
        with connection:
            data, streams, _, _ = socket.recv_fds(connection, MAX_CALL, 3)
            directory, count, *words = data.decode(errors="surrogateescape").split("\0")
            arguments, variables = words[: int(count)], words[int(count) :]
            environ = dict(each.split("=", 1) for each in variables)
            environ.pop("PYTHONPATH")  # `run_in_shell` sets it, but the process has imported the program
            process = forking.Process(
                (sys.executable, "-m", "greenstalkctl", *arguments),
                cwd=directory,
                env=environ,
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
            )
            for stream in streams:
                os.close(stream)
            threading.Thread(target=self._pass_signals, args=(connection, process), daemon=True).start()
            code = process.wait()
            with suppress(OSError):  # the caller was killed
                connection.send(b"%d" % (code if code >= 0 else 128 - code))

    def _pass_signals(self, connection: socket.socket, process: forking.Process) -> None:
        while process.returncode is None:
            try:
                data = connection.recv(8)
            except OSError:  # closed after the answer
                return
            process.send_signal(int(data) if data else signal.SIGKILL)
            if not data:
                return


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
