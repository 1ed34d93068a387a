"""Clients of servers that fail: they put jobs, some with tags, finish them, and record all replies in a History.

A client moves to another server when its own fails. Its jobs have tags or none:

- an idempotency key, which several clients put at the same time;
- a concurrency key, of which the clients may not hold more jobs than its limit;
- a group, and another job that waits for its members.
"""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

from tests.support.history import DELETE, HANG_UP, PUT, PUT_SAME, RELEASE, RESERVE, History, Step
from tests.support.processes import join

PLAIN: Final = b"default"
TUBES: Final = (b"tagged-a", b"tagged-b", b"tagged-c")
ORDERS: Final = b"tagged-orders"
LIMITS: Final = {b"one": 1, b"single": 1, b"two": 2}
"""Limits by concurrency key."""

CLIENTS: Final = 6
"""The first of these clients only puts, and moves to another server soon: its puts show how long there is no
service."""

TTR: Final = 3600
"""Seconds, which are also the time for which an idempotency key outlives its job. No reservation times out."""

MAX_LIVE: Final = 300
MAX_HELD: Final = 4
PAUSE: Final = 0.001
"""Seconds between the commands of a client: other clients of a test need the processor too."""

ORDERS_PER_SECOND: Final = 8
"""Idempotency keys per second; the clients use those of the last second."""

PROBE_PAUSE: Final = 0.02
REPLY_TIMEOUT: Final = 4.0
"""Seconds without a reply after which a client gives up a server."""

PROBE_TIMEOUT: Final = 0.7


class Gone(Exception):
    """The server has closed the connection, or does not reply."""


class Connection:
    """A connection to a server, which raises Gone or OSError when the server fails.

    own_port    the client's port.
    """

    def __init__(self, port: int, timeout: float = 60) -> None:
        self._socket: socket.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.own_port: int = self._socket.getsockname()[1]
        self._reader = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._socket.close()

    def ask(self, request: bytes) -> bytes:
        """Send *request*; return the first line of the reply."""
        self.send(request + b"\r\n")
        return self.read_line()

    def send(self, data: bytes) -> None:
        """Send *data*: commands whose replies are read later."""
        self._socket.sendall(data)

    def hang_up(self) -> None:
        """Close the connection while another thread reads a reply."""
        with suppress(OSError):  # the server has closed it
            self._socket.shutdown(socket.SHUT_RDWR)

    def read_line(self) -> bytes:
        """Return the next line without its CRLF."""
        line = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise Gone
        return line[:-2]

    def has_input(self) -> bool:
        """Return whether the server has sent something that is not read yet, or has closed the connection."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def read(self, size: int) -> bytes:
        """Return the body of *size* bytes that follows a line."""
        body = self._reader.read(size + 2)
        if len(body) < size + 2:
            raise Gone
        return body[:-2]

    def reserve(self, wait: int = 0) -> tuple[int, bytes] | None:
        """Return the id and the token of the next job; None if there is none within *wait* seconds."""
        line = self.ask(b"reserve-with-timeout %d" % wait)
        if line == b"TIMED_OUT":
            return None
        word, id, size = line.split()
        assert word == b"RESERVED", line
        return int(id), self.read(int(size)).partition(b":")[0]

    def stats(self, request: bytes) -> dict[bytes, bytes]:
        """Return the reply to `stats`, `stats-tube` or `stats-job`."""
        line = self.ask(request)
        assert line.startswith(b"OK "), f"{request!r} was answered {line!r}"
        data = self.read(int(line.split()[1]))
        return dict(line.split(b": ", 1) for line in data.splitlines() if b": " in line)


class _Client(threading.Thread):
    """A client, which runs until `is_over` is set."""

    def __init__(self, number: int, ports: Sequence[int], history: History, seed: str) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self.failure: BaseException | None = None
        self.is_over: threading.Event = threading.Event()
        self._is_probe: bool = not number
        self._ports: Sequence[int] = ports
        self._history: History = history
        self._random: random.Random = random.Random(f"{seed}/{number}")  # noqa: S311  a seed, no secret
        self._prefix: bytes = f"{seed}/{number}".encode().replace(b" ", b"-")
        self._count: int = 0
        self._lives: int = 0
        self._held: list[tuple[int, bytes]] = []

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                for port in self._ports:
                    self._visit(port)
        except BaseException as error:  # noqa: BLE001  raised by the thread that joins
            self.failure = error

    @property
    def _who(self) -> str:
        """This client on this connection."""
        return f"{self.name}/{self._lives}"

    def _visit(self, port: int) -> None:
        """Use one server as long as it replies."""
        self._lives += 1
        try:
            with Connection(port, PROBE_TIMEOUT if self._is_probe else REPLY_TIMEOUT) as connection:
                self._connection = connection
                self._server = connection.stats(b"stats")[b"id"]  # differs after each start
                try:
                    self._use_server()
                finally:  # the server ends the reservations after the connection has been closed
                    self._history.add(Step(self._who, HANG_UP, b"", time.monotonic()))
                    for _, token in self._held:
                        self._history.let_go(self._server, token)
                    self._held.clear()
        except (Gone, OSError):
            time.sleep(0.01)

    def _use_server(self) -> None:
        for tube in (*TUBES, ORDERS):
            self._connection.ask(b"watch " + tube)
        actions = (self._put_plain, self._put_order, self._put_limited, self._put_group, *[self._work] * 8)
        while not self.is_over.is_set():
            if self._is_probe:
                self._put_plain()
                time.sleep(PROBE_PAUSE)
            elif (act := self._random.choice(actions)) == self._work or self._history.live < MAX_LIVE:
                act()
                time.sleep(PAUSE)

    def _token(self) -> bytes:
        self._count += 1
        return b"%b/%d" % (self._prefix, self._count)

    def _put(self, tube: bytes, tags: bytes, token: bytes, size: int = 0) -> None:
        """Put a job whose body has *size* bytes after its token."""
        body = token + b":" + bytes(size)
        kind = PUT_SAME if tube == ORDERS else PUT
        step = self._history.add(Step(self._who, kind, token, time.monotonic()))
        verb = b"put" if tube == PLAIN else b"put-in-tube " + tube
        line = self._connection.ask(
            b"%b %d 0 %d %d%b\r\n%b" % (verb, self._random.randrange(3), TTR, len(body), tags, body)
        )
        words = line.split()
        if words[0] != b"INSERTED" or (len(words) > 2 and tube != ORDERS):
            self._history.wrong.append(f"a put with{tags!r} was answered {line!r}")
            return
        step.ended, step.is_done = time.monotonic(), True
        self._history.name(int(words[1]), token)
        if len(words) > 2:
            self._history.note_duplicate(token, words[2])

    def _put_plain(self) -> None:
        self._put(PLAIN, b"", self._token(), self._random.choice((0, 50, 2000)))

    def _put_order(self) -> None:
        """Put a job with an idempotency key that all clients use at the same time."""
        key = b"order-%d" % (time.monotonic() * ORDERS_PER_SECOND - self._random.randrange(ORDERS_PER_SECOND))
        self._put(ORDERS, b" idp:%b:%d" % (key, TTR), key)

    def _put_limited(self) -> None:
        token = self._token()
        self._put(self._random.choice(TUBES), self._limit(token), token)

    def _limit(self, token: bytes) -> bytes:
        """Give the job *token* a concurrency key; return its tag."""
        key = self._random.choice(list(LIMITS))
        self._history.keys[token] = key, LIMITS[key]
        return b" con:%b:%d" % (key, LIMITS[key])

    def _put_group(self) -> None:
        """Put the members of a group, some of which have a limit, then a job that waits for them."""
        group, members = self._token(), [self._token() for _ in range(self._random.randint(1, 4))]
        for token in members:
            limit = self._limit(token) if self._random.random() < 0.5 else b""
            self._put(self._random.choice(TUBES), b" grp:%b%b" % (group, limit), token)
        token = self._token()
        self._history.groups[token] = group, members
        self._put(self._random.choice(TUBES), b" aft:" + group, token)

    def _work(self) -> None:
        if len(self._held) > self._random.randrange(MAX_HELD):
            held = self._held.pop(self._random.randrange(len(self._held)))
            self._history.let_go(self._server, held[1])
            self._random.choice((self._finish, self._finish, self._finish, self._give_back, self._bury))(*held)
            return
        begun = time.monotonic()
        job = self._connection.reserve()
        if job is not None:
            self._history.deliver(Step(self._who, RESERVE, job[1], begun), job[0])
            self._history.hold(self._server, job[1])
            self._held.append(job)

    def _settle(self, kind: str, token: bytes, request: bytes, expected: bytes) -> None:
        step = self._history.add(Step(self._who, kind, token, time.monotonic()))
        line = self._connection.ask(request)
        if line != expected:
            self._history.wrong.append(f"{request!r} of {token!r} by {self._who} was answered {line!r}")
            return
        step.ended, step.is_done = time.monotonic(), True

    def _finish(self, id: int, token: bytes) -> None:
        self._settle(DELETE, token, b"delete %d" % id, b"DELETED")

    def _give_back(self, id: int, token: bytes) -> None:
        self._settle(RELEASE, token, b"release %d %d 0" % (id, self._random.randrange(3)), b"RELEASED")

    def _bury(self, id: int, token: bytes) -> None:
        """Bury a job and kick it; a crash may leave it buried."""
        self._settle(RELEASE, token, b"bury %d 1" % id, b"BURIED")
        self._settle(RELEASE, token, b"kick-job %d" % id, b"KICKED")


class Load:
    """Clients of whichever server on *ports* is active."""

    def __init__(self, ports: Sequence[int], seed: str) -> None:
        self.history: History = History()
        self._clients: list[_Client] = [_Client(number, ports, self.history, seed) for number in range(CLIENTS)]

    def __str__(self) -> str:
        history = self.history
        held = ", ".join(f"{count} of {key.decode()}" for key, count in sorted(history.most_held.items()))
        return (
            f"{history.acknowledged} acknowledgements, {history.duplicates} duplicates, {history.waited} delivered"
            f" after their group, at most reserved: {held}"
        )

    def start(self) -> None:
        """Start the clients, unless they run."""
        for client in self._clients:
            if client.ident is None:
                client.start()

    def stop(self) -> None:
        """End all clients soon."""
        for client in self._clients:
            client.is_over.set()

    def audit(self, port: int) -> None:
        """Stop, delete all jobs of the server on *port*, and raise AssertionError with every contradiction."""
        self.stop()
        for client in self._clients:
            join(client)
            if client.failure is not None:
                raise AssertionError(f"{client.name}: {client.failure!r}") from client.failure
        with Connection(port) as connection:
            self._drain(connection)
            for tube in (PLAIN, *TUBES, ORDERS):
                stats = connection.stats(b"stats-tube " + tube)
                left = {name: count for name, count in stats.items() if name.startswith(b"current-jobs-")}
                if any(count != b"0" for count in left.values()):
                    self.history.wrong.append(f"jobs of {tube!r} cannot be reserved: {left}")
            for group, _ in self.history.groups.values():
                if connection.ask(b"stats-group " + group) != b"NOT_FOUND":
                    self.history.wrong.append(f"the group {group!r} exists without jobs")
        self.history.check()

    def _drain(self, connection: Connection) -> None:
        """Reserve and delete all jobs, the buried ones too."""
        for tube in (PLAIN, *TUBES, ORDERS):
            connection.ask(b"watch " + tube)
            connection.ask(b"use " + tube)
            while (line := connection.ask(b"peek-buried")) != b"NOT_FOUND":  # a kick without jobs would end waits
                _, id, size = line.split()
                connection.read(int(size))
                assert connection.ask(b"kick-job " + id) == b"KICKED"
        while (job := connection.reserve(wait=1)) is not None:
            self.history.deliver(Step("audit", RESERVE, job[1], time.monotonic()), job[0])
            step = self.history.add(Step("audit", DELETE, job[1], time.monotonic()))
            assert connection.ask(b"delete %d" % job[0]) == b"DELETED"
            step.ended, step.is_done = time.monotonic(), True


def put_large(port: int, size: int, history: History, token: str) -> None:
    """Put a job of *size* bytes on the server at *port*, which may be lost before it replies."""
    body = token.encode() + b":"
    body += bytes(size - len(body))
    step = history.add(Step(token, PUT, token.encode(), time.monotonic()))
    try:
        with Connection(port) as connection:
            line = connection.ask(b"put 0 0 %d %d\r\n%b" % (TTR, size, body))
    except (Gone, OSError):
        return
    if line.startswith(b"INSERTED "):
        step.ended, step.is_done = time.monotonic(), True
        history.name(int(line.split()[1]), token.encode())
