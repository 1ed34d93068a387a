"""The real command in a subprocess."""

from __future__ import annotations

import io
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Self
from unittest.mock import patch

from greenstalk_server.cli import main
from tests.support import forking
from tests.support.processes import end

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "greenstalk_server")
MINDING_SIGNALS = forking.MINDING_SIGNALS
LAST_OF_FIRST_LINES = "jobs: "
TIMEOUT = 60.0
"""Timeout in seconds of every wait, generous for slow machines."""


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of this process without the variables that a server reads, and with *variables*.

    Servers run the build and the form (see runtime/system.py) that this process runs.
    """
    ours = re.compile(r"PORT$|GREENSTALK_(?!(PURE|PORTABLE)$)|DATABASE_URL$|LISTEN_|NOTIFY_|PG[A-Z]+$|PYTEST_")
    kept = {name: text for name, text in os.environ.items() if not ours.match(name)}
    return kept | {"PYTHONUNBUFFERED": "1"} | variables


class Daemon:
    """A running server, which stops at the end of a `with` block. `first_lines` is its output at startup."""

    def __init__(
        self,
        *flags: str,
        command: Sequence[str] = COMMAND,
        environ: Mapping[str, str] | None = None,
        cwd: Path = REPOSITORY,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start *command* with *flags*; return once it serves, or raise AssertionError with its output."""
        self.process = forking.Process(
            [*command, *flags],
            cwd=cwd,
            env=dict(environ) if environ is not None else environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=pass_fds,
            bufsize=0,  # otherwise select would not report the lines that readline has read ahead
        )
        self.first_lines = self._read_first_lines()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.process.poll() is None:
                self.stop()
        finally:
            end(self.process)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal that ends the server; return its exit code and the rest of its stderr."""
        self.process.send_signal(number)
        try:
            _, stderr = self.process.communicate(timeout=TIMEOUT)
        finally:
            self.process.kill()  # does nothing to a process that has ended
        return self.process.returncode, stderr.decode()

    @property
    def port(self) -> int:
        """The TCP port of the protocol."""
        return int(self._first_match(r"^beanstalk protocol: .*:(\d+)$"))

    @property
    def dashboard(self) -> str:
        """The URL of the dashboard."""
        return self._first_match(r"^dashboard: (http://\S+)$")

    def ask(self, request: bytes) -> bytes:
        """Send *request* on a new TCP connection; return the first line of the reply."""
        with socket.create_connection(("127.0.0.1", self.port), TIMEOUT) as sock:
            return ask(sock, request)

    def _first_match(self, pattern: str) -> str:
        match = re.search(pattern, self.first_lines, re.MULTILINE)
        assert match is not None, self.first_lines
        return match[1]

    def _read_first_lines(self) -> str:
        assert self.process.stdout is not None
        lines = ""
        until = time.monotonic() + TIMEOUT
        while LAST_OF_FIRST_LINES not in lines:
            readable, _, _ = select.select([self.process.stdout], [], [], until - time.monotonic())
            if not readable or not (line := self.process.stdout.readline()):
                self.process.kill()
                _, stderr = self.process.communicate(timeout=TIMEOUT)
                raise AssertionError(f"{self.process.args!r} does not serve: {lines}{stderr.decode()}")
            lines += line.decode()
        return lines


def ask(sock: socket.socket, request: bytes) -> bytes:
    """Send *request*; return the first line of the reply without its CRLF."""
    sock.sendall(request)
    with sock.makefile("rb") as reader:
        return reader.readline().rstrip(b"\r\n")


def run(
    *flags: str, command: Sequence[str] = COMMAND, pass_fds: Sequence[int] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; return the completed process."""
    environ = environment(**variables)
    return forking.run([*command, *flags], cwd=REPOSITORY, env=environ, text=True, timeout=TIMEOUT, pass_fds=pass_fds)


def run_here(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which is much faster; return what `run` returns. It must not serve."""
    out, err, logger = io.StringIO(), io.StringIO(), logging.getLogger("greenstalk_server")
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        patch.dict(os.environ, environment(**variables), clear=True),
        patch.object(logger, "handlers", []),  # `config --check` adds a handler
    ):
        code = main(list(flags))
    return subprocess.CompletedProcess(list(flags), code, out.getvalue(), err.getvalue())
