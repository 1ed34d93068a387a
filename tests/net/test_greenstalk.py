"""Every method and exception of the client library greenstalk."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import greenstalk
import pytest
from greenstalk import Client

from tests.support.daemon import TIMEOUT, Daemon
from tests.support.peer import connections, eventually


@pytest.fixture
def address(server: Daemon) -> Iterator[tuple[str, int]]:
    """The address of a server without jobs and connections. The jobs of the test are deleted after it."""
    eventually(lambda: connections(server) == 0, "all earlier connections are closed")
    address = ("127.0.0.1", server.port)
    yield address
    with Client(address, encoding=None) as client:
        for tube in client.tubes():
            client.pause_tube(tube, 0)
            client.watch(tube)
            client.use(tube)
            client.kick(2**32 - 1)
        with contextlib.suppress(greenstalk.TimedOutError):
            while True:
                client.delete(client.reserve(0))


@pytest.fixture
def client(address: tuple[str, int]) -> Iterator[Client[str]]:
    with Client(address) as client:
        yield client


@pytest.fixture
def other(address: tuple[str, int]) -> Iterator[Client[str]]:
    with Client(address) as client:
        yield client


def test_put_reserve_delete(client: Client[str]) -> None:
    id = client.put("hellö")
    job = client.reserve()
    assert (job.id, job.body) == (id, "hellö")
    client.delete(job)
    with pytest.raises(greenstalk.TimedOutError):
        client.reserve(0)


def test_body_may_contain_every_byte(address: tuple[str, int]) -> None:
    body = bytes(range(256)) * 200 + b"\r\n"
    with Client(address, encoding=None) as client:
        client.put(body)
        assert client.reserve(1).body == body


def test_priority_delay_and_ttr(client: Client[str]) -> None:
    client.put("later", priority=10)
    client.put("first", priority=0, ttr=7)
    delayed = client.put("delayed", delay=100)
    job = client.reserve()
    assert job.body == "first"
    assert client.stats_job(job)["ttr"] == 7
    assert (client.stats_job(delayed)["state"], client.stats_job(delayed)["delay"]) == ("delayed", 100)


def test_use_watch_ignore_and_lists(address: tuple[str, int]) -> None:
    with Client(address, use="mail", watch=["mail", "sms"]) as client:
        assert client.using() == "mail"
        assert client.watching() == ["mail", "sms"]
        assert client.watch("push") == 3
        assert client.ignore("sms") == 2
        client.use("push")
        assert client.using() == "push"
        assert client.tubes() == ["default", "mail", "push"]


def test_reserve_job(client: Client[str], other: Client[str]) -> None:
    id = client.put("x", delay=100)
    assert other.reserve_job(id).body == "x"
    with pytest.raises(greenstalk.NotFoundError):
        client.reserve_job(id)


def test_release_bury_touch_and_kicks(client: Client[str]) -> None:
    client.put("x")
    job = client.reserve()
    client.release(job, priority=5, delay=100)
    client.kick_job(job)
    job = client.reserve()
    client.touch(job)
    client.bury(job, priority=6)
    assert client.kick(10) == 1
    stats = client.stats_job(job.id)
    assert (stats["pri"], stats["releases"], stats["buries"], stats["kicks"]) == (6, 1, 1, 2)


def test_peeks(client: Client[str]) -> None:
    client.put("ready")
    client.put("delayed", delay=100)
    client.put("buried", priority=0)
    client.bury(client.reserve())
    assert client.peek(client.peek_ready().id).body == "ready"
    assert client.peek_delayed().body == "delayed"
    assert client.peek_buried().body == "buried"


def test_stats_of_a_job_and_a_tube_are_whole_dictionaries(client: Client[str]) -> None:
    """The library's own tests compare these replies with all keys that it knows."""
    id = client.put("hello", ttr=7)
    assert client.stats_job(id) == {
        "id": id,
        "tube": "default",
        "state": "ready",
        "pri": greenstalk.DEFAULT_PRIORITY,
        "age": 0,
        "delay": 0,
        "ttr": 7,
        "time-left": 0,
        "file": 0,
        "reserves": 0,
        "timeouts": 0,
        "releases": 0,
        "buries": 0,
        "kicks": 0,
    }
    client.use("mail")
    assert client.stats_tube("mail") == {
        "name": "mail",
        "current-jobs-urgent": 0,
        "current-jobs-ready": 0,
        "current-jobs-reserved": 0,
        "current-jobs-delayed": 0,
        "current-jobs-buried": 0,
        "total-jobs": 0,
        "current-using": 1,
        "current-watching": 0,
        "current-waiting": 0,
        "cmd-delete": 0,
        "cmd-pause-tube": 0,
        "pause": 0,
        "pause-time-left": 0,
    }
    assert client.stats().keys() == greenstalk.Stats.__annotations__.keys()


def test_stats_and_pause(client: Client[str]) -> None:
    client.put("x")
    client.pause_tube("default", 100)
    with pytest.raises(greenstalk.TimedOutError):
        client.reserve(0)
    tube = client.stats_tube("default")
    assert (tube["name"], tube["pause"], tube["current-jobs-ready"]) == ("default", 100, 1)
    stats = client.stats()
    assert (stats["current-connections"], stats["draining"], stats["max-job-size"]) == (1, "false", 65535)


def test_reserve_blocks_until_a_job_is_put(client: Client[str], other: Client[str]) -> None:
    got: list[str] = []
    worker = threading.Thread(target=lambda: got.append(client.reserve().body), daemon=True)
    worker.start()
    other.put("x")
    worker.join(TIMEOUT)
    assert got == ["x"]


def test_reserve_blocks_for_its_timeout(client: Client[str]) -> None:
    with pytest.raises(greenstalk.TimedOutError):
        client.reserve(timeout=1)


def test_unix_sockets(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = str(tmp_path_factory.mktemp("s") / "s")
    with Daemon("-l", f"unix:{path}", "--no-web"), Client(path) as client:
        client.put("x")
        assert client.reserve().body == "x"


def test_client_accepts_a_connected_socket(server: Daemon) -> None:
    with Client(socket.create_connection(("127.0.0.1", server.port)), use="a") as client:
        assert client.using() == "a"


# Every exception that a server can cause


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.delete(10**9),
        lambda client: client.release(greenstalk.Job(10**9, "")),
        lambda client: client.bury(greenstalk.Job(10**9, "")),
        lambda client: client.touch(greenstalk.Job(10**9, "")),
        lambda client: client.kick_job(10**9),
        lambda client: client.reserve_job(10**9),
        lambda client: client.peek(10**9),
        lambda client: client.peek_ready(),
        lambda client: client.peek_delayed(),
        lambda client: client.peek_buried(),
        lambda client: client.stats_job(10**9),
        lambda client: client.stats_tube("missing"),
        lambda client: client.pause_tube("missing", 1),
    ],
)
def test_not_found(client: Client[str], call: Callable[[Client[str]], object]) -> None:
    with pytest.raises(greenstalk.NotFoundError):
        call(client)


def test_not_ignored(client: Client[str]) -> None:
    with pytest.raises(greenstalk.NotIgnoredError):
        client.ignore("default")


def test_deadline_soon(client: Client[str]) -> None:
    client.put("x", ttr=5)  # the reserve waits for four of the five seconds
    client.reserve()
    with pytest.raises(greenstalk.DeadlineSoonError):
        client.reserve()


def test_job_too_big_keeps_the_connection(client: Client[str]) -> None:
    client.put("x" * 65535)
    with pytest.raises(greenstalk.JobTooBigError):
        client.put("x" * 65536)
    assert client.using() == "default"


@pytest.mark.parametrize("name", ["-a", "a b", "a" * 201, ""])
def test_bad_format(client: Client[str], name: str) -> None:
    with pytest.raises(greenstalk.BadFormatError):
        client.watch(name)


@pytest.mark.parametrize("number", [-1, 2**32])
def test_bad_numbers(client: Client[str], number: int) -> None:
    client.put("x")
    job = client.reserve()
    with pytest.raises(greenstalk.BadFormatError):
        client.release(job, priority=number)


def test_commands_that_the_library_never_sends(client: Client[str]) -> None:
    with pytest.raises(greenstalk.UnknownCommandError):
        client._send_cmd(b"hello", b"HELLO")
    with pytest.raises(greenstalk.UnknownCommandError):
        client._send_cmd(b"", b"")
    with pytest.raises(greenstalk.ExpectedCrlfError):
        client._send_cmd(b"put 0 0 1 1\r\nxx", b"INSERTED")
    with pytest.raises(ConnectionError):
        client.put("x")


def test_quit_closes_the_connection(client: Client[str]) -> None:
    with pytest.raises(ConnectionError):
        client._send_cmd(b"quit", b"")


def test_draining() -> None:
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web") as server, Client(("127.0.0.1", server.port)) as client:
        client.put("x")
        server.process.send_signal(signal.SIGUSR1)
        eventually(lambda: client.stats()["draining"] == "true", "the server drains")
        with pytest.raises(greenstalk.DrainingError):
            client.put("y")
        client.delete(client.reserve())
