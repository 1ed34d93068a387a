"""Lists of jobs are sorted by each column, over all jobs of the list."""

from __future__ import annotations

import re
from html import unescape
from typing import Any, get_args

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import DELAYED, READY, RESERVED, SECOND, STATE_NAMES
from greenstalk_server.core.operations import finishing, policy_changes, putting, reserving
from greenstalk_server.core.policies.policy import parse_policy
from greenstalk_server.web.features.search import pages as search_pages
from greenstalk_server.web.features.tubes.pages import tube_filter
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.jobs.job_list import MAX_LISTED, PAGE_SIZE
from greenstalk_server.web.reads.jobs.job_orders import DEFAULT_ORDERS, ORDERS, FirstJobs, OrderName, sorted_jobs
from tests.support.daemon import TIMEOUT

from .conftest import Queue
from .table import Page

MIXED = [(5, 10), (1, 30), (9, 20), (1, 5), (5, 40)]
"""Priority and size of each job."""


@pytest.fixture(autouse=True)
def _long_initial_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each page wait until its task is done, on a machine of any speed."""
    monkeypatch.setattr(tube_filter, "INITIAL_WAIT", TIMEOUT)
    monkeypatch.setattr(search_pages, "INITIAL_WAIT", TIMEOUT)


def put_mixed(queue: Queue) -> list[int]:
    found = []
    for pri, size in MIXED:
        queue.now += SECOND
        found.append(putting.put_into(queue.broker, b"mail", pri, 0, 60 * SECOND, b"x" * size, queue.now))
    return found


def ids(page: Page) -> list[int]:
    return [int(found["data-key"] or 0) for tag, found in page.elements if tag == "tr" and "data-key" in found]


def listed(client: FlaskClient, path: str = "/tube", **query: Any) -> list[int]:
    """Return the ids on all pages of a list."""
    found, page = list[int](), client.get(path, query_string={"tube": "mail"} | query)
    while True:
        assert page.status_code == 200, page.text
        found += ids(Page(page.text))
        head, is_more, _ = page.text.partition('">Next</a>')
        if not is_more:
            return found
        page = client.get(unescape(head.rpartition('href="')[2]))


def sorted_head(page: Page) -> dict[str, str | None]:
    """Return the only head of a column that names the order of the list."""
    [head] = [attributes for tag, attributes in page.elements if tag == "th" and "aria-sort" in attributes]
    return head


def test_api_names_every_order() -> None:
    assert get_args(OrderName) == tuple(ORDERS)


@pytest.mark.parametrize("path", ["/tube", "/search"])
@pytest.mark.parametrize(
    ("sort", "key"),
    [
        ("pri", lambda at: (MIXED[at][0], at)), ("size", lambda at: (MIXED[at][1], at)), ("age", lambda at: -at),
        ("id", lambda at: at),
    ],
)  # fmt: skip
def test_list_is_sorted_both_ways(queue: Queue, client: FlaskClient, path: str, sort: str, key: Any) -> None:
    put, expected = put_mixed(queue), sorted(range(len(MIXED)), key=key)
    query = {"q": "size:>0", "sort": sort} if path == "/search" else {"sort": sort}
    assert listed(client, path, **query) == [put[at] for at in expected]
    assert listed(client, path, **query, desc=1) == [put[at] for at in reversed(expected)]


@pytest.mark.parametrize("path", ["/tube?tube=mail", "/tube?tube=mail&q=size:>0", "/search?q=size:>0"])
def test_title_of_a_column_sorts_and_then_reverses(queue: Queue, client: FlaskClient, path: str) -> None:
    put_mixed(queue)
    seen = []
    html = client.get(path).text
    for _ in range(2):
        before, _, _ = html.partition(">Bytes</a>")
        html = client.get(unescape(before.rpartition('href="')[2].partition('"')[0])).text
        head = sorted_head(Page(html))
        assert "size" in str(head["class"])
        seen.append((head["aria-sort"], ids(Page(html))))
    assert [direction for direction, _ in seen] == ["descending", "ascending"], "largest first"
    assert seen[0][1] == seen[1][1][::-1] == [5, 2, 3, 1, 4]


@pytest.mark.parametrize("state", [READY, RESERVED, DELAYED])
def test_default_order_is_that_in_which_jobs_leave_the_state(queue: Queue, client: FlaskClient, state: int) -> None:
    put = queue.put("mail", pri=7) + queue.put("mail", pri=3) + queue.put("mail", delay=9) + queue.put("mail", delay=5)
    worker = queue.connect()
    expected = {READY: [put[1], put[0]], DELAYED: [put[3], put[2]], RESERVED: put[:2]}[state]
    if state == RESERVED:
        for id in put[:2]:
            reserving.reserve_job(queue.broker, worker, id, queue.now)
            queue.now += SECOND
    assert listed(client, state=STATE_NAMES[state]) == expected
    page = Page(client.get(f"/tube?tube=mail&state={STATE_NAMES[state]}").text)
    assert sorted_head(page)["aria-sort"] == "ascending"
    order = DEFAULT_ORDERS[state]
    assert listed(client, state=STATE_NAMES[state], sort=order.key, desc=1) == expected[::-1]


def test_buried_jobs_begin_with_the_newest_burial(queue: Queue, client: FlaskClient) -> None:
    put = queue.put("mail", count=MAX_LISTED + 2 * PAGE_SIZE)
    order = put[::2] + put[1::2]
    for id in order:
        queue.now += SECOND
        finishing.bury_job(queue.broker, id, queue.now)
    queue.now += SECOND
    assert listed(client, state="buried") == order[: -MAX_LISTED - 1 : -1]
    assert listed(client, state="buried", sort="buried", desc=1) == order[:MAX_LISTED]
    page = client.get("/tube?tube=mail&state=buried").text
    assert "first 100 of 1,200, newest burial first" in page
    assert re.search(r'data-label="Buried">1.s</td>', page)


def test_long_list_is_sorted_over_all_jobs(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=MAX_LISTED + 50)
    [large, largest] = [
        putting.put_into(queue.broker, b"mail", 9000, 0, 60 * SECOND, b"x" * size, queue.now) for size in (900, 901)
    ]
    found = listed(client, sort="size", desc=1)
    assert found[:2] == [largest, large] and len(found) == len(set(found)) == MAX_LISTED
    page = client.get("/tube?tube=mail&sort=size&desc=1").text
    assert "first 100 of 1,052, by size, largest first" in page and "Sort again" in page
    args = Page(page).attribute("main", "data-live-args")
    rows = client.get(f"/live?page=tube&{args}").get_json()["rows"]["jobs"]
    assert [int(row[0]) for row in rows[:2]] == [largest, large]


def test_first_jobs_match_the_whole_order(queue: Queue) -> None:
    put_mixed(queue)
    jobs = [queue.broker.jobs[id] for id in (3, 1, 5, 2, 4)]
    for order in (Order(key, desc) for key in ORDERS for desc in (False, True)):
        expected = [job.id for job in sorted_jobs(jobs, order)]
        for limit in range(1, 7):
            first = FirstJobs(order, limit)
            for job in jobs:
                first.add(job)
            assert [id for _, id in first.keys] == expected[:limit], order
            assert first.is_full == (limit <= len(jobs))
            rest = FirstJobs(order, 9, first.keys[-1])
            for job in jobs:
                rest.add(job)
            assert [id for _, id in rest.keys] == expected[limit:], order


def test_policies_and_connections_are_sorted(queue: Queue, client: FlaskClient) -> None:
    documents = {"a": 5, "b": 9, "c": 1}
    policies = [parse_policy(name, {"tubes": [name], "priority": pri}) for name, pri in documents.items()]
    policy_changes.set_file_policies(queue.broker, policies, queue.now)
    for _ in range(3):
        queue.connect()
    for path, link, expected in (
        ("/policies?sort=priority&desc=1", "/policy?name=", ["b", "a", "c"]),
        ("/policies?sort=priority", "/policy?name=", ["c", "a", "b"]),
        ("/connections?sort=number&desc=1", "/connection?number=", ["3", "2", "1"]),
    ):
        page = Page(client.get(path).text)
        links = [str(found["href"]) for tag, found in page.elements if tag == "a" and "href" in found]
        assert [href.removeprefix(link) for href in links if href.startswith(link)] == expected, path
        assert sorted_head(page)["aria-sort"] == ("descending" if "desc" in path else "ascending")


@pytest.mark.parametrize(
    "path", ["/tube?tube=mail&sort=body", "/tube?tube=mail&sort=tube", "/search?q=pri:1&sort=x", "/?sort=x"]
)
def test_unknown_order_is_refused(queue: Queue, client: FlaskClient, path: str) -> None:
    queue.put("mail")
    response = client.get(path)
    assert response.status_code == 400 and "“sort” must be one of" in unescape(response.text)


def test_oldest_ready_links_to_the_job(queue: Queue, client: FlaskClient) -> None:
    [old] = queue.put("mail", pri=9)
    queue.now += SECOND
    [new] = queue.put("mail", pri=1)
    assert 'href="/tube/oldest?tube=mail"' in client.get("/tube?tube=mail").text
    assert client.get("/tube/oldest?tube=mail").headers["Location"] == f"/job?id={old}"
    for id in (old, new):
        finishing.bury_job(queue.broker, id, queue.now)
    assert client.get("/tube/oldest?tube=mail").headers["Location"] == "/tube?tube=mail"
    assert "/tube/oldest" not in client.get("/tube?tube=mail").text
