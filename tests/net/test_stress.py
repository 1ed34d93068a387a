"""Many connections of every kind send random pipelines and read at random speeds; each gets the right replies."""

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
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.support.daemon import Daemon
from tests.support.peer import Peer, eventually
from tests.support.tls import context, make_certificates

MAX_JOB_SIZE: Final = 20_000_000

TUBES: Final = 1000

SHARED: Final = 300
"""Jobs in a tube that consumers of several connections share."""

JOURNAL_FILES: Final = 8
"""Maximum files that the journal may have open in addition."""

SILENCE: Final = 30.0
"""Seconds without a byte after which a connection counts as hung."""

Reply = tuple[bytes, bytes]
"""A line, and the body that follows it."""

Check = Callable[[Reply], None]


Connect = Callable[[int], socket.socket]
"""Takes the size of the receive buffer in bytes, 0 for the default; returns a new connection."""


class Model:
    """The tube that one connection alone uses, the expected state of its jobs, and the commands that it sends.

    script   the commands in order, each with the check of its reply.
    """

    def __init__(self, number: int, chance: random.Random) -> None:
        self.tube = b"own-%d" % number
        self.chance = chance
        self.script: list[tuple[bytes | Callable[[], bytes], Check]] = []
        self.ready: dict[tuple[int, int], bytes] = {}
        self.held: dict[int, tuple[int, bytes]] = {}
        self.buried: dict[int, tuple[int, bytes]] = {}
        self.last_id = 0

    def add(self, command: bytes, check: Check) -> None:
        self.script.append((command + b"\r\n", check))

    def write(self, count: int) -> None:
        """Write a script of *count* commands."""
        self.add(b"use " + self.tube, equals(b"USING " + self.tube))
        self.add(b"watch " + self.tube, equals(b"WATCHING 2"))
        self.add(b"ignore default", equals(b"WATCHING 1"))
        kinds = [
            (30, self._put), (20, self._reserve), (8, self._end), (6, self._peek), (6, self._kick), (4, self._stats),
            (3, self._list), (4, self._refused), (1, self._large), (1, self._too_big),
        ]  # fmt: skip
        weights = [weight for weight, _ in kinds]
        for _, write in self.chance.choices(kinds, weights, k=count):
            write()

    def _put(self, size: int | None = None) -> None:
        size = self.chance.choice([0, 1, 100, 3000, 65535]) if size is None else size
        body, pri = self.chance.randbytes(size), self.chance.choice([0, 7, 2000])

        def check(reply: Reply) -> None:
            word, id = reply[0].split()
            assert word == b"INSERTED"
            assert int(id) > self.last_id
            self.last_id = int(id)
            self.ready[pri, self.last_id] = body

        self.add(b"put %d 0 300 %d\r\n%b" % (pri, size, body), check)

    def _large(self) -> None:
        self._put(self.chance.choice([65536, 70_000, 300_000, 2_000_000]))
        self._peek()

    def _reserve(self) -> None:
        def check(reply: Reply) -> None:
            if not self.ready:
                assert reply == (b"TIMED_OUT", b"")
                return
            (pri, id), body = min(self.ready.items())
            assert reply == (b"RESERVED %d %d" % (id, len(body)), body)
            del self.ready[pri, id]
            self.held[id] = pri, body

        self.add(b"reserve-with-timeout 0", check)

    def _end(self) -> None:
        """Add a delete, release or bury of a job that this connection may hold; choose the job when it is sent."""
        verb = self.chance.choice([b"delete", b"release", b"bury"])
        choice = self.chance.random()
        asked: list[int] = []

        def check(reply: Reply) -> None:
            id = asked[0]
            known = self.held.pop(id, None)
            if known is None and verb == b"delete":
                ready = [key for key in self.ready if key[1] == id]
                known = (ready[0][0], self.ready.pop(ready[0])) if ready else self.buried.pop(id, None)
            assert reply[0] == (
                b"NOT_FOUND" if known is None else {b"d": b"DELETED", b"r": b"RELEASED", b"b": b"BURIED"}[verb[:1]]
            )
            if known is not None and verb == b"release":
                self.ready[known[0], id] = known[1]
            elif known is not None and verb == b"bury":
                self.buried[id] = known

        def command() -> bytes:
            known = list(self.held)
            asked.append(known[int(choice * len(known))] if known else 1_000_000_000)
            pri = self.held[asked[0]][0] if known else 0
            return b"%b %d%b\r\n" % (verb, asked[0], {b"d": b"", b"r": b" %d 0" % pri, b"b": b" %d" % pri}[verb[:1]])

        self.script.append((command, check))

    def _peek(self) -> None:
        def check(reply: Reply) -> None:
            if not self.ready:
                assert reply == (b"NOT_FOUND", b"")
            else:
                (_, id), body = min(self.ready.items())
                assert reply == (b"FOUND %d %d" % (id, len(body)), body)

        self.add(b"peek-ready", check)

    def _kick(self) -> None:
        bound = self.chance.choice([1, 5, 1000])

        def check(reply: Reply) -> None:
            kicked = list(self.buried)[:bound]
            assert reply == (b"KICKED %d" % len(kicked), b"")
            for id in kicked:
                pri, body = self.buried.pop(id)
                self.ready[pri, id] = body

        self.add(b"kick %d" % bound, check)

    def _stats(self) -> None:
        def check(reply: Reply) -> None:
            assert b"\ncurrent-jobs-ready: %d\n" % len(self.ready) in reply[1]
            assert b"\ncurrent-jobs-reserved: %d\n" % len(self.held) in reply[1]
            assert b"\ncurrent-jobs-buried: %d\n" % len(self.buried) in reply[1]

        self.add(b"stats-tube " + self.tube, check)

    def _list(self) -> None:
        def check(reply: Reply) -> None:
            assert reply[1].startswith(b"---\n- default\n") and b"\n- " + self.tube + b"\n" in reply[1]

        self.add(b"list-tubes", check)
        self.add(b"list-tubes-watched", lambda reply: _same(reply[1], b"---\n- " + self.tube + b"\n"))

    def _refused(self) -> None:
        command, reply = self.chance.choice(
            [(b"nonsense", b"UNKNOWN_COMMAND"), (b"x" * 5000, b"BAD_FORMAT"), (b"delete x", b"BAD_FORMAT")]
        )
        self.add(command, equals(reply))

    def _too_big(self) -> None:
        self.add(b"put 0 0 1 %d\r\n%b" % (MAX_JOB_SIZE + 1, bytes(MAX_JOB_SIZE + 1)), equals(b"JOB_TOO_BIG"))


def _same(one: bytes, other: bytes) -> None:
    assert one == other


def equals(line: bytes) -> Check:
    return lambda reply: _same(reply[0], line)


class Client(threading.Thread):
    """A connection that sends its script in random pieces, reads at a random speed, and disconnects in a random way."""

    def __init__(self, number: int, seed: int, connect: Connect, count: int) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.chance = random.Random(seed * 1000 + number)  # noqa: S311
        self.model = Model(number, self.chance)
        self.model.write(count)
        self.ends_by = self.chance.choice(["quit", "half", "close", "reset"])
        self.is_slow = self.chance.random() < 0.3
        self.window = self.chance.choice([1, 4, 50, 10_000])  # commands sent ahead of their replies
        self.connect = connect
        self.failure = ""
        self.answered = 0
        self._sent = 0
        self._is_ended = False
        self._out = b""
        self._piece = b""
        self._received = bytearray()

    def run(self) -> None:
        try:
            with self.connect(self.chance.choice([0, 0, 4096])) as sock:
                self._play(sock)
        except Exception as error:  # noqa: BLE001  the test reports it
            self.failure = f"client {self.number} ({self.ends_by}): {type(error).__name__} {str(error)[:300]!r}"

    def _play(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        script = self.model.script
        leaves_at = self.chance.randrange(len(script)) if self.ends_by in ("close", "reset") else len(script) + 1
        silent_since = time.monotonic()
        while self.answered < min(leaves_at, len(script)) or self._out or not self._is_ended:
            if self.answered >= leaves_at:
                break
            self._write()
            if self._sent == len(script) and not self._out and not self._is_ended and not self._end(sock):
                break
            has_moved = self._send(sock)
            if self.is_slow and self.chance.random() < 0.05:
                time.sleep(0.005)
            has_moved |= self._receive(sock)
            while self.answered < self._sent and (reply := self._take()) is not None:
                script[self.answered][1](reply)
                self.answered += 1
            if has_moved:
                silent_since = time.monotonic()
                continue
            assert time.monotonic() < silent_since + SILENCE, f"no reply after {self.answered} of {self._sent} commands"
            select.select([sock], [sock] if self._out else [], [], 0.05)
        if self.ends_by == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif self.ends_by == "quit" or (self.ends_by == "half" and not isinstance(sock, ssl.SSLSocket)):
            self._await_end(sock)

    def _write(self) -> None:
        """Append the next commands of the script to the output, up to the window."""
        script = self.model.script
        while self._sent < min(len(script), self.answered + self.window) and len(self._out) < 1 << 20:
            command = script[self._sent][0]
            self._out += command() if callable(command) else command
            self._sent += 1

    def _end(self, sock: socket.socket) -> bool:
        """Send quit or a FIN, if this client ends in that way; return False once it may close without either."""
        if self.ends_by == "quit":
            self._out = b"quit\r\n"
        elif isinstance(sock, ssl.SSLSocket) or self.ends_by != "half":  # Python ends both directions of TLS at once
            return self.answered < len(self.model.script)
        else:
            sock.shutdown(socket.SHUT_WR)
        self._is_ended = True
        return True

    def _send(self, sock: socket.socket) -> bool:
        """Send a random part of the output; return whether the socket accepted any bytes."""
        if not self._out:
            return False
        self._piece = self._piece or self._out[: self.chance.choice([1, 7, 200, 5000, 1 << 20])]
        try:
            self._out = self._out[sock.send(self._piece) :]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return False  # TLS requires the same piece again
        self._piece = b""
        return True

    def _receive(self, sock: socket.socket) -> bool:
        """Receive a random part of the input; return whether any arrived."""
        try:
            data = sock.recv(self.chance.choice([100, 5000, 1 << 18]))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        is_due = self._is_ended and not self._out
        self._received += data
        assert data or is_due, f"closed after {self.answered} of {self._sent} commands"
        return bool(data)

    def _await_end(self, sock: socket.socket) -> None:
        """Read until the server closes; assert that no reply follows the last one."""
        sock.settimeout(SILENCE)
        with suppress(ConnectionResetError, ssl.SSLError):
            while data := sock.recv(1 << 18):
                self._received += data
        assert not self._received, f"{bytes(self._received[:100])!r} after the last reply"

    def _take(self) -> Reply | None:
        """Remove the next reply from the input, and return it; None if it is incomplete."""
        end = self._received.find(b"\r\n")
        if end < 0:
            return None
        line = bytes(self._received[:end])
        words = line.split()
        if words[0] not in (b"RESERVED", b"FOUND", b"OK"):
            del self._received[: end + 2]
            return line, b""
        stop = end + 2 + int(words[-1])
        if len(self._received) < stop + 2:
            return None
        body = bytes(self._received[end + 2 : stop])
        assert self._received[stop : stop + 2] == b"\r\n"
        del self._received[: stop + 2]
        return line, body


class Consumer(threading.Thread):
    """Keeps three reserves waiting, and deletes the jobs that it gets, until *got* has SHARED bodies."""

    def __init__(self, connect: Connect, got: list[bytes]) -> None:
        super().__init__(daemon=True)
        self.connect, self.got, self.failure = connect, got, ""

    def run(self) -> None:
        try:
            with self.connect(0) as sock:
                sock.sendall(b"watch shared\r\nignore default\r\n" + b"reserve-with-timeout 1\r\n" * 3)
                self._consume(sock)
        except Exception as error:  # noqa: BLE001  the test reports it
            self.failure = f"consumer: {error!r}"

    def _consume(self, sock: socket.socket) -> None:
        received, undeleted = b"", 0
        while len(self.got) < SHARED or undeleted:
            data = sock.recv(65536)
            assert data, "closed by the server"
            received += data
            while b"\r\n" in received:
                line, _, rest = received.partition(b"\r\n")
                if line == b"TIMED_OUT":
                    sock.sendall(b"reserve-with-timeout 1\r\n")
                elif line.startswith(b"RESERVED"):
                    _, id, size = line.split()
                    if len(rest) < int(size) + 2:
                        break
                    self.got.append(rest[: int(size)])
                    rest = rest[int(size) + 2 :]
                    undeleted += 1
                    sock.sendall(b"delete %b\r\nreserve-with-timeout 1\r\n" % id)
                else:
                    assert line == b"DELETED" or line.startswith(b"WATCHING"), line
                    undeleted -= line == b"DELETED"
                received = rest


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


def stress(server: Daemon, certificates: Path, seed: int, count: int = 18, size: int = 60) -> None:
    """Run *count* clients with *size* commands each, and consumers of a shared tube; check replies and final state."""
    connects = connectors(server, certificates)
    process = psutil.Process(server.process.pid)
    with ExitStack() as stack:
        watcher, tubes, feeder = (stack.enter_context(Peer(connects[0](0))) for _ in range(3))
        before = process.num_fds()
        tubes.send(b"".join(b"watch %0200d\r\n" % number for number in range(TUBES)))
        assert all(tubes.read_line().startswith(b"WATCHING") for _ in range(TUBES))
        got: list[bytes] = []
        consumers: list[Client | Consumer] = [Consumer(connects[number % 3], got) for number in range(6)]
        clients: list[Client | Consumer] = [Client(number, seed, connects[number % 3], size) for number in range(count)]
        threads = [*clients, *consumers]
        for one in threads:
            one.start()
        feeder.send(b"use shared\r\n" + b"".join(b"put 0 0 60 4\r\n%04d\r\n" % number for number in range(SHARED)))
        assert feeder.read_line() == b"USING shared"
        assert all(feeder.read_line().startswith(b"INSERTED") for _ in range(SHARED))
        for one in threads:
            one.join(4 * SILENCE)
        assert [one.failure for one in threads if one.failure or one.is_alive()] == [], f"seed {seed}"
        assert sorted(got) == [b"%04d" % number for number in range(SHARED)], f"seed {seed}"
        eventually(lambda: watcher.stats()["current-connections"] == "3", "all other connections are closed")
        stats = watcher.stats()
        assert stats["current-jobs-reserved"] == stats["current-waiting"] == "0"
        eventually(lambda: process.num_fds() <= before + JOURNAL_FILES, "the sockets are closed")
        used = sum(process.cpu_times()[:2])
        time.sleep(0.5)
        assert sum(process.cpu_times()[:2]) - used < 0.2, "the idle server uses CPU"


@pytest.mark.parametrize("journal", [(), ("-f", "0"), ("-f", "50")], ids=["memory", "f0", "f50"])
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
