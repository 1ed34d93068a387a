"""Jumps of the wall clock of a running server, by an hour forward and back, do not change when anything is due.

A file sets the wall clock of a real server. The monotonic clock is not changed, as with settimeofday(2).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.daemon import TIMEOUT, Daemon
from tests.support.peer import Peer, eventually
from tests.support.wall_clock import WallClock

HOUR = 3600


@pytest.fixture
def wall(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path / "wall")


@pytest.fixture
def server(wall: WallClock, tmp_path: Path) -> Iterator[Daemon]:
    directory = tmp_path / "jobs"
    directory.mkdir()
    flags = ("-l", "127.0.0.1", "-p", "0", "--web-port", "0", "-b", str(directory), "--log-format", "text")
    with Daemon(*flags, environ=wall.environment()) as daemon:
        yield daemon
        code, stderr = daemon.stop()
        assert code == 0 and "Traceback" not in stderr


def waited(peer: Peer, started_at: float, replies: int = 1) -> tuple[list[bytes], float]:
    """Return the next replies, and the seconds from *started_at* to the arrival of the last of them."""
    lines = [peer.read_line() for _ in range(replies)]
    return lines, time.monotonic() - started_at


def test_clock_jumps_do_not_change_pending_deadlines(server: Daemon, wall: WallClock) -> None:
    with Peer(server) as delays, Peer(server) as holds, Peer(server) as waits, Peer(server) as pauses:
        delays.ask(b"use delayed")
        delays.ask(b"watch delayed")
        holds.ask(b"use held")
        held = holds.ask(b"put 0 0 2 1\r\nh").split()[1]
        holds.ask(b"watch held")
        assert holds.ask(b"reserve").startswith(b"RESERVED")
        assert holds.read_line() == b"h"
        pauses.ask(b"use paused")
        pauses.ask(b"put 0 0 60 1\r\np")
        pauses.ask(b"watch paused")
        started_at = time.monotonic()
        delays.send(b"put 0 2 60 1\r\nd\r\nreserve\r\n")
        assert delays.read_line().startswith(b"INSERTED")
        waits.send(b"watch never\r\nignore default\r\nreserve-with-timeout 2\r\n")
        pauses.send(b"pause-tube paused 2\r\nreserve\r\n")
        for jump in (HOUR, -HOUR, HOUR):
            time.sleep(0.3)
            wall.set(jump)
            assert wall_clock_of(server) == pytest.approx(time.time() + jump, abs=TIMEOUT)
        lines, after = waited(delays, started_at)
        assert lines[0].startswith(b"RESERVED") and after >= 2
        lines, after = waited(waits, started_at, 3)
        assert lines[-1] == b"TIMED_OUT" and after >= 2
        lines, after = waited(pauses, started_at, 2)
        assert lines[0] == b"PAUSED" and lines[1].startswith(b"RESERVED") and after >= 2
        eventually(lambda: waits.stats(b"stats-job " + held)["state"] == "ready", "its TTR has expired")
        assert time.monotonic() - started_at >= 1.9  # reserved a moment before *started_at*
        assert time.monotonic() - started_at < HOUR / 2
        stats = holds.stats(b"stats-job " + held)
        assert int(stats["age"]) < TIMEOUT and stats["timeouts"] == "1"
        assert int(holds.stats()["uptime"]) < 2 * TIMEOUT


def wall_clock_of(server: Daemon) -> float:
    """Return the server's wall clock in seconds since the Unix epoch, from the date of an HTTP response."""
    with urlopen(f"{server.dashboard}healthz", timeout=TIMEOUT) as answer:  # noqa: S310  our own
        return parsedate_to_datetime(answer.headers["Date"]).timestamp()


def test_remaining_delays_follow_the_clock_across_a_restart(wall: WallClock, tmp_path: Path) -> None:
    """The clock is wrong during one run and right during the next. The difference counts as elapsed time."""
    flags = ("-l", "127.0.0.1", "-p", "0", "--no-web", "-b", str(tmp_path))
    with Daemon(*flags, environ=wall.environment()) as first, Peer(first) as peer:
        id = peer.ask(b"put 0 7200 60 1\r\nx").split()[1]
        first.stop()
    wall.set(HOUR)
    with Daemon(*flags, environ=wall.environment()) as second, Peer(second) as peer:
        left = int(peer.stats(b"stats-job " + id)["time-left"])
        assert HOUR - TIMEOUT < left <= HOUR
