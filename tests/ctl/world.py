"""Functions that run greenstalkctl in this process, in a child process or on a terminal, and servers for it."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import greenstalk
import pytest

from greenstalkctl.cli import main
from tests.support import forking
from tests.support.daemon import MINDING_SIGNALS, REPOSITORY, TIMEOUT
from tests.support.ports import free_ports
from tests.support.processes import end, join
from tests.support.servers import Baseline, Kind, Server, ours

COMMAND = (sys.executable, "-m", "greenstalkctl")
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\x08[bold]x[/bold]"
"""Control characters for a terminal, and markup of rich."""

Client = greenstalk.Client[bytes]

BY_PROTOCOL_AND_API = pytest.mark.parametrize("server", ["ours", "beanstalkd", "api"], indirect=True)
"""Mark of a test or module that runs with both servers over the protocol, and over the API."""


class WithApi(Server):
    """Greenstalk Server, reached by its API; `dashboard` is its URL."""

    def __init__(self) -> None:
        (port,) = free_ports(1)
        command = (*ours().command, "--web-host", "127.0.0.1", "--web-port", str(port))
        super().__init__(Kind("ours with its API", command))
        self.dashboard = f"http://127.0.0.1:{port}"

    def reset(self) -> Baseline:
        """Reset the server; if that restarts it, also wait for its dashboard."""
        baseline, until = super().reset(), time.monotonic() + TIMEOUT
        while True:
            try:
                socket.create_connection(("127.0.0.1", int(self.dashboard.rpartition(":")[2]))).close()
            except ConnectionRefusedError:
                assert time.monotonic() < until, self.log_tail()
                time.sleep(0.01)
            else:
                return baseline


@dataclass(frozen=True, slots=True)
class Done:
    """The exit code and output of a command."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        """The single JSON document in the output."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def lines(self) -> list[Any]:
        """The JSON documents in the output, one per line."""
        return [json.loads(line) for line in self.out.splitlines()]


def address(server: Server) -> str:
    return f"{server.address[0]}:{server.address[1]}"


def connect(server: Server, tube: str = "default") -> Client:
    return greenstalk.Client(server.address, None, use=tube, watch=tube)


def run(*args: str, stdin: bytes = b"") -> Done:
    """Run the command in this process, without a terminal."""
    buffers = [io.BytesIO(content) for content in (stdin, b"", b"")]
    streams = [io.TextIOWrapper(buffer, encoding="utf-8") for buffer in buffers]
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        code = main(args)
        for stream in streams:
            stream.flush()
    out, err = (buffer.getvalue() for buffer in buffers[1:])
    assert b"Traceback" not in err
    return Done(code, out, err.decode())


def where(server: Server) -> tuple[str, str]:
    """Return the option that selects *server*, over the protocol or over the API."""
    return ("--api", server.dashboard) if isinstance(server, WithApi) else ("--server", address(server))


def ctl(server: Server, *args: str, stdin: bytes = b"") -> Done:
    """Run the command against *server*."""
    return run(*where(server), *args, stdin=stdin)


def ids(client: Client, tube: str, state: str) -> list[int]:
    """Return the ids of all jobs of *tube* in *state*."""
    return [stats["id"] for stats in _stats(client, tube) if stats["state"] == state]


def jobs(server: Server, tube: str) -> list[tuple[str, bytes, int, int]]:
    """Return state, body, pri and ttr of all jobs of *tube*, sorted."""
    with connect(server) as client:
        found = [(s["state"], client.peek(s["id"]).body, s["pri"], s["ttr"]) for s in _stats(client, tube)]
    return sorted(found)


def _stats(client: Client, tube: str) -> Iterator[greenstalk.StatsJob]:
    """Yield the statistics of all jobs of *tube*; look up each possible id."""
    newest = client.put(b"")
    client.delete(newest)
    for job_id in range(1, newest):
        with suppress(greenstalk.NotFoundError):
            stats = client.stats_job(job_id)
            if str(stats["tube"]) == tube:
                yield stats


class Terminal:
    """The command on a new pseudo-terminal."""

    def __init__(self, *args: str, columns: int = 120, variables: Mapping[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        environ = os.environ | {"TERM": "xterm"} | dict(variables or {})
        for name in ("COLUMNS", "LINES"):  # they would override the size of the terminal
            environ.pop(name, None)
        self.process = forking.Process(
            [*MINDING_SIGNALS, *COMMAND, *args],
            cwd=REPOSITORY,
            env=environ,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.view = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self.process)
        os.close(self._master)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        """Send SIGINT until the command ends: a signal just before a read does not interrupt the read."""
        until = time.monotonic() + TIMEOUT
        while self.process.poll() is None and time.monotonic() < until:
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(2)

    def wait_for(self, pattern: str) -> str:
        """Read until the output matches *pattern*; return and clear the output since the last call."""
        until = time.monotonic() + TIMEOUT
        while (match := re.search(pattern, self.view)) is None:
            assert time.monotonic() < until and self._read(), f"no {pattern!r} in {self.view!r}"
        view, self.view = self.view[: match.end()], self.view[match.end() :]
        return view

    def end(self) -> tuple[int, str]:
        """Wait for the command to end; return the exit code, and the output since the last call."""
        while self._read():
            pass
        return self.process.wait(TIMEOUT), self.view

    def _read(self) -> bool:
        readable, _, _ = select.select([self._master], [], [], TIMEOUT)
        try:
            data = os.read(self._master, 65536) if readable else b""
        except OSError:  # the command has closed the terminal
            data = b""
        self.view += data.decode(errors="replace")
        return bool(data)


_spawned: Final[list[subprocess.Popen[bytes]]] = []


def spawn(server: Server, *args: str) -> subprocess.Popen[bytes]:
    """Start the command as a child process without a terminal. It is ended after the test."""
    return spawn_at(where(server), *args)


def spawn_at(where: tuple[str, ...], *args: str) -> subprocess.Popen[bytes]:
    """Start the command with the options *where*, which select a server."""
    process = forking.Process(
        [*MINDING_SIGNALS, *COMMAND, *where, *args],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _spawned.append(process)
    return process


def end_spawned() -> None:
    """End the processes that `spawn` has started."""
    while _spawned:
        end(_spawned.pop())


def finish(process: subprocess.Popen[bytes], number: signal.Signals | None = None) -> Done:
    """Send the signal *number*, if any, and wait for the process to end; return its exit code and output."""
    if number is not None:
        process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT)
    return Done(process.returncode, out, err.decode())


@contextmanager
def old_server(server: Server) -> Iterator[str]:
    """Yield the address of a proxy that makes *server* behave like beanstalkd 1.11, which has no reserve-job."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        threading.Thread(target=_accept, args=(listener, server.address), daemon=True).start()
        yield f"{host}:{port}"
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, target: tuple[str, int]) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_relay, args=(near, target), daemon=True).start()


def _relay(near: socket.socket, target: tuple[str, int]) -> None:
    """Relay each command and its reply; a client sends one command at a time."""
    with near, socket.create_connection(target) as far:
        while request := near.recv(65536):
            if request.startswith(b"reserve-job"):
                near.sendall(b"UNKNOWN_COMMAND\r\n")
            else:
                far.sendall(request)
                near.sendall(far.recv(65536))


def receive_request(sock: socket.socket) -> None:
    """Receive a request of the command; refuse a `stats-mode` before it, as beanstalkd does."""
    if sock.recv(1000).startswith(b"stats-mode"):
        sock.sendall(b"BAD_FORMAT\r\n")
        sock.recv(1000)


@contextmanager
def replying(reply: bytes) -> Iterator[str]:
    """Yield the address of a server that sends *reply* to the first request, and closes the connection."""

    def answer() -> None:
        sock, _ = listener.accept()
        with sock, suppress(OSError):
            receive_request(sock)
            sock.sendall(reply)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        join(thread)


class _Front(BaseHTTPRequestHandler):
    """Relays each request and its response."""

    protocol_version = "HTTP/1.1"
    target: ClassVar[str]
    is_brief: ClassVar[bool]
    is_late: ClassVar[bool]
    has_responded = False

    def do_GET(self) -> None:
        if self.is_late and self.has_responded:
            self.close_connection = True
            return
        self.has_responded = True
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        far = HTTPConnection(self.target.removeprefix("http://"), timeout=TIMEOUT)
        far.request(self.command, self.path, body, dict(self.headers))
        response = far.getresponse()
        content = response.read()
        far.close()
        self.send_response_only(response.status)
        for name in ("Content-Type", "Content-Length"):
            self.send_header(name, response.headers[name])
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = self.is_brief

    do_POST = do_DELETE = do_GET  # noqa: N815  http.server's names


@contextmanager
def front(
    target: str, *, tls: ssl.SSLContext | None = None, is_brief: bool = False, is_late: bool = False
) -> Iterator[str]:
    """Yield the address of a proxy in front of the API at *target*.

    With *is_brief* it closes a connection after each response, with *is_late* only when the next request arrives.
    """
    handler = type("Front", (_Front,), {"target": target, "is_brief": is_brief, "is_late": is_late})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
