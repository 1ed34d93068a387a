"""The client library greenstalk: texts, lists, whole dictionaries, waits, kinds of addresses, and its exceptions.

The replies to all other commands are compared with those of beanstalkd by tests/conformance.
"""

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


def test_use_watch_ignore_and_lists(address: tuple[str, int]) -> None:
    with Client(address, use="mail", watch=["mail", "sms"]) as client:
        assert client.using() == "mail"
        assert client.watching() == ["mail", "sms"]
        assert client.watch("push") == 3
        assert client.ignore("sms") == 2
        client.use("push")
        assert client.using() == "push"
        assert client.tubes() == ["default", "mail", "push"]


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


def test_reserve_blocks_until_a_job_is_put(client: Client[str], other: Client[str]) -> None:
    got: list[str] = []
    worker = threading.Thread(target=lambda: got.append(client.reserve().body), daemon=True)
    worker.start()
    other.put("x")
    worker.join(TIMEOUT)
    assert got == ["x"]


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
    ("call", "error"),
    [
        (lambda client: client.delete(10**9), greenstalk.NotFoundError),
        (lambda client: client.stats_tube("missing"), greenstalk.NotFoundError),
        (lambda client: client.reserve(0), greenstalk.TimedOutError),
        (lambda client: client.ignore("default"), greenstalk.NotIgnoredError),
        (lambda client: client.put("x" * 65536), greenstalk.JobTooBigError),
        (lambda client: client.watch("-a"), greenstalk.BadFormatError),
        (lambda client: client._send_cmd(b"hello", b"HELLO"), greenstalk.UnknownCommandError),
    ],
)
def test_refused_command_raises_and_keeps_the_connection(
    client: Client[str], call: Callable[[Client[str]], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(client)
    assert client.using() == "default"


def test_draining() -> None:
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web") as server, Client(("127.0.0.1", server.port)) as client:
        client.put("x")
        server.process.send_signal(signal.SIGUSR1)
        eventually(lambda: client.stats()["draining"] == "true", "the server drains")
        with pytest.raises(greenstalk.DrainingError):
            client.put("y")
        client.delete(client.reserve())
