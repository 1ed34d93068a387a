"""A server shared by the tests of a module, which leave it empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.daemon import Daemon, environment


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of an empty server."""
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", environ=environment()) as daemon:
        yield daemon.port
