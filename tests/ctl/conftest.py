"""Ours and Debian's beanstalkd, both without a job at the start of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.servers import Server, ours, peer
from tests.ctl.world import Client, connect


@pytest.fixture(scope="session")
def _servers() -> Iterator[dict[str, Server]]:
    servers = {"ours": Server(ours()), "beanstalkd": Server(peer())}
    yield servers
    for server in servers.values():
        server.close()


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GREENSTALKCTL_SERVER", raising=False)


@pytest.fixture(params=["ours", "beanstalkd"])
def server(request: pytest.FixtureRequest, _servers: dict[str, Server]) -> Server:
    """Each of the two, one after the other."""
    server = _servers[request.param]
    server.reset()
    return server


@pytest.fixture
def other(server: Server, _servers: dict[str, Server]) -> Server:
    """The one that `server` is not."""
    (other,) = (candidate for candidate in _servers.values() if candidate is not server)
    other.reset()
    return other


@pytest.fixture
def one(_servers: dict[str, Server]) -> Server:
    """Either, where it does not matter which."""
    _servers["beanstalkd"].reset()
    return _servers["beanstalkd"]


@pytest.fixture
def mail(server: Server) -> Iterator[Client]:
    """A client of `server` in tube `mail`."""
    with connect(server, "mail") as client:
        yield client
