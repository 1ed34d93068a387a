"""deploy/haproxy.cfg, with a real HAProxy in front of two servers, and the compose file that uses it."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import yaml

from greenstalk_server.config.definitions import DEFINITIONS
from tests.failover.test_roles import PUT
from tests.support.cluster import Cluster
from tests.support.daemon import REPOSITORY, TIMEOUT, ask
from tests.support.nodes import Node, Nodes, run_command, wait_until
from tests.support.pages import block
from tests.support.ports import free_ports
from tests.support.processes import ending, join

CONFIGURATION = REPOSITORY / "deploy" / "haproxy.cfg"
COMPOSE = REPOSITORY / "deploy" / "compose.yml"


def configuration(nodes: list[Node], port: int, web_port: int) -> str:
    """Return the file with the addresses of *nodes*, and with ports to listen on."""
    replacements = {":11300\n": f"127.0.0.1:{port}\n", ":8080\n": f"127.0.0.1:{web_port}\n"}
    for name, node in zip("ab", nodes, strict=True):
        replacements[f"{name}:11300 check port 8080"] = f"127.0.0.1:{node.port} check port {node.web_port}"
        replacements[f"{name}:8080 check"] = f"127.0.0.1:{node.web_port} check"
    text = CONFIGURATION.read_text()
    for there, here in replacements.items():
        assert there in text
        text = text.replace(there, here)
    return text


def dashboard(port: int) -> int:
    """Return the status of a page through HAProxy."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)) as connection:
        connection.request("GET", "/readyz")
        return connection.getresponse().status


def test_page_shows_the_file() -> None:
    shown = block("high-availability.md", "text", "frontend beanstalk")
    assert shown.replace("10.0.0.5:", "a:").replace("10.0.0.6:", "b:") in CONFIGURATION.read_text()


def test_services_of_the_compose_file_fit_together() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    named = {name for name, _ in re.findall(r"^    server \w+ (\w+):(\d+)", CONFIGURATION.read_text(), re.MULTILINE)}
    assert services.keys() == named | {"balancer", "db"}
    for name in named:
        assert services[name]["environment"].keys() <= {definition.variable for definition in DEFINITIONS}
        assert "@db/" in services[name]["environment"]["DATABASE_URL"]
    (mount,) = services["balancer"]["volumes"]
    assert (COMPOSE.parent / mount.partition(":")[0]).samefile(CONFIGURATION)


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
    port, web_port = free_ports(2)
    flags = ("--journal-name", "balanced")
    with Nodes([Node(f"node-{number}", cluster.url, tmp_path, *flags) for number in range(2)]) as nodes:
        nodes.wait_for_roles()
        path = tmp_path / "haproxy.cfg"
        path.write_text(configuration(nodes.nodes, port, web_port))
        with ending(subprocess.Popen(["haproxy", "-q", "-db", "-f", str(path)], stdin=subprocess.DEVNULL)):
            producer = Producer(port)
            producer.start()
            try:
                producer.work()
                first = nodes.wait_for_roles()
                hand_over(first)
                producer.work()
                assert nodes.wait_for_roles() is not first
                wait_until(lambda: dashboard(web_port) == 200, lambda: "the dashboard is not reached")
            finally:
                producer.stop()
