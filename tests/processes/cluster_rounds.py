"""Rounds with servers of one queue on PostgreSQL, whose clocks differ by up to two minutes.

Servers are killed, paused, moved, started and stopped; links and connections to the database are cut and slowed; the
database restarts. In some rounds, a server is killed during another fault.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from tests.processes.clients import PROBE_TUBES, SHARDS
from tests.processes.databases import Database
from tests.processes.network import Network
from tests.processes.rounds import PAUSE_SECONDS, SEGMENT_SIZES, Rounds
from tests.support.cluster import Cluster
from tests.support.history import Disturbance
from tests.support.load import Connection, Gone
from tests.support.nodes import Node, run_command, wait_until
from tests.support.ports import free_ports
from tests.support.wall_clock import WallClock

SERVERS: Final = SHARDS + 1
QUEUE: Final = "rounds"
DATABASE: Final = "database"

CLOCKS: Final = (0, 60, 0, -60)
"""Seconds by which the clocks of the servers differ from that of the database."""

SHORT_CUT: Final = (0.1, 3.0)
LONG_CUT: Final = (11.0, 14.0)
"""Seconds; a link is closed after a silence of 10 s."""

RELAY_TIMEOUT: Final = 30.0
"""Seconds until a third server relays between two that are cut; on a machine that is not busy, 14 are enough."""

RELAYED: Final = (0.5, 3.0)
"""Seconds of a cut while a third server relays."""

DATABASE_CUT: Final = (0.5, 8.0)
LONG_DATABASE_CUT: Final = (22.0, 26.0)
"""Seconds; after 20 s the others count a server as dead."""

SLOW_SECONDS: Final = (1.0, 4.0)
DELAYS: Final = (0.0, 0.1)

RELAY_LINES: Final = ("relaying between processes ", "the relay between processes ")
"""Log lines when a relay begins, and when it ends."""

_OWNERS: Final = f"""
    SELECT CASE WHEN holder IS NULL OR lease_until < clock_timestamp() THEN '' ELSE holder_name END
    FROM greenstalk_journal WHERE name LIKE '{QUEUE}/%' ORDER BY name"""  # noqa: S608  of constants


class Servers:
    """The servers of a queue on *database*; their logs are in *logs*. Implements rounds.Queue.

    network     between all servers, and from each to the database.
    """

    def __init__(self, database: Database, logs: Path, seed: int, options: Sequence[str] = ("--no-web",)) -> None:
        """*options* are those of all servers in all rounds."""
        self.network: Network = Network(seed)
        self.database: Database = database
        self.nodes: list[Node] = []
        self._logs: Path = logs
        self._options: Sequence[str] = options
        self._flags: Sequence[str] = ()
        self._numbers: Iterator[int] = itertools.count()
        self._ended: list[Node] = []

    def start(self, flags: Sequence[str]) -> None:
        """Start all servers; return before they serve."""
        self._flags = flags
        for _ in range(SERVERS):
            self.add()

    def add(self) -> Node:
        """Start one more server; return before it serves."""
        number = next(self._numbers)
        name = f"node-{number}"
        (link,) = free_ports(1)
        databases = [self.network.listen(port, DATABASE, lambda _: name) for port in self.database.ports]
        address = self.network.listen(link, name, self._name_of)
        ours = ("--journal-name", QUEUE, "--shards", str(SHARDS), *self._options, *self._flags)
        links = ("--link", f"127.0.0.1:{address}", "--link-listen", f"127.0.0.1:{link}")
        clock = WallClock(self._logs / f"{name}.clock")
        clock.set(CLOCKS[number % len(CLOCKS)])
        variables = clock.variables if CLOCKS[number % len(CLOCKS)] else {}
        node = Node(name, Cluster.url_by(*databases), self._logs, *ours, *links, proxy=None, **variables)
        self.nodes.append(node)
        node.start()
        return node

    def _name_of(self, port: int) -> str:
        """Return the name of the server that has connected from *port*; empty if it has ended meanwhile."""
        for node in self.nodes:
            try:
                connections = psutil.Process(pid_of(node)).net_connections("tcp4")
            except psutil.Error:
                continue
            if any(each.laddr.port == port for each in connections):
                return node.name
        return ""

    def wait(self) -> None:
        """Wait until each shard has an owner, and all servers serve."""
        wait_until(lambda: all(map(serves, self.nodes)), lambda: f"a server does not serve: {self.log}")
        wait_until(lambda: all(map(self.pid, range(SHARDS))), lambda: f"a shard has no owner: {self.log}")

    @property
    def ports(self) -> Sequence[int]:
        """The ports of all servers."""
        return [node.port for node in self.nodes]

    @property
    def port(self) -> int:
        """The port of one server."""
        return self.nodes[0].port

    @property
    def owners(self) -> list[Node | None]:
        """The server that leads each shard; None if none does."""
        by_name = {name_of(node): node for node in self.nodes}
        return [by_name.get(str(name)) for (name,) in self.database.ask(_OWNERS)]

    def owner(self, shard: int) -> Node:
        """Return the server that leads *shard*."""
        owner = self.owners[shard]
        assert owner is not None
        return owner

    def pid(self, shard: int) -> int:
        """Return the id of the process that leads *shard*; 0 if none does."""
        owner = self.owners[shard]
        return pid_of(owner) if owner is not None else 0

    def replace(self, node: Node) -> None:
        """Kill *node*, and start it again at once."""
        node.kill()
        node.start()

    def stop(self, node: Node) -> None:
        """Stop *node* for good."""
        self.nodes.remove(node)
        self._ended.append(node)
        code = node.stop()
        assert code == 0, f"exit code {code}: {node.log[-3000:]}"

    def end(self, number: signal.Signals) -> int:
        """End all servers by a signal; return the highest of their exit codes."""
        for node in self.nodes:
            node.signal(number)
        return max([node.process.wait(60) for node in self.nodes if node.process is not None])

    def check(self) -> None:
        """Do nothing: the audits have read all jobs."""

    def close(self) -> None:
        """Kill all servers."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.signal(signal.SIGCONT)
                node.kill()
        self.network.close()

    @property
    def log(self) -> str:
        """The logs of all servers."""
        return "\n".join([f"{node.name}:\n{node.log}" for node in [*self._ended, *self.nodes]])


def pid_of(node: Node) -> int:
    """Return the id of the process of *node*."""
    assert node.process is not None
    return node.process.pid


def name_of(node: Node) -> str:
    """Return the name by which the database knows *node*."""
    return f"127.0.0.1:{node.port}"


def serves(node: Node) -> bool:
    """Return whether *node* serves clients."""
    try:
        with Connection(node.port, 5) as connection:
            return bool(connection.stats(b"stats"))
    except (OSError, Gone):
        return False


Lasting = Callable[[], AbstractContextManager[None]]
"""A fault that ends with its context."""


class ClusterRounds(Rounds):
    """Rounds on *servers*."""

    def __init__(self, servers: Servers, seed: int, flags: Sequence[str] | None = None) -> None:
        super().__init__(servers, seed, flags)
        self._servers: Servers = servers
        self._owners: list[Node] = []  # of each shard before the fault
        lasting: dict[str, tuple[Lasting, tuple[float, float]]] = {
            "pause an owner": (self._pause_owner, PAUSE_SECONDS),
            "short cut between two servers": (self._cut, SHORT_CUT),
            "cut between two servers": (self._cut, LONG_CUT),
            "relayed cut between two servers": (self._cut_until_relayed, RELAYED),
            "cut between an owner and the database": (self._cut_owner, DATABASE_CUT),
            "cut between a standby and the database": (self._cut_standby, DATABASE_CUT),
            "long cut between a standby and the database": (self._isolate_standby, LONG_DATABASE_CUT),
            "slow network": (self._slow, SLOW_SECONDS),
        }
        for name, (fault, seconds) in servers.database.faults.items():
            lasting[name] = (partial(self._outage, fault), seconds)
        self._ways = {
            "kill an owner": lambda: self._replace_owners(1),
            "kill two owners": lambda: self._replace_owners(2),
            "kill a standby": self._replace_standby,
            "move": self._move,
            "join and leave": self._join_and_leave,
        }
        for name, (fault, seconds) in lasting.items():
            self._ways[name] = lambda fault=fault, seconds=seconds: self._last(fault, seconds)  # type: ignore[misc]
            if fault not in (self._pause_owner, self._cut_until_relayed):
                self._ways[f"kill during {name}"] = lambda fault=fault, seconds=seconds: self._last(  # type: ignore[misc]
                    fault, seconds, lambda: self._replace_owners(1)
                )

    def _start(self) -> None:
        self._flags = self._fixed or ("-s", str(self._random.choice(SEGMENT_SIZES)))
        self._server.start(self._flags)

    def _load(self, seed: str, hold_ttr: int) -> None:
        super()._load(seed, hold_ttr)
        self._owners = [self._servers.owner(shard) for shard in range(SHARDS)]

    def _await_service(self) -> None:
        super()._await_service()
        self._servers.wait()

    # What ends or may end

    @property
    def _standby(self) -> Node:
        """A server that led no shard before the fault."""
        return next(node for node in self._servers.nodes if node not in self._owners)

    def _note_end_of(self, node: Node) -> None:
        """Note that the process of *node* is about to end, or may lose its shard."""
        self._ends[pid_of(node)] = time.monotonic()
        self._note_disturbance("end", node)

    def _note_leave(self, node: Node) -> None:
        """Note that *node* is about to hand over the shard that it leads, and to close its own connections."""
        self._ends[pid_of(node)] = time.monotonic()
        shards = [shard for shard, owner in enumerate(self._owners) if owner is node]
        self._struck.update([shard for shard in shards if self._probes[shard].front != pid_of(node)])

    def _note_disturbance(self, name: str, *nodes: Node) -> None:
        """Note that links to *nodes* may be lost."""
        shards = [shard for shard, owner in enumerate(self._owners) if owner in nodes]
        self._struck.update(shards)
        self._disturbances.extend([Disturbance(name, time.monotonic(), shard=shard) for shard in shards])

    # Faults at once

    def _replace_owners(self, count: int) -> None:
        for owner in self._random.sample(self._owners, count):
            self._note_end_of(owner)
            self._servers.replace(owner)

    def _replace_standby(self) -> None:
        standby = self._standby
        self._note_end_of(standby)
        self._servers.replace(standby)

    def _move(self) -> None:
        """Move a shard. No connection closes except those of its owner, which starts again."""
        shard, target = self._random.randrange(SHARDS), self._standby
        self._note_leave(self._owners[shard])
        done = run_command(target, "cluster", "move", str(shard), name_of(target))
        assert done.returncode == 0, done.stderr + self._server.log[-3000:]

    def _join_and_leave(self) -> None:
        """Start a server; when it serves, stop another one, an owner or a standby, for good."""
        leaving = self._random.choice(self._servers.nodes)
        joined = self._servers.add()
        wait_until(lambda: serves(joined), lambda: f"a server does not join: {joined.log}")
        self._note_leave(leaving)
        self._servers.stop(leaving)

    # Faults that last

    def _last(self, fault: Lasting, seconds: tuple[float, float], beside: Callable[[], None] = lambda: None) -> None:
        """Let *fault* last for a random time between *seconds*, with another fault *beside* it."""
        lasts = self._random.uniform(*seconds)
        with fault():
            before = self._random.uniform(0, lasts)
            time.sleep(before)
            beside()
            time.sleep(lasts - before)

    @contextmanager
    def _pause_owner(self) -> Iterator[None]:
        """Pause an owner; if the pause is longer than the lease, a standby takes over."""
        owner = self._random.choice(self._owners)
        self._note_end_of(owner)
        os.kill(pid_of(owner), signal.SIGSTOP)
        yield
        os.kill(pid_of(owner), signal.SIGCONT)

    @contextmanager
    def _cut(self) -> Iterator[None]:
        """Cut the connection between two servers, in one direction or both."""
        one, other = self._random.sample(self._servers.nodes, 2)
        self._note_disturbance("cut", one, other)
        with self._cut_ways(one.name, other.name):
            yield

    @contextmanager
    def _cut_until_relayed(self) -> Iterator[None]:
        """Cut the connection between two servers until both serve all shards: a third server relays between them.

        From then on no client notices the cut, nor its end, after which the two servers are linked directly again.
        """
        one, other = self._random.sample(self._servers.nodes, 2)
        begun, ended = [self._servers.log.count(line) for line in RELAY_LINES]
        self._note_disturbance("cut", one, other)
        with self._cut_ways(one.name, other.name):
            for node in (one, other):
                with Connection(node.port, RELAY_TIMEOUT) as connection:
                    for tube in PROBE_TUBES:
                        connection.stats(b"stats-tube " + tube)
            wait_until(lambda: self._servers.log.count(RELAY_LINES[0]) > begun, lambda: "no server relays")
            for each in self._disturbances:
                each.ended = time.monotonic()
            yield

        def has_ended() -> bool:
            counts = [self._servers.log.count(line) for line in RELAY_LINES]
            return counts[0] - begun == counts[1] - ended

        wait_until(has_ended, lambda: f"the relay does not end: {self._server.log[-3000:]}")

    @contextmanager
    def _cut_owner(self) -> Iterator[None]:
        """Cut an owner from the database; if that is longer than the lease, a standby takes over."""
        owner = self._random.choice(self._owners)
        self._note_end_of(owner)
        with self._cut_ways(owner.name, DATABASE):
            yield

    @contextmanager
    def _cut_standby(self) -> Iterator[None]:
        """Cut a standby from the database, which its clients do not notice."""
        with self._cut_ways(self._standby.name, DATABASE):
            yield

    @contextmanager
    def _isolate_standby(self) -> Iterator[None]:
        """Cut a standby from the database until the others count it as dead, so that its connections close."""
        self._ends[pid_of(self._standby)] = time.monotonic()
        with self._cut_standby():
            yield

    @contextmanager
    def _cut_ways(self, one: str, other: str) -> Iterator[None]:
        """Cut the connection between two hosts, in one direction or both."""
        ways = self._random.choice([[(one, other)], [(other, one)], [(one, other), (other, one)]])
        self._servers.network.cut(*ways)
        yield
        self._servers.network.mend(is_late=self._random.random() < 0.5)

    @contextmanager
    def _slow(self) -> Iterator[None]:
        """Slow down all links and connections to the database, which closes no connection."""
        self._servers.network.slow(*DELAYS)
        yield
        self._servers.network.mend(is_late=True)

    @contextmanager
    def _outage(self, fault: Lasting) -> Iterator[None]:
        """Let *fault* of the database last. It changes no owner, and closes no connection."""
        self._struck.update(range(SHARDS))
        with fault():
            yield
