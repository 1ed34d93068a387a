"""Rounds with servers of one queue on PostgreSQL: owners and standbys are killed, paused, and hand over."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.processes.clients import SHARDS
from tests.processes.rounds import PAUSE_SECONDS, SEGMENT_SIZES, Rounds
from tests.support.cluster import Cluster
from tests.support.load import Connection
from tests.support.nodes import Node, run_command, wait_until

SERVERS: Final = SHARDS + 1
QUEUE: Final = "rounds"

_OWNERS: Final = f"""
    SELECT CASE WHEN holder IS NULL OR lease_until < clock_timestamp() THEN '' ELSE holder_name END
    FROM greenstalk_journal WHERE name LIKE '{QUEUE}/%' ORDER BY name"""  # noqa: S608  of constants


class Servers:
    """The servers of a queue on *cluster*; their logs are in *logs*. Implements rounds.Queue."""

    def __init__(self, cluster: Cluster, logs: Path) -> None:
        self._cluster: Cluster = cluster
        self._logs: Path = logs
        self.nodes: list[Node] = []

    def start(self, flags: Sequence[str]) -> None:
        """Start all servers; return before they serve."""
        ours = ("--journal-name", QUEUE, "--shards", str(SHARDS), "--link", "127.0.0.1:0", "--no-web", *flags)
        self.nodes = [Node(f"node-{number}", self._cluster.url, self._logs, *ours) for number in range(SERVERS)]
        for node in self.nodes:
            node.start()

    def wait(self) -> None:
        """Wait until each shard has an owner, and all servers serve."""
        wait_until(lambda: all(map(_serves, self.nodes)), lambda: f"a server does not serve: {self.log}")
        wait_until(lambda: all(map(self.pid, range(SHARDS))), lambda: f"a shard has no owner: {self.log}")

    @property
    def ports(self) -> Sequence[int]:
        """The ports of all servers."""
        return [node.port for node in self.nodes]

    @property
    def port(self) -> int:
        """The port of one server."""
        return self.nodes[0].port

    def owner(self, shard: int) -> Node | None:
        """Return the server that leads *shard*; None if none does."""
        [*names] = [name for (name,) in self._cluster.ask(_OWNERS)]
        return next((node for node in self.nodes if names[shard] == name_of(node)), None)

    def pid(self, shard: int) -> int:
        """Return the id of the process that leads *shard*; 0 if none does."""
        owner = self.owner(shard)
        return owner.process.pid if owner is not None and owner.process is not None else 0

    def standby(self) -> Node:
        """Return a server that leads no shard."""
        owners = [self.owner(shard) for shard in range(SHARDS)]
        return next(node for node in self.nodes if node not in owners)

    def replace(self, node: Node) -> None:
        """Kill *node*, and start it again at once."""
        node.kill()
        node.start()

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

    @property
    def log(self) -> str:
        """The logs of all servers."""
        return "\n".join([f"{node.name}:\n{node.log}" for node in self.nodes])


def name_of(node: Node) -> str:
    """Return the name by which the database knows *node*."""
    return f"127.0.0.1:{node.port}"


def _serves(node: Node) -> bool:
    try:
        with Connection(node.port, 5) as connection:
            return bool(connection.stats(b"stats"))
    except (OSError, ConnectionError):
        return False


class ClusterRounds(Rounds):
    """Rounds on *servers*."""

    def __init__(self, servers: Servers, seed: int, flags: Sequence[str] | None = None) -> None:
        super().__init__(servers, seed, flags)
        self._servers: Servers = servers
        self._ways = {
            "kill an owner": lambda: self._replace_owners(1),
            "kill two owners": lambda: self._replace_owners(2),
            "kill a standby": self._replace_standby,
            "pause an owner": self._pause_owner,
            "move": self._move,
        }

    def _start(self) -> None:
        self._flags = self._fixed or ("-s", str(self._random.choice(SEGMENT_SIZES)))
        self._server.start(self._flags)

    def _await_service(self) -> None:
        super()._await_service()
        self._servers.wait()

    def _replace_owners(self, count: int) -> None:
        for shard in self._random.sample(range(SHARDS), count):
            owner = self._servers.owner(shard)
            assert owner is not None and owner.process is not None
            self._note_end(shard, owner.process.pid)
            self._servers.replace(owner)

    def _replace_standby(self) -> None:
        standby = self._servers.standby()
        assert standby.process is not None
        self._ends[standby.process.pid] = time.monotonic()
        self._servers.replace(standby)

    def _pause_owner(self) -> None:
        """Pause an owner; if the pause is longer than the lease, a standby takes over."""
        shard = self._random.randrange(SHARDS)
        pid = self._servers.pid(shard)
        self._note_end(shard, pid)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._random.uniform(*PAUSE_SECONDS))
        os.kill(pid, signal.SIGCONT)

    def _move(self) -> None:
        """Move a shard. No connection closes except those of its owner, which starts again."""
        shard, target = self._random.randrange(SHARDS), self._servers.standby()
        pid = self._servers.pid(shard)
        self._ends[pid] = time.monotonic()
        if self._probes[shard].front != pid:
            self._struck.add(shard)
        done = run_command(target, "cluster", "move", str(shard), name_of(target))
        assert done.returncode == 0, done.stderr + self._server.log[-3000:]
