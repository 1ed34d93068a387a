"""Servers that share a journal: real processes, each with its own ports and database connection."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support import forking
from tests.support.cluster import Cluster
from tests.support.daemon import COMMAND, MINDING_SIGNALS, REPOSITORY, environment
from tests.support.ports import free_ports
from tests.support.proxy import Proxy

TIMEOUT: Final = 60.0
"""Seconds that a takeover or a start may take on a busy machine."""

ACTIVE: Final = "active"
STANDBY: Final = "standby"
NEITHER: Final = "neither"


class Node:
    """One server process, whose role is active, standby or neither."""

    def __init__(
        self, name: str, url: str, logs: Path, *flags: str, proxy: Proxy | None = None, **variables: str
    ) -> None:
        """Pass *url* and *variables* to the server in its environment."""
        self._variables: dict[str, str] = {"DATABASE_URL": url, **variables}
        self.name: str = name
        self.proxy: Proxy | None = proxy
        self.port, self.web_port = free_ports(2)
        self.log_file: Path = logs / f"{name}.log"
        self._flags: tuple[str, ...] = flags
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *words: str) -> list[str]:
        """Return the command line, with *words* first."""
        where = ("-l", "127.0.0.1", "-p", str(self.port), "--web-port", str(self.web_port))
        return [*COMMAND, *words, *where, *self._flags]

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the server."""
        return environment(**self._variables)

    def start(self) -> None:
        """Start the process; return before it serves."""
        with self.log_file.open("ab") as log:
            self.process = forking.Process(
                [*MINDING_SIGNALS, *self.command()],
                cwd=REPOSITORY,
                env=self.environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the process by SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(TIMEOUT)

    def stop(self) -> int:
        """End the process by SIGTERM; return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(TIMEOUT)

    @property
    def role(self) -> str:
        """The role that /readyz reports."""
        return role_of(*self.ask("readyz"))

    def ask(self, path: str, token: str = "", host: str = "127.0.0.1") -> tuple[int, str]:
        """Request a page with the Host header *host*; return status and text, or 0 and no text without a response."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.web_port}/{path}", headers={"Host": host})
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=2) as page:  # noqa: S310
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (OSError, ValueError):
            return 0, ""

    def gauge(self, name: str) -> float:
        """Return the value of the metric *name*, which has no labels; wait for it."""
        token = self._variables.get("GREENSTALK_METRICS_TOKEN", "")
        found: list[str] = []

        def is_shown() -> bool:
            found[:] = re.findall(rf"^greenstalk_{name} (\S+)$", self.ask("metrics", token)[1], re.MULTILINE)
            return len(found) == 1

        wait_until(is_shown, lambda: f"no metric {name}: {self.log}")
        return float(found[0])

    @property
    def log(self) -> str:
        """The log so far."""
        return self.log_file.read_text()

    def listens(self) -> bool:
        """Return whether clients can connect."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True


class Nodes:
    """The servers of one journal, started. As a context manager they are killed at the end of the block."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes: list[Node] = nodes
        for node in nodes:
            node.start()

    @staticmethod
    def behind_proxies(cluster: Cluster, logs: Path, *flags: str) -> Nodes:
        """Return two servers, each behind a proxy to the database."""
        proxies = [Proxy(cluster.port), Proxy(cluster.port)]
        return Nodes(
            [
                Node(f"node-{number}", Cluster.url_by(proxy.port), logs, *flags, proxy=proxy)
                for number, proxy in enumerate(proxies)
            ]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill all servers."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.signal(signal.SIGCONT)
                node.kill()
            if node.proxy is not None:
                node.proxy.close()

    def wait_for_roles(self) -> Node:
        """Return the active server, once there is one and all others are up-to-date standbys that name a leader."""
        active: list[Node] = []

        def is_settled() -> bool:
            answers = [(node, *node.ask("readyz")) for node in self.nodes]
            active[:] = [node for node, status, text in answers if role_of(status, text) == ACTIVE]
            standbys = [text for _, status, text in answers if role_of(status, text) == STANDBY]
            has_leader = not any("nobody is active" in text for text in standbys)
            return len(active) == 1 and len(standbys) == len(self.nodes) - 1 and has_leader

        wait_until(is_settled, lambda: f"roles: {[(node.name, node.ask('readyz')) for node in self.nodes]}")
        return active[0]

    @property
    def ports(self) -> list[int]:
        """The ports of all servers."""
        return [node.port for node in self.nodes]


def role_of(status: int, text: str) -> str:
    """Return the role that an answer of /readyz reports."""
    if status == 200:
        return ACTIVE
    is_behind = text.endswith(" behind\n") or " behind; " in text
    return STANDBY if text.startswith("standby") and is_behind else NEITHER


def wait_until(is_so: Callable[[], bool], what: Callable[[], str], timeout: float = TIMEOUT) -> None:
    """Wait until *is_so* returns True; after *timeout* seconds fail with the message that *what* returns."""
    deadline = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def hand_over(active: Node, standby: Node) -> None:
    """Make *active* hand over to *standby*, as often as needed: a standby that is busy may not take over in time."""

    def leads() -> bool:
        if active.role == ACTIVE:
            run_command(active, "handover")
        return standby.role == ACTIVE

    wait_until(leads, lambda: standby.log)


def run_command(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command, such as `handover`, with the options of *node*."""
    return forking.run(node.command(*words), cwd=REPOSITORY, env=node.environ, text=True, timeout=TIMEOUT)
