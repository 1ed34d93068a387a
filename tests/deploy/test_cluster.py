"""The files of deploy/cluster: three servers of one queue, behind a real HAProxy, and the files of etcd and Patroni."""

from __future__ import annotations

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from greenstalk_server.core.tube_shards import shard_of_tube
from tests.cluster.test_cluster import CERTIFICATES, put
from tests.support.cluster import Cluster
from tests.support.daemon import REPOSITORY
from tests.support.load import Connection, Gone
from tests.support.nodes import Node, Nodes, wait_until
from tests.support.pages import block
from tests.support.ports import free_ports
from tests.support.processes import ending

FILES = REPOSITORY / "deploy" / "cluster"
MACHINES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
SHARDS = 2
NAMES = [b"t%d" % number for number in range(100)]
TUBES = [next(name for name in NAMES if shard_of_tube(name, SHARDS) == shard) for shard in range(SHARDS)]
"""A tube of each shard."""


def replaced(name: str, replacements: dict[str, str]) -> str:
    """Return the file *name* with each key of *replacements*, which it must contain, replaced."""
    text = (FILES / name).read_text()
    for there, here in replacements.items():
        assert there in text, there
        text = text.replace(there, here)
    return text


def start_servers(cluster: Cluster, directory: Path) -> Nodes:
    """Start a server for each machine with its file, and wait until all serve and both shards have owners."""
    subprocess.run(["sh", "-euc", CERTIFICATES], cwd=directory, check=True, capture_output=True, timeout=60)
    (url,) = re.findall(r'^journal = "(.*)"$', (FILES / "greenstalk.toml").read_text(), re.MULTILINE)
    changes = {url: cluster.url, "/etc/greenstalk": str(directory), "10.0.0.1:11310": "127.0.0.1:0"}
    changes['"10.0.0.1"'] = '"127.0.0.1"'
    nodes = []
    for number in range(len(MACHINES)):
        path = directory / f"{number}.toml"
        path.write_text(replaced("greenstalk.toml", changes))
        path.chmod(0o600)
        nodes.append(Node(f"m{number + 1}", "", directory, "--config", str(path), "--journal-name", "deployed"))
    started = Nodes(nodes)
    wait_until(lambda: all(node.listens() for node in nodes), lambda: nodes[0].log)
    wait_until(lambda: len(owners(cluster)) == SHARDS, lambda: nodes[0].log)
    wait_until(lambda: all(node.ask("healthz")[0] == 200 for node in nodes), lambda: nodes[0].log)
    return started


def owners(cluster: Cluster) -> list[str]:
    """Return the names of the servers that lead a shard."""
    query = """SELECT holder_name FROM greenstalk_journal
        WHERE name LIKE 'deployed/%' AND holder IS NOT NULL AND lease_until > clock_timestamp() ORDER BY name"""
    return [str(name) for (name,) in cluster.ask(query)]


def server_of(client: Connection) -> int:
    """Return the process id of the server to which HAProxy has connected *client*."""
    return int(client.stats(b"stats")[b"pid"])


def test_walkthrough_shows_the_files() -> None:
    assert block("cluster-walkthrough.md", "text", "ETCD_NAME=m1") in (FILES / "etcd").read_text()
    assert block("cluster-walkthrough.md", "toml", "journal = ") in (FILES / "greenstalk.toml").read_text()
    assert block("cluster-walkthrough.md", "text", "defaults\n") in (FILES / "haproxy.cfg").read_text()


def test_files_name_the_same_machines() -> None:
    settings = yaml.safe_load((FILES / "patroni.yml").read_text())
    assert settings["etcd3"]["hosts"] == [f"{address}:2379" for address in MACHINES]
    etcd = dict(line.split("=", 1) for line in (FILES / "etcd").read_text().splitlines() if not line.startswith("#"))
    members = dict(member.split("=") for member in etcd["ETCD_INITIAL_CLUSTER"].split(","))
    assert members == {f"m{number}": f"http://{address}:2380" for number, address in enumerate(MACHINES, 1)}
    assert etcd["ETCD_NAME"] == settings["name"] == "m1"
    assert f"@{','.join(MACHINES)}/greenstalk" in (FILES / "greenstalk.toml").read_text()
    found = re.findall(r"^    server (m\d) (\S+):11300 ", (FILES / "haproxy.cfg").read_text(), re.MULTILINE)
    assert found == [(f"m{number}", address) for number, address in enumerate(MACHINES, 1)]


def test_failover_of_the_database_ends_before_commands_give_up() -> None:
    settings = yaml.safe_load((FILES / "patroni.yml").read_text())["bootstrap"]["dcs"]
    assert settings["loop_wait"] + 2 * settings["retry_timeout"] <= settings["ttl"], "Patroni raises ttl otherwise"
    (wait,) = re.findall(r"^outage_wait_seconds = (\d+)$", (FILES / "greenstalk.toml").read_text(), re.MULTILINE)
    assert int(wait) > 2 * settings["ttl"]
    assert settings["synchronous_mode"]


def test_clients_behind_haproxy_continue_at_another_server_when_one_dies(cluster: Cluster, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with start_servers(cluster, tmp_path) as nodes, ExitStack() as stack:
        changes = {"127.0.0.1:11300": f"127.0.0.1:{port}"}
        changes["timeout connect"] = "timeout check 60s\n    timeout connect"  # this machine may be busy
        for address, node in zip(MACHINES, nodes.nodes, strict=True):
            changes[f"{address}:11300 check port 8080"] = f"127.0.0.1:{node.port} check port {node.web_port}"
        path = tmp_path / "haproxy.cfg"
        path.write_text(replaced("haproxy.cfg", changes))
        log = stack.enter_context((tmp_path / "haproxy.log").open("w+"))
        stack.callback(lambda: print(Path(log.name).read_text()))  # shown if the test fails
        command = ["haproxy", "-db", "-f", str(path)]
        stack.enter_context(ending(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)))
        by_pid = {node.process.pid: node for node in nodes.nodes}
        clients: dict[int, Connection] = {}

        def each_server_has_a_client() -> bool:
            try:
                client = stack.enter_context(Connection(port, 40.0))
            except ConnectionRefusedError:  # HAProxy does not listen yet
                return False
            clients.setdefault(server_of(client), client)
            return clients.keys() == by_pid.keys()

        wait_until(each_server_has_a_client, lambda: f"servers with clients: {clients.keys()} of {by_pid.keys()}")
        for client in clients.values():
            for tube in TUBES:
                put(client, tube)
        dying = next(pid for pid, node in by_pid.items() if f"127.0.0.1:{node.port}" in owners(cluster))
        by_pid[dying].kill()
        with pytest.raises((Gone, ConnectionError)):
            clients.pop(dying).read_line()
        living, closed = list(clients.values()), 0
        while len(living) < 8:  # with a connection more than the dead server, the others are no longer preferred
            client = stack.enter_context(Connection(port, 40.0))
            try:
                assert server_of(client) != dying
            except Gone:  # HAProxy may close the connection by which it notices the death
                closed += 1
                assert closed == 1
            else:
                living.append(client)
        assert " is DOWN" in Path(log.name).read_text()
        for client in living:
            for tube in TUBES:
                put(client, tube)
