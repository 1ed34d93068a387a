"""Fixtures of the tests of the command."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from greenstalk_server.journal.record import VERSION, SegmentHeader
from greenstalk_server.journal.segment import name_of


@pytest.fixture(scope="module")
def beanstalkd() -> str:
    """The path of beanstalkd."""
    path = shutil.which("beanstalkd", path=f"{os.environ['PATH']}:/usr/sbin")
    assert path is not None, "beanstalkd is missing: apt-get install beanstalkd"
    return path


@pytest.fixture
def later_journal(tmp_path: Path) -> Path:
    """The directory of a journal of a later version of the format."""
    header = bytearray(SegmentHeader(b"salt", 1, 1, 1).encode()[:-4])
    header[8:10] = (VERSION + 1).to_bytes(2, "little")
    (tmp_path / name_of(1)).write_bytes(header + crc32(header).to_bytes(4, "little"))
    return tmp_path


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which another socket listens."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]
