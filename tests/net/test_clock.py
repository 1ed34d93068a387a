"""The wall clock of a running server jumps an hour forth and back, and nothing falls due early, or late.

libfaketime gives a real server a wall clock that a file sets, and leaves the monotonic one alone, as settimeofday(2)
does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.daemon import PATIENCE, Daemon, environment
from tests.support.peer import Peer, eventually

HOUR = 3600
LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


class WallClock:
    """What a server takes for the wall clock: *path* tells how far it is off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, seconds: int) -> None:
        """Have it be so far from the truth, all at once."""
        new = self.path.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self.path)

    def environment(self) -> dict[str, str]:
        assert LIBRARIES, "libfaketime is missing: apt-get install faketime"
        return environment(
            LD_PRELOAD=str(LIBRARIES[0]),
            FAKETIME_TIMESTAMP_FILE=str(self.path),
            FAKETIME_NO_CACHE="1",
            FAKETIME_DONT_FAKE_MONOTONIC="1",
        )


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
        code, said = daemon.stop()
        assert code == 0 and "Traceback" not in said


def waited(peer: Peer, begun: float, replies: int = 1) -> tuple[list[bytes], float]:
    """The next replies, and how long after *begun* the last of them came, seconds."""
    lines = [peer.read_line() for _ in range(replies)]
    return lines, time.monotonic() - begun


@pytest.mark.parametrize("jumps", [(HOUR,), (-HOUR, HOUR, -HOUR)], ids=["forth", "back-and-forth"])
def test_what_is_under_way_when_the_clock_jumps_falls_due_in_its_time(
    server: Daemon, wall: WallClock, jumps: tuple[int, ...]
) -> None:
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
        begun = time.monotonic()
        delays.send(b"put 0 2 60 1\r\nd\r\nreserve\r\n")
        assert delays.read_line().startswith(b"INSERTED")
        waits.send(b"watch never\r\nignore default\r\nreserve-with-timeout 2\r\n")
        pauses.send(b"pause-tube paused 2\r\nreserve\r\n")
        for jump in jumps:
            time.sleep(0.3)
            wall.set(jump)
            assert seen_by(server) == pytest.approx(time.time() + jump, abs=PATIENCE)
        lines, after = waited(delays, begun)
        assert lines[0].startswith(b"RESERVED") and after >= 2
        lines, after = waited(waits, begun, 3)
        assert lines[-1] == b"TIMED_OUT" and after >= 2
        lines, after = waited(pauses, begun, 2)
        assert lines[0] == b"PAUSED" and lines[1].startswith(b"RESERVED") and after >= 2
        eventually(lambda: waits.stats(b"stats-job " + held)["state"] == "ready", "its ttr has run out")
        assert time.monotonic() - begun >= 1.9  # reserved a moment before *begun*
        assert time.monotonic() - begun < HOUR / 2
        stats = holds.stats(b"stats-job " + held)
        assert int(stats["age"]) < PATIENCE and stats["timeouts"] == "1"
        assert int(holds.stats()["uptime"]) < 2 * PATIENCE


def seen_by(server: Daemon) -> float:
    """What the server's process takes for the wall clock: the date of its HTTP answers comes from there."""
    with urlopen(f"{server.dashboard}healthz", timeout=PATIENCE) as answer:  # noqa: S310  our own
        return parsedate_to_datetime(answer.headers["Date"]).timestamp()


def test_jobs_keep_their_times_over_a_restart_with_another_clock(wall: WallClock, tmp_path: Path) -> None:
    """A clock that was wrong at one start and right at the next: what is left of a delay is what the clocks say."""
    flags = ("-l", "127.0.0.1", "-p", "0", "--no-web", "-b", str(tmp_path))
    with Daemon(*flags, environ=wall.environment()) as first, Peer(first) as peer:
        id = peer.ask(b"put 0 7200 60 1\r\nx").split()[1]
        first.stop()
    wall.set(HOUR)
    with Daemon(*flags, environ=wall.environment()) as second, Peer(second) as peer:
        left = int(peer.stats(b"stats-job " + id)["time-left"])
        assert HOUR - PATIENCE < left <= HOUR


def test_a_clock_set_back_at_a_restart_makes_no_delay_or_pause_longer(wall: WallClock, tmp_path: Path) -> None:
    flags = ("-l", "127.0.0.1", "-p", "0", "--no-web", "-b", str(tmp_path))
    with Daemon(*flags, environ=wall.environment()) as first, Peer(first) as peer:
        delayed = peer.ask(b"put 0 1000 60 1\r\nx").split()[1]
        ready = peer.ask(b"put 0 0 60 1\r\nx").split()[1]
        assert peer.ask(b"pause-tube default 2000") == b"PAUSED"
        first.stop()
    wall.set(-24 * HOUR)
    with Daemon(*flags, environ=wall.environment()) as second, Peer(second) as peer:
        assert 1000 - PATIENCE < int(peer.stats(b"stats-job " + delayed)["time-left"]) <= 1000
        assert 2000 - PATIENCE < int(peer.stats(b"stats-tube default")["pause-time-left"]) <= 2000
        for id in (delayed, ready):
            assert 0 <= int(peer.stats(b"stats-job " + id)["age"]) < PATIENCE
