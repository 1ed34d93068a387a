"""The HAProxy configuration of docs/high-availability.md, with a real HAProxy in front of two servers."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from pathlib import Path

from tests.failover.test_roles import PUT
from tests.support.cluster import Cluster
from tests.support.daemon import REPOSITORY, ask
from tests.support.nodes import Node, Nodes, run_command, wait_until
from tests.support.ports import free_ports
from tests.support.processes import ending, join


def configuration(nodes: list[Node], port: int) -> str:
    """Return the page's block, with the addresses of *nodes*, and *port* to listen on."""
    page = (REPOSITORY / "docs" / "high-availability.md").read_text()
    block: str = re.findall(r"```text\n(frontend beanstalk\n.*?)```", page, re.DOTALL)[0]
    block = block.replace("bind :11300", f"bind 127.0.0.1:{port}")
    for address, node in zip(("10.0.0.5", "10.0.0.6"), nodes, strict=True):
        there, here = f"{address}:11300 check port 8080", f"127.0.0.1:{node.port} check port {node.web_port}"
        assert there in block
        block = block.replace(there, here)
    return block


class Producer(threading.Thread):
    """Puts jobs on *port* as fast as they are acknowledged; reconnects when the connection is closed."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: int = 0
        self._port: int = port
        self._is_over: threading.Event = threading.Event()

    def work(self) -> None:
        """Wait until further puts are acknowledged."""
        enough = self.acknowledged + 10
        wait_until(lambda: self.acknowledged > enough, lambda: "no put is acknowledged")

    def stop(self) -> None:
        self._is_over.set()
        join(self)

    def run(self) -> None:
        while not self._is_over.wait(0.02):
            try:
                with socket.create_connection(("127.0.0.1", self._port), 10) as sock:
                    while not self._is_over.is_set() and ask(sock, PUT).startswith(b"INSERTED"):
                        self.acknowledged += 1
            except (OSError, AssertionError):
                continue


def hand_over(active: Node) -> None:
    """Make *active* hand over to its standby, once it knows it."""
    wait_until(lambda: run_command(active, "handover").returncode == 0, lambda: active.log)


def test_producer_behind_haproxy_reaches_the_next_leader(cluster: Cluster, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    flags = ("--journal-name", "balanced")
    with Nodes([Node(f"node-{number}", cluster.url, tmp_path, *flags) for number in range(2)]) as nodes:
        nodes.wait_for_roles()
        path = tmp_path / "haproxy.cfg"
        path.write_text(configuration(nodes.nodes, port))
        with ending(subprocess.Popen(["haproxy", "-q", "-db", "-f", str(path)], stdin=subprocess.DEVNULL)):
            producer = Producer(port)
            producer.start()
            try:
                producer.work()
                first = nodes.wait_for_roles()
                hand_over(first)
                producer.work()
                assert nodes.wait_for_roles() is not first
            finally:
                producer.stop()
