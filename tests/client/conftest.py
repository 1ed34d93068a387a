"""Both servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import greenstalk
import pytest

from greenstalk_client import Client
from tests.support.daemon import Daemon
from tests.support.servers import Server, peer

Address = tuple[str, int]


@pytest.fixture(scope="module")
def ours(server: Daemon) -> Address:
    """The address of this server."""
    return "127.0.0.1", server.port


@pytest.fixture(scope="module")
def plain() -> Iterator[Address]:
    """The address of Debian's beanstalkd."""
    server = Server(peer())
    yield server.address
    server.close()


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
