"""The audit log: its entries, how they survive crashes and failing disks, its page and its export."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.features.audit import entries
from greenstalk_server.web.store import audit as audit_module
from greenstalk_server.web.store.audit import MAX_ENTRIES, MAX_REFUSALS, Audit

from .conftest import Queue
from .forms import SAME_ORIGIN
from .stored import local_store, locked
from .table import Page
from .test_guard import basic
from .turns import LoopIterations, until


@pytest.fixture(autouse=True)
def context(queue: Queue) -> Iterator[None]:
    """A request context, for tests that log without a request."""
    with queue.app().test_request_context():
        yield


def numbers(audit: Audit, before: int = 0) -> list[int]:
    return [entry.number for entry in audit.newest_first(before)]


def kept(queue: Queue, directory: Path | None = None) -> Audit:
    """Return the audit log in *directory*, restored."""
    store = local_store(directory)
    audit = Audit(queue.clock, store)
    store.restore()
    return audit


def save(audit: Audit) -> None:
    audit.store.save()


def fill(audit: Audit, count: int, **details: str | int) -> None:
    """Log *count* entries, in batches of as many as are kept in memory."""
    for number in range(count):
        audit.note("tube/pause", tube=f"t{number}", **details)
        if number % 500 == 499:
            save(audit)
    save(audit)


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
    audit = kept(queue)
    audit.note("tube/pause")
    for _ in range(5 * MAX_ENTRIES):
        audit.note_refusal("login/failed")
    assert [entry.what for entry in audit.entries] == ["tube/pause"] + ["login/failed"] * MAX_REFUSALS
    queue.now += 60 * SECOND
    audit.note_refusal("login/failed")
    assert audit.entries[-1].details == {"omitted": 5 * MAX_ENTRIES - MAX_REFUSALS}
    audit.note_refusal("login/failed")
    assert audit.entries[-1].details == {}


def test_long_texts_are_cut(queue: Queue) -> None:
    audit = kept(queue)
    audit.note("x", text="a" * 1_000_000, number=7, nothing="")
    assert audit.entries[0].details == {"text": "a" * 300, "number": 7}


# Rows


def test_entries_and_their_numbers_survive_a_restart(queue: Queue, tmp_path: Path) -> None:
    audit = kept(queue, tmp_path)
    audit.note("tube/pause", tube="mäil", seconds=90)
    audit.note("tube/resume")
    save(audit)
    again = kept(queue, tmp_path)
    again.note("tube/put")
    assert numbers(again) == [3, 2, 1]
    assert list(again.newest_first())[1:] == list(audit.newest_first())
    assert again.store.is_kept


def test_entries_before_the_restore_follow_those_of_the_previous_run(queue: Queue, tmp_path: Path) -> None:
    audit = kept(queue, tmp_path)
    audit.note("first")
    save(audit)
    store = local_store(tmp_path)
    later = Audit(queue.clock, store)
    later.note("second")
    store.restore()
    later.note("third")
    store.save()
    assert [entry.what for entry in kept(queue, tmp_path).newest_first()] == ["third", "second", "first"]
    assert numbers(later) == [3, 2, 1]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        b'{"at":"x"}',
        b"[" * 50_000,
        b'{"at":-1,"who":"","address":"","what":"x","details":{}}',
    ],
)
def test_damaged_rows_are_left_out(queue: Queue, tmp_path: Path, data: bytes) -> None:
    audit = kept(queue, tmp_path)
    fill(audit, 2)
    store = local_store(tmp_path)
    store.put("audit", 1, b"", data)
    store.restore()
    store.save()
    assert numbers(kept(queue, tmp_path)) == [2]


def test_every_entry_is_found_from_every_cursor(queue: Queue, tmp_path: Path) -> None:
    audit = kept(queue, tmp_path)
    fill(audit, 2500)
    again = kept(queue, tmp_path)
    assert numbers(again) == numbers(audit) == list(range(2500, 0, -1))
    for before in (2, 3, 400, 401, 1200, 1999, 2500, 2501, 9999):
        assert next(iter(again.newest_first(before))).number == min(before - 1, 2500)
    assert numbers(again, 1) == []


def test_oldest_entries_are_removed(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "MAX_KEPT", 1500)
    audit = kept(queue, tmp_path)
    fill(audit, 2050)
    assert numbers(kept(queue, tmp_path)) == list(range(2050, 500, -1))


def test_new_entries_during_a_read_are_not_repeated(queue: Queue, tmp_path: Path) -> None:
    fill(kept(queue, tmp_path), 1300)
    audit, seen = kept(queue, tmp_path), []
    for entry in audit.newest_first():
        seen.append(entry.number)
        if len(seen) in (10, 150):
            fill(audit, 150)
    assert seen == list(range(1300, 0, -1))


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
        ["2027-01-15 08:00:00 UTC", "–", "127.0.0.1", "tube/pause", "a+b", "for 1 min 30 s, reason <b>"],
    ]
    found = links(client, "/audit")
    assert (found["a+b"], found["job 1"]) == ("/tube?tube=a%2Bb", "/job?id=1")


@pytest.mark.parametrize(
    ("what", "details", "shown"),
    [
        ("tube/pause", {"seconds": "0.500"}, "for 0.5 s"),
        ("tubes/end", {"seconds": "600"}, "for 10 min"),
        (
            "policy/set",
            {"document": '{"tubes":["mail.*","sms"],"priority":0,"max_jobs":1000,"overflow":"refuse","ttr_min":90}'},
            "settings tubes: mail.*, sms; maximum jobs: 1,000; when full: refuse; minimum TTR: 90 s",
        ),
        ("policy/set", {"document": '{"tubes":["*"],"priority":7,"unique":"bo'}, "settings tubes: *; priority: 7; …"),
        ("policy/set", {"document": '{"tubes":["mail.a'}, "settings …"),
    ],
)
def test_details_are_shown_for_people(queue: Queue, what: str, details: dict[str, str], shown: str) -> None:
    app = queue.app()
    app.extensions["dashboard"].audit.note(what, **details)
    ((*_, details_shown),) = rows(app.test_client())
    assert details_shown == shown


def test_filter_by_action_finds_the_action(queue: Queue) -> None:
    queue.put("mail", count=5)
    (id,) = queue.put("mail")
    client = queue.app().test_client()
    do(client, "/tube/clear", tube="mail", state="buried", confirm="mail")
    do(client, "/job/copy", id=id, delay=0)
    do(client, "/job/delete", id=id)
    bulk(client, tube="mail", action="delete", confirm="mail")
    assert [row[3] for row in rows(client, "/audit?what=delete")] == ["bulk", "job/delete", "tube/clear"]
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
    details = f"action pri, query tube:mail, pri 7, previewed 3, jobs 3, started {at}"
    assert rows(client) == [[at, "–", "127.0.0.1", "bulk", "mail task", details]]
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
    monkeypatch.setattr("greenstalk_server.web.store.sqlite.BUSY_TIMEOUT", 0.01)
    client = queue.app(directory=str(tmp_path)).test_client()
    with locked(tmp_path):
        do(client, "/tube/pause", tube="mail", seconds=9)
        until(lambda: client.application.extensions["dashboard"].store.last_error)
        page = Page(client.get("/audit").text).text
        assert "dashboard.sqlite3: database is locked" in page
        assert "tube/pause" in page
    client.application.extensions["dashboard"].store.save()


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
    fill(kept(queue, tmp_path), 3000)
    client = queue.app(directory=str(tmp_path)).test_client()
    with LoopIterations() as turns:
        response = client.get("/audit/export?format=jsonl")
        parts = list(response.iter_encoded())
    assert len(parts) > 10
    assert b"".join(parts).count(b"\n") == 3000
    assert turns.count >= 3000
