"""A queue with shards in a database: real servers, clients of each of them, kills and moves."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from greenstalk_server.cluster.membership import Membership
from greenstalk_server.core.tube_shards import shard_of_tube
from greenstalk_server.journal.postgresql.connection import conninfo_of
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.journal.postgresql.members import Members, Process, ShardState, Snapshot
from greenstalk_server.journal.postgresql.members import Queue as QueueRow
from greenstalk_server.runtime.exit_codes import StartError
from tests.support.cluster import Cluster
from tests.support.load import Connection, Gone
from tests.support.nodes import Node, Nodes, run_command, wait_until
from tests.support.pages import block
from tests.support.processes import join

SHARDS: Final = 3
QUEUE: Final = "cluster-test"
FLAGS: Final = ("--journal-name", QUEUE, "--shards", str(SHARDS), "--link", "127.0.0.1:0", "--no-web")
CERTIFICATES: Final = block("cluster.md", "sh", "openssl req -x509")


def tube_on(shard: int) -> bytes:
    """Return the name of a tube of *shard*."""
    return next(name for name in (b"t%d" % number for number in range(100)) if shard_of_tube(name, SHARDS) == shard)


TUBES: Final = [tube_on(shard) for shard in range(SHARDS)]


class Queue:
    """The servers of one queue."""

    def __init__(self, cluster: Cluster, nodes: list[Node]) -> None:
        self.cluster: Cluster = cluster
        self.nodes: list[Node] = nodes

    def owner_names(self) -> list[str]:
        """Return the name of the server that leads each shard; empty if none does."""
        query = f"""
            SELECT CASE WHEN holder IS NULL OR lease_until < clock_timestamp() THEN '' ELSE holder_name END
            FROM greenstalk_journal WHERE name LIKE '{QUEUE}/%' ORDER BY name"""  # noqa: S608
        return [str(name) for (name,) in self.cluster.ask(query)]

    def owner(self, shard: int) -> Node:
        """Return the server that leads *shard*; wait for it."""
        found: list[Node] = []

        def is_known() -> bool:
            names = self.owner_names()
            found[:] = [node for node in self.nodes if len(names) == SHARDS and names[shard] == name_of(node)]
            return bool(found)

        wait_until(is_known, lambda: f"{self.owner_names()}")
        return found[0]

    def standby(self) -> Node:
        """Return a server that leads no shard."""
        owners = [self.owner(shard) for shard in range(SHARDS)]
        return next(node for node in self.nodes if node not in owners)

    def settle(self) -> None:
        """Wait until all shards have owners, and all servers serve."""
        wait_until(lambda: all(node.listens() for node in self.nodes), lambda: self.logs)
        wait_until(lambda: all(self.owner_names()) and len(self.owner_names()) == SHARDS, lambda: self.logs)

    def restart(self, node: Node) -> None:
        """Start *node*, which has ended, and wait until all is as before."""
        node.start()
        self.settle()

    @property
    def logs(self) -> str:
        """The logs of all servers."""
        return "\n".join([f"{node.name}:\n{node.log}" for node in self.nodes])


def name_of(node: Node) -> str:
    """Return the name by which the database knows *node*."""
    return f"127.0.0.1:{node.port}"


def connect(node: Node) -> Connection:
    """Return a connection of a client to *node*."""
    return Connection(node.port, 40.0)


def put(client: Connection, tube: bytes, body: bytes = b"x") -> int:
    """Put a job into *tube*; return its id."""
    line = client.ask(b"put-in-tube %b 0 0 600 %d\r\n%b" % (tube, len(body), body))
    assert line.startswith(b"INSERTED "), line
    return int(line.split()[1])


@pytest.fixture(scope="module")
def queue(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    """Three shards and four servers, with TLS between them."""
    logs = tmp_path_factory.mktemp("logs")
    subprocess.run(["sh", "-euc", CERTIFICATES], cwd=logs, check=True, capture_output=True, timeout=60)
    files = [str(logs / name) for name in ("link.pem", "link.key", "link-ca.pem")]
    secured = (*FLAGS, "--link-cert", files[0], "--link-key", files[1], "--link-ca", files[2])
    with Nodes([Node(f"node-{number}", cluster.url, logs, *secured) for number in range(SHARDS + 1)]) as nodes:
        queue = Queue(cluster, nodes.nodes)
        queue.settle()
        yield queue
        assert "Traceback" not in queue.logs and "internal error" not in queue.logs, queue.logs


def test_clients_of_each_server_see_one_queue(queue: Queue) -> None:
    ids = {tube: set[int]() for tube in TUBES}
    for node in queue.nodes:
        with connect(node) as client:
            for tube in TUBES:
                ids[tube].add(put(client, tube))
    assert [{id % SHARDS for id in ids[tube]} for tube in TUBES] == [{shard} for shard in range(SHARDS)]
    for tube, node in zip(TUBES, queue.nodes, strict=False):
        with connect(node) as client:
            assert client.stats(b"stats-tube " + tube)[b"current-jobs-ready"] == b"4"
            client.ask(b"watch " + tube)
            for _ in range(len(queue.nodes)):
                job = client.reserve()
                assert job is not None and job[0] in ids[tube]
                assert client.ask(b"delete %d" % job[0]) == b"DELETED"


def test_stats_of_each_server_count_the_connections_of_all(queue: Queue) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(node)) for node in queue.nodes]

        wait_until(lambda: counts(*clients) == [b"%d" % len(clients)] * len(clients), lambda: f"{counts(*clients)}")


def counts(*clients: Connection) -> list[bytes]:
    """Return the number of connections to the queue, as the server of each of *clients* counts them."""
    return [client.stats(b"stats")[b"current-connections"] for client in clients]


def test_killed_owner_is_replaced_and_clients_of_other_servers_stay(queue: Queue) -> None:
    victim = queue.owner(0)
    standby = queue.standby()
    other = next(node for node in queue.nodes if node not in (victim, standby))
    with connect(other) as holder, connect(standby) as waiter, connect(standby) as worker:
        kept = put(holder, TUBES[1])
        holder.ask(b"watch " + TUBES[1])
        job = holder.reserve()
        assert job is not None and job[0] == kept
        before = put(worker, TUBES[0], b"before")
        worker.ask(b"watch " + TUBES[0])
        job = worker.reserve()
        assert job is not None and job[0] == before
        waiter.ask(b"watch " + TUBES[0])
        waiter.send(b"reserve\r\n")
        victim.kill()
        put(holder, TUBES[1], b"goes on at once")
        after = put_again_if_closed(other, TUBES[0])
        assert read_job(waiter) == after
        assert worker.ask(b"release %d 0 0" % before) == b"RELEASED"
        job = worker.reserve()
        assert job is not None and job[0] == before
        assert holder.ask(b"delete %d" % kept) == b"DELETED"
        assert queue.owner(0) is standby
        with connect(standby) as newer:  # this server accepted its other connections while it led no shard
            wait_until(lambda: counts(holder, worker, newer) == [b"4"] * 3, lambda: f"{counts(holder, worker, newer)}")
    queue.restart(victim)
    drain(queue)


def put_again_if_closed(node: Node, tube: bytes) -> int:
    """Put a job by a client of *node*, and again if the outcome is unknown, since the owner has just died."""
    while True:
        try:
            with connect(node) as client:
                return put(client, tube)
        except Gone:
            continue


def read_job(client: Connection) -> int:
    """Return the id of the job of a reply RESERVED that is to come."""
    line = client.read_line()
    assert line.startswith(b"RESERVED "), line
    _, id, size = line.split()
    client.read(int(size))
    return int(id)


def drain(queue: Queue) -> None:
    """Delete all jobs."""
    with connect(queue.nodes[0]) as client:
        for tube in TUBES:
            client.ask(b"watch " + tube)
        while (job := client.reserve()) is not None:
            assert client.ask(b"delete %d" % job[0]) == b"DELETED"


def test_jobs_of_servers_that_have_all_died_become_ready(queue: Queue) -> None:
    """The servers that are started again have never seen those that held the jobs."""
    other = next(node for node in queue.nodes if node is not queue.owner(0))
    with connect(other) as client:
        put(client, TUBES[0])
        client.ask(b"watch " + TUBES[0])
        assert client.reserve() is not None
        for node in queue.nodes:
            node.kill()
    for node in queue.nodes:
        node.start()
    queue.settle()
    with connect(other) as client:
        line = b"stats-tube " + TUBES[0]
        wait_until(lambda: client.stats(line)[b"current-jobs-ready"] == b"1", lambda: str(client.stats(line)))
    drain(queue)


def test_paused_owner_is_replaced_and_acknowledges_nothing(queue: Queue) -> None:
    owner = queue.owner(1)
    other = next(node for node in queue.nodes if node is not owner)
    with connect(owner) as stale:
        put(stale, TUBES[1], b"committed")
        owner.signal(signal.SIGSTOP)
        try:
            stale.send(b"put-in-tube %b 0 0 600 4\r\nlost\r\n" % TUBES[1])
            put_again_if_closed(other, TUBES[1])
        finally:
            owner.signal(signal.SIGCONT)
        with pytest.raises((OSError, Gone)):
            stale.read_line()
        assert queue.owner(1) is not owner
    queue.settle()
    with connect(other) as client:
        assert client.stats(b"stats-tube " + TUBES[1])[b"current-jobs-ready"] == b"2"
    drain(queue)


def test_operator_moves_a_shard_to_a_chosen_server(queue: Queue) -> None:
    target, owner = queue.standby(), queue.owner(2)
    other = next(node for node in queue.nodes if node not in (target, owner))
    with connect(other) as client, connect(target) as early:
        id = put(client, TUBES[2])
        done = run_command(target, "cluster", "move", "2", name_of(target))
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"shard 2: {name_of(owner)} has handed over to {name_of(target)}\n"
        assert client.stats(b"stats-job %d" % id)[b"state"] == b"ready"
        assert early.ask(b"delete %d" % id) == b"DELETED"
    queue.settle()
    assert queue.owner(2) is target
    with connect(owner) as client:
        put(client, TUBES[2])
    drain(queue)


@pytest.mark.parametrize("way", ["move", "stop"])
def test_clients_of_other_servers_do_not_notice_a_handover(queue: Queue, way: str) -> None:
    """Their puts have no effect at the former owner, or are acknowledged by it; none of them is repeated in vain."""
    target, owner = queue.standby(), queue.owner(2)
    others = [node for node in queue.nodes if node is not owner]
    is_over = threading.Event()
    with ThreadPoolExecutor() as pool:
        putters = [pool.submit(put_until, is_over, node) for node in others * 2]
        try:
            if way == "move":
                done = run_command(target, "cluster", "move", "2", name_of(target))
                assert done.returncode == 0, done.stderr
            else:
                assert owner.stop() == 0
            wait_until(lambda: queue.owner(2) is not owner, lambda: queue.logs)
            with connect(target) as client:
                put(client, TUBES[2])
        finally:
            is_over.set()
        count = 1 + sum([putter.result() for putter in putters])
    with connect(target) as client:
        assert client.stats(b"stats-tube " + TUBES[2])[b"current-jobs-ready"] == b"%d" % count
    if way == "stop":
        owner.start()
    queue.settle()
    drain(queue)


def put_until(is_over: threading.Event, node: Node) -> int:
    """Put jobs of shard 2 with one connection to *node*; return how many, all of which were acknowledged."""
    count = 0
    with connect(node) as client:
        while not is_over.is_set():
            put(client, TUBES[2])
            count += 1
    return count


def test_cluster_shows_shards_and_servers(queue: Queue) -> None:
    done = run_command(queue.nodes[0], "cluster")
    assert done.returncode == 0
    for shard in range(SHARDS):
        assert re.search(rf"^{shard} +{name_of(queue.owner(shard))} +\d+ +", done.stdout, re.MULTILINE), done.stdout
        assert re.search(rf"{name_of(queue.owner(shard))} .* leads shard {shard}$", done.stdout, re.MULTILINE)
    assert re.search(rf"{name_of(queue.standby())} .* follows shard \d, ", done.stdout)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("move", "7"), "cluster move: there is no shard 7; the queue has the shards 0 to 2"),
        (("move", "0", "nobody"), "cluster move: there is no process nobody; there are "),
        (("move", "0", "0", "0"), "cluster: must be `cluster [OPTIONS]` or `cluster move SHARD [PROCESS] [OPTIONS]`"),
    ],
)
def test_wrong_move_is_refused(queue: Queue, words: tuple[str, ...], message: str) -> None:
    done = run_command(queue.nodes[0], "cluster", *words)
    assert done.returncode == 5
    assert message in done.stderr


def test_owner_of_a_shard_leads_no_second_one(queue: Queue) -> None:
    done = run_command(queue.nodes[0], "cluster", "move", "0", name_of(queue.owner(1)))
    assert done.returncode == 10
    assert f"{name_of(queue.owner(1))} leads shard 1, and leads one at most" in done.stderr


def test_server_with_another_number_of_shards_does_not_start(queue: Queue, cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--journal-name", QUEUE, "--shards", "2", "--link", "127.0.0.1:0", "--no-web")
    with Nodes([Node("other", cluster.url, tmp_path, *flags)]) as nodes:
        [node] = nodes.nodes
        assert node.process is not None and node.process.wait(60) == 10
        assert f"--shards 2: the queue {QUEUE} has 3 shards; start it with --shards 3, or change the number" in node.log


def test_server_with_other_pins_does_not_start(queue: Queue, cluster: Cluster, tmp_path: Path) -> None:
    with Nodes([Node("other", cluster.url, tmp_path, *FLAGS, "--pin", "mail=1")]) as nodes:
        [node] = nodes.nodes
        assert node.process is not None and node.process.wait(60) == 10
        assert f"--pin: the pins of the queue {QUEUE} are none, not mail=1; change them with `journal" in node.log


def test_server_without_shards_does_not_open_the_queue(queue: Queue, cluster: Cluster, tmp_path: Path) -> None:
    with Nodes([Node("other", cluster.url, tmp_path, "--journal-name", QUEUE, "--no-web")]) as nodes:
        [node] = nodes.nodes
        assert node.process is not None and node.process.wait(60) == 10
        assert f"the queue {QUEUE} has 3 shards; start its servers with --shards 3 and --link" in node.log


def test_queue_of_one_shard_is_continued_with_standbys_that_serve(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--journal-name", "one", "--no-web")
    with Nodes([Node("before", cluster.url, tmp_path, *flags)]) as nodes:
        wait_until(nodes.nodes[0].listens, lambda: nodes.nodes[0].log)
        with connect(nodes.nodes[0]) as client:
            ids = [put(client, b"default"), put(client, b"default")]
        assert nodes.nodes[0].stop() == 0
    linked = (*flags, "--link", "127.0.0.1:0")
    with Nodes([Node(f"node-{number}", cluster.url, tmp_path, *linked) for number in range(2)]) as nodes:
        for id, node in zip(ids, nodes.nodes, strict=True):
            wait_until(node.listens, lambda node=node: node.log)  # type: ignore[misc]
            with connect(node) as client:
                assert client.ask(b"delete %d" % id) == b"DELETED"


@pytest.fixture
def namesakes(cluster: Cluster) -> Iterator[tuple[Members, Members]]:
    """Two servers of a queue with one name on one machine, the first of which has reported once."""
    with ExitStack() as at_exit:
        found = []
        for _ in range(2):
            lease = LeaderLease(conninfo_of(cluster.url, "--journal"), "", "app1:11300", 1.0)
            found.append(Members(lease, "namesakes", 2, machine="app1"))
            at_exit.callback(lease.close)
            at_exit.callback(found[-1].connection.close)
        first, second = found
        first.open()
        first.report(None)
        yield first, second
        first.remove()


def test_server_with_the_name_of_a_living_one_does_not_start(namesakes: tuple[Members, Members]) -> None:
    first, second = namesakes
    is_over = threading.Event()

    def report() -> None:
        while not is_over.wait(0.2):
            first.report(None)

    reporting = threading.Thread(target=report, daemon=True)
    reporting.start()
    try:
        with pytest.raises(StartError, match="has the name app1:11300 on a machine with the host name app1: give"):
            Membership(second, "me").open(bool)
    finally:
        is_over.set()
        join(reporting)
    assert first.report(None)


def test_server_takes_the_place_of_one_with_its_name_that_was_killed(namesakes: tuple[Members, Members]) -> None:
    first, second = namesakes
    assert Membership(second, "me").open(bool)
    assert not first.report(None)


def test_process_is_wanted_only_while_it_follows_the_shard() -> None:
    """A request that arrives before the process has changed its shard must not move the shard that it still follows."""
    members = Members(LeaderLease(conninfo_of("postgresql://127.0.0.1:1/none", "--journal"), "", "", 1.0), "", 2)
    membership = Membership(members, "me")
    state = ShardState("other", "other", False, 1)
    membership.snapshot = Snapshot((state, state), (Process("me", "", "", "", "", 0, 1, True, None),))
    membership.queue = QueueRow("", "", 2, 0, "", "")
    assert membership.assign() and membership.shard == 1 and membership.is_wanted
    membership.snapshot = Snapshot((state, state), (Process("me", "", "", "", "", 1, 0, True, None),))
    assert membership.wanted == 0 and not membership.is_wanted
    assert membership.assign() and membership.is_wanted


def test_command_for_a_shard_without_an_owner_waits_and_other_shards_go_on(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--journal-name", "few", "--shards", "3", "--link", "127.0.0.1:0", "--no-web", "--outage-wait", "1")
    with Nodes([Node("only", cluster.url, tmp_path, *flags)]) as nodes:
        [node] = nodes.nodes
        wait_until(node.listens, lambda: node.log)
        found = "SELECT name FROM greenstalk_journal WHERE name LIKE 'few/%' AND holder IS NOT NULL"
        wait_until(lambda: bool(cluster.ask(found)), lambda: node.log)
        led = int(str(cluster.ask(found)[0][0]).removeprefix("few/"))
        with connect(node) as client, socket.create_connection(("127.0.0.1", node.port), 30) as waits:
            waits.sendall(b"use %b\r\n" % TUBES[(led + 1) % SHARDS])
            put(client, TUBES[led])
            assert waits.recv(100) == b""
            put(client, TUBES[led])
