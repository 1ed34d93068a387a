"""A field for a query suggests names of terms and values, of what the principal may see."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient
from playwright.sync_api import expect

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import finishing, putting
from greenstalk_server.web.features.search.suggestions import HELP, MAX_OPTIONS
from greenstalk_server.web.reads.jobs.query import NAMES, parse
from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .conftest import Queue
from .test_frameworks import body_of
from .visit import Clients, violations


def put(queue: Queue, tube: str, *bodies: object) -> list[int]:
    return [
        putting.put_into(
            queue.broker, tube.encode(), 0, 0, 60 * SECOND,
            body if isinstance(body, bytes) else json.dumps(body).encode(), queue.now,
        )
        for body in bodies
    ]  # fmt: skip


def suggested(client: FlaskClient, q: str, tube: str = "") -> list[str]:
    """Return the texts of the options; each is a beginning of a term, or a valid term."""
    response = client.get("/suggest", query_string={"q": q, "tube": tube})
    assert response.status_code == 200
    found = response.get_json()
    texts = [option["text"] for option in found["options"]]
    assert len(texts) <= MAX_OPTIONS and all(option["help"] for option in found["options"])
    for text in texts:
        assert text.endswith(":") or parse(q[: found["begin"]] + text)
    return texts


def test_every_term_is_explained() -> None:
    assert set(HELP) == set(NAMES)


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("re", ["reason:", "reserves:", "releases:"]),
        ("-st", ["-state:"]),
        ("pri:1 stat", ["state:"]),
        ("state:", ["state:ready", "state:reserved", "state:delayed", "state:buried"]),
        ("-state:bur", ["-state:buried"]),
        ("reason:ex", ["reason:expired", "reason:buried-expired"]),
        ("age:>=", ["age:>=2h"]),
        ("tube:mail", ["tube:mail", "tube:gmail"]),
        ('"state', []),
        ("nope:", []),
    ],
)
def test_names_and_fixed_values(queue: Queue, client: FlaskClient, q: str, expected: list[str]) -> None:
    put(queue, "mail", b"x")
    put(queue, "gmail", b"x")
    assert suggested(client, q) == expected


def test_values_come_from_some_jobs(queue: Queue, client: FlaskClient) -> None:
    put(queue, "mail", {"customer": {"id": 7, "name": 'A "b"'}}, {"customer": {"id": 7}, "paid": True}, b"text")
    failed = put(queue, "mail", {"error": "HTTP 503 at 12:30"}, body_of("laravel"))
    for id in failed:
        finishing.bury_job(queue.broker, id, queue.now)
    put(queue, "sms", {"other": 1})
    assert suggested(client, "cust", "mail") == ["body.customer.id:", "body.customer.name:"]
    assert suggested(client, "body.p", "mail")[0] == "body.paid:"
    assert suggested(client, "body.customer.id:", "mail") == ["body.customer.id:7"]
    assert suggested(client, "body.customer.name:", "mail") == [r'body.customer.name:"A \"b\""']
    assert suggested(client, "body.paid:t", "mail") == ["body.paid:true"]
    assert 'error:"HTTP 503 at #"' in suggested(client, "error:", "mail")
    assert suggested(client, "class:send", "mail") == [r'class:"App\\Jobs\\SendMail"']
    assert suggested(client, "oth") == ["body.other:"]
    assert suggested(client, "tube:mail oth") == [], "the query names a tube"


def test_hidden_bodies_are_not_suggested(queue: Queue) -> None:
    put(queue, "mail", {"secret": "x", "error": "y"})
    client = queue.app(hides_bodies=True).test_client()
    for q in ("secret", "body.secret:", "error:", "class:", "body.", "bo", "err"):
        assert suggested(client, q, "mail") == [], q


@pytest.fixture
def scripted(chromium: Browser, daemon: Daemon) -> Iterator[Tab]:
    """A tab with JavaScript; at the end it must have no errors and no foreign requests."""
    with chromium.tab(daemon.dashboard) as opened:
        yield opened
        assert (opened.console, opened.elsewhere) == ([], [])


def test_field_suggests_with_the_keyboard(scripted: Tab, clients: Clients) -> None:
    clients.put(b'{"customer": {"id": 316430}}')
    scripted.page.goto(clients.url)
    field = scripted.page.get_by_role("combobox", name="Filter these jobs by a query")
    options = scripted.page.locator("#suggestions [role=option]")
    field.press_sequentially("cust")
    expect(options).to_have_text(["body.customer.id: field of the body"])
    field.press("ArrowDown")
    expect(field).to_have_attribute("aria-activedescendant", "suggestions-0")
    assert violations(scripted) == []
    field.press("Enter")
    expect(options).to_have_text(["body.customer.id:316430 value in some jobs"])
    field.press("Escape")
    expect(options.first).to_be_hidden()
    assert field.input_value() == "body.customer.id:"
    field.press("ArrowDown")
    expect(options.first).to_be_visible()
    field.press("ArrowUp")
    field.press("Enter")
    assert field.input_value() == "body.customer.id:316430 "
