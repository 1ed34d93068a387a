"""The system calls of runtime/system.py, in the form of Linux and in the portable form; and a server in the latter."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import gevent
import pytest
from gevent import get_hub

from greenstalk_server.runtime import system as imported
from tests.support.daemon import TIMEOUT, Daemon, environment
from tests.support.peer import Peer, eventually

LINUX, PORTABLE = "0", "1"
CONNECTIONS = 200


def load(monkeypatch: pytest.MonkeyPatch, form: str) -> Any:
    """Return a new copy of the module in *form*."""
    monkeypatch.setenv("GREENSTALK_PORTABLE", form)
    assert imported.__file__ is not None
    spec = importlib.util.spec_from_file_location("system_of_the_test", imported.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (form == PORTABLE) == module.IS_PORTABLE
    return module


@pytest.fixture(params=[LINUX, PORTABLE], ids=["linux", "portable"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module in both forms."""
    return load(monkeypatch, request.param)


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module in the portable form."""
    return load(monkeypatch, PORTABLE)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        yield near, far


# Files


def test_file_is_allocated_and_its_content_stays(system: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    size = 3 * 2**20 + 5
    with path.open("r+b") as file:
        system.allocate(file.fileno(), size)
        assert os.fstat(file.fileno()).st_blocks * 512 >= size
        system.allocate(file.fileno(), 10)
    assert path.read_bytes() == b"content".ljust(size, b"\0")


def test_file_that_cannot_be_allocated_keeps_its_size(system: Any, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"content")
        file.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**21, hard))
        try:
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
                system.allocate(file.fileno(), 2**22)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert os.fstat(file.fileno()).st_size == len(b"content")


@pytest.mark.parametrize("name", ["sync_data", "sync_all"])
def test_error_of_a_sync_is_raised(system: Any, name: str) -> None:
    sync: Callable[[int], None] = getattr(system, name)
    reader, writer = os.pipe()
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        sync(writer)
    os.close(reader)
    os.close(writer)


def test_holder_of_a_lock_is_found(system: Any, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w+b") as file:
        assert system.lock_holder(file.fileno()) == 0
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            with path.open("r+b") as same:
                fcntl.lockf(same, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(writer, b"x")
                signal.pause()
        assert os.read(reader, 1) == b"x"
        assert system.lock_holder(file.fileno()) == child
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert system.lock_holder(file.fileno()) == 0
        os.close(reader)
        os.close(writer)


# Sockets


def test_keepalive_is_set(system: Any) -> None:
    with socket.socket() as sock:
        system.set_keepalive(sock, 20, 3, 4)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [20, 3, 4]


def test_everything_is_acknowledged_on_loopback(system: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as peer:
        peer.send(b"x")
        assert system.unacknowledged(peer)[0] == 0


def test_close_behind_unread_input_is_noticed(system: Any, pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.send(b"x")
    assert not system.has_peer_closed(near.fileno())
    far.close()
    assert system.has_peer_closed(near.fileno())


def test_process_of_a_peer_is_named_if_the_system_says(system: Any, pair: tuple[socket.socket, socket.socket]) -> None:
    found = system.peer_process(pair[0])
    assert found == "" if system.IS_PORTABLE else found.endswith(f", process {os.getpid()}")


def test_bound_socket_is_found_on_linux_only(system: Any, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        assert system.is_bound(path) is not system.IS_PORTABLE
        sock.listen()
        assert not system.is_bound(path)


# The process


def test_boot_time_advances(system: Any) -> None:
    before = system.boot_time()
    gevent.sleep(0.002)
    assert 0.002 <= system.boot_time() - before < TIMEOUT


@pytest.mark.parametrize("hard", [100, 10_241, resource.RLIM_INFINITY])
def test_portable_file_limit_is_one_that_macos_accepts(portable: Any, hard: int) -> None:
    assert portable.largest_file_limit(hard) == (100 if hard == 100 else 10_240)


# The poll


class Watched:
    """The ends of socket pairs, registered in a poll; and the events of each call of the loop."""

    def __init__(self, system: Any, count: int, limit: int = 64) -> None:
        self.poll, self._watcher = system.open_poll(get_hub().loop)
        self._limit = limit
        self.calls: list[list[tuple[int, int]]] = []
        self.pairs = [socket.socketpair() for _ in range(count)]
        self.near = [near.fileno() for near, _ in self.pairs]
        for fd in self.near:
            self.poll.register(fd, system.EDGE_EVENTS)
        self._watcher.start(self._note)
        gevent.sleep(0.001)  # until the loop watches the sockets

    def _note(self) -> None:
        self.calls.append(self.poll.poll(0, self._limit))

    def events(self, count: int) -> list[tuple[int, int]]:
        """Return the events, of which there must be *count*."""
        with gevent.Timeout(TIMEOUT):
            while len(found := [event for call in self.calls for event in call]) < count:
                gevent.sleep(0.001)
        gevent.sleep(0.005)
        assert sum(map(len, self.calls)) == count
        return found

    def close(self) -> None:
        self._watcher.stop()
        for near, far in self.pairs:
            self.poll.unregister(near.fileno())
            near.close()
            far.close()


def test_sockets_are_reported_once_in_order_of_arrival_and_in_batches(system: Any) -> None:
    watched = Watched(system, 5, limit=2)
    order = [3, 0, 4, 1, 2]
    for number in order:
        watched.pairs[number][1].send(b"x")
    assert watched.events(5) == [(watched.near[number], 1) for number in order]
    assert [len(call) for call in watched.calls if call] == [2, 2, 1]
    watched.close()


def test_armed_socket_is_reported_for_what_is_left_unread(portable: Any) -> None:
    watched = Watched(portable, 1)
    near, far = watched.pairs[0]
    far.send(b"xy")
    watched.events(1)
    near.recv(1)
    watched.events(1)
    watched.poll.arm(near.fileno())
    watched.events(2)
    near.recv(1)
    watched.poll.arm(near.fileno())
    watched.events(2)
    far.send(b"z")
    watched.events(3)
    watched.close()


def test_hang_up_behind_unread_input_is_reported_once(portable: Any) -> None:
    portable.HANG_UP_CHECK_INTERVAL = 0.01
    watched = Watched(portable, 1)
    watched.pairs[0][1].send(b"x")
    watched.events(1)
    watched.pairs[0][1].close()
    assert watched.events(2)[1] == (watched.near[0], portable.INPUT | portable.HANG_UP)
    gevent.sleep(0.03)
    watched.events(2)
    watched.close()


def test_unregistered_socket_is_not_reported(portable: Any) -> None:
    """Neither if the loop has seen its input already: a new connection may have its descriptor by now."""
    watched = Watched(portable, 2)
    for fd in watched.near:
        watched.poll._fire(fd)
    watched.poll.unregister(watched.near[0])
    watched.poll.register(watched.near[0], portable.EDGE_EVENTS)
    assert watched.events(1) == [(watched.near[1], portable.INPUT)]
    watched.close()


# A server in the portable form


def test_portable_server_serves_and_keeps_its_jobs_when_it_is_killed(tmp_path: Path) -> None:
    """It also notices that a waiting client has closed behind input that the server does not read yet."""
    flags = ("-l", "127.0.0.1", "-p", "0", "-b", str(tmp_path), "-f", "0", "--web-port", "0")
    environ = environment(GREENSTALK_PORTABLE=PORTABLE)
    with Daemon(*flags, environ=environ) as daemon, ExitStack() as closing:
        peers = [closing.enter_context(Peer(daemon)) for _ in range(CONNECTIONS)]
        workers, producers = peers[: CONNECTIONS // 2], peers[CONNECTIONS // 2 :]
        for worker in workers:
            worker.send(b"reserve\r\n")
        for producer in producers:
            producer.send(b"put 0 0 60 1\r\nx\r\n" * 3)
        assert {worker.read_line()[:9] for worker in workers} == {b"RESERVED "}
        assert {producer.read_line()[:9] for producer in producers for _ in range(3)} == {b"INSERTED "}
        large = producers[0].ask(b"put 0 0 60 65000\r\n%b" % bytes(65000)).removeprefix(b"INSERTED ")
        assert producers[0].ask(b"delete " + large) == b"DELETED"
        assert urlopen(f"{daemon.dashboard}/healthz", timeout=TIMEOUT).status == 200  # noqa: S310
        daemon.process.kill()
        daemon.process.wait(TIMEOUT)
    with Daemon(*flags, environ=environ) as daemon, Peer(daemon) as good:
        assert good.stats()["current-jobs-ready"] == str(3 * len(producers))
        with Peer(daemon) as waiting:
            waiting.send(b"watch empty\r\nignore default\r\nreserve\r\n" + b"list-tube-used\r\n" * 20_000)
            eventually(lambda: good.stats()["current-waiting"] == "1", "the client waits")
        eventually(lambda: good.stats()["current-connections"] == "1", "the client is gone")


def test_server_starts_on_macos_with_a_warning() -> None:
    """The name of the system is replaced after the imports, since other packages would look for its libraries."""
    program = (
        "import sys, gevent, gevent.pywsgi, greenstalk_server.version, ctypes.util, pwd, socket, ssl, subprocess;"
        "sys.platform = 'darwin'; from greenstalk_server.__main__ import main; sys.exit(main())"
    )
    command = (sys.executable, "-c", program)
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", command=command) as daemon:
        assert daemon.ask(b"put 0 0 60 1\r\nx\r\n") == b"INSERTED 1"
        code, stderr = daemon.stop()
    assert code == 0
    assert "the server is untested on macOS; for production, run it on Linux or in a container" in stderr
