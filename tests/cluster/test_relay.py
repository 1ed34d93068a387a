"""Servers whose network is cut: real servers with a real database, and a network between them that the tests cut."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.cluster.test_cluster import connect, name_of, put
from tests.cluster.test_outage import TUBES
from tests.ctl.world import run
from tests.processes.network import Network
from tests.support.cluster import Cluster
from tests.support.load import Connection, Gone
from tests.support.nodes import Node, Nodes, run_command, wait_until
from tests.support.ports import free_ports

QUEUE: Final = "relay"
OUTAGE_WAIT: Final = 6
FLAGS: Final = ("--journal-name", QUEUE, "--shards", "2", "--outage-wait", str(OUTAGE_WAIT))


class Queue:
    """Two shards, and three servers with a network between them."""

    def __init__(self, cluster: Cluster, logs: Path) -> None:
        self.network: Network = Network(0)
        self.nodes: list[Node] = []
        for number, port in enumerate(free_ports(3)):
            name = f"node-{number}"
            address = self.network.listen(port, name, self._name_of)
            links = ("--link", f"127.0.0.1:{address}", "--link-listen", f"127.0.0.1:{port}")
            self.nodes.append(Node(name, cluster.url, logs, *FLAGS, *links))
        self._cluster: Cluster = cluster

    def _name_of(self, port: int) -> str:
        """Return the name of the server that has connected from *port*."""
        for node in self.nodes:
            assert node.process is not None
            if any(each.laddr.port == port for each in psutil.Process(node.process.pid).net_connections("tcp4")):
                return node.name
        return ""

    def settle(self) -> None:
        """Wait until both shards have owners, and all servers reach both."""
        wait_until(lambda: all(node.listens() for node in self.nodes), lambda: self.logs)
        wait_until(lambda: len(self._owner_names()) == 2, lambda: self.logs)
        wait_until(lambda: all(self._reaches_all(node) for node in self.nodes), lambda: self.logs)

    def _owner_names(self) -> list[str]:
        query = f"SELECT holder_name FROM greenstalk_journal WHERE name LIKE '{QUEUE}/%' AND holder IS NOT NULL"  # noqa: S608
        return [str(name) for (name,) in self._cluster.ask(query + " ORDER BY name")]

    @staticmethod
    def _reaches_all(node: Node) -> bool:
        with connect(node) as client:
            for tube in TUBES:
                put_and_delete(client, tube)
        return True

    def roles(self) -> tuple[Node, Node, Node]:
        """Return the owners of both shards, and the server that leads none."""
        by_name = {name_of(node): node for node in self.nodes}
        owners = [by_name.pop(name) for name in self._owner_names()]
        [standby] = by_name.values()
        return owners[0], owners[1], standby

    @property
    def logs(self) -> str:
        return "\n".join([f"{node.name}:\n{node.log}" for node in self.nodes])


@pytest.fixture(scope="module")
def queue(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    queue = Queue(cluster, tmp_path_factory.mktemp("logs"))
    with Nodes(queue.nodes):
        queue.settle()
        yield queue
        assert "Traceback" not in queue.logs and "internal error" not in queue.logs, queue.logs
    queue.network.close()


def put_and_delete(client: Connection, tube: bytes) -> None:
    """Put a job into *tube*, reserve it, and delete it."""
    id = put(client, tube)
    assert client.ask(b"watch " + tube).startswith(b"WATCHING")
    job = client.reserve()
    assert job is not None and job[0] == id
    assert client.ask(b"delete %d" % id) == b"DELETED"


def relayed(node: Node) -> list[list[int]]:
    """Return the shards that each server reaches over another one; none while the dashboard starts."""
    status, text = node.ask("api/v1/servers")
    return [one["relayed"] for one in json.loads(text)["processes"]] if status == 200 else []


def relayed_links(node: Node) -> list[list[str]]:
    """Return the links that are relayed, as *node* lists them: the names of both servers, and of the relay."""
    status, text = node.ask("api/v1/cluster")
    return [[one["server"], one["peer"], one["relay"]] for one in json.loads(text)["relayed"]] if status == 200 else []


def are_counted(queue: Queue, number: int) -> bool:
    """Return whether each server counts *number* relayed links."""
    return {node.gauge("relayed_links") for node in queue.nodes} == {number}


def test_servers_that_do_not_reach_each_other_continue_over_a_third_one(queue: Queue) -> None:
    first, second, standby = queue.roles()
    expected = [*sorted((name_of(first), name_of(second))), name_of(standby)]
    with connect(first) as client, connect(second) as waiter, connect(second) as other:
        assert waiter.ask(b"watch " + TUBES[0]) == b"WATCHING 2"
        waiter.send(b"reserve\r\n")
        put_and_delete(other, TUBES[1])
        queue.network.part(first.name, second.name)
        began = time.monotonic()
        client.ask(b"watch " + TUBES[1])
        put_and_delete(client, TUBES[1])
        print(f"served over the relay {time.monotonic() - began:.2f} s after the cut")
        assert time.monotonic() - began < OUTAGE_WAIT
        put(client, TUBES[0], b"waited for")
        assert waiter.read_line().startswith(b"RESERVED ")
        assert all("which relays: there is no direct connection" in node.log for node in (first, second))
        assert "relaying between processes " in standby.log
        wait_until(lambda: relayed(first) == [[1], [0], []], lambda: str(relayed(first)))
        wait_until(lambda: are_counted(queue, 1), lambda: "no server counts a relayed link")
        assert relayed_links(standby) == [expected]
        assert "Relayed links" in standby.ask("servers")[1]
        by_api = run("--api", f"http://127.0.0.1:{first.web_port}", "cluster")
        for shown in (by_api.text, run_command(standby, "cluster").stdout):
            assert re.search(rf"^{' +'.join(expected)} *$", shown, re.MULTILINE), shown
        assert first.ask("readyz")[0] == second.ask("readyz")[0] == 200
        queue.network.mend(is_late=False)
        wait_until(lambda: all("is direct again" in node.log for node in (first, second)), lambda: queue.logs)
        wait_until(lambda: relayed(first) == [[], [], []], lambda: str(relayed(first)))
        wait_until(lambda: are_counted(queue, 0), lambda: "a server counts a relayed link")
        assert relayed_links(standby) == [] and "Relayed links" not in standby.ask("servers")[1]
        put_and_delete(client, TUBES[1])
        put_and_delete(other, TUBES[1])
        wait_until(lambda: "the relay between processes " in standby.log, lambda: standby.log)


def test_server_that_reaches_no_other_is_not_ready_and_closes_connections_that_wait(queue: Queue) -> None:
    first, second, standby = queue.roles()
    with connect(first) as client, connect(first) as local:
        queue.network.part(first.name, second.name)
        queue.network.part(first.name, standby.name)
        with pytest.raises((OSError, Gone)):
            put(client, TUBES[1])
        wait_until(lambda: first.ask("readyz")[0] == 503, lambda: first.log)
        assert first.ask("readyz")[1] == "cannot reach the owner of shard 1\n"
        id = put(local, TUBES[0])
        assert local.ask(b"delete %d" % id) == b"DELETED"
        queue.network.mend(is_late=False)
        wait_until(lambda: first.ask("readyz")[0] == 200, lambda: first.log)
        put_and_delete(local, TUBES[1])
