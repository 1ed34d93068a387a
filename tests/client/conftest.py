"""Both servers."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import greenstalk
import pytest

from greenstalk_client import Client
from tests.support.daemon import TIMEOUT, Daemon
from tests.support.ports import free_ports
from tests.support.processes import ending
from tests.support.servers import peer

Address = tuple[str, int]


@pytest.fixture(scope="module")
def ours(server: Daemon) -> Address:
    """The address of this server."""
    return "127.0.0.1", server.port


@pytest.fixture(scope="module")
def plain() -> Iterator[Address]:
    """The address of Debian's beanstalkd."""
    (port,) = free_ports(1)
    with ending(subprocess.Popen(peer().arguments(port, ()))):
        await_listener(port)
        yield "127.0.0.1", port


@pytest.fixture(params=["ours", "plain"])
def address(request: pytest.FixtureRequest) -> Address:
    """The address of each of both servers."""
    address: Address = request.getfixturevalue(request.param)
    return address


@pytest.fixture
def client(ours: Address) -> Iterator[Client[str]]:
    with Client(ours) as client:
        yield client
        for tube in client.tubes():
            with suppress(greenstalk.NotFoundError):  # the tube of an earlier client that has just disconnected
                client.flush_tube(tube)
                client.pause_tube(tube, 0)


def await_listener(port: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), TIMEOUT).close()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            return
