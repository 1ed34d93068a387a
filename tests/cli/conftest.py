"""Fixtures of the tests of the command."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def beanstalkd() -> str:
    """The path of beanstalkd."""
    path = shutil.which("beanstalkd", path=f"{os.environ['PATH']}:/usr/sbin")
    assert path is not None, "beanstalkd is missing: apt-get install beanstalkd"
    return path


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which another socket listens."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]
