"""One server for all tests of the load generator that leave it as they find it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.daemon import Daemon, environment


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server without jobs."""
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", environ=environment()) as daemon:
        yield daemon.port
