"""Columns of job lists: the error of failed jobs, and fields of JSON bodies that a principal chooses."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from html import unescape

import pytest
from flask.testing import FlaskClient

from .conftest import Queue
from .forms import SAME_ORIGIN
from .table import Page
from .test_frameworks import body_of
from .test_tube_errors import dead_letter, failing, put

ORDER = {"kind": "order", "customer": {"id": 12345678901234567890123}, "error": "no route " * 9}
WHOLE = ("no route " * 9).strip()


def cells(html: str) -> list[dict[str, str]]:
    """Return the cells of each row of a job list by their labels; the rows of templates have no text."""
    found = []
    for row in re.findall(r'<tr data-key="\d.*?</tr>', html, re.DOTALL):
        texts = re.findall(r'data-label="(.*?)"[^>]*>(?:<a[^>]*>)?(.*?)<', row)
        found.append({unescape(label): unescape(text) for label, text in texts})
    return found


def listed(client: FlaskClient, path: str) -> list[dict[str, str]]:
    response = client.get(path)
    assert response.status_code == 200, response.text
    Page(response.text)
    return cells(response.text)


def test_lists_of_failed_jobs_have_the_error_in_place_of_the_body(queue: Queue, client: FlaskClient) -> None:
    put(queue, ORDER, "plain text")
    buried = listed(client, "/tube?tube=mail&state=buried")
    assert [row["Error or body"] for row in buried] == ["plain text", WHOLE], "newest first"
    assert "Body" not in buried[0]
    put(queue, ORDER, is_buried=False)
    assert listed(client, "/tube?tube=mail&state=ready")[0]["Body"].startswith('{"kind": "order"')


def test_lists_of_dead_letters_have_the_error_in_every_state(queue: Queue, client: FlaskClient) -> None:
    [id] = put(queue, ORDER, tube="mail.dead", is_buried=False)
    dead_letter(queue, id, 1)
    assert listed(client, "/tube?tube=mail.dead&state=ready")[0]["Error or body"] == WHOLE


@pytest.mark.parametrize(
    "path", ["/tube?tube=mail&state=buried", "/tube?tube=mail&state=buried&q=kind", "/search?q=tube:mail"]
)
def test_fields_are_columns(queue: Queue, client: FlaskClient, path: str) -> None:
    put(queue, ORDER, {"kind": ["a", 1], "customer": None}, "text kind")
    rows = listed(client, f"{path}&cols=customer.id,kind&sort=id")
    assert [(row["customer.id"], row["kind"]) for row in rows] == [
        ("12345678901234567890123", "order"),
        ("–", '["a",1]'),
        ("–", "–"),
    ]


def test_columns_are_kept_by_pages_filters_exports_and_live_updates(queue: Queue, client: FlaskClient) -> None:
    put(queue, *[ORDER] * 150)
    html = client.get("/tube?tube=mail&state=buried&cols=customer.id&cols=kind").text
    kept = "cols=customer.id,kind"
    links = [unescape(link) for link in re.findall(r'href="([^"]*)"', html)]
    of_tube = [link for link in links if link.startswith("/tube?") and "state=" in link]
    assert len(of_tube) >= 5 and all(kept in link for link in of_tube if "after=" in link or link.endswith("ed"))
    assert all(kept in link for link in links if link.startswith("/export?"))
    assert '<input type="hidden" name="cols" value="customer.id,kind">' in html
    live = unescape(re.findall(r'data-live-args="(.*?)"', html)[0])
    assert "cols=customer.id%2Ckind" in live
    state = client.get(f"/live?page=tube&{live}").get_json()
    assert len(state["rows"]["jobs"]) == 100
    assert state["rows"]["jobs"][0][-3:] == ["12345678901234567890123", "order", WHOLE]
    assert "cols=customer.id,kind" in unescape(state["parts"]["pager"])


@pytest.mark.parametrize("path", ["/tube?tube=mail", "/search?q=tube:mail", "/export?format=csv&tube=mail"])
@pytest.mark.parametrize(("cols", "message"), [("a..b", "is not a path"), ("a,b,c,d,e,f,g", "At most 6 fields")])
def test_bad_columns_are_refused(queue: Queue, client: FlaskClient, path: str, cols: str, message: str) -> None:
    put(queue, ORDER)
    response = client.get(f"{path}&cols={cols}")
    assert response.status_code == 400
    assert "“cols” is invalid" in response.text and message in unescape(response.text)


def test_hidden_bodies_have_no_columns(queue: Queue, visit: Callable[..., FlaskClient]) -> None:
    put(queue, ORDER)
    client = visit(hides_bodies=True)
    for path in ("/tube?tube=mail&state=buried&cols=kind", "/search?q=tube:mail&cols=kind"):
        html = client.get(path).text
        assert not {"Error or body", "kind"} & set(cells(html)[0])
        assert "column-choice" not in html and "body.kind" not in html
    assert client.get("/export?format=csv&tube=mail&cols=kind").status_code == 403


def test_export_has_the_fields(queue: Queue, client: FlaskClient) -> None:
    put(queue, ORDER, failing("=1+1", kind=None), "text")
    path = "/export?tube=mail&cols=customer.id,kind,error"
    rows = list(csv.DictReader(io.StringIO(client.get(f"{path}&format=csv").text, newline=""), strict=True))
    assert [(row["body.customer.id"], row["body.kind"]) for row in rows] == [
        ("12345678901234567890123", "order"),
        ("", "null"),
        ("", ""),
    ]
    assert rows[1]["body.error"] == "'=1+1", "no formula"
    lines = [json.loads(line) for line in client.get(f"{path}&format=jsonl").text.splitlines()]
    assert [line["fields"] for line in lines] == [
        {"customer.id": "12345678901234567890123", "kind": "order", "error": WHOLE},
        {"customer.id": None, "kind": "null", "error": "=1+1"},
        {"customer.id": None, "kind": None, "error": None},
    ]
    assert all("fields" not in json.loads(line) for line in client.get("/export?format=jsonl").text.splitlines())


@pytest.mark.parametrize("path", ["/tube?tube=mail&state=buried", "/search?q=tube:mail"])
def test_lists_with_jobs_of_a_framework_have_their_class(queue: Queue, client: FlaskClient, path: str) -> None:
    put(queue, ORDER)
    assert "Class" not in listed(client, path)[0]
    put(queue, body_of("laravel"), body_of("celery"))
    assert [row["Class"] for row in listed(client, f"{path}&sort=id")] == [
        "–",
        "App\\Jobs\\SendMail",
        "shop.tasks.charge",
    ]
    assert [row["Class"] for row in listed(client, f"{path}{'%20' if 'q=' in path else '&q='}class:shop.*")] == [
        "shop.tasks.charge"
    ]


def test_preview_of_a_change_by_class_has_the_class(queue: Queue, client: FlaskClient) -> None:
    put(queue, body_of("laravel"), body_of("celery"), ORDER)
    form = {"scope": "all", "tube": "mail", "state": "buried", "q": "class:App*", "action": "kick"}
    preview = client.get(client.post("/bulk/preview", data=form, headers=SAME_ORIGIN).headers["Location"]).text
    assert re.findall(r'data-label="Class"[^>]*>(.*?)<', preview) == ["App\\Jobs\\SendMail"]
