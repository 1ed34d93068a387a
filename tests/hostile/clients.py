"""The hostile ones, each in a process of its own: `python -m tests.hostile.clients NAME PORT`, until it is killed.

Each says READY once it is at its worst, as far as that needs time.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Final, NoReturn

READY: Final = "ready"
SILENT: Final = 10_000
TUBES: Final = 10_000
ONE_JOB_TUBES: Final = 50_000
CHURN: Final = 1000
"""Connections a second."""

BIG: Final = 60_000
AT_ONCE: Final = 20
"""Connections of those that do not need thousands."""


def slow_reader(port: int) -> None:
    """Ask for far more than is read: a kilobyte ten times a second of sixty thousand bytes a reply."""
    socks = [_connect(port) for _ in range(AT_ONCE)]
    for number, sock in enumerate(socks):
        sock.sendall(b"use slow-%d\r\nput 0 0 60 %d\r\n%b\r\n" % (number, BIG, bytes(BIG)))
        sock.setblocking(False)
    _say_ready()
    while True:
        for sock in socks:
            with contextlib.suppress(BlockingIOError):
                sock.send(b"peek-ready\r\n" * 1000)
            with contextlib.suppress(BlockingIOError):
                sock.recv(1000)
        time.sleep(0.1)


def slow_writer(port: int) -> None:
    """Send bodies, each as large as may be, a byte at a time."""
    socks = [_connect(port) for _ in range(AT_ONCE)]
    for sock in socks:
        sock.sendall(b"put 0 0 60 65535\r\n")
    _say_ready()
    while True:
        for sock in socks:
            sock.sendall(b"x")
        time.sleep(0.01)


def endless_line(port: int) -> None:
    """Send lines that never end, as fast as they are read."""
    socks = [_connect(port) for _ in range(2)]
    _say_ready()
    while True:
        for sock in socks:
            sock.sendall(b"a" * 16384)
        time.sleep(0.005)


def silent(port: int) -> None:
    """Connect ten thousand times, and say nothing."""
    allow_files(SILENT + 100)
    socks = [_connect(port) for _ in range(SILENT)]
    _say_ready()
    while socks:
        time.sleep(1)


def churn(port: int) -> None:
    """Connect a thousand times a second, and be gone."""
    _say_ready()
    began = time.monotonic()
    for count in range(10**9):
        with _connect(port) as sock:
            if count % 2:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(max(0.0, began + count / CHURN - time.monotonic()))


def watcher(port: int) -> None:
    """Watch ten thousand tubes, and wait for their jobs over and over."""
    sock = _watch_all(port)
    _say_ready()
    while True:
        sock.sendall(b"reserve-with-timeout 0\r\n")
        sock.recv(100)


def patient_watcher(port: int) -> None:
    """Watch ten thousand tubes, and wait for a job of any, for good; and be given one of them each ten milliseconds."""
    sock, producer = _watch_all(port), _connect(port)
    producer.sendall(b"use watched-5000\r\n")
    _say_ready()
    while True:
        sock.sendall(b"reserve\r\n")
        producer.sendall(b"put 0 0 60 0\r\n\r\n")
        _, id, _ = sock.recv(100).split(b"\r\n")[0].split()
        sock.sendall(b"delete %b\r\n" % id)
        sock.recv(100)
        producer.recv(100)
        time.sleep(0.01)


def pipelining_watcher(port: int) -> None:
    """The same, and send its commands by the thousand."""
    sock = _watch_all(port)
    _say_ready()
    _pipeline(sock, b"reserve-with-timeout 0\r\n" * 1000)


def pipelining_lister(port: int) -> None:
    """Ask for the list of ten thousand tubes by the thousand."""
    sock = _watch_all(port)
    _say_ready()
    _pipeline(sock, b"list-tubes\r\n" * 1000)


def one_job_tubes(port: int) -> None:
    """Put one job into each of fifty thousand tubes, and again."""
    sock = _connect(port)
    for begin in range(0, ONE_JOB_TUBES, 100):
        numbers = range(begin, begin + 100)
        sock.sendall(b"".join([b"use one-%d\r\nput 9 0 60 1\r\nx\r\n" % number for number in numbers]))
        _read_lines(sock, 200)
        if begin == ONE_JOB_TUBES // 2:
            _say_ready()
    while True:
        time.sleep(1)


NAMES: Final[dict[str, Callable[[int], None]]] = {
    each.__name__: each
    for each in (
        slow_reader, slow_writer, endless_line, silent, churn, watcher, patient_watcher, pipelining_watcher,
        pipelining_lister, one_job_tubes,
    )
}  # fmt: skip


def allow_files(count: int) -> None:
    """Let this process, and those that it starts, have *count* files open; as root, beyond the hard limit too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(hard, count)))


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 60)


def _watch_all(port: int) -> socket.socket:
    sock = _connect(port)
    for begin in range(0, TUBES, 500):
        sock.sendall(b"".join([b"watch watched-%d\r\n" % number for number in range(begin, begin + 500)]))
        _read_lines(sock, 500)
    return sock


def _read_lines(sock: socket.socket, count: int) -> None:
    data = b""
    while data.count(b"\r\n") < count:
        data += sock.recv(65536)


def _pipeline(sock: socket.socket, request: bytes) -> NoReturn:
    """Send *request* over and over, as fast as its replies are read."""
    sock.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
    left = b""
    while True:
        ((_, events),) = selector.select()
        if events & selectors.EVENT_READ:
            sock.recv(1 << 20)
        if events & selectors.EVENT_WRITE:
            left = left or request
            with contextlib.suppress(BlockingIOError):
                left = left[sock.send(left) :]


def _say_ready() -> None:
    print(READY, flush=True)


if __name__ == "__main__":
    NAMES[sys.argv[1]](int(sys.argv[2]))
