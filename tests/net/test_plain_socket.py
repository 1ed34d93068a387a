"""The C implementation of recv and send does what the methods of a non-blocking socket do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

PlainSocket = pytest.importorskip("greenstalk_server.net._plain_socket", reason="run `make compiled`").PlainSocket

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
