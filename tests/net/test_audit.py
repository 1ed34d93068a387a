"""Many concurrent clients with random commands, timeouts and disconnects: no job is lost or duplicated."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, field

import greenstalk
from greenstalk import Client

from tests.support.daemon import TIMEOUT, Daemon
from tests.support.peer import Peer, connections, eventually

CLIENTS = 32
COMMANDS = 800
"""Commands per client."""
TUBES = ("default", "a", "b")


@dataclass
class Ledger:
    """The bodies of one client's jobs.

    sent      bodies of all puts; the client may have disconnected before the reply.
    put       bodies of the puts that the server acknowledged.
    tried     bodies of the jobs of all deletes, acknowledged or not.
    deleted   bodies of the jobs of acknowledged deletes.
    """

    sent: set[str] = field(default_factory=set)
    put: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)
    deleted: list[str] = field(default_factory=list)


class Agent:
    """A client that sends COMMANDS random commands, and sometimes disconnects without waiting for a reply."""

    def __init__(self, server: Daemon, number: int, may_exit: threading.Event) -> None:
        self.address = ("127.0.0.1", server.port)
        self.number = number
        self.rng = random.Random(number)  # noqa: S311  not for security
        self.ledger = Ledger()
        self.held: list[greenstalk.Job[str]] = []
        self.failure: BaseException | None = None
        self.may_exit = may_exit

    def run(self) -> None:
        try:
            client = self.connect()
            for number in range(COMMANDS):
                if self.rng.random() < 0.02:
                    self.disconnect(client, f"{self.number}-{number}")
                    client = self.connect()
                else:
                    self.act(client, f"{self.number}-{number}")
            self.may_exit.wait(TIMEOUT)
            client.close()
        except BaseException as error:  # noqa: BLE001  the test reports it
            self.failure = error

    def connect(self) -> Client[str]:
        self.held = []
        client = Client(self.address, use=self.rng.choice(TUBES), watch=self.rng.sample(TUBES, self.rng.randint(1, 3)))
        client._sock.settimeout(TIMEOUT)
        return client

    def act(self, client: Client[str], body: str) -> None:
        rng, held = self.rng, self.held
        verb = rng.choices(
            ("put", "reserve", "delete", "release", "bury", "touch", "kick", "pause", "forget"),
            (9, 9, 8, 3, 1, 1, 2, 1, 1),
        )[0]
        try:
            if verb == "put":
                self.ledger.sent.add(body)
                client.put(body, rng.randrange(3), delay=rng.choice((0, 0, 0, 1)), ttr=rng.choice((1, 60)))
                self.ledger.put.add(body)
            elif verb == "reserve":
                held.append(client.reserve(timeout=rng.choice((0, 0, 0, 1))))
            elif verb == "kick":
                client.kick(5)
            elif verb == "pause":
                client.pause_tube(client.using(), rng.choice((0, 0, 1)))
            elif held:
                self.act_on(client, held.pop(rng.randrange(len(held))), verb)
        except (greenstalk.TimedOutError, greenstalk.DeadlineSoonError, greenstalk.NotFoundError):
            pass

    def act_on(self, client: Client[str], job: greenstalk.Job[str], verb: str) -> None:
        if verb == "delete":
            self.ledger.tried.add(job.body)
            client.delete(job)
            self.ledger.deleted.append(job.body)
        elif verb == "release":
            client.release(job, self.rng.randrange(3), delay=self.rng.choice((0, 0, 1)))
        elif verb == "bury":
            client.bury(job)
        elif verb == "touch":
            client.touch(job)
            self.held.append(job)

    def disconnect(self, client: Client[str], body: str) -> None:
        """Send a random request, and close the connection without waiting for the reply."""
        requests = [b"reserve\r\n", b"put 0 0 60 99\r\nhalf", b"put 0 0 1 %d\r\n%b\r\n" % (len(body), body.encode())]
        if self.held:
            self.ledger.tried.add(self.held[0].body)
            requests.append(b"delete %d\r\n" % self.held[0].id)
        self.ledger.sent.add(body)
        client._sock.sendall(self.rng.choice(requests))
        client.close()


def drain(server: Daemon) -> list[str]:
    """Delete all remaining jobs; return their bodies."""
    left: list[str] = []
    with Client(("127.0.0.1", server.port), watch=TUBES) as client:
        for tube in TUBES:
            client.use(tube)
            client.pause_tube(tube, 0)
            while client.kick(1000):
                pass
        while True:
            try:
                job = client.reserve(timeout=0)
            except greenstalk.TimedOutError:
                return left
            client.delete(job)
            left.append(job.body)


def test_each_job_is_deleted_exactly_once_or_remains(server: Daemon) -> None:
    with Peer(server) as watcher:
        for tube in TUBES:  # watched, so that the server keeps the tubes and their counters
            watcher.ask(b"watch " + tube.encode())
        may_exit = threading.Event()
        agents = [Agent(server, number, may_exit) for number in range(CLIENTS)]
        threads = [threading.Thread(target=agent.run, daemon=True) for agent in agents]
        for thread in threads:
            thread.start()
        eventually(lambda: int(watcher.stats()["job-timeouts"]) > 0, "a job has timed out")
        may_exit.set()
        for thread in threads:
            thread.join(2 * TIMEOUT)
            assert not thread.is_alive()
        assert [agent.failure for agent in agents if agent.failure is not None] == []
        eventually(lambda: connections(server) == 1, "all agents have disconnected")

        stats = watcher.stats()
        tubes = [watcher.stats(b"stats-tube " + tube.encode()) for tube in TUBES]
        present = sum(int(value) for key, value in stats.items() if key in PRESENT)
        deleted = sum(int(tube["cmd-delete"]) for tube in tubes)
        assert stats["current-jobs-reserved"] == stats["current-waiting"] == "0"
        assert int(stats["total-jobs"]) == deleted + present

        left = drain(server)
        check_ledgers([agent.ledger for agent in agents], left)
        assert len(left) == present
        stats = watcher.stats()
        assert {stats[key] for key in PRESENT} == {"0"}


PRESENT = {f"current-jobs-{state}" for state in ("ready", "reserved", "delayed", "buried")}


def check_ledgers(ledgers: list[Ledger], left: list[str]) -> None:
    """Assert that each acknowledged put remains unless a delete was tried, and each deleted job is gone."""
    sent = {body for ledger in ledgers for body in ledger.sent}
    put = {body for ledger in ledgers for body in ledger.put}
    tried = {body for ledger in ledgers for body in ledger.tried}
    deleted = [body for ledger in ledgers for body in ledger.deleted]
    assert [body for body, count in Counter(left + deleted).items() if count > 1] == []
    assert put - tried <= set(left)
    assert set(left) <= sent
    assert len(deleted) > CLIENTS and len(left) > 0
