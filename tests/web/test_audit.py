"""The audit log: its entries, how they survive crashes and failing disks, its page and its export."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.features.audit import entries
from greenstalk_server.web.store import audit_files
from greenstalk_server.web.store.audit import MAX_ENTRIES, MAX_REFUSALS, Audit
from greenstalk_server.web.store.audit_files import BLOCK

from .conftest import Queue
from .table import Page
from .test_guard import basic
from .turns import LoopIterations, until

SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def audit(queue: Queue, tmp_path: Path) -> Audit:
    return Audit(queue.clock, str(tmp_path))


@pytest.fixture(autouse=True)
def context(queue: Queue) -> Iterator[None]:
    """A request context, for tests that log without a request."""
    with queue.app().test_request_context():
        yield


def numbers(audit: Audit, before: int = 0) -> list[int]:
    return [entry.number for entry in audit.newest_first(before)]


def fill(audit: Audit, count: int, **details: str | int) -> None:
    """Log *count* entries, in batches of as many as are kept in memory."""
    for number in range(count):
        audit.note("tube/pause", tube=f"t{number}", **details)
        if number % 500 == 499:
            audit.flush()
    audit.flush()


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, name: str, error: Callable[..., Any]) -> Iterator[None]:
    """Make `os.NAME` of the audit log's files call *error*."""
    with monkeypatch.context() as patch:
        patch.setattr(os, name, error)
        yield


def no_space(*_: object) -> int:
    raise OSError(28, "No space left on device")


# Entries


def test_change_is_logged_with_name_operation_and_address(queue: Queue) -> None:
    queue.put("mail")
    app = queue.app(password="x")  # noqa: S106
    form = {"tube": "mail", "seconds": "90", "reason": " a  migration "}
    headers = SAME_ORIGIN | basic("ada", "x")
    app.test_client().post("/tube/pause", data=form, headers=headers, environ_overrides={"REMOTE_ADDR": "192.0.2.7"})
    (entry,) = app.extensions["dashboard"].audit.entries
    assert (entry.who, entry.address, entry.what, entry.at) == ("ada", "192.0.2.7", "tube/pause", queue.now)
    assert entry.details == {"tube": "mail", "seconds": 90, "reason": "a migration"}


def test_refusals_are_logged(queue: Queue) -> None:
    app = queue.app(password="x", viewer_password="y")  # noqa: S106
    client = app.test_client()
    client.post("/tube/put", headers={"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"})
    client.post("/tube/clear", headers=SAME_ORIGIN | basic("eve", "y"))
    for _ in range(10):
        client.get("/", headers=basic("mallory", "guess"))
    client.get("/")
    noted = [(entry.what, entry.who, entry.details) for entry in app.extensions["dashboard"].audit.entries]
    assert noted == [
        ("refused/cross-site", "", {"path": "/tube/put", "origin": "http://evil.example"}),
        ("refused/change", "eve", {"path": "/tube/clear"}),
        *[("login/failed", "mallory", {})] * 9,
        ("login/locked", "mallory", {}),
    ]


def test_flood_of_refusals_is_counted_and_evicts_no_changes(queue: Queue) -> None:
    audit = Audit(queue.clock)
    audit.note("tube/pause")
    for _ in range(5 * MAX_ENTRIES):
        audit.note_refusal("login/failed")
    assert [entry.what for entry in audit.entries] == ["tube/pause"] + ["login/failed"] * MAX_REFUSALS
    queue.now += 60 * SECOND
    audit.note_refusal("login/failed")
    assert audit.entries[-1].details == {"omitted": 5 * MAX_ENTRIES - MAX_REFUSALS}
    audit.note_refusal("login/failed")
    assert audit.entries[-1].details == {}


# On disk


def test_file_is_json_lines_readable_by_its_owner_only(queue: Queue, audit: Audit, tmp_path: Path) -> None:
    audit.note("tube/pause", tube="mail", seconds=90)
    audit.note("tube/resume", tube="mäil")
    audit.flush()
    path = tmp_path / "audit.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"n": 1, "at": "2027-01-15T08:00:00+00:00", "who": "", "address": "", "what": "tube/pause",
         "details": {"tube": "mail", "seconds": 90}},
        {"n": 2, "at": "2027-01-15T08:00:00+00:00", "who": "", "address": "", "what": "tube/resume",
         "details": {"tube": "mäil"}},
    ]  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_logging_does_not_wait_for_the_disk(audit: Audit, tmp_path: Path) -> None:
    audit.note("tube/pause")
    path = tmp_path / "audit.jsonl"
    assert not path.exists()
    until(lambda: path.exists() and path.read_text().count("\n") == 1)


def test_numbers_continue_after_a_restart(queue: Queue, audit: Audit, tmp_path: Path) -> None:
    queue.now += 5_000
    audit.note("tube/pause", tube="mail", seconds=90)
    audit.flush()
    again = Audit(queue.clock, str(tmp_path))
    again.note("tube/resume")
    assert list(again.newest_first())[1] == audit.entries[0]
    assert numbers(again) == [2, 1]


def test_torn_last_line_is_skipped(queue: Queue, audit: Audit, tmp_path: Path) -> None:
    """The line is torn at any byte. The next entry starts on a new line."""
    fill(audit, 3)
    path = tmp_path / "audit.jsonl"
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end])
        again = Audit(queue.clock, str(tmp_path))
        is_there = end == len(whole) - 1  # all but the newline
        assert numbers(again) == ([3, 2, 1] if is_there else [2, 1])
        again.note("tube/resume")
        again.flush()
        after = Audit(queue.clock, str(tmp_path))
        assert next(entry.what for entry in after.newest_first()) == "tube/resume"
        assert len(numbers(after)) == (4 if is_there else 3)


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[]", b"\xff\xfe", b'{"n":true}', b'{"n":"1"}', b"[" * 50_000, b'{"n":9,"at":5}', b"\0" * 999]
)
def test_foreign_lines_are_skipped(queue: Queue, audit: Audit, tmp_path: Path, line: bytes) -> None:
    fill(audit, 2)
    path = tmp_path / "audit.jsonl"
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join((first, line, second, line, b"")))
    assert [entry.details["tube"] for entry in Audit(queue.clock, str(tmp_path)).newest_first()] == ["t1", "t0"]


def test_every_entry_of_long_files_is_found_from_every_cursor(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log spans several files and blocks. Each page starts where the previous one ended."""
    monkeypatch.setattr(audit_files, "MAX_FILE_SIZE", 8 * BLOCK)
    audit = Audit(queue.clock, str(tmp_path))
    fill(audit, 2500, note="x" * 290)
    again = Audit(queue.clock, str(tmp_path))
    assert numbers(again) == list(range(2500, 0, -1))
    assert len(list(tmp_path.iterdir())) == 3
    for before in (2, 3, 400, 401, 1200, 1999, 2500, 2501, 9999):
        assert next(iter(again.newest_first(before))).number == min(before - 1, 2500)
    assert numbers(again, 1) == []
    assert len(numbers(audit)) == 2500, "the log whose latest entries are in memory has every entry"


def test_three_old_files_are_kept(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_files, "MAX_FILE_SIZE", 1000)
    audit = Audit(queue.clock, str(tmp_path))
    for _ in range(40):
        fill(audit, 1)
    names = ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    found = numbers(Audit(queue.clock, str(tmp_path)))
    assert found == list(range(40, 40 - len(found), -1))
    assert 20 < len(found) < 40


def test_rotation_during_a_read_loses_and_repeats_nothing(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_files, "MAX_FILE_SIZE", 20_000)
    fill(Audit(queue.clock, str(tmp_path)), 300)
    audit = Audit(queue.clock, str(tmp_path))
    seen = []
    for entry in audit.newest_first():
        seen.append(entry.number)
        if len(seen) in (10, 150):
            fill(audit, 150)
    assert seen == list(range(300, 300 - len(seen), -1))
    assert len(seen) > 200


def test_full_disk_is_reported_once_and_recovers(
    audit: Audit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    fill(audit, 1)
    tries = []

    def full(*_: object) -> int:
        tries.append(1)
        return no_space()

    with failing(monkeypatch, "fsync", full):
        audit.note("tube/pause", tube="while-full")
        until(lambda: audit.trouble)
        audit.note("tube/pause", tube="while-full-too")
        until(lambda: len(tries) == 2)
        until(lambda: (tmp_path / "audit.jsonl").read_text().count("\n") == 1)  # all or nothing
        assert audit.trouble == "the file cannot be written: [Errno 28] No space left on device"
        assert numbers(audit) == [3, 2, 1]
    fill(audit, 1)
    assert audit.trouble == ""
    assert (tmp_path / "audit.jsonl").read_text().count("\n") == 4
    assert [record.getMessage() for record in caplog.records] == [
        "audit log: the file cannot be written: [Errno 28] No space left on device"
    ]
    assert capfd.readouterr().err == ""


def test_symbolic_link_in_place_of_the_file_is_not_written_through(queue: Queue, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "audit.jsonl").symlink_to(target)
    audit = Audit(queue.clock, str(tmp_path))
    assert "the file cannot be read: [Errno 40]" in audit.trouble
    audit.note("tube/pause")
    until(lambda: "the file cannot be written: [Errno 40]" in audit.trouble)
    assert target.read_text() == "precious"
    assert [entry.what for entry in audit.newest_first()] == ["tube/pause"]


def test_stop_is_not_delayed_by_a_failing_disk(
    audit: Audit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("greenstalk_server.web.store.audit.FLUSH_TIMEOUT", 0.1)
    with failing(monkeypatch, "fsync", no_space):
        audit.note("tube/pause")
        audit.flush()
    assert caplog.records[-1].getMessage() == "audit log: stopped; the last entries are not on disk"


# The page


def rows(client: FlaskClient, path: str = "/audit", **headers: str) -> list[list[str]]:
    """Return the cells of each row, and check that the page is valid."""
    html = client.get(path, headers=headers).text
    Page(html)
    body = html.split("<tbody>", 1)[1].split("</tbody>", 1)[0] if "<tbody>" in html else ""
    found = []
    for row in body.split("</tr>")[:-1]:
        cells = row.replace("</th>", "</td>").split("</td>")[:-1]
        found.append([" ".join(Page(cell.split(">", 1)[1].partition(">")[2]).text.split()) for cell in cells[:1]])
        found[-1] += [" ".join(Page(cell[cell.index("<td") :].partition(">")[2]).text.split()) for cell in cells[1:]]
    return found


def links(client: FlaskClient, path: str) -> dict[str, str]:
    html = client.get(path).text
    targets = [attributes["href"] for tag, attributes in Page(html).elements if tag == "a" and attributes.get("href")]
    labels = [re.sub("<[^>]*>", "", part.split("</a>")[0].split(">", 1)[1]).strip() for part in html.split("<a ")[1:]]
    return {label: target for label, target in zip(labels, targets, strict=True) if target}


def do(client: FlaskClient, path: str, headers: dict[str, str] | None = None, **form: object) -> None:
    assert client.post(path, data=form, headers=SAME_ORIGIN | (headers or {})).status_code == 303


def test_page_shows_the_newest_first_with_links_to_tube_and_job(queue: Queue) -> None:
    client = queue.app().test_client()
    (id,) = queue.put("a+b")
    do(client, "/tube/pause", tube="a+b", seconds=90, reason="<b>")
    queue.now += 61 * SECOND
    do(client, "/job/delete", id=id)
    assert rows(client) == [
        ["2027-01-15 08:01:01 UTC", "–", "127.0.0.1", "job/delete", "a+b job 1", ""],
        ["2027-01-15 08:00:00 UTC", "–", "127.0.0.1", "tube/pause", "a+b", "seconds 90, reason <b>"],
    ]
    found = links(client, "/audit")
    assert (found["a+b"], found["job 1"]) == ("/tube?tube=a%2Bb", "/job?id=1")


def test_filter_by_action_finds_the_action(queue: Queue) -> None:
    queue.put("mail", count=5)
    (id,) = queue.put("mail")
    client = queue.app().test_client()
    do(client, "/tube/clear", tube="mail", state="buried", confirm="mail")
    do(client, "/job/copy", id=id, delay=0)
    do(client, "/job/delete", id=id)
    bulk(client, tube="mail", action="delete", confirm="mail")
    assert [row[3] for row in rows(client, "/audit?what=delete")] == ["bulk/end", "job/delete", "tube/clear"]
    assert [row[3] for row in rows(client, "/audit?what=put")] == ["job/copy"]
    assert [row[3] for row in rows(client, "/audit?what=clear")] == ["tube/clear"]


def test_filter_by_time_includes_both_minutes(queue: Queue) -> None:
    app = queue.app()
    for number in range(5):
        app.extensions["dashboard"].audit.note("tube/pause", tube=f"t{number}")
        queue.now += 30 * SECOND
    client = app.test_client()

    def tubes(query: str) -> list[str]:
        return [row[4] for row in rows(client, f"/audit?{query}")]

    assert tubes("since=2027-01-15T08:01") == ["t4", "t3", "t2"]
    assert tubes("until=2027-01-15T08:01") == ["t3", "t2", "t1", "t0"]
    assert tubes("since=2027-01-15T08:01&until=2027-01-15T08:01") == ["t3", "t2"]
    assert tubes("since=2027-01-15T08:00:30&until=2027-01-15T08:01:00") == ["t2", "t1"]


def test_bulk_change_is_one_row_with_a_link_to_its_task(queue: Queue) -> None:
    queue.put("mail", count=3)
    client = queue.app().test_client()
    path = bulk(client, tube="mail", action="pri", pri=7)
    id = path.removeprefix("/task?id=")
    at = "2027-01-15 08:00:00 UTC"
    details = f"action pri, query tube:mail, pri 7, counted 3, forced 0, jobs 3, started {at}"
    assert rows(client) == [[at, "–", "127.0.0.1", "bulk/end", "mail task", details]]
    assert links(client, "/audit")["task"] == path
    exported = client.get("/audit/export?format=jsonl").text.splitlines()
    assert [json.loads(line)["what"] for line in exported] == ["bulk/end", "bulk/run"]
    client.application.extensions["dashboard"].tasks._kept.clear()
    assert rows(client)[0][4:] == ["mail", f"task {id}, {details}"]


def bulk(client: FlaskClient, confirm: str = "", **form: object) -> str:
    """Change all matching jobs; return the address of the finished task."""
    preview = client.post("/bulk/preview", data={"scope": "all", "q": "", **form}, headers=SAME_ORIGIN)
    id = preview.headers["Location"].removeprefix("/bulk?task=")
    path = client.post("/bulk/run", data={"task": id, "confirm": confirm}, headers=SAME_ORIGIN).headers["Location"]
    with client.application.test_request_context():
        client.application.preprocess_request()  # sets the principal, who may see the task
        task = client.application.extensions["dashboard"].tasks.find({"id": path.removeprefix("/task?id=")}, "id")
    until(lambda: not task.is_running)
    return path


def test_long_search_stops_and_can_be_continued(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MAX_SCANNED", 50)
    app = queue.app()
    app.extensions["dashboard"].audit.note("tube/kick")
    fill(app.extensions["dashboard"].audit, 120)
    client = app.test_client()
    path, seen = "/audit?what=kick", 0
    while "Older" in links(client, path):
        assert "The scan reached its limit" in client.get(path).text
        path, seen = links(client, path)["Older"], seen + 1
    assert seen == 2
    assert [row[3] for row in rows(client, path)] == ["tube/kick"]


def test_trouble_is_on_the_page(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.put("mail")
    client = queue.app(directory=str(tmp_path)).test_client()
    with failing(monkeypatch, "fsync", no_space):
        do(client, "/tube/pause", tube="mail", seconds=9)
        until(lambda: client.application.extensions["dashboard"].audit.trouble)
        page = Page(client.get("/audit").text).text
        assert "the file cannot be written: [Errno 28] No space left on device." in page
        assert "tube/pause" in page
    client.application.extensions["dashboard"].audit.flush()


# The export


def test_export_as_json_lines(queue: Queue) -> None:
    app = queue.app()
    app.extensions["dashboard"].audit.note("tube/pause", tube="mäil", seconds=9)
    app.extensions["dashboard"].audit.note("job/kick", id=7)
    response = app.test_client().get("/audit/export?format=jsonl")
    assert response.mimetype == "application/x-ndjson"
    assert response.headers["Content-Disposition"] == 'attachment; filename="audit.jsonl"'
    common = {"at": "2027-01-15 08:00:00 UTC", "who": "", "address": ""}
    assert [json.loads(line) for line in response.text.splitlines()] == [
        {**common, "what": "job/kick", "details": {"id": 7}},
        {**common, "what": "tube/pause", "details": {"tube": "mäil", "seconds": 9}},
    ]


def test_csv_export_contains_no_formula(queue: Queue) -> None:
    app = queue.app(password="x")  # noqa: S106
    client = app.test_client()
    for name in ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", 'a"b,c', "plain"):
        client.get("/", headers=basic(name, "wrong"), environ_overrides={"REMOTE_ADDR": name})
    with client.application.test_request_context():
        app.extensions["dashboard"].audit.note("tube/kick", tube="+a", id=7, jobs=3)
    text = client.get("/audit/export?format=csv", headers=basic("", "x")).text
    head, kick, *failed = csv.reader(io.StringIO(text))
    assert head == ["at", "who", "address", "what", "tube", "id", "details"]
    assert kick[3:] == ["tube/kick", "'+a", "7", '{"jobs": 3}']
    assert [row[1] for row in failed] == ["plain", 'a"b,c', "'\tx", "'@SUM(A1)", "'-1", "'+1", "'=1+1"]
    assert {row[1] == row[2] for row in failed} == {True}


def test_export_is_streamed_and_yields(queue: Queue, tmp_path: Path, short_steps: None) -> None:
    fill(Audit(queue.clock, str(tmp_path)), 3000)
    client = queue.app(directory=str(tmp_path)).test_client()
    with LoopIterations() as turns:
        response = client.get("/audit/export?format=jsonl")
        parts = list(response.iter_encoded())
    assert len(parts) > 10
    assert b"".join(parts).count(b"\n") == 3000
    assert turns.count >= 3000
