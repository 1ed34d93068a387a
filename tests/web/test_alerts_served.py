"""Alerts of a real server: a condition reaches a receiver and ends, and SIGHUP changes the receivers."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import greenstalk
import pytest

from tests.support.daemon import COMMAND, MINDING_SIGNALS, Daemon
from tests.support.log import Log
from tests.support.peer import eventually
from tests.support.receiver import Received, Receiver

from .visit import FLAGS

CONFIG = """
[attention]
no_consumers = 1

[alerts.own]
template = "json"
url = "{url}/hook/swordfish"
allow_plain = true
allow_private = true
dashboard_url = "https://queue.example.com"
for = 0
resolve_after = 1
interval = 0

[alerts.chat]
template = "slack"
url = "{url}/chat"
allow_plain = true
allow_private = true
severities = ["critical"]
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def queue(receiver: Receiver, tmp_path: Path) -> Iterator[Daemon]:
    file = tmp_path / "greenstalk.toml"
    file.write_text(CONFIG.format(url=receiver.url))
    (tmp_path / "jobs").mkdir()
    flags = (*FLAGS, "--config", str(file), "-b", str(tmp_path / "jobs"))
    with Daemon(*flags, command=(*MINDING_SIGNALS, *COMMAND)) as running:
        yield running


def sent(requests: list[Received]) -> list[tuple[str, str]]:
    """Return the status and the tube of each condition that the receiver `own` was sent."""
    own = [request.document for request in requests if request.path.startswith("/hook")]
    return [(each["status"], each["tube"]) for document in own for each in document["conditions"]]


def api(daemon: Daemon, path: str, body: Any = None) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    request = Request(f"{daemon.dashboard}api/v1/{path}", data, {"Content-Type": "application/json"})  # noqa: S310
    with urlopen(request) as response:  # noqa: S310  our own server
        return json.load(response)


def test_condition_is_sent_and_resolved(queue: Daemon, receiver: Receiver, tmp_path: Path) -> None:
    queue.ask(b"use mail\r\nput 0 0 60 2\r\nhi\r\n")
    (request,) = receiver.wait_for(1)
    assert sent([request]) == [("firing", "mail")]
    condition = request.document["conditions"][0]
    assert condition["link"] == "https://queue.example.com/tube?tube=mail"
    assert condition["sentence"].startswith("1 job of “mail” is ready, but no worker watches the tube")
    with greenstalk.Client(("127.0.0.1", queue.port), watch="mail"):
        assert sent(receiver.wait_for(2)) == [("firing", "mail"), ("resolved", "mail")]
    eventually(lambda: api(queue, "alerts")["deliveries"][0]["summary"] == "1 resolved", "the end is in the log")
    with closing(sqlite3.connect(tmp_path / "jobs" / "dashboard.sqlite3")) as data:
        query = "SELECT CAST(data AS TEXT) FROM row WHERE kind = 'alerts'"
        eventually(lambda: json.loads(data.execute(query).fetchone()[0])["alerts"]["own"] == [], "the end is on disk")


def test_sighup_changes_the_receivers(queue: Daemon, receiver: Receiver, tmp_path: Path) -> None:
    log = Log(queue.process)
    file = tmp_path / "greenstalk.toml"
    file.write_text(CONFIG.format(url=receiver.url).replace("[alerts.chat]", "[alerts.new]"))
    queue.process.send_signal(signal.SIGHUP)
    log.find("applied the reloadable settings")
    assert api(queue, "alerts/test", {"receiver": "new"})["error"] == ""
    assert [request.path for request in receiver.requests] == ["/chat"]
    assert receiver.requests[0].document["text"].split("\n")[1].startswith("• *warning* This is a test")
