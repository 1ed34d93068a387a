"""The dashboard's store: rows in SQLite, written in the background."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import gevent
import pytest

from greenstalk_server.web.store import store as store_module
from greenstalk_server.web.store.rows import MAX_NUMBER, Change, Row
from greenstalk_server.web.store.sqlite import NAME, VERSION, SqliteRows
from greenstalk_server.web.store.store import MAX_PENDING, Store

A, B, C = Row(1, b"a", b"first"), Row(2, b"b", b"second"), Row(3, b"c", b"third")


@pytest.fixture(autouse=True)
def _log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[SqliteRows]:
    rows = SqliteRows(str(tmp_path))
    yield rows
    rows.close()


def put(rows: SqliteRows, kind: str, *values: Row) -> None:
    rows.write([(kind, *row) for row in values], {})


# Rows


def test_rows_are_found_by_kind_number_and_name(rows: SqliteRows) -> None:
    put(rows, "x", A, B, C)
    put(rows, "y", Row(1, b"a", b"other"))
    assert rows.read("x", 0, MAX_NUMBER) == [A, B, C]
    assert rows.read("x", 2, 3) == [B, C]
    assert rows.read("x", 1, 3, [b"c", b"a", b"z"]) == [A, C]
    assert rows.latest("x", 3, 1) == [B]
    assert rows.latest("x", MAX_NUMBER, 9) == [C, B, A]
    assert rows.sizes("x") == {1: 5, 2: 6, 3: 5}
    assert rows.read("z", 0, MAX_NUMBER) == []


def test_row_is_replaced_removed_and_trimmed(rows: SqliteRows) -> None:
    put(rows, "x", A, B, C)
    put(rows, "y", A)
    rows.write([("x", 1, b"a", b"new"), ("x", 3, b"c", None), ("x", 9, b"missing", None)], {})
    assert rows.read("x", 0, MAX_NUMBER) == [Row(1, b"a", b"new"), B]
    rows.write([("x", 5, b"", b"kept")], {"x": 2})
    assert rows.read("x", 0, MAX_NUMBER) == [Row(5, b"", b"kept")]
    assert rows.read("y", 0, MAX_NUMBER) == [A]


def test_rows_survive_a_restart_in_a_private_file(rows: SqliteRows, tmp_path: Path) -> None:
    put(rows, "x", A)
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / f"{NAME}-wal").stat().st_mode & 0o777 == 0o600
    rows.close()
    assert SqliteRows(str(tmp_path)).read("x", 0, MAX_NUMBER) == [A]


def test_rows_in_memory() -> None:
    rows = SqliteRows(None)
    put(rows, "x", A)
    assert rows.read("x", 0, MAX_NUMBER) == [A]
    assert SqliteRows(None).read("x", 0, MAX_NUMBER) == []


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + bytes(4080)])
def test_damaged_file_is_renamed(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / NAME).write_bytes(content)
    rows = SqliteRows(str(tmp_path))
    put(rows, "x", A)
    assert rows.read("x", 0, MAX_NUMBER) == [A]
    assert (tmp_path / f"{NAME}.damaged").read_bytes() == content
    [message] = caplog.messages
    assert "is damaged" in message
    assert "starting without it" in message


def test_file_of_a_later_version_is_renamed(rows: SqliteRows, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(rows, "x", A)
    rows.close()
    with sqlite3.connect(tmp_path / NAME) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    assert rows.read("x", 0, MAX_NUMBER) == []
    assert f"its version is {VERSION + 1}, and this server reads versions up to {VERSION}" in caplog.messages[0]


def test_file_that_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    rows = SqliteRows(str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError, match="missing"):
        rows.read("x", 0, 1)
    (tmp_path / "missing").mkdir()
    assert rows.read("x", 0, 1) == []


def test_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        SqliteRows(str(tmp_path)).read("x", 0, 1)
    assert not (tmp_path / "elsewhere").exists()


def test_lock_of_another_program_is_an_error(rows: SqliteRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greenstalk_server.web.store.sqlite.BUSY_TIMEOUT", 0.01)
    put(rows, "x", A)
    other = sqlite3.connect(tmp_path / NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OSError, match="database is locked"):
        put(rows, "x", B)
    other.execute("COMMIT")
    put(rows, "x", C)
    assert rows.read("x", 0, MAX_NUMBER) == [A, C]
    other.close()


# The store


class FailingRows(SqliteRows):
    """Rows whose calls fail while `error` is set, and that record the batches written."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.error: str = ""
        self.batches: list[list[Change]] = []

    def read(
        self, kind: str, first: int, last: int, names: Sequence[bytes] | None = None
    ) -> list[tuple[int, bytes, bytes]]:
        self._fail()
        return super().read(kind, first, last, names)

    def write(self, changes: Sequence[Change], trims: Mapping[str, int]) -> None:
        self._fail()
        self.batches.append(list(changes))
        super().write(changes, trims)

    def _fail(self) -> None:
        if self.error:
            raise OSError(self.error)


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingRows]:
    monkeypatch.setattr(store_module, "RETRY_INTERVAL", 0.01)
    rows = FailingRows(str(tmp_path))
    yield rows
    rows.close()


@pytest.fixture
def store(failing: FailingRows) -> Iterator[Store]:
    store = Store(failing, is_kept=True)
    store.restore()
    yield store
    failing.error = ""
    store.flush()


def until(condition: Callable[[], object]) -> None:
    with gevent.Timeout(30):
        while not condition():
            gevent.sleep(0.005)


def test_changes_are_read_at_once_and_written_together(store: Store, failing: FailingRows) -> None:
    store.put("x", 1, b"a", b"old")
    store.put("x", 1, b"a", b"first")
    store.put("x", 2, b"b", b"second")
    store.remove("x", 2, b"b")
    store.put("y", 1, b"", b"other")
    assert store.read("x") == [A]
    store.save()
    assert failing.batches == [[("x", 1, b"a", b"first"), ("x", 2, b"b", None), ("y", 1, b"", b"other")]]
    assert store.read("x") == [A]
    assert not store.last_error


def test_changes_wait_while_the_journal_needs_the_rest_of_the_disk(failing: FailingRows) -> None:
    refusal = "the disk is full"
    store = Store(failing, is_kept=True, room_refusal=lambda size: refusal)
    store.restore()
    store.put("x", *A)
    store.save()
    assert store.last_error.startswith("cannot be written: the disk is full")
    assert store.read("x") == [A]
    assert not failing.batches
    refusal = ""
    store.save()
    assert failing.batches == [[("x", *A)]]
    assert not store.last_error
    store.flush()


def test_trim_removes_written_and_waiting_rows(store: Store, failing: FailingRows) -> None:
    store.put("x", *A)
    store.save()
    store.put("x", *B)
    store.put("x", *C)
    store.trim("x", 2)
    assert store.read("x") == [C]
    store.save()
    assert failing.read("x", 0, MAX_NUMBER) == [C]
    assert store.sizes("x") == {3: 5}
    assert store.latest("x", 9, 9) == [C]


def test_rows_of_the_previous_run_are_restored(failing: FailingRows) -> None:
    put(failing, "x", A, B)
    store, found = Store(failing, is_kept=True), dict[str, list[Row]]()
    store.on_restore("x", lambda rows: found.update(x=rows))
    store.on_restore("y", lambda rows: found.update(y=rows))
    store.put("y", *C)
    assert not store.is_restored
    store.restore()
    assert found == {"x": [A, B], "y": [C]}
    store.save()
    assert failing.read("y", 0, MAX_NUMBER) == [C]
    store.flush()


def test_unreadable_rows_are_read_again_before_anything_is_written(
    failing: FailingRows, caplog: pytest.LogCaptureFixture
) -> None:
    put(failing, "x", A)
    store, found = Store(failing, is_kept=True), list[Row]()
    store.on_restore("x", found.extend)
    failing.error = "no disk"
    store.restore()
    store.put("x", *B)
    assert store.last_error == "cannot be read: no disk"
    assert not found
    failing.error = ""
    until(lambda: store.is_restored)
    assert found == [A, B]
    store.save()
    assert failing.read("x", 0, MAX_NUMBER) == [A, B]
    assert caplog.messages == ["dashboard: its data cannot be read: no disk"]
    store.flush()


def test_failed_changes_are_written_later_in_their_last_state(
    store: Store, failing: FailingRows, caplog: pytest.LogCaptureFixture
) -> None:
    failing.error = "no space"
    store.put("x", 1, b"a", b"old")
    store.put("x", *B)
    store.save()
    assert "no space" in store.last_error
    store.put("x", *A)
    store.trim("y", 5)
    store.remove("x", 2, b"b")
    failing.error = ""
    until(lambda: not store.last_error)
    store.save()
    assert failing.read("x", 0, MAX_NUMBER) == [A]
    assert caplog.messages == [
        "dashboard: its data cannot be written: no space; changes stay in memory, and are written later",
        "dashboard: saving its data succeeds again",
    ]


def test_save_tries_again_at_once(store: Store, failing: FailingRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "RETRY_INTERVAL", 3600)
    failing.error = "no space"
    store.put("x", *A)
    store.save()
    assert "no space" in store.last_error
    failing.error = ""
    store.save()
    assert not store.last_error
    assert failing.read("x", 0, MAX_NUMBER) == [A]


def test_waiting_changes_have_a_bound(store: Store, failing: FailingRows, caplog: pytest.LogCaptureFixture) -> None:
    failing.error = "no space"
    store.put("x", *A)
    store.put("x", *B)
    store.put("x", 3, b"", bytes(MAX_PENDING - 6))
    store.save()
    store.put("x", 4, b"", b"123456")
    failing.error = ""
    until(lambda: not store.last_error)
    assert [number for number, _, _ in failing.read("x", 0, MAX_NUMBER)] == [3, 4]
    assert "dashboard: 2 changes were lost, because too many waited to be saved" in caplog.messages


def test_flush_gives_up_while_the_disk_fails(
    store: Store, failing: FailingRows, caplog: pytest.LogCaptureFixture
) -> None:
    failing.error = "no space"
    store.put("x", *A)
    store.flush()
    assert caplog.messages[-1] == "dashboard: stopped; its last changes are not saved"
