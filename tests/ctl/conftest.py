"""Ours and Debian's beanstalkd, and ours again by its API, all without a job at the start of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ctl.world import Client, WithApi, connect
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


@pytest.fixture(params=["ours", "beanstalkd"])
def server(request: pytest.FixtureRequest, _servers: dict[str, Server]) -> Server:
    """Each of the two, one after the other; in modules about what can be done either way, ours by its API too."""
    server = _servers[request.param]
    server.reset()
    return server


@pytest.fixture
def other(server: Server, _servers: dict[str, Server]) -> Server:
    """The one of ours and beanstalkd that `server` is not."""
    (other,) = (_servers[name] for name in ("ours", "beanstalkd") if _servers[name] is not server)
    other.reset()
    return other


@pytest.fixture
def with_api(_servers: dict[str, Server]) -> WithApi:
    """Ours, reached by its API."""
    server = _servers["api"]
    assert isinstance(server, WithApi)
    server.reset()
    return server


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
