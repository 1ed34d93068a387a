"""Rounds with servers of one queue on PostgreSQL, and outages that last longer than they wait for the end of one.

Connections close whose commands wait for an owner that cannot be reached, and no others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tests.processes.clients import ALL_SHARDS, Cut
from tests.processes.cluster_rounds import DATABASE, ClusterRounds, Servers, pid_of
from tests.processes.network import Way
from tests.support.nodes import Node, wait_until

OUTAGE_WAIT: Final = 10
OPTIONS: Final = ("--outage-wait", str(OUTAGE_WAIT))

LINK_LOST: Final = (10.0, 12.0)
"""Seconds after which a link is closed on which nothing arrives."""

BEYOND: Final = (1.0, 4.0)
"""Seconds for which an outage lasts when it has lasted too long."""

DATABASE_OUTAGE: Final = (OUTAGE_WAIT + 1.0, OUTAGE_WAIT + 4.0)

READY, NOT_READY = 200, 503


class OutageRounds(ClusterRounds):
    """Rounds on *servers*, which wait OUTAGE_WAIT seconds."""

    def __init__(self, servers: Servers, seed: int, flags: Sequence[str] | None = None) -> None:
        super().__init__(servers, seed, flags)
        self._lost: dict[int, frozenset[int]] = {}  # shards that cannot be reached, by the process that cannot
        self._lost_at: float = 0.0
        self._found_at: float = 0.0
        self._ways = {
            "server without links": self._cut_links,
            "server without links and database": self._isolate,
            "owner without database": lambda: self._cut_database(self._random.choice(self._owners)),
            "standby without database": lambda: self._cut_database(self._standby),
            "no database": self._stop_database,
        }

    def _load(self, seed: str, hold_ttr: int) -> None:
        super()._load(seed, hold_ttr)
        self._lost, self._found_at = {}, 0.0

    def _is_due(self, cut: Cut) -> bool:
        if super()._is_due(cut):
            return True
        lost = self._lost.get(cut.front, frozenset())
        if cut.since > self._found_at or cut.at < self._lost_at:
            return False
        return bool(lost & cut.shards) or (bool(lost & cut.needed) and cut.at - cut.since > OUTAGE_WAIT)

    # Faults

    def _cut_links(self) -> None:
        """Cut a server from all others, but not from the database. If it is an owner, the others lack its shard."""
        server = self._random.choice(self._servers.nodes)
        led = frozenset([shard for shard, owner in enumerate(self._owners) if owner is server])
        others = [node for node in self._servers.nodes if node is not server]
        self._lose({server: ALL_SHARDS - led, **dict.fromkeys(others, led)})
        with self._cut_from(server, [node.name for node in others]):
            lacking = [server, *others] if led else [server]
            for node in lacking:
                wait_until(lambda node=node: status(node) == NOT_READY, lambda: f"is ready: {server.log}", 45)  # type: ignore[misc]
            lasted = time.monotonic() - self._lost_at
            assert lasted > LINK_LOST[0] - 2 + OUTAGE_WAIT, f"not ready after {lasted} s"
            self._last_beyond({node: NOT_READY if node in lacking else READY for node in self._servers.nodes})

    def _isolate(self) -> None:
        """Cut a server from all others and from the database until the others count it as dead.

        If it is an owner, the standby takes over.
        """
        server = self._random.choice(self._servers.nodes)
        others = [node for node in self._servers.nodes if node is not server]
        self._note_end_of(server)
        with self._cut_from(server, [DATABASE, *[node.name for node in others]]):
            time.sleep(LINK_LOST[1] + OUTAGE_WAIT)
            self._last_beyond(dict.fromkeys(others, READY))

    def _cut_database(self, server: Node) -> None:
        """Cut *server* from the database. If it is an owner, the standby takes over, else nobody notices."""
        others = [node for node in self._servers.nodes if node is not server]
        if server in self._owners:
            self._note_end_of(server)
        else:
            others.append(server)
        with self._cut_from(server, [DATABASE]):
            time.sleep(OUTAGE_WAIT)
            self._last_beyond(dict.fromkeys(others, READY))

    def _stop_database(self) -> None:
        """Stop the database: all owners give up, and lead again."""
        for owner in self._owners:
            self._note_end_of(owner)
        self._lose({self._standby: ALL_SHARDS})
        with self._servers.database.faults["restart of the database"][0]():
            time.sleep(self._random.uniform(*DATABASE_OUTAGE))
        self._find()

    def _lose(self, lost: dict[Node, frozenset[int]]) -> None:
        """Note which shards each server cannot reach from now on."""
        self._lost = {pid_of(node): shards for node, shards in lost.items()}
        self._lost_at, self._found_at = time.monotonic(), float("inf")
        self._struck.update(*self._lost.values())

    def _find(self) -> None:
        """Wait until all servers are ready, and note that all shards can be reached."""
        wait_until(
            lambda: all(status(node) == READY for node in self._servers.nodes),
            lambda: f"not ready: {[status(node) for node in self._servers.nodes]} {self._servers.log}",
        )
        self._found_at = time.monotonic()

    @contextmanager
    def _cut_from(self, server: Node, hosts: Sequence[str]) -> Iterator[None]:
        """Cut *server* from *hosts*, in one direction or both."""
        out: list[Way] = [(server.name, host) for host in hosts]
        back: list[Way] = [(host, server.name) for host in hosts]
        self._servers.network.cut(*self._random.choice([out, back, [*out, *back]]))
        yield
        self._servers.network.mend(is_late=self._random.random() < 0.5)
        self._find()

    def _last_beyond(self, expected: dict[Node, int]) -> None:
        """Let the fault last, and check that the servers have the *expected* status meanwhile."""
        until = time.monotonic() + self._random.uniform(*BEYOND)
        while time.monotonic() < until:
            for node, code in expected.items():
                assert status(node) == code, f"{node.name}: {node.ask('readyz')}, not {code}: {node.log}"
            time.sleep(0.1)


def status(node: Node) -> int:
    """Return the status of /readyz of *node*; 0 without a response."""
    return node.ask("readyz")[0]
