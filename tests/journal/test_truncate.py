"""Jobs of truncated tubes after an end of the server, orderly or not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.peer import Peer


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_reserved_jobs_of_a_truncated_tube_are_gone_after_a_restart(tmp_path: Path, number: signal.Signals) -> None:
    flags = ("-l", "127.0.0.1", "-p", "0", "--no-web", "-f", "0", "-b", str(tmp_path))
    with Daemon(*flags) as server, Peer(server) as holder, Peer(server) as other:
        for id in (1, 2, 3):
            assert holder.ask(b"put 0 0 600 1\r\nx") == b"INSERTED %d" % id
        assert holder.ask(b"put-in-tube kept 0 0 600 1\r\nx") == b"INSERTED 4"
        assert holder.ask(b"reserve-job 1\r\nreserve-job 2") == b"RESERVED 1 1"
        assert holder.read(20) == b"x\r\nRESERVED 2 1\r\nx\r\n"
        assert other.ask(b"truncate default") == b"TRUNCATED 1"
        assert other.ask(b"put 0 0 600 1\r\nx") == b"INSERTED 5"
        assert other.ask(b"touch 1") == b"NOT_FOUND"
        assert other.stats(b"stats-job 1")["state"] == "reserved"
        server.stop(number)
    with Daemon(*flags) as server, Peer(server) as peer:
        found = {id: peer.ask(b"kick-job %d\r\nstats-job %d" % (id, id)) for id in (1, 2, 3)}
        assert set(found.values()) == {b"NOT_FOUND"}
        assert [peer.read_line() for _ in found] == [b"NOT_FOUND"] * 3
        assert peer.stats(b"stats-tube default")["current-jobs-ready"] == "1"
        assert peer.stats(b"stats-tube kept")["current-jobs-ready"] == "1"
        server.stop()
    with Daemon(*flags) as server, Peer(server) as peer:
        assert peer.ask(b"stats-job 1") == b"NOT_FOUND"
