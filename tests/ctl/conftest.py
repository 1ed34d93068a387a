"""Fixtures: Greenstalk Server, over the protocol and over its API, and beanstalkd; each is empty when a test starts."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.ctl.world import Client, WithApi, connect, end_spawned
from tests.support.servers import Server, ours, peer


@pytest.fixture(scope="session")
def _servers() -> Iterator[dict[str, Server]]:
    servers = {"ours": Server(ours()), "beanstalkd": Server(peer()), "api": WithApi()}
    yield servers
    for server in servers.values():
        server.close()


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVER", "API", "API_TOKEN"):
        monkeypatch.delenv(f"GREENSTALKCTL_{name}", raising=False)
    monkeypatch.setenv("GREENSTALKCTL_CONFIG", os.devnull)


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    end_spawned()


@pytest.fixture(params=["ours", "beanstalkd"])
def server(request: pytest.FixtureRequest, _servers: dict[str, Server]) -> Server:
    """Greenstalk Server and beanstalkd in turn; with BY_PROTOCOL_AND_API, also Greenstalk Server by its API."""
    server = _servers[request.param]
    server.reset()
    return server


@pytest.fixture
def other(server: Server, _servers: dict[str, Server]) -> Server:
    """The other server: beanstalkd if `server` is Greenstalk Server, and vice versa."""
    (other,) = (_servers[name] for name in ("ours", "beanstalkd") if _servers[name] is not server)
    other.reset()
    return other


@pytest.fixture
def with_api(_servers: dict[str, Server]) -> WithApi:
    """Greenstalk Server, reached by its API."""
    server = _servers["api"]
    assert isinstance(server, WithApi)
    server.reset()
    return server


@pytest.fixture
def one(_servers: dict[str, Server]) -> Server:
    """beanstalkd, for tests in which the kind of server does not matter."""
    _servers["beanstalkd"].reset()
    return _servers["beanstalkd"]


@pytest.fixture
def mail(server: Server) -> Iterator[Client]:
    """A client of `server` in tube `mail`."""
    with connect(server, "mail") as client:
        yield client
