"""Many connections of every kind send random pipelines and read at random speeds; each gets the right replies.

A connection has a tube of its own, so a session without a socket, on a broker of its own, knows each reply.
"""

from __future__ import annotations

import random
import re
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.support.daemon import Daemon
from tests.support.peer import Peer, eventually
from tests.support.talk import Talk
from tests.support.tls import context, make_certificates
from tests.support.world import make_broker

MAX_JOB_SIZE: Final = 2_000_000

BATCHES: Final = 6
"""Batches of commands of each connection. All commands of a batch are sent before the first of them is answered."""

TUBES: Final = b"".join(b"watch %0190d\r\n" % number for number in range(500))
"""Commands after which the list of the watched tubes is larger than a slice of output."""

JOURNAL_FILES: Final = 8
"""Maximum files that the journal may have open in addition."""

SILENCE: Final = 30.0
"""Seconds without a byte after which a connection counts as hung."""

BODY: Final = re.compile(rb"(?:OK|(?:RESERVED|FOUND) \d+) (\d+)\r\n")

Connect = Callable[[int], socket.socket]
"""Takes the size of the receive buffer in bytes, 0 for the default; returns a new connection."""


def replies_in(data: bytes) -> list[bytes]:
    """Return the replies in *data*, with their bodies."""
    found, at = [], 0
    while at < len(data):
        body = BODY.match(data, at)
        end = data.index(b"\r\n", at) + 2 + (int(body[1]) + 2 if body else 0)
        found.append(data[at:end])
        at = end
    return found


class Script:
    """The commands of a connection, and its replies in *talk*. A put there gets the number of the put as its id."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.talk = Talk(make_broker(MAX_JOB_SIZE))
        self.chance = chance
        self.puts = 0
        self.tube = b"own-%d" % number

    def first(self) -> list[bytes]:
        return [b"watch %b\r\nignore default\r\n" % self.tube, TUBES, b"use %b\r\n" % self.tube]

    def batch(self) -> list[bytes]:
        """Return random commands, and one with a known reply. The id of the third put replaces `@3@`."""
        puts, count = self.puts, self.chance.choice([1, 4, 50])
        return [*[self._command(puts) for _ in range(count)], b"use %b\r\n" % self.tube]

    def _command(self, puts: int) -> bytes:
        draw = self.chance.random()
        if draw < 0.3:
            return self._put(self.chance.choices([0, 1, 100, 3000, 65535, 300_000], [9, 9, 9, 9, 2, 1])[0])
        if draw < 0.65 and puts:
            verb = self.chance.choice([b"delete %b", b"release %b 7 0", b"bury %b 9", b"touch %b", b"peek %b"])
            return verb % (b"@%d@" % self.chance.randint(1, puts)) + b"\r\n"
        if draw < 0.67:
            return b"put 0 0 1 %d\r\n%b\r\n" % (MAX_JOB_SIZE + 1, bytes(MAX_JOB_SIZE + 1))
        others = [b"reserve-with-timeout 0", b"peek-ready", b"kick 5", b"nonsense", b"x" * 5000, b"delete x"]
        return self.chance.choice([*others, b"list-tubes-watched", b"stats-tube " + self.tube]) + b"\r\n"

    def _put(self, size: int) -> bytes:
        self.puts += 1
        return b"put %d 0 300 %d\r\n%b\r\n" % (self.chance.choice([0, 7, 2000]), size, b"@" * size)

    def expected(self, commands: bytes) -> list[bytes]:
        return replies_in(self.talk.send(re.sub(rb"@(\d+)@", rb"\1", commands)))


class Client(threading.Thread):
    """A connection that sends its script in random pieces, reads at a random speed, and disconnects in a random way."""

    def __init__(self, number: int, seed: int, connect: Connect) -> None:
        super().__init__(daemon=True)
        self.chance = random.Random(f"{seed}/{number}")  # noqa: S311
        self.script = Script(number, self.chance)
        self.ends_by = self.chance.choice(["quit", "half", "close", "reset"])
        self.is_slow = self.chance.random() < 0.3
        self.connect = connect
        self.name = f"client {number} ({self.ends_by})"
        self.failure = ""
        self.numbers: dict[bytes, int] = {}  # of the puts, by id

    def run(self) -> None:
        try:
            with self.connect(self.chance.choice([0, 0, 4096])) as sock:
                sock.setblocking(False)
                for batch in (self.script.first(), *(self.script.batch() for _ in range(BATCHES))):
                    self._play(sock, b"".join(batch))
                self._end(sock)
        except Exception as error:  # noqa: BLE001  the test reports it
            self.failure = f"{self.name}: {type(error).__name__} {str(error)[:300]!r}"

    def _play(self, sock: socket.socket, commands: bytes) -> None:
        """Send *commands*, and compare the replies."""
        expected = self.script.expected(commands)
        ids = list(self.numbers)
        sent = re.sub(rb"@(\d+)@", lambda found: ids[int(found[1]) - 1], commands)
        received = replies_in(self._exchange(sock, sent, expected[-1]))
        for want, got in zip(expected, received, strict=True):
            same = re.sub(rb"\A(INSERTED|RESERVED|FOUND) (\d+)", self._number, got)
            assert same == want, f"{got[:99]!r} instead of {want[:99]!r}"

    def _number(self, reply: re.Match[bytes]) -> bytes:
        """Return the start of a reply with the number of the put instead of the id."""
        return b"%b %d" % (reply[1], self.numbers.setdefault(reply[2], len(self.numbers) + 1))

    def _exchange(self, sock: socket.socket, out: bytes, last: bytes) -> bytes:
        """Send *out* in random pieces, and return the replies up to *last*."""
        received, at, piece, silent_since = bytearray(), 0, b"", time.monotonic()
        while at < len(out) or not received.endswith(last):
            assert time.monotonic() < silent_since + SILENCE, "no reply"
            piece = piece or out[at : at + self.chance.choice([1, 7, 200, 5000, 1 << 20])]
            with suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                at, piece = at + sock.send(piece), b""  # otherwise TLS requires the same piece again
            if self.is_slow and self.chance.random() < 0.05:
                time.sleep(0.005)
            try:
                data = sock.recv(self.chance.choice([100, 5000, 1 << 18]))
                assert data, "closed by the server"
                received += data
                silent_since = time.monotonic()
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                select.select([sock], [sock] if at < len(out) else [], [], 0.05)
        return bytes(received)

    def _end(self, sock: socket.socket) -> None:
        sock.settimeout(SILENCE)
        if self.ends_by == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif self.ends_by == "quit":
            sock.sendall(b"quit\r\n")
            assert sock.recv(1) == b""
        elif self.ends_by == "half" and not isinstance(sock, ssl.SSLSocket):  # Python ends both directions of TLS
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""


def connectors(server: Daemon, certificates: Path) -> list[Connect]:
    """Return functions that connect to the server over plain TCP, a Unix socket, and TLS."""
    found = re.search(r"127\.0\.0\.1:(\d+) \(TLS\), 127\.0\.0\.1:(\d+), unix:(\S+)$", server.first_lines, re.MULTILINE)
    assert found is not None, server.first_lines
    plain, tls = ("127.0.0.1", int(found[2])), ("127.0.0.1", int(found[1]))
    secured = context(certificates)

    def connect(family: int, address: object, buffer: int) -> socket.socket:
        sock = socket.socket(family)
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.settimeout(SILENCE)
        sock.connect(address)  # type: ignore[arg-type]
        return secured.wrap_socket(sock, server_hostname="localhost") if address == tls else sock

    return [
        partial(connect, socket.AF_INET, plain),
        partial(connect, socket.AF_UNIX, found[3]),
        partial(connect, socket.AF_INET, tls),
    ]


def stress(server: Daemon, certificates: Path, seed: int) -> None:
    """Run clients, and check that the server has closed what they had."""
    connects = connectors(server, certificates)
    process = psutil.Process(server.process.pid)
    with Peer(connects[0](0)) as watcher:
        watcher.stats()
        before = process.num_fds()
        clients = [Client(number, seed, connects[number % 3]) for number in range(15)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(4 * SILENCE)
        assert [one.failure or one.name for one in clients if one.failure or one.is_alive()] == [], f"seed {seed}"
        eventually(lambda: watcher.stats()["current-connections"] == "1", "all other connections are closed")
        assert watcher.stats()["current-jobs-reserved"] == "0"
        eventually(lambda: process.num_fds() <= before + JOURNAL_FILES, "the sockets are closed")


@pytest.mark.parametrize("journal", [(), ("-f", "0")], ids=["memory", "f0"])
def test_each_connection_gets_its_replies(journal: tuple[str, ...], tmp_path: Path) -> None:
    make_certificates(tmp_path)
    flags = ["--tls-cert", f"{tmp_path}/server.pem", "--tls-key", f"{tmp_path}/server.key", "--no-web", "-p", "0"]
    flags += ["-l", "127.0.0.1", "-l", "plain:127.0.0.1:0", "-l", f"unix:{tmp_path}/s", "-z", str(MAX_JOB_SIZE)]
    if journal:
        (tmp_path / "journal").mkdir()
        flags += ["-b", str(tmp_path / "journal"), *journal]
    with Daemon(*flags) as server:
        stress(server, tmp_path, random.randrange(1 << 30))  # noqa: S311
        code, stderr = server.stop()
        assert code == 0 and "Traceback" not in stderr, stderr
