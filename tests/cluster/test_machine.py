"""`greenstalk-server --processes N --journal URL`: the servers of a cluster that one parent runs on its machine.

Real processes, a real database and real kills.
"""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import psutil
import pytest
from playwright.sync_api import expect

from greenstalk_server.cluster.placement import Placement, address_of
from greenstalk_server.config.command_line import parse
from greenstalk_server.config.options import Options
from greenstalk_server.core.tube_shards import shard_of_tube
from tests.support.cluster import Cluster
from tests.support.daemon import COMMAND, MINDING_SIGNALS, TIMEOUT, Daemon, environment, run, run_here
from tests.support.load import Connection
from tests.support.nodes import wait_until
from tests.support.ports import free_ports
from tests.web.browser import browser
from tests.web.test_browser_layout import problems_of

SHARDS: Final = 2
QUEUE: Final = "machine"
FLAGS: Final = ("--shards", str(SHARDS), "-l", "127.0.0.1", "-p", "0")
TUBES: Final = [next(t for t in (b"a", b"b", b"c", b"d") if shard_of_tube(t, SHARDS) == n) for n in range(SHARDS)]


class Machine:
    """A parent and its servers."""

    def __init__(self, cluster: Cluster, queue: str, *flags: str) -> None:
        self._cluster: Cluster = cluster
        self._queue: str = queue
        (web_port,) = free_ports(1)
        self.home: str = f"http://127.0.0.1:{web_port}/"
        self.daemon: Daemon = Daemon(
            *FLAGS, "--journal-name", queue, "--web-port", str(web_port), *flags,
            command=(*MINDING_SIGNALS, *COMMAND), environ=environment(DATABASE_URL=cluster.url),
        )  # fmt: skip

    def children(self) -> dict[int, psutil.Process]:
        """Return the servers by their process ids."""
        return {child.pid: child for child in psutil.Process(self.daemon.process.pid).children()}

    def api(self, path: str) -> Any:
        """Return what the API answers; None while it does not."""
        try:
            with urllib.request.urlopen(f"{self.home}api/v1{path}", timeout=5) as response:  # noqa: S310
                return json.load(response)
        except (OSError, ValueError):
            return None

    def servers(self) -> dict[str, tuple[str, int | None]]:
        """Return the state and the shard of each server, by the number in its name; `reading` if it was killed."""
        found = self.api("/cluster") or {"servers": []}
        return {
            one["server"].rpartition("-")[2]: (
                "reading" if one["state"] == "follows" and one["behind"] is None else one["state"],
                one["shard"],
            )
            for one in found["servers"]
        }

    def settle(self, count: int) -> None:
        """Wait until *count* servers lead or follow, and all shards have owners with their parts of the dashboard."""
        expected = ["follows"] * (count - SHARDS) + ["leads"] * SHARDS

        def is_settled() -> bool:
            processes = (self.api("/servers") or {"processes": []})["processes"]
            is_whole = [one["state"] for one in processes[:SHARDS]] == ["serving"] * SHARDS
            return is_whole and sorted([state for state, _ in self.servers().values()]) == expected

        wait_until(is_settled, lambda: f"{self.api('/cluster')}")

    def pid_of(self, shard: int) -> int:
        """Return the process id of the server that leads *shard*."""
        return int(self.api("/servers")["processes"][shard]["pid"])

    def rows(self) -> list[tuple[object, ...]]:
        """Return the name, the machine and the address of the links of each server in the database."""
        query = f"SELECT name, machine, address FROM greenstalk_process WHERE queue = '{self._queue}' ORDER BY name"  # noqa: S608
        return self._cluster.ask(query)

    def leases(self) -> list[tuple[object, ...]]:
        """Return whether each shard has an owner."""
        return self._cluster.ask(
            f"SELECT holder IS NOT NULL FROM greenstalk_journal WHERE name LIKE '{self._queue}/%' ORDER BY name"  # noqa: S608
        )


@pytest.fixture(scope="module")
def machine(cluster: Cluster) -> Iterator[Machine]:
    """Three servers for two shards, without --link."""
    machine = Machine(cluster, QUEUE, "--processes", "3")
    with machine.daemon:
        machine.settle(3)
        yield machine


def put(client: Connection, tube: bytes) -> int:
    line = client.ask(b"put-in-tube %b 0 0 600 1\r\nx" % tube)
    assert line.startswith(b"INSERTED "), line
    return int(line.split()[1])


def test_one_command_starts_servers_that_clients_see_as_one(machine: Machine) -> None:
    port = machine.daemon.port
    assert "with 3 others" in machine.daemon.first_lines
    assert f"as journal {QUEUE}, and are as safe as that database; shards: 2" in machine.daemon.first_lines
    rows = machine.rows()
    assert [name for name, _, _ in rows] == [f"127.0.0.1:{port}-{number}" for number in (1, 2, 3)]
    assert len({machine for _, machine, _ in rows}) == 1
    addresses = [str(address) for _, _, address in rows]
    assert [(address[:5], address[-2:]) for address in addresses] == [("unix:", f"/{number}") for number in (1, 2, 3)]
    ids = []
    for _ in range(6):
        with Connection(port, TIMEOUT) as client:
            ids += [put(client, tube) for tube in TUBES]
    assert len(set(ids)) == 12 and [id % SHARDS for id in ids] == [0, 1] * 6
    with Connection(port, TIMEOUT) as client:
        for tube in TUBES:
            assert client.stats(b"stats-tube " + tube)[b"current-jobs-ready"] == b"6"
            assert client.ask(b"flush-tube " + tube) == b"FLUSHED 6"


def test_killed_owner_is_replaced_and_started_again_under_its_name(machine: Machine) -> None:
    names = machine.rows()
    with Connection(machine.daemon.port, TIMEOUT) as client:
        client.ask(b"list-tube-used")  # it is accepted
        shard, victim = next(
            (shard, owner)
            for shard in range(SHARDS)
            if not is_connected(owner := machine.children()[machine.pid_of(shard)], client)
        )
        client.ask(b"use " + TUBES[shard])
        victim.kill()
        assert client.ask(b"peek-ready") == b"NOT_FOUND"  # waits for the new owner
        put(client, TUBES[shard])
        assert client.ask(b"flush-tube " + TUBES[shard]) == b"FLUSHED 1"
    machine.settle(3)
    assert victim.pid not in machine.children() and len(machine.children()) == 3
    assert machine.rows() == names


def is_connected(process: psutil.Process, client: Connection) -> bool:
    """Return whether *process* has accepted the connection of *client*."""
    return client.own_port in {found.raddr.port for found in process.net_connections() if found.raddr}


def test_page_of_servers_fits_and_shows_the_cluster(machine: Machine) -> None:
    with browser() as chromium:
        for width, theme in ((360, "dark"), (1440, "light")):
            with chromium.tab(machine.home, width, color_scheme=theme) as tab:
                tab.page.goto(f"{machine.home}servers")
                tab.screenshot(f"cluster-servers-{width}-{theme}")
                assert problems_of(tab, width) == []
                expect(tab.page.locator("table.cluster-servers tbody tr")).to_have_count(3)
                assert (tab.console, tab.elsewhere) == ([], [])


def test_server_whose_shard_was_moved_on_the_page_is_started_again_as_a_standby(machine: Machine) -> None:
    before, former, names = machine.servers(), machine.pid_of(0), machine.rows()
    (standby,) = [name for name, (state, _) in before.items() if state == "follows"]
    with browser() as chromium, chromium.tab(machine.home) as tab:
        tab.page.goto(f"{machine.home}servers")
        tab.page.get_by_text("Move a shard", exact=True).click()
        tab.page.get_by_label("Shard", exact=True).select_option("0")
        tab.page.get_by_label("To", exact=True).select_option(label=f"127.0.0.1:{machine.daemon.port}-{standby}")
        tab.page.get_by_label("Yes, move it").check()
        tab.page.get_by_role("button", name="Move the shard").click()
        expect(tab.page.get_by_text("Shard 0 was asked to move.")).to_be_visible()
    wait_until(lambda: machine.servers().get(standby) == ("leads", 0), lambda: f"{machine.servers()}")
    machine.settle(3)
    after = machine.servers()
    assert after[standby] == ("leads", 0)
    assert [after[name][0] for name, state in before.items() if state == ("leads", 0)] == ["follows"]
    assert former not in machine.children() and machine.rows() == names


def test_other_number_of_shards_ends_the_parent(machine: Machine, cluster: Cluster) -> None:
    flags = ("--processes", "2", "--shards", "3", "--journal-name", QUEUE, "-l", "127.0.0.1", "-p", "0", "--no-web")
    done = run(*flags, DATABASE_URL=cluster.url)
    assert done.returncode == 10
    assert "server 1 cannot start" in done.stderr or "server 2 cannot start" in done.stderr
    assert f"the queue {QUEUE} has 2 shards" in done.stderr
    assert len(machine.rows()) == 3


def test_parent_that_stops_has_all_servers_hand_over(machine: Machine) -> None:
    children = machine.children().values()
    code, stderr = machine.daemon.stop()
    assert code == 0
    assert not any(child.is_running() for child in children)
    assert (machine.rows(), machine.leases()) == ([], [(False,)] * SHARDS)
    assert "has ended; it is started again" in stderr  # of the test above
    assert "Traceback" not in stderr, stderr


def test_each_server_has_a_port_for_its_links_and_ends_with_the_parent(cluster: Cluster) -> None:
    ports = free_ports(8)
    first = next(port for port in ports if port + 1 in ports)
    machine = Machine(cluster, "ports", "--processes", "2", "--link", f"127.0.0.1:{first}")
    with machine.daemon:
        machine.settle(2)
        assert [address for _, _, address in machine.rows()] == [f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"]
        children = list(machine.children().values())
        machine.daemon.process.send_signal(signal.SIGKILL)
        assert psutil.wait_procs(children, TIMEOUT)[1] == []
        assert machine.leases() == [(False,)] * SHARDS


def test_number_of_shards_has_to_be_set() -> None:
    done = run_here("--processes", "2", "--journal", "postgresql://x/y")
    assert done.returncode == 5
    assert "--processes 2: must not be set together with --journal without --shards" in done.stderr


def test_servers_that_cannot_start_are_not_announced() -> None:
    done = run("--processes", "2", *FLAGS, "--no-web", DATABASE_URL="postgresql://u:p@ss@host/name")
    assert (done.returncode, done.stdout) == (5, "")
    assert "cannot start: the server exits: DATABASE_URL: the address cannot be read" in done.stderr


def test_limits_of_the_machine_are_divided_and_those_of_shards_are_not() -> None:
    words = ["--processes", "4", "--shards", "4", "--max-jobs", "10", "--max-connections", "10", "--memory-limit", "1g"]
    options = parse(words, {"DATABASE_URL": "postgresql://x/y"})
    assert isinstance(options, Options)
    share = Placement(2, 4, "", (), 5, sockets="/tmp/links").share_of(options)  # noqa: S108
    assert (share.limits.jobs, share.limits.connections, share.memory_limit) == (10, 3, 2**28)
    assert share.link == "unix:/tmp/links/3"


@pytest.mark.parametrize(
    ("link", "third"),
    [
        ("app1:11310", "app1:11312"),
        ("[::1]:11310", "[::1]:11312"),
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("0.0.0.0", "0.0.0.0"),
        ("fe80::1", "fe80::1"),
    ],
)
def test_address_of_links_has_the_port_after_that_of_the_process_before(link: str, third: str) -> None:
    assert address_of(link, 2) == third
