"""Search: it counts every match, shows the current state, shares tasks, and does not delay workers."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import pytest
from flask import Flask
from flask.testing import FlaskClient

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import MAX_ID, SECOND
from greenstalk_server.core.operations import editing, finishing, kicking, putting, reserving
from greenstalk_server.web.features.search import pages as search
from greenstalk_server.web.features.search.pages import PAGE_SIZE
from greenstalk_server.web.features.search.search import MAX_MATCHES
from greenstalk_server.web.reads.jobs.json_fields import MAX_PARSED, MAX_VALUES
from greenstalk_server.web.reads.jobs.matching import MAX_COLLECTED_IDS, candidate_ids
from greenstalk_server.web.reads.jobs.query import parse
from tests.support.daemon import TIMEOUT

from .conftest import ADMIN, Queue
from .forms import SAME_ORIGIN, refused
from .table import Page
from .turns import LoopIterations, until

HOSTILE = '</td><script>document.title="gone"</script>&amp;'


@pytest.fixture(autouse=True)
def _long_initial_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each page wait until its search is done, on a machine of any speed."""
    monkeypatch.setattr(search, "INITIAL_WAIT", TIMEOUT)


def put(queue: Queue, tube: str, *bodies: bytes, pri: int = 2000) -> list[int]:
    return [putting.put_into(queue.broker, tube.encode(), pri, 0, 60 * SECOND, body, queue.now) for body in bodies]


def find(client: FlaskClient, q: str, **more: str | int) -> Page:
    response = client.get("/search", query_string={"q": q, **more})
    assert response.status_code == 200, response.text
    return Page(response.text)


def ids(page: Page) -> list[int]:
    rows = [attributes for tag, attributes in page.elements if tag == "tr" and "data-key" in attributes]
    return [int(attributes["data-key"] or 0) for attributes in rows]


def task_id(page: Page) -> str:
    return str(next(attributes["data-live-args"] for _, attributes in page.elements if "data-live-args" in attributes))


def test_matches_are_listed_by_id(queue: Queue, client: FlaskClient) -> None:
    one, two, three = put(queue, "mail", b"no route", b"fine", b"no route to host")
    put(queue, "other", b"no route", pri=1)
    finishing.bury_job(queue.broker, one, queue.now)
    page = find(client, 'tube:mail "no route"')
    assert ids(page) == [one, three]
    assert "scanned 3 of 3 jobs" in page.text and "done" in page.text
    assert two not in ids(find(client, "state:buried")) == [one]


def test_without_a_query_the_page_shows_form_and_help(client: FlaskClient) -> None:
    page = find(client, "")
    assert "Search syntax" in page.text and "Matches" not in page.text


@pytest.mark.parametrize("q", ["pri:x", 'body:"', "nope:1", HOSTILE + '"'])
def test_malformed_query_stays_in_the_form(client: FlaskClient, q: str) -> None:
    response = client.get("/search", query_string={"q": q})
    page = Page(response.text)
    assert response.status_code == 400
    assert page.attribute("q", "value") == q and page.attribute("q-error", "role") == "alert"
    assert "<script>document" not in response.text


def test_matches_show_the_current_state_without_deleted_jobs(queue: Queue, client: FlaskClient) -> None:
    buried, deleted = put(queue, "mail", b"x", b"x")
    page = find(client, "tube:mail")
    args = task_id(page)
    finishing.bury_job(queue.broker, buried, queue.now)
    finishing.delete_job(queue.broker, deleted, queue.now)
    rows = client.get(f"/live?page=search&{args}").json["rows"]["matches"]
    assert [(row[0], row[2]) for row in rows] == [(str(buried), "buried")]
    assert ids(Page(client.get(f"/search?{args}").text)) == [buried]


def test_all_matches_are_counted_and_the_first_listed(queue: Queue, client: FlaskClient) -> None:
    found = queue.put("mail", count=MAX_MATCHES + 50)
    page = find(client, "tube:mail")
    assert "1,050 match" in page.text and ids(page) == found[:PAGE_SIZE]
    args = task_id(page).removesuffix("0")
    assert ids(Page(client.get(f"/search?{args}{PAGE_SIZE}").text)) == found[PAGE_SIZE : 2 * PAGE_SIZE]
    last = client.get(f"/search?{args}{MAX_MATCHES - PAGE_SIZE}").text
    assert ids(Page(last)) == found[MAX_MATCHES - PAGE_SIZE : MAX_MATCHES] and f"from={MAX_MATCHES}" not in last


def test_same_query_joins_the_running_search(queue: Queue, app: Flask, client: FlaskClient) -> None:
    queue.put("mail", count=20_000)
    pages: list[Page] = []
    asked = [gevent.spawn(lambda q=q: pages.append(find(client, q))) for q in ("pri:7", "pri:7", " pri:7 ", "pri:8")]
    gevent.joinall(asked, raise_error=True)
    assert len({task_id(page) for page in pages}) == 2
    while (running := app.extensions["dashboard"].tasks.running(lambda _: True)) is not None:
        running.wait(TIMEOUT)
    assert task_id(find(client, "pri:7")) not in {
        task_id(page) for page in pages
    }  # the previous task had ended, so this is a new one


def test_task_of_another_kind_is_not_a_search(queue: Queue, app: Flask, client: FlaskClient) -> None:
    queue.put("mail")
    preview = client.post(
        "/bulk/preview",
        data={"scope": "all", "tube": "mail", "action": "bury"},
        headers=SAME_ORIGIN,
    )
    task = preview.headers["Location"].partition("task=")[2]
    assert "of another kind" in refused(client.get(f"/search?task={task}"), 404)
    assert "no such task" in refused(client.get("/search?task=0"), 404)


# Hidden bodies


def test_hidden_bodies_are_not_searched(queue: Queue, visit: Callable[..., FlaskClient]) -> None:
    [id] = put(queue, "mail", b"hunter2")
    client = visit(hides_bodies=True)
    for path in (
        "/search?q=hunter2",
        "/search?q=-hunter2",
        "/tube?tube=mail&q=body:hunter2",
        "/export?format=csv&q=~x",
    ):
        assert "cannot search them" in refused(client.get(path), 403)
    for path in ("/search?q=size:7", "/tube?tube=mail&q=size:7", "/tube?tube=mail"):
        response = client.get(path)
        assert ids(Page(response.text)) == [id]
        assert "hunter2" not in response.text and 'class="body"' not in response.text


# The job list of a tube


def test_job_list_can_be_filtered(queue: Queue, client: FlaskClient) -> None:
    low, high = put(queue, "mail", b"x", b"needle", pri=5)
    [first] = put(queue, "mail", b"needle", pri=1)
    page = Page(client.get("/tube?tube=mail&q=needle").text)
    assert ids(page) == [first, high]
    assert "2 matching, among all 3" in page.text and low not in ids(page)
    live = client.get("/live?page=tube&tube=mail&state=ready&q=needle").json
    assert [row[0] for row in live["rows"]["jobs"]] == [str(first), str(high)]
    assert "No ready job of this tube matches." in Page(client.get("/tube?tube=mail&q=nothing").text).text


def test_jobs_that_are_searched_in_part_are_counted(queue: Queue, client: FlaskClient) -> None:
    many, large, [match] = (put(queue, "mail", body) for body in (MANY, LARGE, b'{"a":2}'))
    page = find(client, "-body.a:1")
    assert ids(page) == [match] and many != large
    assert "2 jobs may match, but can be searched only in part" in page.text


MANY = b'{"a":[0%s]}' % (b",0" * MAX_VALUES)
LARGE = b'{"b":"%s"}' % (b"x" * MAX_PARSED)


# Candidates


def places(broker: Broker, q: str) -> list[int]:
    total, ids = candidate_ids(broker, parse(q), who=ADMIN)
    found = list(ids)
    assert total == len(found)
    return found


def test_candidates_contain_each_job_once(queue: Queue) -> None:
    broker = queue.broker
    queue.put("other", count=3)
    found = queue.put("mail", count=40) + queue.put("mail", count=10, delay=60)
    for id in found[::3]:
        finishing.bury_job(broker, id, queue.now)
    for id in found[::6]:
        kicking.kick_job(broker, id, queue.now)
    worker = queue.connect()
    for id in found[1::5]:
        reserving.reserve_job(broker, worker, id, queue.now)
    editing.edit_job(broker, found[2], queue.now, tube=b"other")
    here = [id for id in found if id != found[2]]
    found_ids = places(broker, "tube:mail")
    assert set(found_ids) >= set(here) and len(found_ids) == len(set(found_ids)) and found_ids == sorted(found_ids)
    is_match = parse("tube:mail").test()
    assert [id for id in found_ids if is_match(broker.jobs[id], queue.now)] == here


def test_candidates_of_one_id_of_a_missing_tube_and_of_a_large_tube(queue: Queue) -> None:
    queue.put("mail", count=MAX_COLLECTED_IDS + 1)
    [small] = queue.put("small")
    assert places(queue.broker, f"id:{small} tube:mail") == [small]
    assert places(queue.broker, f"id:{MAX_ID}") == [MAX_ID]
    assert places(queue.broker, "tube:nowhere") == []
    assert places(queue.broker, "tube:small") == [small]
    assert places(queue.broker, "tube:mail") == places(queue.broker, "pri:1") == list(queue.broker.jobs)


# Large queues


def test_search_of_many_jobs_does_not_delay_workers(
    queue: Queue, app: Flask, client: FlaskClient, short_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "INITIAL_WAIT", 0)
    found = queue.put("mail", count=MAX_COLLECTED_IDS + 1000)
    rare = found[::300]
    for id in rare:
        finishing.bury_job(queue.broker, id, queue.now)
    page = find(client, "state:buried -body:x reserves:0")
    task = app.extensions["dashboard"].tasks.running(lambda _: True)
    with LoopIterations(lambda: task.scanned) as turns:
        early = client.get(f"/live?page=search&{task_id(page)}").json
        until(lambda: not task.is_running)
    done = client.get(f"/live?page=search&{task_id(page)}").json
    assert done["fields"]["task-scanned"] == "scanned 21,000 of 21,000 jobs"
    assert [row[0] for row in done["rows"]["matches"]] == [str(id) for id in rare]
    assert early["rows"]["matches"] == done["rows"]["matches"][: len(early["rows"]["matches"])]
    assert turns.max_progress <= 2
