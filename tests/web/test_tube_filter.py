"""The filter of a tube's page examines all jobs: a short list at once, a long one in a task."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from flask import Flask
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import editing, finishing, putting
from greenstalk_server.web.changes.tasks import Task
from greenstalk_server.web.features.search import search
from greenstalk_server.web.features.tubes.pages import tube_filter
from greenstalk_server.web.reads.jobs.job_list import MAX_LISTED, PAGE_SIZE
from tests.support.daemon import TIMEOUT

from .conftest import Queue
from .forms import SAME_ORIGIN
from .table import Page
from .turns import until


@pytest.fixture(autouse=True)
def _long_initial_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each page wait until its filter is done, on a machine of any speed."""
    monkeypatch.setattr(tube_filter, "INITIAL_WAIT", TIMEOUT)


def put(queue: Queue, *bodies: bytes, pri: int = 2000) -> list[int]:
    return [putting.put_into(queue.broker, b"mail", pri, 0, 60 * SECOND, body, queue.now) for body in bodies]


def ids(page: Page) -> list[int]:
    return [
        int(attributes["data-key"] or 0)
        for tag, attributes in page.elements
        if tag == "tr" and "data-key" in attributes
    ]


def link(page: Page, label: str, html: str) -> str:
    """Return the URL of the button *label*."""
    links = [str(a["href"]) for tag, a in page.elements if tag == "a" and str(a.get("href", "")).startswith("/tube?")]
    found = [url for url in links if f'href="{url.replace("&", "&amp;")}">{label}</a>' in html]
    assert len(found) == 1, (label, links)
    return found[0]


class Endless:
    """Candidates of a search that ends when the test sets `is_over`, or when it is cancelled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_over = False
        monkeypatch.setattr(tube_filter, "INITIAL_WAIT", 0)
        monkeypatch.setattr(search, "candidate_ids", lambda *_: (10, iter(lambda: 0 if self.is_over else 1, 0)))


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch, short_steps: None) -> Endless:
    return Endless(monkeypatch)


def tasks(app: Flask) -> list[Task]:
    with app.test_request_context():
        app.preprocess_request()  # sets the principal, who may see the tasks
        return list(app.extensions["dashboard"].tasks.all())


def test_match_at_the_end_of_a_long_list_is_found(queue: Queue, app: Flask, client: FlaskClient) -> None:
    queue.put("mail", count=MAX_LISTED + 200)
    last = put(queue, b"needle", b"needle", pri=9999)
    [first] = put(queue, b"needle", pri=1)
    response = client.get("/tube?tube=mail&q=needle")
    page = Page(response.text)
    assert ids(page) == [first, *last], "in the order of the list"
    assert "3 matching, among all 1,203" in page.text
    assert "done" in page.text and "scanned 1,203 of 1,203 jobs" in page.text
    assert 'http-equiv="refresh"' not in response.text
    assert [task.title for task in tasks(app)] == [
        "Search for tube:mail state:ready body:needle, by priority, most urgent first"
    ]


def test_invalid_filter_can_be_cleared_and_not_exported(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    shown = client.get("/tube?tube=mail&q=pri:x").text
    assert "must be a comparison" in shown
    assert '<a class="button text" href="/tube?tube=mail&amp;state=ready">Clear</a>' in shown
    assert "/export?" not in shown and "/export?" in client.get("/tube?tube=mail&q=pri:0").text


def test_matches_are_paged(queue: Queue, client: FlaskClient) -> None:
    found = queue.put("mail", count=2 * PAGE_SIZE + 30 + MAX_LISTED)[: 2 * PAGE_SIZE + 30]
    html = client.get(f"/tube?tube=mail&q=id:<={found[-1]}").text
    seen = [ids(Page(html))]
    assert f"first 100 of {len(found)} matching" in html
    for _ in range(2):
        html = client.get(link(Page(html), "Next", html)).text
        seen.append(ids(Page(html)))
    assert [len(page) for page in seen] == [PAGE_SIZE, PAGE_SIZE, 30]
    assert [id for page in seen for id in page] == found
    assert f"201 to 230 of {len(found)} matching" in html
    assert ">Next</a>" not in html
    assert ids(Page(client.get(link(Page(html), "First page", html)).text)) == found[:PAGE_SIZE]


def test_jobs_that_left_the_state_are_not_listed(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=MAX_LISTED + 1)
    gone, buried, moved, kept = put(queue, b"needle", b"needle", b"needle", b"needle")
    page = Page(client.get("/tube?tube=mail&q=needle").text)
    assert ids(page) == [gone, buried, moved, kept]
    args = page.attribute("main", "data-live-args")
    finishing.delete(queue.broker, None, gone, queue.now)
    finishing.bury_job(queue.broker, buried, queue.now)
    editing.edit_job(queue.broker, moved, queue.now, tube=b"other")
    state = client.get(f"/live?page=tube&{args}").json
    assert state is not None and [row[0] for row in state["rows"]["jobs"]] == [str(kept)]
    assert state["fields"]["task-state"] == "done" and state["shown"]["task-running"] is False


def test_page_shows_progress_and_continues_the_same_task(
    queue: Queue, app: Flask, client: FlaskClient, endless: Endless
) -> None:
    queue.put("mail", count=MAX_LISTED + 500)
    html = client.get("/tube?tube=mail&q=-body:body").text
    (task,) = tasks(app)
    assert task.is_running and "No match so far." in html
    refresh = next(str(a["content"]) for tag, a in Page(html).elements if a.get("http-equiv") == "refresh")
    url = refresh.partition("url=")[2]
    assert parse_qs(urlsplit(url).query)["task"] == [task.id]
    again = client.get(url)
    assert tasks(app) == [task]
    endless.is_over = True
    until(lambda: not task.is_running)
    html = client.get(url).text
    assert "No ready job of this tube matches." in html and 'http-equiv="refresh"' not in html
    assert again.status_code == 200


def test_cancel_returns_to_the_page(queue: Queue, app: Flask, client: FlaskClient, endless: Endless) -> None:
    queue.put("mail", count=MAX_LISTED + 500)
    page = Page(client.get("/tube?tube=mail&q=-body:body").text)
    back = next(
        str(a["value"])
        for tag, a in page.elements
        if tag == "input" and a.get("name") == "back" and "task=" in str(a["value"])
    )
    (task,) = tasks(app)
    response = client.post("/task/cancel", data={"id": task.id, "back": back}, headers=SAME_ORIGIN)
    assert (response.status_code, response.headers["Location"]) == (303, back)
    assert task.state == "cancelled"
    assert "cancelled" in client.get(back).text
    outside = client.post("/task/cancel", data={"id": task.id, "back": "//evil.example/"}, headers=SAME_ORIGIN)
    assert outside.headers["Location"] == "/"


def test_list_is_partial_while_too_many_tasks_run(
    queue: Queue, app: Flask, client: FlaskClient, endless: Endless
) -> None:
    queue.put("mail", count=MAX_LISTED + 500)
    for number in range(4):
        client.get(f"/tube?tube=mail&q=-body:{number}")
    html = client.get("/tube?tube=mail&q=pri:2000").text
    assert "Only the first jobs were examined. 4 searches or changes are running" in html
    assert "matching, among the first" in html
    for task in tasks(app):
        task.cancel()
        until(lambda task=task: not task.is_running)  # type: ignore[misc]
