"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal import charmap
from hypothesis.internal.conjecture import providers
from hypothesis.internal.entropy import deterministic_PRNG
from hypothesis.internal.intervalsets import IntervalSet

from greenstalk_server import BUILD
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.counters import ServerFacts
from greenstalk_server.runtime.system import IS_PORTABLE
from tests.support.cluster import Cluster
from tests.support.daemon import Daemon
from tests.support.world import make_broker

# No deadline: a test that is slow on a busy machine does not fail. Each run of the tests has the same examples, so that
# a change is judged by itself; `make fuzz` looks for others.
_ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", _ANY_SPEED, derandomize=True)
settings.register_profile("random", _ANY_SPEED, max_examples=500)
settings.load_profile("repeatable")

# Hypothesis mixes the constants of all imported modules into its examples. Even with `derandomize`, the
# examples of a test would therefore depend on the tests that ran before it in the same process.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants

# In a fresh checkout, each process would take 1.7 s of CPU to encode all characters. UTF-8 has all but surrogates.
if hasattr(charmap, "intervals_from_codec"):
    _UTF_8 = IntervalSet([(0, 0xD7FF), (0xE000, sys.maxunicode)]), IntervalSet([])
    _intervals_from_codec = charmap.intervals_from_codec
    charmap.intervals_from_codec = lambda name: _UTF_8 if name == "utf-8" else _intervals_from_codec(name)  # type: ignore[assignment]

# Hypothesis collects garbage when it creates its random generator, which takes longer when all tests are imported.
with deterministic_PRNG():
    pass

if not BUILD.is_compiled:
    os.environ["GREENSTALK_PURE"] = "1"  # servers use the same build, and do not warn that it is not compiled


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the modules and the collected tests, which live until the end, from the garbage collector.

    Otherwise it traverses them in each full collection, which takes a seventh of the CPU time of tests without servers.
    A collection before would find few objects, and take 0.3 s of CPU in each process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `pure` on the compiled build, and those marked `linux_form` in the portable form."""
    for item in items:
        if BUILD.is_compiled and item.get_closest_marker("pure") is not None:
            item.add_marker(pytest.mark.skip(reason="replaces a part of a compiled module: make test-pure runs it"))
        if IS_PORTABLE and item.get_closest_marker("linux_form") is not None:
            item.add_marker(pytest.mark.skip(reason="needs calls that only Linux has"))


@pytest.fixture
def broker() -> Broker:
    """A broker of a server with known facts."""
    return make_broker()


@pytest.fixture
def facts(broker: Broker) -> ServerFacts:
    """The facts of the server of *broker*."""
    return broker.facts


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    """The real server on a free port. After the module's tests it must stop with code 0 and without logged errors."""
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web") as daemon:
        yield daemon
        assert daemon.process.poll() is None, "the server has exited"
        code, stderr = daemon.stop()
        assert code == 0
        assert "Traceback" not in stderr and "error" not in stderr, stderr


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server, started once for all tests that need one; each test uses its own journal name."""
    with Cluster() as cluster:
        yield cluster
