"""The load: typical programs that use a queue, and failures. Each role is a thread.

Workers and producers use the greenstalk library; clients that break off use raw sockets. Every role survives a restart
of the server: it records the command whose reply is missing, and connects again.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import pickle
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import greenstalk

import greenstalk_client
from tools.soak.ledger import Ledger, body_of, token_of

TUBES: Final = tuple(f"work-{number}" for number in range(8))
DEAD: Final = "dead"
"""The dead-letter tube. All workers watch it."""

POLICIES: Final = f"""
[policies.retries]
tubes = ["work-*"]
max_attempts = 6
dead_letter = "{DEAD}"
retry_delay = 0.2
retry_delay_max = 2

[policies.paced]
tubes = ["work-0"]
rate = 100

[policies.narrow]
tubes = ["work-1"]
max_reserved = 2
"""
"""The server's configuration file."""

GROUP: Final = 20
"""Jobs that one producer puts into a group. The first job of the next group waits for all of them."""

KEY_TTL: Final = 300
"""Seconds that an idempotency key stays taken after its job is deleted; longer than a retry takes."""

BACKLOG: Final = 3000
"""Jobs in all states above which producers wait for the workers."""

STATES: Final = ("ready", "reserved", "delayed", "buried")

TIMEOUT: Final = 30.0
"""Seconds to wait for an HTTP response, and for a server that restarts."""

BULK: Final = 200
"""Jobs of one round of bulk changes."""

RETRY: Final = 0.2
"""Seconds between two attempts to connect."""


@dataclass(frozen=True)
class Target:
    """The addresses of the server, and the time at which to stop."""

    port: int
    web_port: int
    until: float


def run(process: int, roles: list[str], target: Target, seed: int, result: Path) -> None:
    """Run *roles*, one thread each, until the time is up; write the ledger to the file *result*."""
    ledger = Ledger()
    threads = []
    for number, role in enumerate(roles):
        player = Player(f"{process}.{number}", target, ledger, random.Random(f"{seed}/{process}/{number}"))  # noqa: S311
        threads.append(threading.Thread(target=player.play, args=(role,), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result.write_bytes(pickle.dumps(ledger))


class Player:
    """One role."""

    def __init__(self, name: str, target: Target, ledger: Ledger, rng: random.Random) -> None:
        self._name = name
        self._target = target
        self._ledger = ledger
        self._rng = rng
        self._serial = 0

    def play(self, role: str) -> None:
        """Continue after a broken connection; record any other exception in the report."""
        act: Callable[[], None] = getattr(self, f"_{role}")
        while self._is_time():
            try:
                act()
            except (OSError, http.client.HTTPException):
                self._ledger.count("connections lost")
                time.sleep(RETRY)
            except Exception as error:  # noqa: BLE001  the audit is to see all of it
                self._ledger.wrong.append(f"{role} {self._name}: {error!r}")
                return

    def _is_time(self) -> bool:
        return time.time() < self._target.until

    def _token(self) -> str:
        self._serial += 1
        return f"{self._name}.{self._serial}"

    def _connect(self, **how: Any) -> greenstalk.Client:
        return greenstalk.Client(("127.0.0.1", self._target.port), encoding=None, **how)

    # Programs

    def _producer(self) -> None:
        with greenstalk_client.Client(("127.0.0.1", self._target.port), encoding=None) as client:
            for number in range(10**9):
                if not self._is_time():
                    return
                if number % 200 == 0:
                    while self._is_time() and _count_jobs(client) > BACKLOG:
                        time.sleep(0.2)
                if number % 20 == 0:
                    client.use(self._rng.choice(TUBES))
                self._put(client)
                time.sleep(self._rng.expovariate(150))

    def _put(self, client: greenstalk_client.Client[bytes]) -> None:
        rng, token = self._rng, self._token()
        size = rng.choice((0, 30, 300, 300, 3000, 8000, 60_000 if rng.random() < 0.05 else 100))
        tags = self._tags(token) if rng.random() < 0.5 else {}
        put = functools.partial(
            client.put,
            body_of(token, size),
            priority=rng.choice((0, 10, 1024, 2**31)),
            delay=rng.choice((0, 0, 0, 0, 1, 3)),
            ttr=rng.choice((1, 2, 10)),
            **tags,
        )
        self._ledger.perhaps_put.add(token)
        id = put()
        self._ledger.put[id] = token
        self._ledger.perhaps_put.discard(token)
        if "idempotency_key" in tags and rng.random() < 0.2:
            self._ledger.count("duplicates")
            if (again := put()) != id or again.is_new:
                self._ledger.wrong.append(f"the put of {token} was repeated: job {id}, then {again} ({again.state})")

    def _tags(self, token: str) -> dict[str, Any]:
        """Return one kind of tag for the job *token*."""
        kind, group = self._rng.randrange(3), self._serial // GROUP
        if kind == 0:
            return {"idempotency_key": token, "idempotency_ttl": KEY_TTL}
        if kind == 1:
            return {"concurrency_key": f"key-{self._rng.randrange(20)}", "concurrency_limit": 2}
        is_first = self._serial % GROUP == 0
        return {"group": f"{self._name}.{group}"} | ({"after": f"{self._name}.{group - 1}"} if is_first else {})

    def _worker(self) -> None:
        with self._connect(watch=[DEAD, *self._rng.sample(TUBES, 5)]) as client:
            for _ in range(self._rng.randrange(50, 2000)):
                if not self._is_time():
                    return
                try:
                    self._work(client, client.reserve(timeout=1))
                except (greenstalk.TimedOutError, greenstalk.NotFoundError):
                    self._ledger.count("nothing to do, or too late")
                except greenstalk.DeadlineSoonError:
                    self._ledger.count("deadlines soon")
                    time.sleep(0.1)

    def _work(self, client: greenstalk.Client, job: greenstalk.Job) -> None:
        token = token_of(job.body)
        if token is None:
            self._ledger.wrong.append(f"job {job.id} was reserved with a body that nobody put: {job.body[:80]!r}")
            return
        chance = self._rng.random()
        if chance < 0.02:
            time.sleep(1.1)  # some are too late, and get NOT_FOUND
        elif chance < 0.05:
            client.touch(job)
        if chance < 0.85:
            self._delete(client, job.id, token)
        elif chance < 0.93:
            client.release(job, priority=self._rng.choice((0, 1024)), delay=self._rng.choice((0, 1)))
        elif chance < 0.99:
            client.bury(job)
        else:
            self._ledger.count("kept until the time to run ends, or the connection")

    def _delete(self, client: greenstalk.Client, id: int, token: str) -> None:
        self._ledger.perhaps_deleted.add(id)
        try:
            client.delete(id)
            self._ledger.deleted[id] = token
        finally:
            if not isinstance(sys.exception(), OSError):
                self._ledger.perhaps_deleted.discard(id)  # the job is deleted, or reserved by another worker

    def _kicker(self) -> None:
        with self._connect() as client:
            while self._is_time():
                client.use(self._rng.choice(TUBES))
                self._ledger.count("kicked", client.kick(self._rng.choice((1, 100, 1000))))
                for peek in (client.peek_ready, client.peek_delayed, client.peek_buried):
                    with contextlib.suppress(greenstalk.NotFoundError):
                        peek()
                client.tubes()
                time.sleep(0.3)

    def _pauser(self) -> None:
        with self._connect() as client:
            while self._is_time():
                with contextlib.suppress(greenstalk.NotFoundError):
                    client.pause_tube(self._rng.choice(TUBES), self._rng.choice((0, 1, 2)))
                    self._ledger.count("pauses")
                time.sleep(1.0)

    # Clients that break off

    def _leaver(self) -> None:
        """Connect, begin something, and disconnect, in order or not."""
        while self._is_time():
            begun = self._rng.choice(
                (
                    b"",
                    b"sta",
                    b"put 0 0 60 500\r\nnever whole",
                    b"put 0 0 60 999999\r\n" + bytes(5000),
                    b"watch work-1\r\nreserve\r\n",
                    b"stats\r\n" * 50,
                    b"x" * 2000,
                    b"use " + b"a" * 150 + b"\r\nwatch leaver-%d\r\n" % self._rng.randrange(1000),
                )
            )
            sock = socket.create_connection(("127.0.0.1", self._target.port), TIMEOUT)
            with sock:
                sock.sendall(begun)
                if self._rng.random() < 0.5:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    time.sleep(self._rng.random() * 0.02)
            self._ledger.count("broke off")
            time.sleep(0.02)

    # Over HTTP

    def _ask(self, method: str, path: str, fields: object = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._target.web_port, timeout=TIMEOUT)
        with contextlib.closing(connection):
            body = None if fields is None else json.dumps(fields)
            connection.request(method, f"/api/v1{path}", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
        if response.status in (404, 503):  # the task ended with its server, or the server is stopping
            raise ConnectionError(f"{method} {path}: {response.status}")
        assert response.status < 300, f"{method} {path}: {response.status} {data[:300]!r}"
        return json.loads(data)

    def _bulk(self) -> None:
        """Make bulk changes to jobs that no other client touches; at the end of each round no job is left."""
        while self._is_time():
            tokens = [self._token() for _ in range(BULK)]
            mine, other = f"bulk-{tokens[0]}", f"bulk-{tokens[0]}-moved"
            self._ledger.perhaps_put.update(tokens)
            put = self._ask("POST", "/jobs", [{"tube": mine, "body": body_of(each, 50).decode()} for each in tokens])
            ids = [job["id"] for job in put]
            self._ledger.put.update(zip(ids, tokens, strict=True))
            self._ledger.perhaps_put.difference_update(tokens)
            self._change(BULK, action="bury", tube=mine)
            self._change(BULK, action="pri", pri=7, tube=mine)
            self._change(BULK, action="kick", tube=mine, state="buried")
            self._change(BULK, action="move", to=other, tube=mine)
            self._change(BULK // 2, action="delay", delay=1000, ids=ids[: BULK // 2])
            self._ledger.perhaps_deleted.update(ids)
            self._change(BULK // 2, action="delete", tube=other, state="delayed")
            cleared = self._ask("POST", f"/tube/clear?tube={other}", {"state": "ready"})
            assert (cleared["jobs"], cleared["left"]) == (BULK - BULK // 2, 0), cleared
            self._ledger.deleted.update(zip(ids, tokens, strict=True))
            self._ledger.perhaps_deleted.difference_update(ids)
            self._ledger.count("rounds of bulk changes")
            time.sleep(1.0)

    def _change(self, expected: int, **fields: object) -> None:
        task = self._ask("POST", "/bulk", {**fields, "dry_run": False})
        until = time.time() + TIMEOUT
        while task["state"] == "running":
            assert time.time() < until, f"not done: {task}"
            time.sleep(0.05)
            task = self._ask("GET", f"/tasks/{task['id']}")
        assert task["state"] == "done" and task["changed"] == expected, f"{fields}: {task}"

    def _viewer(self) -> None:
        """A user who looks at the dashboard, page after page."""
        pages = (
            "/", f"/tube?tube={TUBES[0]}", f"/api/v1/tubes/history?tube={TUBES[0]}", "/connections", "/metrics",
            "/api/v1/tubes", "/api/v1/server", "/api/v1/jobs?limit=100", "/api/v1/jobs?q=body%3A.9&bodies=false",
            "/api/v1/connections",
        )  # fmt: skip
        while self._is_time():
            path = self._rng.choice(pages)
            connection = http.client.HTTPConnection("127.0.0.1", self._target.web_port, timeout=TIMEOUT)
            with contextlib.closing(connection):
                connection.request("GET", path)
                response = connection.getresponse()
                response.read()
            assert response.status < 500 or response.status == 503, f"{path}: {response.status}"
            self._ledger.count(f"pages answered by {response.status}")
            time.sleep(0.2)

    def _stream(self) -> None:
        """A dashboard that stays open for a while."""
        connection = http.client.HTTPConnection("127.0.0.1", self._target.web_port, timeout=TIMEOUT)
        with contextlib.closing(connection):
            connection.request("GET", "/api/v1/events")
            response = connection.getresponse()
            assert response.status == 200
            until = time.time() + self._rng.uniform(2, 40)
            while self._is_time() and time.time() < until:
                if not response.readline():
                    raise ConnectionError("the stream has ended")
                self._ledger.count("lines of streams")


def _count_jobs(client: greenstalk.Client) -> int:
    stats = client.stats()
    counts: list[int] = [int(stats[f"current-jobs-{state}"]) for state in STATES]
    return sum(counts)
