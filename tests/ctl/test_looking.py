"""Commands that show statistics, follow and pause, with both servers and over the API."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time

from greenstalkctl.address import parse
from greenstalkctl.follower import EXTRA_IDS, ProtocolFollower
from greenstalkctl.queue import Stats
from greenstalkctl.server import Server as Connection
from tests.ctl.world import BY_PROTOCOL_AND_API, Client, WithApi, address, connect, ctl, finish, run, spawn, spawn_at
from tests.support.daemon import TIMEOUT, Daemon
from tests.support.peer import eventually
from tests.support.ports import free_ports
from tests.support.processes import join
from tests.support.servers import Server


@BY_PROTOCOL_AND_API
def test_stats_shows_the_server(server: Server) -> None:
    done = ctl(server, "stats")
    assert done.code == 0
    assert f"pid {server.pid}" in " ".join(done.text.split())
    assert ctl(server, "stats", "--json").json["max-job-size"] == 65535


@BY_PROTOCOL_AND_API
def test_numbers_and_booleans_have_their_types_in_json_and_names_are_text(server: Server) -> None:
    stats = ctl(server, "stats", "--json").json
    assert (stats["draining"], type(stats["rusage-utime"]), type(stats["uptime"])) == (False, float, int)
    with connect(server, "1.5") as client:
        job_id = client.put(b"")
        tube = ctl(server, "tube", "1.5", "--json").json
        assert (tube["name"], type(tube.get("bury-rate", 0.0))) == ("1.5", float)
        assert ctl(server, "peek", str(job_id), "--json").json["tube"] == "1.5"


@BY_PROTOCOL_AND_API
def test_tubes_lists_each_tube_with_its_counts(server: Server, mail: Client) -> None:
    mail.put(b"")
    mail.put(b"", delay=100)
    (default, found) = ctl(server, "tubes", "--json").json
    assert (default["name"], found["name"]) == ("default", "mail")
    assert (found["current-jobs-ready"], found["current-jobs-delayed"]) == (1, 1)
    assert [line.split()[:6] for line in ctl(server, "tubes").text.splitlines()[2:]] == [
        ["default", "0", "0", "0", "0", "0"],
        ["mail", "1", "0", "0", "1", "0"],
    ]


@BY_PROTOCOL_AND_API
def test_tubes_sort_by_a_column(server: Server, mail: Client) -> None:
    mail.put(b"")
    assert [tube["name"] for tube in ctl(server, "tubes", "--sort", "ready", "--json").json] == ["mail", "default"]


@BY_PROTOCOL_AND_API
def test_tube_shows_statistics(server: Server, mail: Client) -> None:
    mail.put(b"")
    assert "total-jobs" in ctl(server, "tube", "mail").text
    assert ctl(server, "tube", "mail", "--json").json["total-jobs"] == 1
    assert ctl(server, "tube", "nothing").code == 1


@BY_PROTOCOL_AND_API
def test_pause_and_resume(server: Server, mail: Client) -> None:
    assert ctl(server, "pause", "mail", "5m", "--json").json == {"tube": "mail", "pause": 300}
    assert 295 < mail.stats_tube("mail")["pause-time-left"] <= 300
    assert ctl(server, "resume", "--tube", "mail").text == "mail is resumed\n"
    assert mail.stats_tube("mail")["pause-time-left"] == 0
    assert ctl(server, "pause", "--tube", "mail", "5", "--json").json == {"tube": "mail", "pause": 5}
    assert [ctl(server, "pause", *words).code for words in (["mail"], ["a", "b", "5"], ["a", "5", "--tube", "b"])] == [
        2
    ] * 3
    assert ctl(server, "pause", "nothing", "1").code == 1
    assert ctl(server, "resume", "nothing").code == 1


@BY_PROTOCOL_AND_API
def test_top_once_has_rates(server: Server, mail: Client) -> None:
    stop = threading.Event()

    def produce() -> None:
        with connect(server, "mail") as client:
            while not stop.is_set():
                client.delete(client.put(b""))
                time.sleep(0.001)

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()
    done = ctl(server, "top", "--once", "--interval", "0.3", "--json")
    stop.set()
    join(producer)
    assert done.json["server"]["pid"] == server.pid
    (row,) = (row for row in done.json["tubes"] if row["tube"] == "mail")
    assert row["puts_per_second"] > 0
    assert row["deletes_per_second"] > 0


def test_top_streams_json(one: Server) -> None:
    process = spawn(one, "top", "--json", "--interval", "0.1")
    assert process.stdout is not None
    snapshots = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [snapshot["tubes"][0]["tube"] for snapshot in snapshots] == ["default", "default"]
    assert finish(process, signal.SIGINT).code == 130


@BY_PROTOCOL_AND_API
def test_tail_shows_the_last_jobs_of_the_tube(server: Server, mail: Client) -> None:
    with connect(server, "post") as post:
        for number in range(4):
            mail.put(b"%d" % number, delay=100 * (number % 2))
            post.put(b"not this")
    found = ctl(server, "tail", "mail", "-n", "3", "--json").lines
    assert [(job["body"], job["state"]) for job in found] == [("1", "delayed"), ("2", "ready"), ("3", "delayed")]
    assert ctl(server, "tail", "mail").text.splitlines()[0].split("\t")[1:] == ["ready", "0"]


@BY_PROTOCOL_AND_API
def test_tail_reserves_no_job(server: Server, mail: Client) -> None:
    job_id = mail.put(b"")
    assert ctl(server, "tail", "mail").code == 0
    assert (mail.stats_job(job_id)["reserves"], mail.stats()["current-tubes"]) == (0, 2)


@BY_PROTOCOL_AND_API
def test_tail_of_an_empty_tube_is_exit_code_1(server: Server, mail: Client) -> None:
    assert ctl(server, "tail", "nothing").code == 1
    assert ctl(server, "tail", "mail").code == 1


def test_tail_consume_takes_ready_jobs(server: Server, mail: Client) -> None:
    mail.put(b"one")
    mail.put(b"later", delay=100)
    done = ctl(server, "tail", "mail", "--consume", "--yes", "--json")
    assert [job["body"] for job in done.lines] == ["one"]
    assert mail.stats_tube("mail")["current-jobs-delayed"] == 1
    assert ctl(server, "tail", "mail", "--consume", "--yes").code == 1


def test_tail_follow_shows_new_jobs(server: Server) -> None:
    with connect(server, "mail") as mail, connect(server, "post") as post:
        process = spawn(server, "tail", "mail", "--follow", "--interval", "0.05")
        assert process.stdout is not None
        for number in range(3):
            wait_for_poll(mail)
            mail.put(b"number %d" % number, delay=number)
            post.put(b"not this")
            assert process.stdout.readline().endswith(b"number %d\n" % number)
        process.terminate()
        assert finish(process).code == 130


def test_tail_follow_consume_deletes_printed_jobs(server: Server) -> None:
    with connect(server, "mail") as mail:
        process = spawn(server, "tail", "mail", "--follow", "--consume", "--yes")
        assert process.stdout is not None
        job_id = mail.put(b"hello")
        assert process.stdout.readline() == b"%d\treserved\thello\n" % job_id
        process.terminate()
        assert (finish(process).code, mail.stats()["current-jobs-ready"]) == (130, 0)


def wait_for_poll(client: Client) -> None:
    """Return once another client has requested the server's statistics, which a follower does in each poll."""
    before, own = client.stats()["cmd-stats"], 0

    def has_polled() -> bool:
        nonlocal own
        own += 1
        return client.stats()["cmd-stats"] >= before + own + 3

    eventually(has_polled, "the other client has requested the statistics")


def test_follower_sees_each_job_once(server: Server, mail: Client) -> None:
    with follow(server) as connection:
        follower = ProtocolFollower(connection, "mail")
        assert bodies(follower) == []
        mail.put(b"one")
        mail.put(b"two", delay=100)
        mail.put(b"three")
        mail.reserve(0)
        assert bodies(follower) == [b"one", b"two", b"three"]
        assert bodies(follower) == []


def test_follower_skips_ids_without_a_job(server: Server, mail: Client) -> None:
    """A put without a body uses an id, and is not counted as a job."""
    with follow(server) as connection:
        follower = ProtocolFollower(connection, "mail")
        for round_ in range(3):
            before = mail.put(b"gone")
            mail.delete(before)
            put_without_bodies(server, EXTRA_IDS - 1)
            for _ in range(3 * EXTRA_IDS):
                mail.delete(mail.put(b"gone"))
            job_id = mail.put(b"%d" % round_)
            assert job_id - before == EXTRA_IDS + 3 * EXTRA_IDS, "the follower uses no id"
            assert bodies(follower) == [b"%d" % round_]


def put_without_bodies(server: Server, count: int) -> None:
    """Start *count* puts, and close each connection in the middle of the body."""
    for _ in range(count):
        with socket.create_connection(server.address) as sock:
            sock.sendall(b"put 0 0 60 5\r\nab")
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(10) == b""


class ServerWithConcurrentPut(Connection):
    """A connection; before its next `tube` query, *mail* puts a job into the tube, and two into another tube."""

    mail: Client | None = None

    def tube(self, name: str) -> Stats | None:
        if self.mail is not None:
            self.mail.put(b"between")
            self.mail.use("post")
            self.mail.put(b"not this")
            self.mail.put(b"not this")
            self.mail = None
        return super().tube(name)


def test_follower_sees_jobs_put_between_two_counts(server: Server, mail: Client) -> None:
    with ServerWithConcurrentPut(parse(address(server)), TIMEOUT) as connection:
        follower = ProtocolFollower(connection, "mail")
        for _ in range(3 * EXTRA_IDS):
            connection.mail = mail
            assert bodies(follower) == [b"between"]
            mail.use("mail")
            mail.delete(mail.put(b"gone"))
            mail.put(b"after")
            assert bodies(follower) == [b"after"]


def test_follower_of_a_new_tube_sees_its_first_job(server: Server) -> None:
    with follow(server) as connection, connect(server) as client:
        follower = ProtocolFollower(connection, "mail")
        assert bodies(follower) == []
        client.use("mail")
        client.put(b"first")
        assert bodies(follower) == [b"first"]


def follow(server: Server) -> Connection:
    return Connection(parse(address(server)), TIMEOUT)


def bodies(follower: ProtocolFollower) -> list[bytes]:
    return [view.body for view in follower.new()]


def test_watched_command_writes_one_output_after_the_other(one: Server) -> None:
    process = spawn(one, "peek", "1000", "--watch", "100ms")
    errors = [process.stderr.readline() for _ in range(2)]
    assert errors == [b"greenstalkctl: there is no job 1000 on %b\n" % address(one).encode()] * 2
    process = spawn(one, "tube", "default", "--watch", "100ms", "--json")
    assert [json.loads(process.stdout.readline())["name"] for _ in range(2)] == ["default"] * 2
    assert finish(process, signal.SIGINT).code == 130


def test_watch_refuses_what_it_cannot_repeat(one: Server) -> None:
    assert ctl(one, "peek", "mail", "--raw", "--watch", "1s").code == 2
    assert ctl(one, "tube", "--watch", "1s").code == 2


def test_connections_lists_workers_with_their_jobs(with_api: WithApi) -> None:
    with connect(with_api, "mail") as client:
        client.put(b"")
        client.reserve(0)
        (found,) = ctl(with_api, "connections", "--query", "mail", "--json").lines
        assert (found["is_worker"], found["held"], found["watches"]) == (True, 1, ["mail"])
        assert "producer, worker" in ctl(with_api, "connections").text
    assert ctl(with_api, "connections", "--query", "no-such-tube").code == 1


def test_raw_prints_the_reply(server: Server) -> None:
    inserted = ctl(server, "raw", "put 0 0 60", "hello")
    job_id = inserted.text.removeprefix("INSERTED ").strip()
    assert inserted.code == 0
    assert ctl(server, "raw", f"peek {job_id}").out == f"FOUND {job_id} 5\nhello".encode()
    assert ctl(server, "raw", "stats-tube default").text.splitlines()[1:3] == ["---", "name: default"]
    assert ctl(server, "raw", "peek 99999", "--json").code == 1
    wrong = ctl(server, "raw", "no-such-command")
    assert (wrong.code, wrong.text) == (4, "UNKNOWN_COMMAND\n")
    for args in (("put 0 0 60 5",), ("two\nlines",), (" ",)):
        assert ctl(server, "raw", *args).code == 2


def test_ping_waits_for_the_server() -> None:
    (port,) = free_ports(1)
    where = ("-s", f"127.0.0.1:{port}")
    waiting = spawn_at(where, "ping", "--wait", f"{TIMEOUT:g}s")
    with Daemon("-l", "127.0.0.1", "-p", str(port), "--no-web"):
        assert finish(waiting).code == 0
    assert run(*where, "ping", "--wait", "100ms").code == 3
