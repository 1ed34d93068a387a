"""The files of the dashboard's documents: one write at a time, and the last state wins."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gevent
import pytest

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.auth.accounts import USER, Account
from greenstalk_server.web.auth.sessions import NAME, Sessions
from greenstalk_server.web.store.documents import DocumentFile
from tests.net.in_process import wait_until


class SlowDisk:
    """Blocks each sync until `released` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs = 0
        self.released = threading.Event()
        self._sync = os.fsync
        monkeypatch.setattr(os, "fsync", self.sync)

    def sync(self, fd: int) -> None:
        self.syncs += 1
        self.released.wait()
        self._sync(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


def test_saves_during_a_write_wait_for_it_and_the_last_state_wins(
    disk: SlowDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, state, snapshots = DocumentFile(str(tmp_path), "x.json", "%s"), [b"0"], []

    def snapshot() -> Callable[[], bytes]:
        snapshots.append(state[-1])
        return partial(bytes, state[-1])

    def change(to: bytes) -> gevent.Greenlet:
        state.append(to)
        file.note_change()
        return gevent.spawn(file.save, snapshot)

    saving = [change(b"1")]
    wait_until(lambda: disk.syncs == 1)
    saving += [change(b"2"), change(b"3")]
    gevent.sleep(0.05)  # time for a second write to begin, which it must not
    assert disk.syncs == 1 and not file.is_saved
    disk.released.set()
    gevent.joinall(saving)
    assert snapshots == [b"1", b"3"]
    assert (tmp_path / "x.json").read_bytes() == b"3"
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]
    assert file.is_saved and not file.trouble and not caplog.records


def test_flush_of_the_sessions_waits_for_the_write_in_progress(
    disk: SlowDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = Sessions(lambda: SECOND, lambda _: "x", idle_time=SECOND, lifetime=SECOND, directory=str(tmp_path))
    sessions.create(Account("ann", ("viewer",), USER), "", "")
    wait_until(lambda: disk.syncs == 1)
    sessions.create(Account("bea", ("viewer",), USER), "", "")
    flushing = gevent.spawn(sessions.flush)
    gevent.sleep(0.05)  # time for a second write to begin, which it must not
    assert disk.syncs == 1
    disk.released.set()
    flushing.join()
    names = [json.loads(line).get("name") for line in (tmp_path / NAME).read_text().splitlines()]
    assert names == [None, "ann", "bea"]
    assert not sessions.trouble and not caplog.records
