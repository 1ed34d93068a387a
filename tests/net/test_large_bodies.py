"""A large body does not block the event loop of a server with a journal. A put takes memory only as bytes arrive."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from greenstalk_server.runtime.memory import resident_bytes
from tests.support.daemon import COMMAND, TIMEOUT, Daemon
from tests.support.talk import Talk
from tests.support.world import make_broker

LARGE = 30_000_000
COUNT = 4
MAX_ITERATION = 10_000_000
"""Maximum CPU time of an iteration of the event loop, in nanoseconds."""

DECLARED = 2**30
"""Size of a body in the line of its put, bytes."""


class Client:
    """A connection that puts and peeks at large bodies."""

    def __init__(self, daemon: Daemon) -> None:
        self._sock = socket.create_connection(("127.0.0.1", daemon.port), TIMEOUT)
        self._reader = self._sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()
        self._sock.close()

    def put(self, body: bytes) -> bytes:
        self._sock.sendall(b"put 0 0 60 %d\r\n" % len(body))
        self._sock.sendall(body)
        self._sock.sendall(b"\r\n")
        return self._reader.readline()

    def peek(self, id: int) -> bytes:
        self._sock.sendall(b"peek %d\r\n" % id)
        line = self._reader.readline()
        assert line.startswith(b"FOUND %d " % id)
        return self._reader.read(int(line.split()[2]) + 2)[:-2]


@pytest.mark.linux_form
@pytest.mark.parametrize("sync", [("-f", "0"), ("-f", "50"), ("-F",)], ids="".join)
def test_no_loop_iteration_copies_a_large_body(sync: Sequence[str], tmp_path: Path) -> None:
    """The bodies exceed the memory limit, so that some of them are read back for the peeks."""
    figures, directory = tmp_path / "longest", tmp_path / "journal"
    directory.mkdir()
    measured = (sys.executable, "-m", "tests.net.measured", str(figures))
    flags = ("-l", "127.0.0.1", "-p", "0", "--no-web", "-z", str(LARGE), "--memory-limit", "110m", "-b", str(directory))
    some = os.urandom(LARGE // 30)
    bodies = [bytes([id]) + some * 29 for id in range(COUNT)]
    with Daemon(*flags, *sync, command=measured) as daemon:
        with Client(daemon) as client:
            for id, body in enumerate(bodies, 1):
                assert client.put(body) == b"INSERTED %d\r\n" % id
            for id, body in enumerate(bodies, 1):
                assert client.peek(id) == body
        assert daemon.stop()[0] == 0
    assert 0 < int(figures.read_text()) < MAX_ITERATION
    with Daemon(*flags, *sync) as after, Client(after) as client:
        for id, body in enumerate(bodies, 1):
            assert client.peek(id) == body


def test_put_takes_memory_only_for_received_bytes() -> None:
    before = resident_bytes()
    talks = [Talk(make_broker(max_job_size=DECLARED)) for _ in range(20)]
    for talk in talks:
        assert talk.send(b"put 0 0 60 %d\r\n" % DECLARED) == b""
        assert talk.send(b"x" * 65536) == b""
    assert resident_bytes() - before < DECLARED // 16


def test_put_without_memory_is_refused() -> None:
    """The address space of the server is limited, as by `ulimit -v`."""
    limit = shutil.which("prlimit")
    assert limit is not None
    size = 300_000_000
    command = (limit, f"--as={size}", *COMMAND)
    flags = ("-l", "127.0.0.1", "-p", "0", "--no-web", "-z", str(size))
    with Daemon(*flags, command=command) as daemon, Client(daemon) as client:
        assert client.put(bytes(size)) == b"OUT_OF_MEMORY\r\n"
        assert client.put(b"small") == b"INSERTED 2\r\n"
