"""The history on a disk that is full: nothing that was written is lost, and later points are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.features.history.archive import HOURS, MINUTES, Archive
from greenstalk_server.web.features.history.files import HistoryFiles
from greenstalk_server.web.features.history.history import History
from greenstalk_server.web.features.history.rings import DAY, HOUR
from tests.faults.disks import fill
from tests.web.conftest import Queue
from tests.web.served import work
from tests.web.turns import until


def test_writes_on_a_full_disk_fail_and_leave_the_files_intact(small_disk: Path) -> None:
    files = HistoryFiles(str(small_disk))
    frame = bytes(range(1, 200)) * 100
    files.append(MINUTES, 0, 0, frame)
    files.seal(HOURS, 0, {b"": b"x" * 1000})
    files.save_marks(b"[]")
    fill(small_disk / "filler")
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            files.append(MINUTES, 0, 1, frame)
    with pytest.raises(OSError, match="No space left"):
        files.seal(HOURS, 1, {b"": b"y" * 100_000})
    with pytest.raises(OSError, match="No space left"):
        files.save_marks(b"[" + b" " * 100_000 + b"]")
    again = HistoryFiles(str(small_disk))
    assert again.load(MINUTES) == [(0, [frame])]
    assert again.read(HOURS, 0, 1, [b""]) == [(0, b"", b"x" * 1000)]
    assert again.load_marks() == b"[]"
    assert {path.suffix for path in (small_disk / "history").iterdir()} == {"", ".log", ".json"}, "no rest of a file"
    (small_disk / "filler").unlink()
    files.append(MINUTES, 0, 1, frame)
    assert HistoryFiles(str(small_disk)).load(MINUTES) == [(0, [frame, frame])]


def test_history_continues_in_memory_and_is_written_later(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue, archive = Queue(), Archive(HistoryFiles(str(small_disk)))
    history = History(queue.broker, queue.clock, archive)
    history.restore()
    fill(small_disk / "filler")
    work(queue, history, 1.5, "mail")
    until(lambda: "No space left" in archive.trouble)
    expected = history.columns(b"mail", DAY).series["put"]
    assert sum(value > 0 for value in expected) == 90
    assert caplog.text.count("cannot be written") == 1
    (small_disk / "filler").unlink()
    until(lambda: not archive._pending)
    assert archive.trouble == ""
    later = Queue()
    later.now = queue.now
    restored = History(later.broker, later.clock, Archive(HistoryFiles(str(small_disk))))
    restored.restore()
    assert repr(restored.columns(b"mail", DAY).series["put"]) == repr(expected)
    assert restored.columns(b"mail", HOUR).end == queue.now // SECOND
