"""The data that users save in the dashboard: job templates and reasons for pauses."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import ticking
from greenstalk_server.web.store.saved_data import (
    MAX_REASONS,
    MAX_SAMPLES,
    LimitExceeded,
    Sample,
    SavedData,
)

from .conftest import Queue
from .forms import post
from .stored import local_store
from .table import Page

SAMPLE = Sample("welcome", "mail", 10, 5, 60, '{"to": "ada"}\nä')


def put_form(page: str) -> dict[str, str | None]:
    """Return the values of the form that puts a job."""
    fields = {
        attributes["id"]: attributes.get("value")
        for tag, attributes in Page(page).elements
        if tag == "input" and attributes.get("id") in ("pri", "delay", "ttr", "name")
    }
    body = page.split('<textarea id="body"', 1)[1].split(">", 1)[1].split("</textarea>", 1)[0]
    return fields | {"body": body.removeprefix("\n")}


# Rows


def saved_data(directory: Path | None = None) -> SavedData:
    store = local_store(directory)
    saved = SavedData(store)
    store.restore()
    return saved


def test_data_survives_a_restart(tmp_path: Path) -> None:
    saved = saved_data(tmp_path)
    saved.add_sample(SAMPLE)
    saved.set_reason("mail", "migration", 5, 1)
    saved.save()
    again = saved_data(tmp_path)
    assert again.samples == {"welcome": SAMPLE}
    assert again.reason("mail", 5) == "migration"
    assert again.remove_sample("welcome")
    assert not again.remove_sample("welcome")
    again.set_reason("mail", "", 5, 1)
    again.save()
    assert saved_data(tmp_path).samples == {}
    assert saved_data(tmp_path).reason("mail", 5) == ""


def test_damaged_rows_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = local_store(tmp_path)
    for number, data in enumerate((b"", b"{}", b"null", b"[" * 100_000, b"\xff", b'{"text": 1, "until": "x"}')):
        store.put("sample", 0, b"%d" % number, data)
        store.put("pause-reason", 0, b"%d" % number, data)
    store.put("sample", 0, b"\xff", msgspec.json.encode(SAMPLE))
    store.put("sample", 0, b"welcome", msgspec.json.encode(SAMPLE))
    store.restore()
    store.save()
    saved = saved_data(tmp_path)
    assert saved.samples == {"welcome": SAMPLE}
    assert len(caplog.records) == 13
    assert "a row cannot be read, so a Sample is lost" in caplog.text


def test_number_of_samples_is_bounded() -> None:
    store = saved_data()
    for number in range(MAX_SAMPLES):
        store.add_sample(Sample(str(number), "mail", 0, 0, 1, ""))
    with pytest.raises(LimitExceeded, match="already 100 templates"):
        store.add_sample(SAMPLE)
    store.add_sample(Sample("5", "other", 0, 0, 1, "in its place"))
    assert store.samples["5"].tube == "other"


def test_reasons_are_bounded_and_ended_pauses_free_room() -> None:
    store = saved_data()
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
    """Return the reason on the tube's page, in its live part, and on the overview."""
    on_page = [part.split("</q>")[0] for part in client.get("/tube?tube=mail").text.split("Reason: <q>")[1:]]
    live = client.get("/live?page=tube&tube=mail").json["parts"]["pause"]
    in_part = [part.split("</q>")[0] for part in live.split("Reason: <q>")[1:]]
    cells = re.findall('<td class="pause[^>]*data-label="Pause"[^>]*>([^<]*)</td>', client.get("/").text)
    assert cells
    assert on_page == in_part == [cell.partition(", ")[2] for cell in cells if ", " in cell]
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
    assert why(queue.app(directory=str(tmp_path)).test_client()) == ""
