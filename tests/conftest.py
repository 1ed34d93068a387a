"""What tests of every ring may start from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.counters import ServerFacts
from tests.support.cluster import Cluster
from tests.support.daemon import Daemon
from tests.support.world import make_broker

settings.register_profile("no-deadline", deadline=None)  # a busy machine is no failure
settings.load_profile("no-deadline")


@pytest.fixture
def broker() -> Broker:
    """A broker of a server about which everything is known."""
    return make_broker()


@pytest.fixture
def facts(broker: Broker) -> ServerFacts:
    """What is known about it."""
    return broker.facts


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    """The real daemon on a free port, which stops in order when the module's tests are done and has no complaint."""
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web") as daemon:
        yield daemon
        assert daemon.process.poll() is None, "the server has ended"
        code, said = daemon.stop()
        assert code == 0
        assert "Traceback" not in said and "error" not in said, said


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server, started once for all tests that want one; each uses a journal of a name of its own."""
    with Cluster() as cluster:
        yield cluster
