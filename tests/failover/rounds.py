"""Rounds: while clients use the servers, in each round the lead moves to the other server for some reason."""

from __future__ import annotations

import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from tests.support.cluster import Cluster
from tests.support.history import Disturbance, History
from tests.support.load import Load, put_large
from tests.support.nodes import Node, Nodes, run_command, wait_until
from tests.support.processes import join

WORK_SECONDS: Final = (0.2, 1.0)

SEGMENT: Final = "1000000"
"""Bytes; small, so that segments are created and removed."""

HANDOVER: Final = "handover"

LARGE: Final = 8_000_000
"""Bytes of a job that takes several rows, and the part of it that is sent before a machine is lost."""
HALF: Final = 5_000_000

TABLES: Final = ("greenstalk_journal", "greenstalk_batch", "greenstalk_standby", "greenstalk_schema")
LOCK_SECONDS: Final = 5.0

MAX_BACKENDS: Final = 8
"""Connections that PostgreSQL keeps for a server, according to docs/high-availability.md."""


@dataclass(frozen=True, slots=True)
class Report:
    """One round: what happened to which server, and for how many seconds no put was acknowledged."""

    number: int
    kind: str
    node: str
    gap: float

    backends: int

    def __str__(self) -> str:
        what = f"round {self.number}: {self.kind} of {self.node}"
        return f"{what}: {self.gap:.2f} s without service, {self.backends} connections"


def summary(reports: Sequence[Report]) -> str:
    """Return the seconds without service, by kind of round."""
    lines = []
    for kind in dict.fromkeys([report.kind for report in reports]):
        gaps = [report.gap for report in reports if report.kind == kind]
        most = max([report.backends for report in reports if report.kind == kind])
        lines.append(
            f"{kind}: {len(gaps)} rounds, without service median {statistics.median(gaps):.2f} s,"
            f" longest {max(gaps):.2f} s, at most {most} connections"
        )
    return "\n".join(lines)


class Census(threading.Thread):
    """Counts the connections that PostgreSQL keeps, continuously.

    most    the maximum for one process.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="census", daemon=True)
        self.most: int = 0
        self._cluster: Cluster = cluster
        self._is_over: threading.Event = threading.Event()

    def stop(self) -> None:
        """Stop counting."""
        self._is_over.set()
        join(self)

    def run(self) -> None:
        query = b"""
            SELECT max(count) FROM (SELECT count(*) FROM pg_stat_activity
                                    WHERE application_name LIKE 'greenstalk-server%'
                                    GROUP BY left(application_name, 54)) AS processes"""
        with psycopg.connect(self._cluster.admin_url, autocommit=True) as connection:
            while not self._is_over.wait(0.05):
                [(count,)] = connection.execute(query).fetchall()
                self.most = max(self.most, count or 0)


class _Rounds:
    """Servers under load, the history of their clients, and the reports on the rounds so far."""

    def __init__(self, nodes: Nodes, seed: int) -> None:
        self.reports: list[Report] = []
        self._nodes: Nodes = nodes
        self._load: Load = Load(nodes.ports, str(seed))
        self.history: History = self._load.history

    def begin(self) -> None:
        """Start servers and clients."""
        self._nodes.wait_for_roles()
        self._load.start()

    def finish(self) -> None:
        """Audit the history and the logs; raise AssertionError with every error."""
        self._load.stop()
        self._load.audit(self._nodes.wait_for_roles().port)
        print(self._load)
        for node in self._nodes.nodes:
            assert "Traceback" not in node.log and "internal error" not in node.log, node.log[-5000:]

    def close(self) -> None:
        """End all processes."""
        self._load.stop()
        self._nodes.close()

    def _see_service(self) -> None:
        """Wait until a put that is sent from now on is acknowledged."""
        now = time.monotonic()
        wait_until(lambda: self.history.has_put_since(now), lambda: "no put is acknowledged")

    def _report(self, kind: str, active: Node, gap: float, census: Census) -> Report:
        """Add and return the report on a round of *kind* that began with the leader *active*."""
        report = Report(len(self.reports) + 1, kind, active.name, gap, census.most)
        self.reports.append(report)
        return report


class Rounds(_Rounds):
    """Rounds with one history. The same seed gives the same load, but not the same timing."""

    def __init__(self, cluster: Cluster, logs: Path, seed: int, kind: str | None = None) -> None:
        """*kind* is the default kind of a round."""
        flags = ("--journal-name", f"rounds-{seed}", "-s", SEGMENT, "-z", str(LARGE))
        super().__init__(Nodes.behind_proxies(cluster, logs, *flags), seed)
        self._kind: str | None = kind
        self._random: random.Random = random.Random(seed)  # noqa: S311  a seed, no secret
        self._cluster: Cluster = cluster
        self._moves: dict[str, Callable[[Node], None]] = {
            "SIGKILL": self._kill,
            "SIGSTOP": self._pause,
            "cut": self._cut,
            "power": self._lose_power,
            "dead standby links": self._kill_beside_dead_links,
            HANDOVER: self._hand_over,
        }
        self._ways: dict[str, Callable[[Node], float | None]] = {
            **self._moves,
            "dead links": self._silence,
            **{f"lock of {table}": partial(self._lock, table) for table in TABLES},
        }

    def run(self, kind: str | None = None) -> Report:
        """Run one round of *kind*, or of any kind."""
        kind = kind or self._kind or self._random.choice(list(self._ways))
        time.sleep(self._random.uniform(*WORK_SECONDS))
        active = self._nodes.wait_for_roles()
        census = Census(self._cluster)
        census.start()
        begun = time.monotonic()
        unlocked = self._ways[kind](active)
        leader = self._nodes.wait_for_roles()
        assert kind not in self._moves or leader is not active, f"{active.name} leads again after {kind}"
        ended = time.monotonic()
        self.history.disturbances.append(Disturbance(kind, begun, ended))
        self._see_service()
        census.stop()
        gap = self.history.service_after(unlocked) if unlocked else self.history.longest_gap(begun, ended)
        report = self._report(kind, active, gap, census)
        assert census.most <= MAX_BACKENDS, report
        return report

    def _kill(self, active: Node) -> None:
        active.kill()
        self._wait_for_takeover(active)
        active.start()

    def _pause(self, active: Node) -> None:
        active.signal(signal.SIGSTOP)
        self._wait_for_takeover(active)
        time.sleep(self._random.uniform(0, 0.5))
        active.signal(signal.SIGCONT)

    def _cut(self, active: Node) -> None:
        assert active.proxy is not None
        active.proxy.cut()
        self._wait_for_takeover(active)
        time.sleep(self._random.uniform(0, 0.5))
        active.proxy.mend(is_late=self._random.random() < 0.5)

    def _lose_power(self, active: Node) -> None:
        """Lose the machine in the middle of a batch that takes several rows; PostgreSQL does not notice."""
        assert active.proxy is not None
        put = threading.Thread(
            target=put_large, args=(active.port, LARGE, self.history, f"large-{time.monotonic()}"), daemon=True
        )
        put.start()
        active.proxy.lose_in_batch(HALF)
        active.kill()
        join(put)
        self._wait_for_takeover(active)
        active.proxy.mend(is_late=False)
        active.start()

    def _kill_beside_dead_links(self, active: Node) -> None:
        """Make the connections of the standby silent, then kill the active server."""
        (standby,) = [node for node in self._nodes.nodes if node is not active]
        assert standby.proxy is not None
        standby.proxy.silence()
        self._kill(active)

    def _silence(self, active: Node) -> None:
        """Make all connections of the active server silent; new ones work."""
        assert active.proxy is not None
        active.proxy.silence()
        self._see_service()

    def _lock(self, table: str, active: Node) -> float:
        """Lock *table* from another program for LOCK_SECONDS; return when it is unlocked."""
        with psycopg.connect(self._cluster.url) as connection:
            connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
            time.sleep(LOCK_SECONDS)
        return time.monotonic()

    def _hand_over(self, active: Node) -> None:
        done = run_command(active, "handover")
        assert done.returncode == 0, done.stderr

    def _wait_for_takeover(self, old: Node) -> None:
        others = [node for node in self._nodes.nodes if node is not old]
        wait_until(lambda: any(node.listens() for node in others), lambda: "nobody takes over")


HANGS: Final = "hangs"
WAKES: Final = "hangs and wakes"


class Promotions(_Rounds):
    """Rounds in which PostgreSQL's primary hangs and its synchronous standby is promoted. The URL names both."""

    kind: Final = "promotion"

    def __init__(self, logs: Path, seed: int) -> None:
        self._primary: Cluster = Cluster()
        self._standby: Cluster = self._new_standby()
        url = Cluster.url_by(self._primary.port, self._standby.port)
        super().__init__(Nodes([Node(f"node-{number}", url, logs, "-s", SEGMENT) for number in range(2)]), seed)

    def run(self, way: str = HANGS) -> Report:
        """Run one round. The old primary HANGS, or continues soon (WAKES) while the new one runs."""
        self._see_service()
        active = self._nodes.wait_for_roles()
        old, new = self._primary, self._standby
        begun = time.monotonic()
        old.freeze()
        new.promote()
        census = Census(new)
        census.start()
        if way == WAKES:
            time.sleep(0.5)
            old.thaw()
        self._see_service()
        self._nodes.wait_for_roles()
        ended = time.monotonic()
        census.stop()
        self.history.disturbances.append(Disturbance(self.kind, begun, ended))
        gap = self.history.longest_gap(begun, ended)
        report = self._report(self.kind, active, gap, census)
        self._primary = new
        old.remove()
        self._standby = self._new_standby(old.port)
        return report

    def close(self) -> None:
        super().close()
        for cluster in (self._primary, self._standby):
            cluster.remove()

    def _new_standby(self, port: int = 0) -> Cluster:
        primary = self._primary
        standby = Cluster("hot_standby = on", upstream=primary, port=port)
        primary.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.ask("SELECT pg_reload_conf()")
        wait_until(primary.has_synchronous_standby, lambda: f"no synchronous standby: {standby.log}")
        return standby
