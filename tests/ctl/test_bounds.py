"""Replies of any server are bounded in time and memory; beyond the bounds there is a one-line error."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from greenstalkctl.server import MAX_STATS
from tests.ctl.world import COMMAND, ctl, receive_request, run
from tests.support import forking
from tests.support.daemon import REPOSITORY, TIMEOUT, Daemon
from tests.support.processes import join
from tests.support.servers import Server

MIB = 2**20
MEMORY_LIMIT = 1000 * MIB
"""Address space limit of the process in bytes: enough for Python and its libraries, and less than a body of 1 GiB."""

JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BYTES = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"


def start_of(value: str | list[bytes]) -> str:
    """Return the id of a parameter without the text of large pieces."""
    return value if isinstance(value, str) else str([piece[:50] for piece in value[:2]])[:50]


@contextmanager
def hostile_server(*pieces: bytes, pause: float = 0, repeats: bool = True) -> Iterator[int]:
    """Yield the port of a server that sends all pieces, then repeats the last one every *pause* seconds."""

    def serve() -> None:
        sock, _ = listener.accept()
        with sock, suppress(OSError):
            receive_request(sock)
            sock.sendall(b"".join(pieces))
            while repeats:
                time.sleep(pause)
                sock.sendall(pieces[-1])
            while sock.recv(1000):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        join(thread)


def of(port: int, is_http: bool) -> tuple[str, str]:
    return ("--api", f"http://127.0.0.1:{port}") if is_http else ("--server", f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("command", "pieces"),
    [
        ("stats", [b"x" * 65536]),
        ("stats", [b"OK 99999999999999\r\n", b"---\n"]),
        ("stats", [b"OK %d\r\n" % (MAX_STATS + 1), b"a: 1\n" * 1000]),
        ("stats", [b"OK -3\r\n", b"x" * 65536]),
        ("stats", [b"OK " + b"9" * 500 + b"\r\n", b"x"]),
        ("tubes", [b"OK 99999999999999\r\n", b"- a\n"]),
        ("tubes", [b"OK 67108864\r\n---\n" + b"- a\n" * 4095, *[b"- a\n" * 4096] * 4095, b"\r\n", b""]),
        ("peek 1", [b"FOUND 1 99999999999999\r\n", b"x" * 65536]),
        ("peek 1", [b"FOUND 1 -5\r\n", b"x" * 65536]),
        ("peek 1", [b"FOUND 1 1073741825\r\n", b"x" * 65536]),
    ],
    ids=start_of,
)
def test_too_large_reply_is_exit_code_3(command: str, pieces: list[bytes]) -> None:
    with hostile_server(*pieces, repeats=bool(pieces[-1])) as port:
        done = run("--server", f"127.0.0.1:{port}", *command.split())
    assert (done.code, done.out) == (3, b"")
    (line,) = done.err.splitlines()
    assert f"127.0.0.1:{port} is not a beanstalk server (it " in line


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65536],
        [b"HTTP/1.1 200 OK\r\n", b"X: x\r\n" * 1000],
        [JSON + b"Content-Length: 99999999999999\r\n\r\n", b"["],
        [JSON + b"Content-Length: 33554433\r\n\r\n", b"0," * 32768],
        [JSON + b"Connection: close\r\n\r\n[", b"0," * 32768],
        [JSON + b"Transfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b"[" * 4096 + b"\r\n"],
        [JSON + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", b"0," * 32768],
        [JSON + b"Transfer-Encoding: chunked\r\n\r\nffffffffffff\r\n", b"0," * 32768],
        [BYTES + b"Content-Length: 99999999999999\r\n\r\n", b"x" * 65536],
    ],
    ids=start_of,
)
def test_too_large_http_response_is_exit_code_3(pieces: list[bytes]) -> None:
    with hostile_server(*pieces) as port:
        done = run("--api", f"http://127.0.0.1:{port}", "stats")
    assert (done.code, done.out) == (3, b"")
    (line,) = done.err.splitlines()
    assert "is not the API of Greenstalk Server (it" in line or "does not speak HTTP" in line
    assert "JSON" not in line


@pytest.mark.parametrize(
    ("is_http", "pieces"),
    [
        (False, [b"OK 1000\r\n---\n", b"a"]),
        (False, [b"O", b"K"]),
        (True, [JSON + b"Content-Length: 1000\r\n\r\n", b"["]),
        (True, [b"H", b"T"]),
        (True, [JSON, b"X"]),
        (True, [b"", b"HTTP/1.1 100 Continue\r\n\r\n"]),
    ],
)
def test_timeout_applies_to_a_slow_reply(is_http: bool, pieces: list[bytes]) -> None:
    with hostile_server(*pieces, pause=0.2) as port:
        start = time.monotonic()
        done = run(*of(port, is_http), "--timeout", "1s", "stats")
        duration = time.monotonic() - start
    assert (done.code, "did not answer within 1 s" in done.err, len(done.err.splitlines())) == (3, True, 1)
    assert 1 <= duration < 3


def test_timeout_applies_to_a_slow_reader() -> None:
    """The server reads the body of a put in small pieces, each of them within the timeout."""

    def read_slowly() -> None:
        sock, _ = listener.accept()
        with sock:
            while not is_over.wait(0.05) and sock.recv(1000):
                pass

    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        thread = threading.Thread(target=read_slowly, daemon=True)
        thread.start()
        start = time.monotonic()
        port = listener.getsockname()[1]
        done = run("--server", f"127.0.0.1:{port}", "--timeout", "1s", "put", stdin=b"x" * 16 * MIB)
        duration = time.monotonic() - start
        is_over.set()
        join(thread)
    assert (done.code, "did not answer within 1 s" in done.err) == (3, True)
    assert 1 <= duration < 3


def test_out_of_memory_is_one_line() -> None:
    """A body of 1 GiB is allowed, but this process has less memory."""
    reply = b"FOUND 1 1073741824\r\n"
    limited = ("prlimit", f"--as={MEMORY_LIMIT}", *COMMAND)
    with hostile_server(reply, b"x" * 65536) as port:
        command = (*limited, "--server", f"127.0.0.1:{port}", "peek", "1")
        done = forking.run(command, cwd=REPOSITORY, timeout=TIMEOUT)
    assert (done.returncode, done.stderr) == (1, b"greenstalkctl: out of memory\n")


def test_largest_api_page_is_accepted() -> None:
    """Two bodies of 1 MiB, each byte of which takes six characters in JSON."""
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0", "-z", "2000000") as daemon:
        for body in (b"\x01" * (MIB - 1), b"\x01" * MIB):
            reply = daemon.ask(b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body))
            assert reply.startswith(b"INSERTED")
        done = run("--api", daemon.dashboard, "jobs", "--json")
    assert [len(job["body"]) for job in done.lines] == [MIB - 1, MIB]


def test_largest_lists_of_real_servers_are_accepted(server: Server) -> None:
    names = [f"{number:05d}-{'x' * 190}" for number in range(3000)]
    with socket.create_connection(server.address) as sock, sock.makefile("rb") as replies:
        sock.sendall(b"".join(b"watch %s\r\n" % name.encode() for name in names))
        for _ in names:
            assert replies.readline().startswith(b"WATCHING")
        found = ctl(server, "tubes", "--json").json
    assert {tube["name"] for tube in found} == {*names, "default"}
