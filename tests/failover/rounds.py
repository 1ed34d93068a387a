"""Rounds: clients work all the time, and in each the lead goes from one server to the other for some reason."""

from __future__ import annotations

import random
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.failover.clients import Client, drain
from tests.failover.history import Disturbance, History
from tests.failover.nodes import Node, Nodes, run_command, wait_until
from tests.postgresql.cluster import Cluster

CLIENTS: Final = 5
WORK_SECONDS: Final = (0.2, 1.0)

SEGMENT: Final = "1000000"
"""Bytes; so that some come and go."""

HANDOVER: Final = "handover"


@dataclass(frozen=True, slots=True)
class Report:
    """One round: what happened, to whom, and for how many seconds no put was acknowledged."""

    number: int
    kind: str
    node: str
    gap: float

    def __str__(self) -> str:
        return f"round {self.number}: {self.kind} of {self.node}: {self.gap:.2f} s without service"


class Load:
    """Clients at work on *nodes*, all the time."""

    def __init__(self, nodes: Nodes, history: History, seed: str) -> None:
        self._nodes: Nodes = nodes
        self._history: History = history
        self._clients: list[Client] = [
            Client(number, nodes.ports, history, seed, is_probe=not number) for number in range(CLIENTS + 1)
        ]

    def start(self) -> None:
        """Begin."""
        for client in self._clients:
            client.start()

    def stop(self) -> None:
        """Have all of them end, soon."""
        for client in self._clients:
            client.stop()

    def see_service(self) -> None:
        """Wait until a put is acknowledged that is sent from now on."""
        now = time.monotonic()
        wait_until(lambda: self._history.has_put_since(now), lambda: "no put is acknowledged")

    def audit(self) -> None:
        """End, take all that is left from the queue, and raise AssertionError with whatever cannot be."""
        self.stop()
        for client in self._clients:
            client.join(60)
            assert not client.is_alive(), f"{client.name} does not end"
            if client.failure is not None:
                raise AssertionError(f"{client.name}: {client.failure!r}") from client.failure
        self._history.check(drain(self._nodes.wait_for_roles().port))
        for node in self._nodes.nodes:
            assert "Traceback" not in node.said and "internal error" not in node.said, node.said[-5000:]


class Rounds:
    """Rounds with one history. The same seed gives the same load, but not the same timing."""

    def __init__(self, cluster: Cluster, logs: Path, seed: int) -> None:
        self.history: History = History()
        self.reports: list[Report] = []
        self._random: random.Random = random.Random(seed)  # noqa: S311  a seed, no secret
        self._nodes: Nodes = Nodes.behind_proxies(cluster, logs, "--journal-name", f"rounds-{seed}", "-s", SEGMENT)
        self._load: Load = Load(self._nodes, self.history, str(seed))
        self._ways: dict[str, Callable[[Node], None]] = {
            "SIGKILL": self._kill,
            "SIGSTOP": self._pause,
            "cut": self._cut,
            HANDOVER: self._hand_over,
        }

    @property
    def kinds(self) -> list[str]:
        """The ways in which a lead may end."""
        return list(self._ways)

    def begin(self) -> None:
        """Have servers and clients at work."""
        self._nodes.wait_for_roles()
        self._load.start()

    def run(self, kind: str | None = None) -> Report:
        """One round of *kind*, or of any."""
        kind = kind if kind is not None else self._random.choice(self.kinds)
        time.sleep(self._random.uniform(*WORK_SECONDS))
        active = self._nodes.wait_for_roles()
        begun = time.monotonic()
        self._ways[kind](active)
        assert self._nodes.wait_for_roles() is not active, f"{active.name} leads again after {kind}"
        ended = time.monotonic()
        self.history.disturbances.append(Disturbance(kind, begun, ended))
        self._load.see_service()
        report = Report(len(self.reports) + 1, kind, active.name, self.history.longest_gap(begun, ended))
        self.reports.append(report)
        return report

    def finish(self) -> None:
        """Audit it all; raise AssertionError with whatever is wrong."""
        self._load.audit()

    def close(self) -> None:
        """End all processes."""
        self._load.stop()
        self._nodes.close()

    def summary(self) -> str:
        """The times without service, by kind."""
        lines = []
        for kind in self.kinds:
            gaps = [report.gap for report in self.reports if report.kind == kind]
            if gaps:
                lines.append(
                    f"{kind}: {len(gaps)} rounds, without service median {statistics.median(gaps):.2f} s,"
                    f" longest {max(gaps):.2f} s"
                )
        return "\n".join(lines)

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

    def _hand_over(self, active: Node) -> None:
        done = run_command(active, "handover")
        assert done.returncode == 0, done.stderr

    def _wait_for_takeover(self, old: Node) -> None:
        others = [node for node in self._nodes.nodes if node is not old]
        wait_until(lambda: any(node.listens() for node in others), lambda: "nobody takes over")
