"""The pages of one tube and of one job."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.runtime import Context

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, finishing, kicking, putting, reserving, ticking
from greenstalk_server.web.framework import cooperative
from greenstalk_server.web.reads.jobs.job_list import MAX_LISTED, MAX_SCANNED, PAGE_SIZE, job_columns, list_jobs
from greenstalk_server.web.reads.jobs.job_orders import DEFAULT_ORDERS

from .conftest import Queue
from .table import Page
from .test_overview import HOSTILE_NAMES

SCRIPT = b"<script>alert(1)</script>"


def page(client: FlaskClient, path: str, **query: object) -> Page:
    response = client.get(path, query_string=query or None)
    assert response.status_code == 200, response.text
    return Page(response.text)


def collapsed(text: str) -> str:
    """Return *text* with runs of whitespace collapsed."""
    return "".join(text.split())


def refusal(client: FlaskClient, path: str, status: int) -> str:
    response = client.get(path)
    assert response.status_code == status
    return Page(response.text).text


def ids(shown: Page) -> list[int]:
    """Return the ids in the job list."""
    return [
        int(attributes["data-key"]) for tag, attributes in shown.elements if tag == "tr" and attributes.get("data-key")
    ]


def next_page(shown: Page) -> str | None:
    links = [attributes.get("href") or "" for tag, attributes in shown.elements if tag == "a"]
    return next((link for link in links if link.startswith("/tube?") and "after=" in link), None)


def test_ready_jobs_are_listed_in_reserve_order(queue: Queue, client: FlaskClient) -> None:
    late, soon = queue.put("mail", pri=9, count=2), queue.put("mail", pri=1, count=2)
    shown = page(client, "/tube", tube="mail")
    assert ids(shown) == soon + late
    assert "4 jobs, in the order they will be reserved" in shown.text


def test_next_page_continues_after_jobs_are_deleted(queue: Queue, client: FlaskClient) -> None:
    put = queue.put("mail", count=2 * PAGE_SIZE + 30)
    shown = page(client, "/tube", tube="mail")
    assert ids(shown) == put[:PAGE_SIZE]
    link = next_page(shown)
    assert link
    for id in put[: PAGE_SIZE + 5 : 2]:
        finishing.delete(queue.broker, None, id, queue.now)
    shown = page(client, link)
    assert ids(shown) == [id for id in put[PAGE_SIZE:] if id in queue.broker.jobs][:PAGE_SIZE]
    link = next_page(shown)
    assert link
    shown = page(client, link)
    assert ids(shown) == put[-len(ids(shown)) :]
    assert next_page(shown) is None
    for id in put:
        finishing.delete(queue.broker, None, id, queue.now)
    queue.broker.tube(b"mail").using = 1
    assert "No ready jobs follow the previous page." in page(client, link).text


@pytest.mark.parametrize("state", ["ready", "reserved"])
def test_pages_end_at_max_listed(queue: Queue, client: FlaskClient, state: str) -> None:
    put = queue.put("mail", count=MAX_LISTED + 50)
    worker = queue.connect()
    for id in put:
        if state == "reserved":
            reserving.reserve_job(queue.broker, worker, id, queue.now)
    link: str | None = f"/tube?tube=mail&state={state}"
    seen: list[int] = []
    while link:
        shown = page(client, link)
        seen += ids(shown)
        link = next_page(shown)
    assert seen == put[:MAX_LISTED]
    assert "The list ends here" in shown.text


def test_scan_for_reserved_jobs_is_bounded(queue: Queue) -> None:
    worker = queue.connect()
    for id in [*queue.put("other", count=MAX_SCANNED + 1), *queue.put("mail")]:
        reserving.reserve_job(queue.broker, worker, id, queue.now)
    found = list_jobs(
        queue.broker, queue.broker.tubes[b"mail"], 2, DEFAULT_ORDERS[2], None, queue.now, job_columns(2, True)
    )
    assert found.rows == []


def test_first_page_costs_the_same_for_few_and_many_jobs(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost is function calls and memory, which are the same on every machine."""
    monkeypatch.setattr(cooperative, "SLICE", 3600.0)  # no yields, so that the calls of other greenlets are not counted

    def cost() -> tuple[int, int]:
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        client.get("/tube?tube=mail")  # fills the caches
        sys.setprofile(count)
        client.get("/tube?tube=mail")
        sys.setprofile(None)
        tracemalloc.start()
        client.get("/tube?tube=mail")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return calls, most

    queue.put("mail", count=1000)
    few = cost()
    queue.put("mail", count=199_000)
    many = cost()
    assert many[0] < few[0] * 1.05
    assert many[1] < few[1] + 100_000


def test_job_page_shows_every_field_of_stats_job(queue: Queue, client: FlaskClient) -> None:
    (id,) = queue.put("mail", pri=7)
    worker = queue.connect()
    connecting.watch(queue.broker, worker, b"mail")
    reserving.reserve_job(queue.broker, worker, id, queue.now)
    finishing.release(queue.broker, worker, id, 8, 30 * SECOND, queue.now)
    kicking.kick_job(queue.broker, id, queue.now)
    reserving.reserve_job(queue.broker, worker, id, queue.now)
    queue.now += 100 * SECOND
    ticking.tick(queue.broker, queue.now)
    text = collapsed(page(client, "/job", id=id).text)
    for message in (
        f"Job {id} ready", "Priority 8 urgent", "Age 1 min 40 s", "Ready for 0 s ttr 1 min", "Reserves 2 1 timed out",
        "TTR 1 min",
        "Body 4 bytes", "Put at 2027-01-15 08:00:00 UTC", "Delay 30 s", "Released once", "Timed out once",
        "Reserved 2 times", "Buried never", "Kicked once", "Journal file –",
    ):  # fmt: skip
        assert collapsed(message) in text


@pytest.mark.parametrize(
    "body",
    [SCRIPT, b'{"<script>": "</pre><img src=x onerror=alert(1)>"}', b"\0" + SCRIPT, b"\xff" + SCRIPT, b"</pre>" * 10922,
     b"[" * 65535, "\u202e\u2028<b>".encode(), b"{{ 7*7 }}", b"\n\nx", b""],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_hostile_body_is_shown_as_text(queue: Queue, client: FlaskClient, body: bytes) -> None:
    id = putting.put_into(queue.broker, b"mail", 5, 0, SECOND, body, queue.now)
    for shown in (page(client, "/job", id=id), page(client, "/tube", tube="mail")):
        assert shown.runs_only_our_scripts()
        assert [attributes["src"] for tag, attributes in shown.elements if tag == "img"] == ["/static/favicon.svg"]
    raw = client.get("/job/body", query_string={"id": id})
    assert raw.data == body
    assert raw.headers["Content-Type"] == "application/octet-stream"
    assert raw.headers["Content-Disposition"] == f'attachment; filename="job-{id}.bin"'
    assert raw.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_overview_links_to_tubes_with_hostile_names(queue: Queue, client: FlaskClient, name: str) -> None:
    put = queue.put(name)
    links = [a.get("href") or "" for tag, a in page(client, "/", q=name).elements if tag == "a"]
    found = [page(client, link) for link in links if link.startswith("/tube?tube=") and not link.endswith("=")]
    assert put in [ids(shown) for shown in found]
    shown = found[[ids(one) for one in found].index(put)]
    hidden = {a["value"] for tag, a in shown.elements if tag == "input" and a.get("name") == "tube"}
    assert hidden == {name}
    back = [a.get("href") or "" for tag, a in page(client, "/job", id=put[0]).elements if tag == "a"]
    assert put == ids(page(client, next(link for link in back if link.startswith("/tube?"))))


LEGAL = "ABCXYZabcxyz0189+/;.$_()"


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(LEGAL), st.text(LEGAL + "-", max_size=199))
def test_every_tube_name_survives_in_a_url(first: str, rest: str) -> None:
    queue = Queue()
    client = queue.app().test_client()
    put = queue.put(first + rest)
    assert ids(page(client, f"/tube?tube={quote(first + rest)}")) == put


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/tube", "tube"), ("/tube?tube=", "tube"), ("/tube?tube=-x", "tube"), ("/tube?tube=a%20b", "tube"),
        ("/tube?tube=a+b", "tube"), ("/tube?tube=%00", "tube"), ("/tube?tube=%ff", "tube"),
        ("/tube?tube=%ed%a0%80", "tube"), (f"/tube?tube={'x' * 201}", "tube"), ("/tube?tube=<script>", "tube"),
        ("/tube?tube=default&state=gone", "state"), ("/tube?tube=default&state=invalid", "state"),
        ("/tube?tube=default&after=x", "after"), ("/tube?tube=default&after=1-", "after"),
        ("/job", "id"), ("/job?id=", "id"), ("/job?id=0", "id"), ("/job?id=-1", "id"), ("/job?id=1.5", "id"),
        ("/job?id=18446744073709551616", "id"), ("/job?id=%D9%A1", "id"), (f"/job?id={'9' * 5000}", "id"),
        ("/job/body?id=x", "id"),
    ],
)  # fmt: skip
def test_error_names_the_invalid_parameter(client: FlaskClient, path: str, field: str) -> None:
    assert f"“{field}” " in refusal(client, path, 400)


def test_missing_tube_or_job_is_explained(queue: Queue, client: FlaskClient) -> None:
    assert "the next put creates it again" in refusal(client, "/tube?tube=nowhere", 404)
    assert "the next put gets 1" in refusal(client, "/job?id=7", 404)
    (id,) = queue.put("mail")
    finishing.delete(queue.broker, None, id, queue.now)
    for path in (f"/job?id={id}", f"/job/body?id={id}"):
        assert "it was deleted" in refusal(client, path, 404)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("notice=kicked&n=1", "1 job retried."), ("notice=kicked&n=1234", "1,234 jobs retried."),
        ("notice=paused&n=90", "Paused for 1\xa0min 30\xa0s."),
        ("notice=cleared&n=0", "No job was deleted: none was in this state."),
        ("notice=deleted-job&n=5&late=1", "The change is not on disk yet"), ("notice=put&n=5", "Job 5 was put."),
    ],
)  # fmt: skip
def test_notice(client: FlaskClient, query: str, message: str) -> None:
    for path in ("/?", "/tube?tube=default&"):
        assert message in page(client, path + query).text


def test_rendered_page_is_freed_without_the_garbage_collector(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=3)
    paths = ("/", "/tube?tube=mail", "/search", "/connections", "/audit", "/none")
    for path in paths:
        client.get(path)  # compiles the template
    gc.collect()
    gc.disable()
    try:
        before = contexts()
        for path in paths:
            assert client.get(path).text
        assert contexts() == before
    finally:
        gc.enable()


def contexts() -> Counter[str | None]:
    """Return how many contexts of each template exist."""
    return Counter(one.name for one in gc.get_objects() if type(one) is Context)
