"""A disk whose syncs take long: no reply depends on a change that a crash would undo."""

from __future__ import annotations

import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.peer import Peer, eventually

DUPLICATES = {"idp": (b"default", b"put 0 0 60 1 idp:k\r\nx"), "unique": (b"once", b"put 0 0 60 1\r\nx")}
"""The tube, and the put that is sent twice."""


def serving(directory: Path, blocker: Path, *flags: str) -> Daemon:
    """A server with `-f 0` whose syncs wait as long as *blocker* exists."""
    config = directory.with_name("greenstalk.toml")
    config.write_text('[policies.once]\ntubes = ["once"]\nunique = "body"\n')
    command: Sequence[str] = (sys.executable, "-m", "tests.faults.blocked_syncs", str(blocker))
    listening = ("-l", "127.0.0.1", "-p", "0", "--no-web", "--config", str(config))
    return Daemon(*listening, "-b", str(directory), "-f", "0", *flags, command=command)


@contextmanager
def blocked(blocker: Path) -> Iterator[None]:
    blocker.touch()
    try:
        yield
    finally:
        blocker.unlink()


@pytest.mark.parametrize("kind", DUPLICATES)
def test_duplicate_of_a_put_that_a_kill_undoes_is_not_acknowledged(tmp_path: Path, kind: str) -> None:
    """The first client's sync runs, the second client's put waits behind it, and the third repeats that put."""
    directory, blocker = tmp_path / "journal", tmp_path / "blocker"
    directory.mkdir()
    tube, request = DUPLICATES[kind]
    with serving(directory, blocker) as server, ExitStack() as stack:
        first, second, third, other = [stack.enter_context(Peer(server)) for _ in range(4)]
        stack.enter_context(blocked(blocker))
        for number, (peer, line) in enumerate(((first, b"put 9 0 60 2\r\nyy"), (second, request), (third, request)), 1):
            assert peer.ask(b"use %b" % tube) == b"USING %b" % tube
            peer.send(line + b"\r\n")
            eventually(lambda number=number: other.stats()["cmd-put"] == str(number), "the put is executed")  # type: ignore[misc]
        assert other.stats()["current-jobs-ready"] == "2"
        assert select.select([first.sock, second.sock, third.sock], [], [], 0)[0] == []
        server.stop(signal.SIGKILL)
    with serving(directory, blocker) as server, Peer(server) as peer:
        assert peer.ask(b"peek 2") == b"NOT_FOUND"
