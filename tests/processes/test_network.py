"""The network of the rounds cuts and delays what it should, and nothing else."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.processes.network import Network

THERE = ("client", "server")
BACK = ("server", "client")
SHORT = 0.05
TIMEOUT = 10
"""Seconds."""


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network(1)
    yield network
    network.close()


@pytest.fixture
def ends(network: Network) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection through *network*: the end of the client, and that of the server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = network.listen(listener.getsockname()[1], "server", lambda _: "client")
        with socket.create_connection(("127.0.0.1", port), TIMEOUT) as client:
            server, _ = listener.accept()
            with server:
                server.settimeout(TIMEOUT)
                yield client, server


def test_cut_is_of_one_direction_and_its_data_arrives_late(
    network: Network, ends: tuple[socket.socket, socket.socket]
) -> None:
    client, server = ends
    network.cut(THERE)
    client.sendall(b"x")
    server.sendall(b"y")
    assert client.recv(1) == b"y"
    server.settimeout(SHORT)
    with pytest.raises(TimeoutError):
        server.recv(1)
    server.settimeout(TIMEOUT)
    network.mend(is_late=True)
    assert server.recv(1) == b"x"


def test_connection_that_was_cut_is_reset(network: Network, ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    network.cut(THERE, BACK)
    client.sendall(b"x")
    network.mend(is_late=False)
    for end in (client, server):
        with suppress(ConnectionResetError):
            assert end.recv(1) == b""


def test_end_of_the_stream_waits_behind_data(network: Network, ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    network.slow(SHORT, SHORT)
    began = time.monotonic()
    client.sendall(b"last")
    client.shutdown(socket.SHUT_WR)
    assert (server.recv(4), server.recv(1)) == (b"last", b"")
    assert time.monotonic() - began >= SHORT
