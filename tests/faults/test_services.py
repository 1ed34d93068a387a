"""Each service fails once: the log has the traceback, and the service is restarted or the process exits.

The names come from the supervisor's lists, so a new service is tested too.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from greenstalk_server.runtime.exit_codes import EXIT_INTERNAL
from greenstalk_server.runtime.supervisor import CRITICAL, RESTARTED
from tests.support.cluster import Cluster
from tests.support.daemon import MINDING_SIGNALS, REPOSITORY, TIMEOUT, Daemon
from tests.support.nodes import Node, Nodes, wait_until
from tests.support.peer import Peer

IN_CLUSTERS: Final = ("leadership", "lease", "membership", "standbys")
"""Services that only servers with a journal in PostgreSQL have."""

AMONG_PROCESSES: Final = ("link-outages", "links", "moves", "shard-conditions")
"""Services that only the processes of --processes have."""

PROGRAM: Final = (sys.executable, "-m", "tests.faults.failing_services")


class Pipe:
    """Sends commands to the program failing_services."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def send(self, command: str) -> None:
        os.write(self._writer, f"{command}\n".encode())

    def close(self) -> None:
        os.close(self.reader)
        os.close(self._writer)


@pytest.fixture(scope="module")
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def serving(pipe: Pipe, *flags: str) -> Daemon:
    command = (*PROGRAM, str(pipe.reader))
    return Daemon("-l", "127.0.0.1", "-p", "0", *flags, command=command, pass_fds=[pipe.reader])


def test_service_is_restarted_and_server_is_not_ready_until_then(pipe: Pipe, tmp_path: Path) -> None:
    names = [name for name in RESTARTED if name not in (*IN_CLUSTERS, *AMONG_PROCESSES)]
    with serving(pipe, "--web-port", "0", "-b", str(tmp_path)) as daemon:
        for name in names:
            assert get(daemon, "readyz") == (200, "ready\n")
            assert restarts(get(daemon, "metrics")[1])[name] == 0
            pipe.send(f"fail {name}")
            await_page(lambda: get(daemon, "readyz"), 503, f"restarting after an internal error: {name}; ")
            assert daemon.ask(b"list-tubes\r\n").startswith(b"OK ")
            pipe.send("resume")
            await_page(lambda: get(daemon, "readyz"), 200, "ready")
            assert restarts(get(daemon, "metrics")[1])[name] == 1
        code, stderr = daemon.stop()
    assert code == 0
    for name in names:
        assert f"internal error in the service {name}, which restarts in 1 s" in stderr
        assert f"InjectedError: {name}\n" in stderr
    assert stderr.count("Traceback") == len(names)


@pytest.mark.parametrize("name", [name for name in CRITICAL if name not in IN_CLUSTERS])
def test_process_exits_and_next_one_has_all_jobs(name: str, pipe: Pipe, tmp_path: Path) -> None:
    flags = ("--no-web", "-b", str(tmp_path), "-f", "50", "--memory-limit", "1g")
    with serving(pipe, *flags) as daemon, Peer(daemon) as peer:
        assert peer.ask(b"put 0 0 600 1\r\na\r\n") == b"INSERTED 1"
        pipe.send(f"fail {name}")
        with suppress(OSError):  # the poller fails when it has served a batch
            while daemon.process.poll() is None:
                peer.ask(b"use a\r\n")
        _, stderr = daemon.process.communicate(timeout=TIMEOUT)
        assert daemon.process.returncode == EXIT_INTERNAL
        assert f"internal error in the service {name}: the server exits" in stderr.decode()
        assert f"InjectedError: {name}\n" in stderr.decode()
    with Daemon("-l", "127.0.0.1", "-p", "0", *flags) as again:
        assert again.ask(b"peek 1\r\n") == b"FOUND 1 1"


class FailingNode(Node):
    """A server of a cluster whose services can be made to fail."""

    def start(self) -> None:
        self.pipe = Pipe()
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*MINDING_SIGNALS, *PROGRAM, str(self.pipe.reader), *self.command()[3:]],
                cwd=REPOSITORY,
                env=self.environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                pass_fds=[self.pipe.reader],
            )


@pytest.mark.parametrize("name", [name for name in CRITICAL if name in IN_CLUSTERS])
def test_leader_exits_and_standby_takes_over_before_the_lease_ends(name: str, cluster: Cluster, tmp_path: Path) -> None:
    flags = ["--journal-name", f"services-{name}", "--lease", "3600"]
    with Nodes([FailingNode(f"node-{number}", cluster.url, tmp_path, *flags) for number in range(2)]) as nodes:
        leader = nodes.wait_for_roles()
        assert isinstance(leader, FailingNode) and leader.process is not None
        with connected(leader) as peer:
            assert peer.ask(b"put 0 0 600 1\r\na\r\n") == b"INSERTED 1"
        leader.pipe.send(f"fail {name}")
        assert leader.process.wait(TIMEOUT) == EXIT_INTERNAL
        assert f"internal error in the service {name}: the server exits" in leader.log
        nodes.nodes.remove(leader)
        with connected(nodes.wait_for_roles()) as peer:
            assert peer.ask(b"peek 1\r\n") == b"FOUND 1 1"


def test_list_of_standbys_is_read_again_after_an_error(cluster: Cluster, tmp_path: Path) -> None:
    node = FailingNode("node", cluster.url, tmp_path, "--journal-name", "services-standbys")
    with Nodes([node]) as nodes:
        nodes.wait_for_roles()
        node.pipe.send("fail standbys")
        await_page(lambda: node.ask("readyz"), 503, "restarting after an internal error: standbys; ")
        node.pipe.send("resume")
        await_page(lambda: node.ask("readyz"), 200, "ready")
        assert restarts(node.ask("metrics")[1])["standbys"] == 1


def connected(node: Node) -> Peer:
    return Peer(socket.create_connection(("127.0.0.1", node.port), TIMEOUT))


def get(daemon: Daemon, path: str) -> tuple[int, str]:
    """Return the status and the text of a page."""
    try:
        with urllib.request.urlopen(daemon.dashboard + path, timeout=TIMEOUT) as page:  # noqa: S310
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def await_page(ask: Callable[[], tuple[int, str]], status: int, text: str) -> None:
    """Wait until *ask* returns *status* and a text that begins with *text*."""
    wait_until(lambda: (page := ask())[0] == status and page[1].startswith(text), lambda: str(ask()))


def restarts(metrics: str) -> dict[str, int]:
    """Return the restarts of each service."""
    found = re.findall(r'^greenstalk_service_restarts_total\{service="(.*)"\} (.*)$', metrics, re.MULTILINE)
    return {name: int(float(count)) for name, count in found}
