"""The files of version 0.1.0 are moved into the store. `store/version0_files` has the format of that version."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.app import Dashboard
from greenstalk_server.web.migration import SUFFIX
from greenstalk_server.web.store.saved_data import Sample

from .conftest import Queue

OLD = Path(__file__).parent / "store" / "version0_files"
NAMES = sorted(path.name for path in OLD.iterdir())
NOW = 1_800_009_000 * SECOND


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return shutil.copytree(OLD, tmp_path / "data")


def start(directory: Path) -> Dashboard:
    queue = Queue()
    queue.now = NOW
    dashboard: Dashboard = queue.app(directory=str(directory)).extensions["dashboard"]
    dashboard.flush()
    return dashboard


def check(dashboard: Dashboard) -> None:
    """Assert that everything that the files have is there."""
    assert dashboard.saved.samples == {"welcome": Sample("welcome", "mail", 1, 2, 3, "x")}
    assert dashboard.saved.reason("mail", NOW + 90 * SECOND) == "migration"
    entries = [(entry.number, entry.at, entry.what, entry.who) for entry in dashboard.audit.newest_first()]
    assert entries == [(2, NOW, "tube/pause", "ann"), (1, NOW, "sample/save", "ann")]


def test_files_are_moved_once(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    check(start(directory))
    moved = {path.name for path in directory.iterdir() if "sqlite3" not in path.name}
    assert moved == {name + SUFFIX for name in NAMES}
    assert not caplog.records
    check(start(directory))


@pytest.mark.parametrize("name", NAMES)
def test_damage_loses_one_file(directory: Path, name: str) -> None:
    data = (directory / name).read_bytes()
    for damage in (b"", data[: len(data) // 2], b"\xff" + data):
        shutil.copytree(OLD, directory, dirs_exist_ok=True)
        (directory / "dashboard.sqlite3").unlink(missing_ok=True)
        (directory / name).write_bytes(damage)
        dashboard = start(directory)
        assert dashboard.store.is_restored
        assert (dashboard.saved.samples != {}) or name == "dashboard.json"
        assert next(dashboard.audit.newest_first(), None) is not None or name == "audit.jsonl"


def test_crash_between_the_write_and_the_rename_is_repaired(directory: Path) -> None:
    start(directory)
    shutil.copytree(OLD, directory, dirs_exist_ok=True)
    check(start(directory))
