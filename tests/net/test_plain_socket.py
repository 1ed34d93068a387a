"""The C versions of recv, send and poll behave like the methods of a non-blocking socket and of select.epoll."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

module = pytest.importorskip("greenstalk_server.net._plain_socket", reason="run `make compiled`")
PlainSocket, poll = module.PlainSocket, module.poll

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture(params=["unix", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Two connected non-blocking sockets."""
    if request.param == "unix":
        near, far = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.create_connection(listener.getsockname())
            far, _ = listener.accept()
    near.setblocking(False)
    far.setblocking(False)
    with near, far:
        yield near, far


def outcome(call: Any, argument: object) -> object:
    """Return what *call* returns, or the type and number of the OSError that it raises."""
    try:
        return call(argument)
    except OSError as error:
        return type(error), error.errno


@pytest.mark.parametrize("size", [0, 1, 100, 8191, 8192, 65536, 69632, 2**20])
def test_received_bytes_equal_sent_bytes(ends: Ends, size: int) -> None:
    near, far = ends
    plain = PlainSocket(near.fileno())
    random = Random(size)  # noqa: S311
    for _ in range(20):
        data = random.randbytes(random.randrange(1, 20_000))
        far.sendall(data)
        received = b""
        while len(received) < len(data) and size:
            part = outcome(plain.recv, size)
            if isinstance(part, bytes):
                assert 0 < len(part) <= size
                received += part
        if not size:
            assert plain.recv(0) == b""
            received = near.recv(len(data))
        assert received == data


def test_recv_without_input_raises_blocking_io_error(ends: Ends) -> None:
    near, _ = ends
    assert outcome(PlainSocket(near.fileno()).recv, 100) == outcome(near.recv, 100)
    with pytest.raises(BlockingIOError):
        PlainSocket(near.fileno()).recv(100)


def test_recv_returns_empty_bytes_at_the_end_of_the_stream(ends: Ends) -> None:
    near, far = ends
    far.close()
    assert PlainSocket(near.fileno()).recv(100) == b""


@pytest.mark.parametrize("size", [-1, 2**70, "1", None])
def test_recv_refuses_a_bad_size_like_a_socket(ends: Ends, size: Any) -> None:
    near, _ = ends
    with pytest.raises(Exception) as of_socket:  # noqa: PT011  compared below
        near.recv(size)
    with pytest.raises(Exception) as of_plain:  # noqa: PT011
        PlainSocket(near.fileno()).recv(size)
    assert of_plain.type is of_socket.type


def test_send_returns_the_number_of_accepted_bytes(ends: Ends) -> None:
    near, far = ends
    plain = PlainSocket(near.fileno())
    data = Random(1).randbytes(2**22)  # noqa: S311
    sent = 0
    received = b""
    while sent < len(data):
        count = outcome(plain.send, data[sent:])
        if isinstance(count, int):
            assert count > 0
            sent += count
        else:
            assert count == outcome(near.send, b"x")  # full for the socket, too
            received += far.recv(2**22)
    while len(received) < len(data):
        received += far.recv(2**22)
    assert received == data


def test_send_to_a_closed_peer_raises_and_sends_no_signal(ends: Ends) -> None:
    near, far = ends
    far.close()
    errors = [outcome(PlainSocket(near.fileno()).send, b"x") for _ in range(50)]
    assert isinstance(errors[-1], tuple)
    assert issubclass(errors[-1][0], ConnectionError)


def test_closed_descriptor_raises_os_error() -> None:
    near, far = socket.socketpair()
    fd = near.fileno()
    near.close()
    far.close()
    assert outcome(PlainSocket(fd).recv, 1) == outcome(PlainSocket(fd).send, b"x") == (OSError, 9)


@pytest.mark.parametrize("data", ["text", 1, None, bytearray(b"x")])
def test_send_accepts_bytes_alone(ends: Ends, data: Any) -> None:
    with pytest.raises(TypeError, match="bytes"):
        PlainSocket(ends[0].fileno()).send(data)


@pytest.fixture
def epoll() -> Iterator[select.epoll]:
    with select.epoll() as it:
        yield it


def test_poll_returns_what_select_epoll_returns(epoll: select.epoll) -> None:
    pairs = [socket.socketpair() for _ in range(10)]
    for near, _ in pairs:
        epoll.register(near, select.EPOLLIN | select.EPOLLRDHUP)
    assert poll(epoll.fileno(), 0, 16) == []
    for _, far in pairs[:6]:
        far.send(b"x")
    pairs[9][1].close()
    found = poll(epoll.fileno(), 0, 16)
    assert len(found) == 7
    assert sorted(found) == sorted(epoll.poll(0, 16))
    assert len(poll(epoll.fileno(), 0, 3)) == 3
    for near, far in pairs:
        near.close()
        far.close()


def test_poll_waits_for_the_first_event_and_lets_threads_run(epoll: select.epoll) -> None:
    near, far = socket.socketpair()
    with near, far:
        epoll.register(near, select.EPOLLIN)
        began = time.monotonic()
        assert poll(epoll.fileno(), 20, 16) == []
        assert time.monotonic() - began >= 0.019
        timer = threading.Timer(0.05, far.send, [b"x"])
        timer.start()
        assert poll(epoll.fileno(), 10_000, 16) == [(near.fileno(), select.EPOLLIN)]
        timer.join()


def test_signal_ends_a_poll(epoll: select.epoll) -> None:
    caught: list[int] = []
    former = signal.signal(signal.SIGUSR2, lambda number, frame: caught.append(number))
    try:
        timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR2])
        timer.start()
        began = time.monotonic()
        assert poll(epoll.fileno(), 10_000, 16) == []
        assert time.monotonic() - began < 9
        assert caught == [signal.SIGUSR2]
        timer.join()
    finally:
        signal.signal(signal.SIGUSR2, former)


@pytest.mark.parametrize("arguments", [(), (0, 0), (0, 0, 1, 1)])
def test_poll_refuses_another_number_of_arguments(arguments: tuple[int, ...]) -> None:
    with pytest.raises(TypeError):
        poll(*arguments)


@pytest.mark.parametrize("arguments", [(-1, 0, 1), (0, -1, 1), (0, 2**31, 1), (0, 0, -1), (0, 0, 65)])
def test_poll_refuses_a_number_out_of_range(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="is not from 0 to"):
        poll(*arguments)


def test_poll_of_a_closed_descriptor_raises_os_error(epoll: select.epoll) -> None:
    fd = epoll.fileno()
    epoll.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        poll(fd, 0, 1)
