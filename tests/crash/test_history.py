"""The history of a real server that is killed: its minutes and marks are there after the restart."""

from __future__ import annotations

import json
import sqlite3
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from tests.support.daemon import Daemon
from tests.support.wall_clock import WallClock

LEFT: Final = 15
"""Seconds of the first minute that are left when the server starts."""

FIRST_MINUTE: Final = 90.0
"""Seconds within which the first minute with all requests ends, also if they take longer than LEFT."""


def ask(daemon: Daemon, path: str, body: object = None) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    url, headers = f"{daemon.dashboard}api/v1{path}", {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers)  # noqa: S310  our own server
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        return json.load(response)


def minutes(directory: Path) -> int:
    """Return the number of minutes that the server has stored."""
    with closing(sqlite3.connect(directory / "dashboard.sqlite3")) as data:
        found: int = data.execute("SELECT count(*) FROM row WHERE kind = 'minutes-log'").fetchone()[0]
    return found


def test_killed_server_shows_its_history_after_the_restart(tmp_path: Path) -> None:
    """SIGKILL after the first minute was written; the server is then started with the same directory."""
    wall = WallClock(tmp_path / "wall")
    wall.set(60 - LEFT - int(time.time()) % 60)
    flags = ("-l", "127.0.0.1", "-p", "0", "--web-port", "0", "-b", str(tmp_path))
    with Daemon(*flags, environ=wall.environment()) as daemon:
        ask(daemon, "/jobs", {"tube": "mail", "body": "x"})
        ask(daemon, "/marks", {"text": "deployed 4.2"})
        deadline = time.monotonic() + FIRST_MINUTE
        while not minutes(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        daemon.process.kill()
        daemon.process.wait()
    with Daemon(*flags, environ=wall.environment()) as daemon:
        deadline = time.monotonic() + FIRST_MINUTE
        while len(ask(daemon, "/marks")["marks"]) < 3:  # until the history was read
            assert time.monotonic() < deadline
            time.sleep(0.05)
        found = ask(daemon, "/tubes/history?tube=mail")["series"]
        assert found["ready"].count(1) >= 1
        puts = [value for value in found["put"] if value]
        assert len(puts) == 1 and 1 / 60 <= puts[0] + 1e-6 <= 1
        texts = [mark["text"] for mark in ask(daemon, "/marks")["marks"]]
        texts.remove("deployed 4.2")
        assert len(texts) == 2 and all("started, version" in text for text in texts)
