"""Every limit: its effect on clients, its counters and log lines, and that the effect ends."""

from __future__ import annotations

import json
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.limits import LIMIT_DESCRIPTIONS, Limits, job_quotas
from greenstalk_server.core.operations import editing, restoring
from greenstalk_server.core.tubes.weighting import MAX_WEIGHTED_TUBES
from greenstalk_server.net.limit_log import LimitLog
from greenstalk_server.protocol.restricted_session import RestrictedSession
from greenstalk_server.web.features.tubes.pages.overview import LIMIT_LABELS
from tests.support import invariants
from tests.support.daemon import COMMAND, REPOSITORY, TIMEOUT, Daemon, ask
from tests.support.peer import Peer, eventually, open_files
from tests.support.processes import ending
from tests.support.talk import Talk
from tests.support.world import START, make_broker

FULL = b"OUT_OF_MEMORY\r\n"

LOOPBACK = ("-l", "127.0.0.1", "-p", "0", "--web-port", "0")


def limited_talk(**limits: int) -> Talk:
    return Talk(make_broker(limits=Limits(**limits)))


def counted(broker: Broker) -> dict[str, int]:
    return {name: count for name, count in broker.limit_counters.counts().items() if count}


# Jobs and tubes


def test_no_quotas_without_a_limit() -> None:
    assert job_quotas(Limits(connections=1, rate=1, idle_timeout=1)) is None


def test_max_jobs() -> None:
    talk = limited_talk(jobs=2)
    put = b"put 0 0 60 1\r\nx\r\n"
    assert talk.send(put * 3) == b"INSERTED 1\r\nINSERTED 2\r\n" + FULL
    assert talk.send(b"reserve\r\n" + put + b"bury 1 0\r\n" + put).endswith(FULL + b"BURIED\r\n" + FULL)
    assert talk.send(b"delete 1\r\n" + put * 2) == b"DELETED\r\nINSERTED 6\r\n" + FULL
    assert counted(talk.broker) == {"jobs": 4}


def test_body_bytes_after_edits_moves_and_a_restart() -> None:
    """Talk and Broker.check compare the counters with the jobs."""
    talk = limited_talk(bytes=100)
    talk.send(b"put 0 0 60 9\r\n123456789\r\n")
    editing.edit_job(talk.broker, 1, START, body=b"x" * 40)
    editing.edit_job(talk.broker, 1, START, tube=b"other")
    invariants.check(talk.broker)
    assert talk.broker.quotas is not None and talk.broker.quotas.body_bytes == 40
    again = make_broker(limits=Limits(bytes=100))
    tube = again.tube(b"other")
    again.jobs[1] = talk.broker.jobs[1].copy_with(tube, b"x" * 40)
    restoring.restore(again, 2, 0)
    assert again.quotas is not None and again.quotas.body_bytes == 40


def test_max_watched() -> None:
    talk = limited_talk(watched=2)
    assert talk.send(b"watch a\r\nwatch b\r\nwatch a\r\n") == b"WATCHING 2\r\n" + FULL + b"WATCHING 2\r\n"
    assert Talk(talk.broker).send(b"watch b\r\n") == b"WATCHING 2\r\n"
    assert counted(talk.broker) == {"watched": 1}


@pytest.mark.parametrize("max_watched", [0, 2 * MAX_WEIGHTED_TUBES])
def test_weighted_mode_limits_the_watched_tubes(max_watched: int) -> None:
    talk = limited_talk(watched=max_watched)
    watches = [b"watch %d\r\n" % number for number in range(MAX_WEIGHTED_TUBES)]
    assert talk.send(b"reserve-mode weighted\r\n" + b"".join(watches)).endswith(
        b"\r\nWATCHING %d\r\n" % MAX_WEIGHTED_TUBES + FULL
    )
    assert talk.send(b"reserve-mode fifo\r\n" + watches[-1]) == b"USING fifo\r\nWATCHING %d\r\n" % (
        MAX_WEIGHTED_TUBES + 1
    )
    assert talk.send(b"reserve-mode weighted-fair\r\nreserve-mode fifo\r\n") == FULL + b"USING fifo\r\n"
    assert talk.send(b"ignore 0\r\nreserve-mode weighted-fair\r\n").endswith(b"USING weighted-fair\r\n")
    assert counted(talk.broker) == {"watched": 2}


def test_refused_put_over_http_names_the_limit() -> None:
    with Daemon(*LOOPBACK, "--max-tube-jobs", "1") as server:
        url = f"{server.dashboard}api/v1/jobs"
        for status, names_limit in ((201, False), (507, True)):
            answered, text = posted(url, {"tube": "mail", "body": "x"})
            assert answered == status
            assert ("limit of the server is reached: tube_jobs" in text) == names_limit


@pytest.mark.parametrize("limit", ["tubes", "watched"])
def test_tube_limits_apply_to_http(limit: str) -> None:
    """A reserve from a tube that may not be watched is refused; it does not return a job of `default`."""
    with Daemon(*LOOPBACK, f"--max-{limit}", "1") as server, Peer(server) as peer:
        assert peer.ask(b"put 0 0 60 1\r\nx") == b"INSERTED 1"
        if limit == "tubes":
            status, text = posted(f"{server.dashboard}api/v1/jobs", {"tube": "mail", "body": "x"})
            assert status == 507 and "limit of the server is reached: tubes" in text
        status, text = posted(f"{server.dashboard}api/v1/reserve", {"tubes": ["mail"]})
        assert status == 503 and f"limit of the server is reached: {limit}" in text
        assert posted(f"{server.dashboard}api/v1/reserve", {"tubes": ["default"]})[0] == 200
        assert limits_of(server)[limit] == (2 if limit == "tubes" else 1)


def posted(url: str, facts: dict[str, object]) -> tuple[int, str]:
    request = Request(url, json.dumps(facts).encode(), {"Content-Type": "application/json"})  # noqa: S310  our own
    try:
        answer = urlopen(request, timeout=TIMEOUT)  # noqa: S310
    except HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.read().decode()


# Commands per second


class Metered(Talk):
    """A connection with a rate limit in commands per second. Its pauses are recorded, and take no time."""

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.session.close(self.now)
        self.session = RestrictedSession(self.broker, self._on_wake, None, rate, START)
        self.paused = self.longest = 0.0

    def send(self, data: bytes) -> bytes:
        out = [self.session.receive(data, self.now)]
        while self.session.has_more:
            self.paused += self.session.pause
            self.longest = max(self.longest, self.session.pause)
            self.now += round(self.session.pause * SECOND)
            out.append(self.session.resume(self.now))
        return b"".join(out)


def test_commands_above_the_rate_are_delayed_and_none_is_lost() -> None:
    talk = Metered(rate=100)
    assert talk.send(b"list-tube-used\r\n" * 5000) == b"USING default\r\n" * 5000
    assert talk.paused == pytest.approx(49, abs=0.1)
    assert talk.longest <= 1
    assert counted(talk.broker)["rate"] > 1


def test_commands_within_the_rate_are_not_delayed() -> None:
    talk = Metered(rate=100)
    for _ in range(1000):
        talk.send(b"put 0 0 60 1\r\nx\r\n")
        talk.now += SECOND // 100
    assert not counted(talk.broker)


def test_burst_of_a_second_is_allowed_and_malformed_commands_count() -> None:
    talk = Metered(rate=10)
    talk.send(b"nonsense\r\n" * 10)
    assert not counted(talk.broker)
    talk.send(b"nonsense\r\n")
    assert talk.paused == pytest.approx(0.1)


def test_waiting_reserve_is_not_delayed_by_the_rate() -> None:
    talk = Metered(rate=1)
    talk.send(b"list-tube-used\r\nreserve\r\n")
    assert talk.session.is_waiting and not talk.session.has_more
    Talk(talk.broker).send(b"put 0 0 60 1\r\nx\r\n")
    assert talk.session.is_woken
    assert talk.session.resume(talk.now) == b"RESERVED 1 1\r\nx\r\n"


def test_rate_limit_delays_only_the_fast_connection() -> None:
    with Daemon(*LOOPBACK, "--max-rate", "200") as server, Peer(server) as fast, Peer(server) as other:
        started_at = time.monotonic()
        fast.send(b"list-tube-used\r\n" * 500)
        assert other.ask(b"list-tube-used") == b"USING default"
        assert [fast.read_line() for _ in range(500)] == [b"USING default"] * 500
        assert fast.ask(b"list-tube-used") == b"USING default"  # the 501st, which is 1.5 s above the rate
        assert time.monotonic() - started_at > 1.4
        assert limits_of(server)["rate"] >= 1


# Connections


def limits_of(server: Daemon) -> dict[str, int]:
    """Return the limit hits that the API reports, after comparing them with /metrics."""
    with urlopen(f"{server.dashboard}api/v1/server", timeout=TIMEOUT) as answer:  # noqa: S310  our own
        counts: dict[str, int] = json.load(answer)["limited"]
    with urlopen(f"{server.dashboard}metrics", timeout=TIMEOUT) as answer:  # noqa: S310
        lines = re.findall(r'^greenstalk_limited_total\{limit="(\w+)"\} (\S+)$', answer.read().decode(), re.MULTILINE)
    assert {name for name, _ in lines} == set(counts) == set(LIMIT_DESCRIPTIONS) == set(LIMIT_LABELS)
    assert all(float(count) >= counts[name] for name, count in lines)
    return counts


def is_served(peer: Peer) -> bool:
    try:
        return peer.ask(b"list-tube-used") == b"USING default"
    except ConnectionError:
        return False


def test_max_connections() -> None:
    with Daemon(*LOOPBACK, "--max-connections", "3") as server, ExitStack() as stack:
        peers = [stack.enter_context(Peer(server)) for _ in range(3)]
        assert all(map(is_served, peers))
        for _ in range(200):
            with Peer(server) as refused:
                assert not is_served(refused)
        assert all(map(is_served, peers))
        assert limits_of(server)["connections"] == 200
        peers[0].sock.close()
        eventually(lambda: can_connect(server), "a new connection is accepted again")
        _, stderr = server.stop()
    lines = [line for line in stderr.splitlines() if "WARNING connections: connections closed on accept" in line]
    assert "limit=connections address=127.0.0.1:" in lines[0]
    assert is_logged_once_a_second_at_most(stderr, "WARNING connections: ")


@pytest.mark.linux_form
def test_connection_that_cannot_be_polled_is_closed_without_leaks() -> None:
    """epoll_ctl fails for descriptors from 60 on, and each refused connection uses the same descriptor."""
    command = (sys.executable, "tests/net/few_watches.py", "60", *COMMAND)
    with Daemon(*LOOPBACK, command=command) as server, Peer(server) as watcher:
        assert is_served(watcher)
        with ExitStack() as stack:
            peers = [stack.enter_context(Peer(server)) for _ in range(60)]
            served = [peer for peer in peers if is_served(peer)]
            refused = len(peers) - len(served)
            assert served and refused
            before = open_files(server)
            for _ in range(50):
                with Peer(server) as peer:
                    assert not is_served(peer)
            assert open_files(server) == before
            facts = watcher.stats()
            assert facts["current-connections"] == str(len(served) + 1)
            assert facts["total-connections"] == str(len(peers) + 51)
        eventually(lambda: watcher.stats()["current-connections"] == "1", "the connections are closed")
        assert can_connect(server)
        assert limits_of(server)["epoll"] == refused + 50
        _, stderr = server.stop()
    assert "WARNING epoll: connections closed on accept" in stderr and "No space left on device" in stderr
    assert "Traceback" not in stderr
    assert is_logged_once_a_second_at_most(stderr, "WARNING epoll: ")


def test_suppressed_limit_hits_are_logged_later(caplog: pytest.LogCaptureFixture) -> None:
    now = START
    limit_log = LimitLog(lambda: now)
    for _ in range(5):
        limit_log.on_limit_hit("jobs", "10.0.0.1:5", "mail")
    limit_log.flush()
    assert "(--max-jobs)" in caplog.text and len(caplog.records) == 1
    now += SECOND
    limit_log.flush()
    limit_log.flush()
    assert [getattr(record, "more", 0) for record in caplog.records] == [0, 4]


def can_connect(server: Daemon) -> bool:
    with Peer(server) as peer:
        return is_served(peer)


def test_max_connections_per_address(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    flags = ("--max-connections-per-address", "2", "-l", f"unix:{path}")
    with Daemon(*LOOPBACK, *flags) as server, ExitStack() as stack:
        port = int(re.findall(r"127\.0\.0\.1:(\d+), unix", server.first_lines)[0])
        peers = [stack.enter_context(Peer(server, port)) for _ in range(2)]
        assert all(map(is_served, peers))
        assert not is_served(stack.enter_context(Peer(server, port)))
        other = socket.create_connection(("127.0.0.1", port), TIMEOUT, source_address=("127.0.0.2", 0))
        stack.callback(other.close)
        other.sendall(b"list-tube-used\r\n")
        assert other.recv(100) == b"USING default\r\n"
        for _ in range(5):
            local = stack.enter_context(socket.socket(socket.AF_UNIX))
            local.connect(str(path))
            local.sendall(b"list-tube-used\r\n")
            assert local.recv(100) == b"USING default\r\n"
        assert limits_of(server)["connections_per_address"] == 1


@pytest.fixture
def timed() -> Iterator[Daemon]:
    with Daemon(*LOOPBACK, "--idle-timeout", "5", "--command-timeout", "1") as server:
        yield server
        code, stderr = server.stop()
        assert code == 0 and "Traceback" not in stderr


def test_idle_and_stalled_connections_are_closed(timed: Daemon) -> None:
    """All connections wait at the same time, since each wait takes some seconds."""
    with ExitStack() as stack:
        line, body, big, trickle, idle, worker, waiter = (stack.enter_context(Peer(timed)) for _ in range(7))
        line.send(b"put 0 0 60 ")
        body.send(b"put 0 0 60 9\r\n1234")
        big.send(b"put 0 0 60 99999\r\n1234")
        idle.ask(b"use a")
        worker.ask(b"watch jobs")
        waiter.ask(b"watch never")
        waiter.send(b"reserve\r\n")
        worker.ask(b"use jobs")
        id = worker.ask(b"put 0 0 600 1\r\nx").split()[1]
        worker.ask(b"reserve")
        assert worker.read_line() == b"x"
        trickle.send(b"put 0 0 60 99\r\n")
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline and limits_of(timed)["command_timeout"] < 4:
            try:
                trickle.send(b"x")
            except ConnectionError:
                break
            time.sleep(0.1)
        for peer in (line, body, big, trickle):
            assert b"INSERTED" not in peer.read_to_end()
        assert idle.read_to_end() == b""
        eventually(lambda: limits_of(timed)["command_timeout"] == 4, "each timeout is counted")
        assert limits_of(timed)["idle_timeout"] == 1
        assert worker.ask(b"delete " + id) == b"DELETED"
        with Peer(timed) as producer:
            producer.ask(b"use never")
            assert producer.ask(b"put 0 0 60 1\r\ny").startswith(b"INSERTED")
        assert waiter.read_line().startswith(b"RESERVED")


def test_slow_disk_closes_no_connection(tmp_path: Path) -> None:
    """The clients have sent all input: one put, and more bodies than the server reads before the first is synced."""
    slow = (sys.executable, "-c", SLOW, str(tmp_path / "slow"))
    flags = ("-l", "127.0.0.1", "-p", "0", "--no-web", "-b", str(tmp_path), "-f", "0")
    with Daemon(*flags, "--idle-timeout", "1", "--command-timeout", "1", command=slow) as server:
        with Peer(server) as many:
            (tmp_path / "slow").touch()
            with Peer(server) as single:
                many.send(b"put 0 0 60 60000\r\n%b\r\n" % bytes(60_000) * 20)
                assert single.ask(b"put 0 0 60 1\r\nx").startswith(b"INSERTED")
            for _ in range(20):
                assert many.read_line().startswith(b"INSERTED")
            (tmp_path / "slow").unlink()
        _, stderr = server.stop()
        assert "timeout" not in stderr


SLOW = """\
import os, pathlib, sys, time
slow, sync = pathlib.Path(sys.argv.pop(1)), os.fdatasync

def fdatasync(fd):
    if slow.exists():
        time.sleep(3.5)
    sync(fd)

os.fdatasync = fdatasync
from greenstalk_server import cli
sys.exit(cli.main())
"""


# Unreachable peers, and exhausted file descriptors


@pytest.mark.linux_form
def test_unreachable_peer_is_detected(tmp_path: Path) -> None:
    """The peer is in a network namespace that loses all packets after a while, keepalive probes and replies alike."""
    path = tmp_path / "queue"
    start = ("unshare", "--net", "sh", "-c", f'{LINK} && exec "$0" "$@"', *COMMAND)
    flags = ("-l", "10.77.7.1", "-l", f"unix:{path}", "-p", "0", "--no-web", "--dead-peer-timeout", "2")
    with Daemon(*flags, command=start) as server:
        port = re.findall(r"10\.77\.7\.1:(\d+), unix", server.first_lines)[0]
        command = ["unshare", "--net", sys.executable, "-c", CLIENT, port]
        with ending(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) as client:
            assert client.stdin is not None and client.stdout is not None
            assert client.stdout.readline() == b"begun\n"
            inside(server.process.pid, f"ip link set far netns {client.pid}")
            inside(client.pid, "ip addr add 10.77.7.2/24 dev far && ip link set far up")
            client.stdin.write(b"\n")
            client.stdin.flush()
            assert client.stdout.readline() == b"held\n"
            with socket.socket(socket.AF_UNIX) as local:
                local.settimeout(TIMEOUT)
                local.connect(str(path))
                assert ask(local, b"delete 1\r\n") == b"NOT_FOUND"
                inside(server.process.pid, "ip neigh replace 10.77.7.2 lladdr 02:00:00:00:00:01 dev near nud permanent")
                assert ask(local, b"put 0 0 600 0\r\n\r\n") == b"INSERTED 2"
                assert ask(local, b"delete 2\r\n") == b"NOT_FOUND", "the server has sent it to the waiting client"
                eventually(lambda: ask(local, b"delete 1\r\n") == b"DELETED", "the reserved job is ready again")
                eventually(lambda: ask(local, b"delete 2\r\n") == b"DELETED", "the job that was sent is ready again")
            _, stderr = server.stop()
            assert "WARNING dead_peer_timeout: connections closed because the peer no longer responded" in stderr


LINK = (
    "ip link set lo up && ip link add near type veth peer name far && ip addr add 10.77.7.1/24 dev near"
    " && ip link set near up"
)

CLIENT = """\
import socket, sys
print("begun", flush=True)
sys.stdin.readline()
holder = socket.create_connection(("10.77.7.1", int(sys.argv[1])))
holder.sendall(b"put 0 0 600 1\\r\\nx\\r\\nreserve\\r\\n")
assert holder.makefile("rb").readline() == b"INSERTED 1\\r\\n"
waiter = socket.create_connection(("10.77.7.1", int(sys.argv[1])))
waiter.sendall(b"list-tube-used\\r\\nreserve\\r\\n")
assert waiter.recv(100) == b"USING default\\r\\n"
print("held", flush=True)
sys.stdin.read()
"""


def inside(process: int, commands: str) -> None:
    """Run shell *commands* in the network namespace of *process*."""
    enter = ("nsenter", "--net", "--target", str(process), "sh", "-c", commands)
    subprocess.run(enter, check=True, timeout=TIMEOUT)


def test_accepting_pauses_without_descriptors_and_the_journal_works(tmp_path: Path) -> None:
    """Connected clients are served and their jobs written. New clients wait until others disconnect."""
    start = ("prlimit", "--nofile=160:160", *COMMAND)
    with Daemon(*LOOPBACK, "-b", str(tmp_path), "-s", "16384", command=start) as server, ExitStack() as stack:
        good = stack.enter_context(Peer(server))
        assert is_served(good)
        crowd = [stack.enter_context(Peer(server)) for _ in range(300)]
        late = stack.enter_context(Peer(server))
        late.send(b"list-tube-used\r\n")
        body = b"put 0 0 60 4000\r\n%b\r\n" % bytes(4000)
        for _ in range(100):  # these create many segments
            good.send(body)
            assert good.read_line().startswith(b"INSERTED")
        late.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            late.read_line()
        late.sock.settimeout(TIMEOUT)
        assert server.process.poll() is None
        for peer in crowd:
            peer.sock.close()
        assert late.read_line() == b"USING default"
        times = limits_of(server)["files"]
        code, stderr = server.stop()
    assert code == 0 and "Traceback" not in stderr
    assert 1 <= stderr.count("WARNING files: times that accepting was paused") <= times
    assert is_logged_once_a_second_at_most(stderr, "WARNING files: ")


def is_logged_once_a_second_at_most(stderr: str, part: str) -> bool:
    """Return whether the log has at most one line with *part* per second, rounded up."""
    times = [datetime.fromisoformat(line[:23]) for line in stderr.splitlines() if part in line]
    return len(times) <= (times[-1] - times[0]).total_seconds() + 2


def test_accepting_pauses_when_accept_fails_for_lack_of_descriptors() -> None:
    """The limit of the running server is lowered below the number of its open files, so that accept fails."""
    with Daemon(*LOOPBACK) as server, Peer(server) as good:
        assert is_served(good)
        pid = server.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (5, hard))
        with Peer(server) as late:
            late.send(b"list-tube-used\r\n")
            late.sock.settimeout(0.3)
            with pytest.raises(TimeoutError):
                late.read_line()
            assert is_served(good)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
            late.sock.settimeout(TIMEOUT)
            assert late.read_line() == b"USING default"
        assert limits_of(server)["files"] >= 1
        _, stderr = server.stop()
        assert "what='Too many open files'" in stderr and "Traceback" not in stderr


# Replies that wait for the disk


def test_reading_pauses_while_replies_wait_for_the_disk(tmp_path: Path) -> None:
    flags = ("-b", str(tmp_path), "-f", "0", "--max-output", "1000")
    with Daemon(*LOOPBACK, *flags) as server, Peer(server) as peer, Peer(server) as other:
        count = 3000
        for _ in range(10):
            peer.send(b"put 0 0 60 1\r\nx\r\n" * (count // 10))
            other.send(b"put 0 0 60 1\r\nx\r\n")
            assert other.read_line().startswith(b"INSERTED")
        assert all(peer.read_line().startswith(b"INSERTED") for _ in range(count))
        assert limits_of(server)["output"] >= 1


def test_each_limit_description_begins_with_a_plural_noun() -> None:
    """A log line consists of the description alone."""
    nouns = re.compile("(commands|connections|HTTP|puts|times|uses|watches) ")
    assert all(nouns.match(description) for description in LIMIT_DESCRIPTIONS.values())


def test_documentation_lists_every_limit() -> None:
    table = (REPOSITORY / "docs" / "security.md").read_text().partition("## Limits")[2].partition("## ")[0]
    last_cells = " ".join(line.split("|")[4] for line in table.splitlines() if line.startswith("| "))
    assert set(re.findall("`([a-z_]+)`", last_cells)) == set(LIMIT_DESCRIPTIONS) - {"access"}
