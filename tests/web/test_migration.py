"""The files of version 0.1.0 are moved into the store. That version has written `store/version0_files`."""

from __future__ import annotations

import shutil
from math import isnan
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.app import Dashboard
from greenstalk_server.web.features.history.rings import DAY, WEEK
from greenstalk_server.web.migration import SUFFIX
from greenstalk_server.web.store.saved_data import Sample, SavedSearch

from .conftest import Queue

OLD = Path(__file__).parent / "store" / "version0_files"
NOW = 1_800_009_000 * SECOND
PASSWORD = "x"  # noqa: S105
COOKIE = ("greenstalk", "8nhSH8obwaheybp33NEDh9vkRJZne8sghTZRNkjeJ5s")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return shutil.copytree(OLD, tmp_path / "data")


def start(directory: Path) -> tuple[Dashboard, FlaskClient]:
    queue = Queue()
    queue.now = NOW
    app = queue.app(directory=str(directory), password=PASSWORD)
    dashboard: Dashboard = app.extensions["dashboard"]
    dashboard.history.restore()
    dashboard.flush()
    return dashboard, app.test_client()


def check(dashboard: Dashboard, client: FlaskClient) -> None:
    """Assert that everything that the files have is there."""
    assert dashboard.saved.samples == {"welcome": Sample("welcome", "mail", 1, 2, 3, "x")}
    assert dashboard.saved.searches == {"stuck": SavedSearch("stuck", "age:>2h")}
    assert dashboard.saved.reason("mail", NOW + 90 * SECOND) == "migration"
    assert [one.reason for one in dashboard.acknowledgements.all()] == ["night"]
    assert [mark.text for mark in dashboard.marks.find("", 0, NOW) if mark.who == "ada"] == ["deployed 4.2"]
    entries = [(entry.number, entry.what, entry.who) for entry in dashboard.audit.newest_first()]
    whats = ["alerts/silence", "tube/pause", "search/save", "sample/save", "session/sign-in"]
    assert entries == [(5 - place, what, "ann") for place, what in enumerate(whats)]
    assert [entry.at for entry in dashboard.audit.newest_first()] == [NOW] * 5
    client.set_cookie(*COOKIE)
    assert client.get("/audit").status_code == 200, "the session continues"
    day = dashboard.history.columns(b"mail", DAY).series["put"][-150:]
    assert [round(value * 60) for value in day[:14]] == [36] * 6 + [44] + [60] * 6 + [76]
    assert not any(map(isnan, day))
    assert dashboard.history.columns(b"mail", WEEK).series["put"][-2:] == [1, 1]


def test_files_are_moved_once(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    check(*start(directory))
    names = {path.name for path in directory.rglob("*") if path.is_file() and "sqlite3" not in path.name}
    assert names == {path.name + SUFFIX for path in OLD.rglob("*") if path.is_file()}
    assert not caplog.records
    check(*start(directory))


@pytest.mark.parametrize("name", [str(path.relative_to(OLD)) for path in sorted(OLD.rglob("*")) if path.is_file()])
def test_damage_loses_one_file(directory: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    data = (directory / name).read_bytes()
    for damage in (b"", data[: len(data) // 2], b"\xff" + data):
        shutil.copytree(OLD, directory, dirs_exist_ok=True)
        (directory / "dashboard.sqlite3").unlink(missing_ok=True)
        (directory / name).write_bytes(damage)
        dashboard, _ = start(directory)
        assert dashboard.store.is_restored
        assert (dashboard.saved.samples != {}) or name == "dashboard.json"
        assert (dashboard.acknowledgements.all() != []) or name == "alerts.json"


def test_crash_between_the_write_and_the_rename_is_repaired(directory: Path) -> None:
    start(directory)
    for path in OLD.rglob("*"):
        if path.is_file():
            shutil.copy(path, directory / path.relative_to(OLD))
    check(*start(directory))
