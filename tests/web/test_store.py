"""The dashboard's own data: job templates and reasons for pauses, with and without a disk."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import ticking
from greenstalk_server.web.store.store import (
    MAX_REASONS,
    MAX_SAMPLES,
    Sample,
    SampleLimitExceeded,
    Store,
)

from .conftest import Queue
from .table import Page

SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}
SAMPLE = Sample("welcome", "mail", 10, 5, 60, '{"to": "ada"}\nä')


def post(client: FlaskClient, path: str, **form: Any) -> TestResponse:
    return client.post(path, data=form, headers=SAME_ORIGIN)


def put_form(page: str) -> dict[str, str | None]:
    """Return the values of the form that puts a job."""
    fields = {
        attributes["id"]: attributes.get("value")
        for tag, attributes in Page(page).elements
        if tag == "input" and attributes.get("id") in ("pri", "delay", "ttr", "name")
    }
    body = page.split('<textarea id="body"', 1)[1].split(">", 1)[1].split("</textarea>", 1)[0]
    return fields | {"body": body.removeprefix("\n")}


# The document


def test_data_survives_a_restart(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.add_sample(SAMPLE)
    store.set_reason("mail", "migration", 5, 1)
    store.save()
    again = Store(str(tmp_path))
    assert again.samples == {"welcome": SAMPLE}
    assert again.reason("mail", 5) == "migration"
    path = tmp_path / "dashboard.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["dashboard.json"]


def test_without_a_directory_data_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store()
    store.add_sample(SAMPLE)
    store.save()
    assert (store.samples, store.is_kept, store.trouble) == ({"welcome": SAMPLE}, False, "")
    assert list(tmp_path.iterdir()) == []


GOOD = {"version": 1, "samples": [], "pauses": {}}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "7", '"x"', "[" * 100_000, "\0" * 100,
        *map(json.dumps, [
            {},
            GOOD | {"version": 2},
            GOOD | {"samples": [{}]},
            GOOD | {"samples": ["x"]},
            GOOD | {"samples": {"a": 1}},
            GOOD | {"samples": [{"name": 1, "tube": "t", "pri": 0, "delay": 0, "ttr": 1, "body": ""}]},
            GOOD | {"samples": [{"name": "a", "tube": "t", "pri": True, "delay": 0, "ttr": 1, "body": ""}]},
            GOOD | {"samples": [{"name": "a", "tube": "t", "pri": 0, "delay": 0, "ttr": 1, "body": "", "more": 1}]},
            GOOD | {"samples": [{"name": "a", "tube": "t", "pri": 0, "delay": 0, "ttr": 1, "body": "\ud800"}]},
            GOOD | {"pauses": []},
            GOOD | {"pauses": {"a": "b"}},
            GOOD | {"pauses": {"a": {"text": "b", "until": "c"}}},
        ]),
    ],
)  # fmt: skip
def test_damaged_document_is_renamed(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "dashboard.json").write_text(text)
    store = Store(str(tmp_path))
    assert (store.samples, store.trouble) == ({}, "")
    assert (tmp_path / "dashboard.json.damaged").read_text() == text
    assert not (tmp_path / "dashboard.json").exists()
    (record,) = caplog.records
    assert "dashboard.json is damaged" in record.getMessage()
    store.add_sample(SAMPLE)
    store.save()
    assert Store(str(tmp_path)).samples == {"welcome": SAMPLE}


@pytest.mark.parametrize("name", ["dashboard.json", "dashboard.json.new"])
def test_symbolic_link_is_not_written_through(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / name).symlink_to(target)
    store = Store(str(tmp_path))
    store.add_sample(SAMPLE)
    store.save()
    assert target.read_text() == "precious"
    assert Store(str(tmp_path)).samples == {"welcome": SAMPLE}


def test_failing_disk_is_reported_once_and_recovers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    store = Store(str(tmp_path))
    store.add_sample(SAMPLE)
    store.save()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        store.remove_sample("welcome")
        store.save()
        store.save()
        assert store.trouble == "dashboard.json cannot be written: [Errno 5] Input/output error"
        assert Store(str(tmp_path)).samples == {"welcome": SAMPLE}, "the previous document is intact"
    store.save()
    assert store.trouble == ""
    assert Store(str(tmp_path)).samples == {}
    assert len(caplog.records) == 1
    assert capfd.readouterr().err == ""


def test_number_of_samples_is_bounded() -> None:
    store = Store()
    for number in range(MAX_SAMPLES):
        store.add_sample(Sample(str(number), "mail", 0, 0, 1, ""))
    with pytest.raises(SampleLimitExceeded, match="already 100 templates"):
        store.add_sample(SAMPLE)
    store.add_sample(Sample("5", "other", 0, 0, 1, "in its place"))
    assert store.samples["5"].tube == "other"


def test_reasons_are_bounded_and_ended_pauses_free_room() -> None:
    store = Store()
    for number in range(MAX_REASONS):
        store.set_reason(f"t{number}", "why", 100 + number, 1)
    store.set_reason("one-more", "why", 5000, 1)
    assert store.reason("one-more", 5000) == ""
    store.set_reason("one-more", "why", 5000, 100)
    assert store.reason("one-more", 5000) == "why"
    assert store.reason("t0", 100) == ""


# Samples on a tube's page


def test_sample_is_saved_loaded_put_and_deleted(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    form = {"tube": "mail", "pri": 10, "delay": 5, "ttr": 60, "body": '\n<b>\r\n"ä"'}
    response = post(client, "/sample/save", name=" A  & B ", **form)
    assert response.status_code == 303
    page = client.get(response.headers["Location"]).text
    assert "The template was saved." in page
    expected = {"pri": "10", "delay": "5", "ttr": "60", "name": "A & B", "body": "\n&lt;b&gt;\n&#34;ä&#34;"}
    assert put_form(page) == expected
    assert put_form(client.get("/tube?tube=mail&sample=A+%26+B").text) == expected
    response = post(client, "/sample/delete", tube="mail", name="A & B")
    page = client.get(response.headers["Location"]).text
    assert "The template was deleted." in page
    assert put_form(page) == {"pri": "65536", "delay": "0", "ttr": "60", "name": "", "body": ""}
    assert "optgroup" not in page
    noted = [(entry.what, entry.details) for entry in client.application.extensions["dashboard"].audit.entries]
    assert noted == [
        ("sample/save", {"name": "A & B", "tube": "mail", "bytes": 9}),
        ("sample/delete", {"name": "A & B"}),
    ]


# Reasons for pauses


def why(client: FlaskClient) -> str:
    """Return the reason on the tube's page, in its live part, and in the tooltip on the overview."""
    on_page = [part.split("</q>")[0] for part in client.get("/tube?tube=mail").text.split("Reason: <q>")[1:]]
    live = client.get("/live?page=tube&tube=mail").json["parts"]["pause"]
    in_part = [part.split("</q>")[0] for part in live.split("Reason: <q>")[1:]]
    cells = [of for tag, of in Page(client.get("/").text).elements if tag == "td" and of.get("data-label") == "Pause"]
    assert cells
    pointed_at = [of["title"] for of in cells if "title" in of]
    assert on_page == in_part == pointed_at
    return on_page[0] if on_page else ""


def test_reason_is_shown_during_the_pause(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    post(client, "/tube/pause", tube="mail", seconds=90, reason="  the database\nmoves ")
    assert why(client) == "the database moves"
    queue.now += 89 * SECOND
    ticking.tick(queue.broker, queue.now)
    assert why(client) == "the database moves"
    queue.now += SECOND
    ticking.tick(queue.broker, queue.now)
    assert why(client) == ""


def test_reason_survives_a_restart(queue: Queue, tmp_path: Path) -> None:
    queue.put("mail")
    post(queue.app(directory=str(tmp_path)).test_client(), "/tube/pause", tube="mail", seconds=90, reason="kept")
    client = queue.app(directory=str(tmp_path)).test_client()
    assert why(client) == "kept"
    post(client, "/tube/resume", tube="mail")
    assert json.loads((tmp_path / "dashboard.json").read_text())["pauses"] == {}
