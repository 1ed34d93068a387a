"""The dashboard's store on a disk that is full: nothing that was written is lost, and later changes are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.features.history.archive import Archive
from greenstalk_server.web.features.history.history import History
from greenstalk_server.web.features.history.rings import DAY, HOUR
from greenstalk_server.web.store import store as store_module
from greenstalk_server.web.store.rows import MAX_NUMBER
from greenstalk_server.web.store.sqlite import SqliteRows
from tests.faults.disks import fill
from tests.web.conftest import Queue
from tests.web.served import work
from tests.web.stored import local_store
from tests.web.turns import until


def test_writes_on_a_full_disk_fail_and_leave_the_rows_intact(small_disk: Path) -> None:
    rows = SqliteRows(str(small_disk))
    rows.write([("kept", 1, b"", b"before")], {})
    fill(small_disk / "filler")
    for _ in range(3):
        with pytest.raises(OSError, match=r"disk is full|disk I/O error"):
            rows.write([("kept", 2, b"", b"x" * 200_000)], {"kept": 1})
    assert SqliteRows(str(small_disk)).read("kept", 0, MAX_NUMBER) == [(1, b"", b"before")]
    (small_disk / "filler").unlink()
    rows.write([("kept", 2, b"", b"after")], {})
    assert SqliteRows(str(small_disk)).read("kept", 0, MAX_NUMBER) == [(1, b"", b"before"), (2, b"", b"after")]


def test_history_continues_in_memory_and_is_written_later(
    small_disk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "RETRY_INTERVAL", 0.05)
    queue, store = Queue(), local_store(small_disk)
    store.restore()
    history = History(queue.broker, queue.clock, Archive(store))
    history.restore()
    store.put("sample", 0, b"big", bytes(2000))
    store.save()
    fill(small_disk / "filler")
    store.put("sample", 0, b"big", bytes(200_000))
    work(queue, history, 1.5, "mail")
    until(lambda: store.last_error)
    expected = history.columns(b"mail", DAY).series["put"]
    assert sum(value > 0 for value in expected) == 90
    assert caplog.text.count("cannot be written") == 1
    (small_disk / "filler").unlink()
    until(lambda: not store.last_error)
    store.save()
    later, again = Queue(), local_store(small_disk)
    later.now = queue.now
    again.restore()
    restored = History(later.broker, later.clock, Archive(again))
    restored.restore()
    assert repr(restored.columns(b"mail", DAY).series["put"]) == repr(expected)
    assert restored.columns(b"mail", HOUR).end == queue.now // SECOND
