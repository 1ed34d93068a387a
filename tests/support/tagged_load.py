"""Clients that put jobs with tags and finish them, on servers that fail, and a check of all replies.

A reply with the id of a job is final: the server sends it after the commit. So from the replies follows, whenever a
server was killed:

- all replies about an idempotency key, which outlives its job, have the same id;
- the clients never hold more jobs with a concurrency key than its limit, on one server;
- a job with `aft` is delivered after the deletes of all members of its group that were put before it;
- a deleted job is not delivered again, and at the end every job can be reserved and deleted, and no other is left.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from math import inf
from typing import BinaryIO, Final

TUBES: Final = (b"tagged-a", b"tagged-b", b"tagged-c")
ORDERS: Final = b"tagged-orders"
LIMITS: Final = {b"one": 1, b"single": 1, b"two": 2}
"""Limits by concurrency key."""

CLIENTS: Final = 3
TTR: Final = 3600
"""Seconds, which are also the time for which an idempotency key outlives its job."""

MAX_LIVE: Final = 300
MAX_HELD: Final = 4
PAUSE: Final = 0.001
"""Seconds between the commands of a client: other clients of a test need the processor too."""

REPLY_TIMEOUT: Final = 4.0


class _Gone(Exception):
    """The server has closed the connection, or does not reply."""


class TaggedJobs:
    """The knowledge of all clients. Every access is under `lock`.

    ids         the id of each token that a reply has named. The token of a job with an idempotency key is the key.
    puts        tokens whose put was acknowledged.
    asked       tokens whose delete was sent.
    deleted     times at which a delete was acknowledged, by token; monotonic seconds.
    members     tokens of the acknowledged members of each group.
    held        number of jobs that clients hold, by server and concurrency key.
    most_held   maximum of `held` by key.
    delivered   number of deliveries of jobs that had waited for a group.
    """

    def __init__(self) -> None:
        self.lock: threading.Lock = threading.Lock()
        self.ids: dict[bytes, int] = {}
        self.puts: set[bytes] = set()
        self.asked: set[bytes] = set()
        self.deleted: dict[bytes, float] = {}
        self.members: dict[bytes, set[bytes]] = defaultdict(set)
        self.held: Counter[tuple[bytes, bytes]] = Counter()
        self.most_held: Counter[bytes] = Counter()
        self.wrong: list[str] = []
        self.orders: int = 0
        self.replies: int = 0
        self.duplicates: int = 0
        self.delivered: int = 0

    @property
    def live(self) -> int:
        """The number of jobs that were put, and not deleted."""
        return len(self.puts) - len(self.asked)

    def name(self, id: int, token: bytes) -> None:
        """Record that a reply has named the job *token* by *id*."""
        if self.ids.setdefault(token, id) != id:
            self.wrong.append(f"{token!r} is job {self.ids[token]}, and job {id}")

    def deliver(self, id: int, body: bytes, begun: float) -> bytes:
        """Record that a reserve that was sent at *begun* got job *id*; return the token of the job."""
        token, _, group = body.partition(b" ")
        self.name(id, token)
        if begun > self.deleted.get(token, inf):
            self.wrong.append(f"{token!r} was delivered after its delete was acknowledged")
        if group and (early := self.members[group] - self.asked):
            self.wrong.append(f"{token!r} was delivered before {min(early)!r} of its group was deleted")
        self.delivered += bool(group)
        return token

    def hold(self, server: bytes, key: bytes) -> None:
        """Record that a client holds one more job with the concurrency key *key*."""
        self.held[server, key] += 1
        self.most_held[key] = max(self.most_held[key], self.held[server, key])
        if self.held[server, key] > LIMITS[key]:
            self.wrong.append(f"{self.held[server, key]} jobs with the key {key!r} are reserved")


class _Client(threading.Thread):
    def __init__(self, number: int, ports: Sequence[int], jobs: TaggedJobs, seed: str) -> None:
        super().__init__(name=f"tagged-client-{number}", daemon=True)
        self.failure: BaseException | None = None
        self.is_over: threading.Event = threading.Event()
        self._ports: Sequence[int] = ports
        self._jobs: TaggedJobs = jobs
        self._random: random.Random = random.Random(f"{seed}/{number}")  # noqa: S311  a seed, no secret
        self._prefix: bytes = f"{seed}/{number}".encode().replace(b" ", b"-")
        self._count: int = 0
        self._held: list[tuple[int, bytes, bytes]] = []

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                for port in self._ports:
                    self._visit(port)
        except BaseException as error:  # noqa: BLE001  raised by the thread that joins
            self.failure = error

    def _visit(self, port: int) -> None:
        """Use one server as long as it replies."""
        try:
            with socket.create_connection(("127.0.0.1", port), REPLY_TIMEOUT) as sock, sock.makefile("rb") as reader:
                self._sock, self._reader = sock, reader
                self._server = instance_at(sock, reader)
                try:
                    self._use_server()
                finally:  # the server ends the reservations after the connection has been closed
                    self._forget_held()
        except (_Gone, OSError):
            time.sleep(0.01)

    def _use_server(self) -> None:
        self._ask(b"stats-mode extended\r\n")  # stats-job shows the concurrency key
        for tube in (*TUBES, ORDERS):
            self._ask(b"watch %b\r\n" % tube)
        self._ask(b"ignore default\r\n")
        while not self.is_over.is_set():
            self._random.choice((self._put_order, self._put_limited, self._put_group, *[self._work] * 5))()
            time.sleep(PAUSE)

    def _forget_held(self) -> None:
        with self._jobs.lock:
            for _, _, key in self._held:
                if key:
                    self._jobs.held[self._server, key] -= 1
        self._held.clear()

    def _ask(self, request: bytes) -> bytes:
        """Send *request*; return the first line of the reply."""
        self._sock.sendall(request)
        line: bytes = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise _Gone
        with self._jobs.lock:
            self._jobs.replies += 1
        return line[:-2]

    def _put(self, tube: bytes, tags: bytes, body: bytes, token: bytes) -> int:
        """Put a job; return its id, or that of the job whose duplicate it is."""
        pri = self._random.randrange(3)
        line = self._ask(b"put-in-tube %b %d 0 %d %d%b\r\n%b\r\n" % (tube, pri, TTR, len(body), tags, body))
        words = line.split()
        with self._jobs.lock:
            if words[0] != b"INSERTED" or (len(words) > 2 and tube != ORDERS):
                self._jobs.wrong.append(f"a put with{tags!r} was answered {line!r}")
                return 0
            if words[2:3] == [b"DELETED"] and token not in self._jobs.asked:
                self._jobs.wrong.append(f"{token!r} is deleted, and no client has deleted it")
            self._jobs.duplicates += len(words) > 2
            self._jobs.name(int(words[1]), token)
            self._jobs.puts.add(token)
        return int(words[1])

    def _token(self) -> bytes:
        self._count += 1
        return b"%b/%d" % (self._prefix, self._count)

    def _put_order(self) -> None:
        """Put a job with an idempotency key that all clients use at the same time."""
        with self._jobs.lock:
            self._jobs.orders += 1
            number = self._random.randint(max(0, self._jobs.orders - 40), self._jobs.orders) // 4
        key = b"order-%d" % number
        self._put(ORDERS, b" idp:%b:%d" % (key, TTR), key, key)

    def _put_limited(self) -> None:
        if self._jobs.live < MAX_LIVE:
            token = self._token()
            self._put(self._random.choice(TUBES), self._limit(), token, token)

    def _limit(self) -> bytes:
        key = self._random.choice(list(LIMITS))
        return b" con:%b:%d" % (key, LIMITS[key])

    def _put_group(self) -> None:
        """Put the members of a group, some of which have a limit, then a job that waits for them."""
        if self._jobs.live > MAX_LIVE:
            return
        group = self._token()
        for _ in range(self._random.randint(1, 4)):
            token, limit = self._token(), self._random.choice((b"", self._limit()))
            self._put(self._random.choice(TUBES), b" grp:%b%b" % (group, limit), token, token)
            with self._jobs.lock:
                self._jobs.members[group].add(token)
        token = self._token()
        self._put(self._random.choice(TUBES), b" aft:" + group, token + b" " + group, token)

    def _work(self) -> None:
        if len(self._held) > self._random.randrange(MAX_HELD):
            held = self._held.pop(self._random.randrange(len(self._held)))
            self._random.choice((self._finish, self._finish, self._finish, self._give_back, self._bury))(*held)
            return
        begun = time.monotonic()
        line = self._ask(b"reserve-with-timeout 0\r\n")
        if line == b"TIMED_OUT":
            return
        word, id, size = line.split()
        assert word == b"RESERVED", line
        body = self._reader.read(int(size) + 2)
        if len(body) < int(size) + 2:
            raise _Gone
        stats = self._stats(b"stats-job " + id)
        key = stats.get(b"concurrency-key", b"")
        with self._jobs.lock:
            token = self._jobs.deliver(int(id), body[:-2], begun)
            if key:
                self._jobs.hold(self._server, key)
        self._held.append((int(id), token, key))

    def _stats(self, request: bytes) -> dict[bytes, bytes]:
        return stats_of(self._sock, self._reader, request)

    def _settle(self, request: bytes, expected: bytes, key: bytes) -> None:
        if key:
            with self._jobs.lock:
                self._jobs.held[self._server, key] -= 1
        line = self._ask(request)
        if line != expected:
            with self._jobs.lock:
                self._jobs.wrong.append(f"{request!r} was answered {line!r}")

    def _finish(self, id: int, token: bytes, key: bytes) -> None:
        with self._jobs.lock:
            self._jobs.asked.add(token)
        self._settle(b"delete %d\r\n" % id, b"DELETED", key)
        with self._jobs.lock:
            self._jobs.deleted[token] = time.monotonic()

    def _give_back(self, id: int, token: bytes, key: bytes) -> None:
        self._settle(b"release %d %d 0\r\n" % (id, self._random.randrange(3)), b"RELEASED", key)

    def _bury(self, id: int, token: bytes, key: bytes) -> None:
        """Bury a job and kick it; a crash may leave it buried."""
        self._settle(b"bury %d 1\r\n" % id, b"BURIED", key)
        self._settle(b"kick-job %d\r\n" % id, b"KICKED", b"")


class TaggedLoad:
    """Clients of whichever server on *ports* is active."""

    def __init__(self, ports: Sequence[int], seed: str) -> None:
        self.jobs: TaggedJobs = TaggedJobs()
        self._clients: list[_Client] = [_Client(number, ports, self.jobs, seed) for number in range(CLIENTS)]

    def __str__(self) -> str:
        jobs = self.jobs
        held = ", ".join(f"{count} of {key.decode()}" for key, count in sorted(jobs.most_held.items()))
        return (
            f"{jobs.replies} replies, {jobs.duplicates} duplicates, {len(jobs.deleted)} jobs deleted,"
            f" {jobs.delivered} delivered after their group, at most reserved: {held}"
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
        """Stop, delete all jobs of the server on *port*, and raise AssertionError with every error."""
        self.stop()
        for client in self._clients:
            client.join(60)
            assert not client.is_alive(), f"{client.name} does not end"
            if client.failure is not None:
                raise AssertionError(f"{client.name}: {client.failure!r}") from client.failure
        with socket.create_connection(("127.0.0.1", port), 60) as sock, sock.makefile("rb") as reader:
            self._drain(sock, reader)
        wrong = self.jobs.wrong
        assert not wrong, "\n".join([f"{len(wrong)} wrong:", *wrong[:20]])

    def _drain(self, sock: socket.socket, reader: BinaryIO) -> None:
        jobs, found = self.jobs, set()
        ask = _asker(sock, reader)
        for tube in (*TUBES, ORDERS):
            ask(b"watch %b\r\n" % tube)
            ask(b"use %b\r\n" % tube)
            while (line := ask(b"peek-buried\r\n")) != b"NOT_FOUND":  # a kick without buried jobs would end waits
                _, id, size = line.split()
                reader.read(int(size) + 2)
                assert ask(b"kick-job %b\r\n" % id) == b"KICKED"
        ask(b"ignore default\r\n")
        while (line := ask(b"reserve-with-timeout 1\r\n")) != b"TIMED_OUT":
            _, id, size = line.split()
            found.add(jobs.deliver(int(id), reader.read(int(size) + 2)[:-2], time.monotonic()))
            jobs.asked |= found
            assert ask(b"delete %b\r\n" % id) == b"DELETED"
        jobs.wrong += [f"{token!r} is lost" for token in jobs.puts - jobs.asked]
        for tube in (*TUBES, ORDERS):
            stats = stats_of(sock, reader, b"stats-tube " + tube)
            left = {name: value for name, value in stats.items() if name.startswith(b"current-jobs") and value != b"0"}
            if left:
                jobs.wrong.append(f"jobs of {tube!r} cannot be reserved: {left}")
        for group in jobs.members:
            if ask(b"stats-group %b\r\n" % group) != b"NOT_FOUND":
                jobs.wrong.append(f"the group {group!r} exists without jobs")
                break


def _asker(sock: socket.socket, reader: BinaryIO) -> Callable[[bytes], bytes]:
    def ask(request: bytes) -> bytes:
        sock.sendall(request)
        return reader.readline()[:-2]

    return ask


def stats_of(sock: socket.socket, reader: BinaryIO, request: bytes) -> dict[bytes, bytes]:
    """Return the reply to stats, stats-tube or stats-job; raise an error if the server is gone."""
    sock.sendall(request + b"\r\n")
    line = reader.readline()
    if not line.endswith(b"\r\n"):
        raise _Gone
    data = reader.read(int(line.split()[1]) + 2)
    pairs = [each.split(b": ", 1) for each in data.splitlines() if b": " in each]
    return {name: value.strip(b'"') for name, value in pairs}


def instance_at(sock: socket.socket, reader: BinaryIO) -> bytes:
    """Return the id of the server process, which is different after each start."""
    return stats_of(sock, reader, b"stats")[b"id"]
