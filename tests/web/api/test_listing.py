"""Lists of jobs: each job exactly once, in the documented order, whatever changes between two pages."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from itertools import chain
from typing import Any

import gevent
import pytest
from gevent.event import Event
from hypothesis import given, settings
from hypothesis import strategies as st

from greenstalk_server.core.jobs.job import READY, SECOND
from greenstalk_server.core.operations import editing, finishing, putting, reserving
from greenstalk_server.web.features.jobs.api import jobs, listing
from greenstalk_server.web.reads.jobs.job_list import MAX_LISTED
from greenstalk_server.web.reads.jobs.matching import MAX_COLLECTED_IDS
from greenstalk_server.web.reads.jobs.query import Query, parse
from tests.support.daemon import TIMEOUT

from ..conftest import Queue
from ..turns import until
from .conftest import TOKEN, Program, problem


def listed(program: Program, **query: object) -> list[int]:
    return [job["id"] for page in program.pages("/jobs", "jobs", **query) for job in page]


def shuffled(queue: Queue, tube: str, count: int) -> list[int]:
    """Put jobs with random priorities; return their ids in the order in which workers get them."""
    dice, found = random.Random(count), []  # noqa: S311
    for _ in range(count):
        pri = dice.randrange(50)
        found.append((pri, putting.put_into(queue.broker, tube.encode(), pri, 0, 60 * SECOND, b"x", queue.now)))
    return [id for _, id in sorted(found)]


@pytest.mark.parametrize("limit", [1, 7, 100, 1000])
def test_ready_jobs_come_in_the_order_of_workers(queue: Queue, program: Program, limit: int) -> None:
    queue.put("other", count=5)
    expected = shuffled(queue, "mail", 50)
    assert listed(program, tube="mail", state="ready", limit=limit) == expected
    assert all(len(page) <= limit for page in program.pages("/jobs", "jobs", tube="mail", state="ready", limit=limit))


def test_order_of_delayed_buried_and_reserved_jobs(queue: Queue, program: Program) -> None:
    ids = queue.put("mail", count=9)
    worker = queue.connect()
    buried = [ids[4], ids[0], ids[2]]
    for id in buried:
        finishing.bury_job(queue.broker, id, queue.now)
    reserved = [ids[8], ids[1], ids[5]]
    for id in reserved:
        reserving.reserve_job(queue.broker, worker, id, queue.now)
        queue.now += SECOND
    delayed = [queue.put("mail", delay=delay)[0] for delay in (30, 10, 20)]
    assert listed(program, tube="mail", state="buried", limit=1) == buried
    assert listed(program, tube="mail", state="reserved", limit=1) == reserved
    assert listed(program, tube="mail", state="delayed", limit=1) == [delayed[1], delayed[2], delayed[0]]


def test_many_reserved_jobs_come_by_id(queue: Queue, program: Program) -> None:
    """The first jobs of a bounded scan need not be the next to time out."""
    worker = queue.connect()
    ids = queue.put("mail", count=MAX_LISTED + 50)
    for id in reversed(ids):
        reserving.reserve_job(queue.broker, worker, id, queue.now)
        queue.now += 1
    assert listed(program, tube="mail", state="reserved", limit=300) == ids


def test_remaining_jobs_follow_the_ordered_ones(queue: Queue, program: Program) -> None:
    expected = shuffled(queue, "mail", MAX_LISTED + 500)
    found = listed(program, tube="mail", state="ready", limit=300)
    assert found[:MAX_LISTED] == expected[:MAX_LISTED]
    assert found[MAX_LISTED:] == sorted(expected[MAX_LISTED:])


def test_more_urgent_jobs_do_not_hide_others(queue: Queue, program: Program) -> None:
    """The more urgent jobs are put between two pages, and they are more than an ordered list has."""
    expected = shuffled(queue, "mail", 200)
    first = program.get("/jobs", tube="mail", state="ready", limit=100)
    for _ in range(MAX_LISTED + 10):
        putting.put_into(queue.broker, b"mail", 0, 0, 60 * SECOND, b"x", queue.now)
    rest = listed(program, tube="mail", state="ready", limit=100, cursor=first["next_cursor"])
    assert [job["id"] for job in first["jobs"]] == expected[:100]
    assert set(rest) >= set(expected[100:])
    assert not set(rest) & set(expected[:100])


@pytest.mark.parametrize("count", [200, MAX_COLLECTED_IDS + 100])
def test_other_lists_come_by_id(queue: Queue, program: Program, count: int) -> None:
    """For a small tube and a large one, which are scanned in different ways."""
    queue.put("other", count=10)
    ids = sorted(shuffled(queue, "mail", count))
    queue.put("other", count=10)
    for id in ids[::2]:
        finishing.bury_job(queue.broker, id, queue.now)
    assert listed(program, tube="mail", limit=1000) == ids
    assert listed(program, tube="mail", state="buried", q="pri:<10", limit=1000) == [
        id for id in ids[::2] if queue.broker.jobs[id].pri < 10
    ]
    assert len(listed(program, limit=1000)) == count + 20
    assert listed(program, q=f"id:{ids[7]}") == [ids[7]]
    assert listed(program, tube="nowhere") == []
    assert listed(program, tube="nowhere", state="ready") == []


@given(data=st.data())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_unchanged_jobs_come_exactly_once(data: st.DataObject) -> None:
    """Other jobs are put, deleted and changed between the pages.

    Each example has its own queue. What earlier examples left in a shared queue could change the number of pages, and
    Hypothesis requires that a repeated example draws the same values.
    """
    queue = Queue()
    program = Program(queue.app(api_token=TOKEN))
    query: dict[str, Any] = data.draw(
        st.sampled_from([{}, {"tube": "mail"}, {"tube": "mail", "state": "ready"}, {"q": "pri:<40"}])
    )
    ids = shuffled(queue, "mail", 60)
    staying = set(ids[::3])
    found: list[int] = []
    cursor: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "SCAN_TIME", TIMEOUT)  # a busy machine must not add pages either
        while True:
            page = program.get("/jobs", **query, **cursor, limit=data.draw(st.integers(1, 20)))
            found += [job["id"] for job in page["jobs"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
            for id in data.draw(st.lists(st.sampled_from(ids), max_size=5)):
                if id not in staying and id in queue.broker.jobs:
                    data.draw(st.sampled_from([finishing.bury_job, finishing.delete_job]))(queue.broker, id, queue.now)
            shuffled(queue, "mail", data.draw(st.integers(0, 3)))
    wanted = {id for id in staying if "q" not in query or queue.broker.jobs[id].pri < 40}
    assert wanted <= set(found)
    assert all(found.count(id) == 1 for id in wanted)


def test_order_by_id_survives_a_restart(queue: Queue, program: Program) -> None:
    """A journal restores jobs in the order of its files, where old jobs may come last."""
    ids = queue.put("mail", count=50)
    moved = [queue.broker.jobs.pop(id) for id in ids[:20]]
    for job in reversed(moved):
        queue.broker.jobs[job.id] = job
    assert listed(program, limit=7) == ids


def test_number_of_concurrent_lists_is_bounded(queue: Queue, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more list waits for its turn, and is refused after LIST_TIMEOUT."""
    queue.put("mail", count=3)
    may_continue = Event()
    monkeypatch.setattr(jobs, "LIST_TIMEOUT", 0.01)
    monkeypatch.setattr(listing.JobPage, "yield_if_due", lambda _: may_continue.wait())
    lists = [gevent.spawn(program.get, "/jobs") for _ in range(jobs.MAX_LISTS)]
    gevent.sleep(0)
    problem(program.ask("GET", "/jobs"), 503)
    monkeypatch.setattr(jobs, "LIST_TIMEOUT", TIMEOUT)
    gevent.spawn_later(0.01, may_continue.set)
    assert len(program.get("/jobs")["jobs"]) == 3
    gevent.joinall(lists, raise_error=True)
    assert all(len(one.value["jobs"]) == 3 for one in lists)


def test_page_of_large_bodies_is_short(queue: Queue, program: Program) -> None:
    queue.broker.max_job_size = 400_000
    for _ in range(9):
        putting.put_into(queue.broker, b"mail", 0, 0, SECOND, b"\xff" * 400_000, queue.now)
    pages = program.pages("/jobs", "jobs", tube="mail")
    assert [len(page) for page in pages] == [3, 3, 3]
    (page,) = program.pages("/jobs", "jobs", tube="mail", bodies="false")
    assert [job["body"] for job in page] == [None] * 9
    assert [job["encoding"] for job in page] == [None] * 9


def test_long_search_ends_early_and_continues(queue: Queue, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page scans for SCAN_TIME only, and has a cursor to continue."""
    ids = queue.put("mail", count=2000)
    editing.edit_job(queue.broker, ids[-1], queue.now, pri=7)
    monkeypatch.setattr(listing, "SCAN_TIME", 0.0005)
    pages = program.pages("/jobs", "jobs", q="pri:7")
    assert len(pages) > 2
    assert [job["id"] for job in chain(*pages)] == [ids[-1]]
    assert not any(pages[:-1])


@pytest.mark.parametrize(
    "other", [{"tube": "other"}, {"state": "buried"}, {"q": "pri:5"}, {"state": "", "tube": "mail"}]
)
def test_cursor_of_another_list_is_refused(queue: Queue, program: Program, other: dict[str, str]) -> None:
    queue.put("mail", count=5)
    cursor = program.get("/jobs", tube="mail", state="ready", limit=2)["next_cursor"]
    query = {name: value for name, value in ({"tube": "mail", "state": "ready"} | other).items() if value}
    response = program.ask("GET", "/jobs", query_string=query | {"cursor": cursor})
    assert "another list" in problem(response, 400, "cursor")["detail"]


@pytest.mark.parametrize(
    "spoil", [lambda text: text[:-1], lambda text: text + "A", lambda text: "A" + text, lambda text: text.swapcase()]
)
def test_malformed_cursor_is_refused(queue: Queue, program: Program, spoil: Callable[[str], str]) -> None:
    queue.put("mail", count=5)
    cursor = program.get("/jobs", limit=2)["next_cursor"]
    response = program.ask("GET", "/jobs", query_string={"cursor": spoil(cursor)})
    problem(response, 400, "cursor")


@pytest.mark.parametrize("query", [{}, {"tube": "mail"}, {"tube": "mail", "state": "ready"}, {"q": "pri:2000"}])
@pytest.mark.parametrize("after_id", [None, -1, 0, 2, 2**64, 2**80])
@pytest.mark.parametrize("after_key", [None, (-1, -1), (2**80, 2**80)])
def test_forged_cursor_is_refused_or_harmless(
    queue: Queue, program: Program, query: dict[str, str], after_id: int | None, after_key: tuple[int, int] | None
) -> None:
    queue.put("mail", count=5)
    wanted = Query().within(query.get("tube", ""), query.get("state", "")) if "q" not in query else parse(query["q"])
    cursor = base64.urlsafe_b64encode(
        json.dumps([listing.begin(wanted).query_digest, after_id, after_key]).encode()
    ).decode()
    response = program.ask("GET", "/jobs", query_string=query | {"cursor": cursor})
    assert response.status_code in (200, 400), response.text


def test_export_has_the_fields_of_a_list(queue: Queue, program: Program) -> None:
    shuffled(queue, "mail", 30)
    response = program.ask("GET", "/jobs/export?tube=mail&state=ready")
    assert response.mimetype == "application/jsonl"
    rows = [json.loads(line) for line in response.text.splitlines()]
    jobs = sorted(program.get("/jobs", tube="mail", state="ready")["jobs"], key=lambda job: job["id"])
    assert rows == [{key: value for key, value in job.items() if key in rows[0]} for job in jobs]
    assert set(jobs[0]) - set(rows[0]) == {
        *(
            "attempts",
            "created_at",
            "expires_at",
            "dead_letter",
            "held_by",
            "moving_to",
            "tags",
            "time_reserved",
            "file",
        )
    }
    table = program.ask("GET", "/jobs/export?format=csv")
    assert table.mimetype == "text/csv"
    assert len(table.text.splitlines()) == 31
    assert queue.broker.tubes[b"mail"].ready.count == 30
    assert all(job.state == READY for job in queue.broker.jobs.values())


def test_fields_of_bodies_are_listed(queue: Queue, program: Program) -> None:
    bodies = (
        b'{"customer":{"id":12345678901234567890},"kind":["a"]}',
        b"text",
        b'{"kind":"b","pad":"%s"}' % (b"x" * 70_000),
    )
    for body in bodies:
        putting.put_into(queue.broker, b"mail", 1, 0, 60 * SECOND, body, queue.now)
    for has_bodies in ("true", "false"):
        found = program.get("/jobs", tube="mail", fields="customer.id, kind", bodies=has_bodies)["jobs"]
        assert [job["fields"] for job in found] == [
            {"customer.id": "12345678901234567890", "kind": '["a"]'},
            {"customer.id": None, "kind": None},
            {"customer.id": None, "kind": None},
        ]
        assert [job["body"] is not None for job in found] == [has_bodies == "true"] * 3
    assert "fields" not in program.get("/jobs", tube="mail")["jobs"][0]
    lines = program.ask("GET", "/jobs/export?tube=mail&fields=kind").text.splitlines()
    assert json.loads(lines[0])["fields"] == {"kind": '["a"]'}


def test_bad_and_hidden_fields_are_refused(queue: Queue, program: Program) -> None:
    for path in ("/jobs", "/jobs/export"):
        problem(program.ask("GET", f"{path}?fields=a..b"), 400, "fields")
        problem(program.ask("GET", f"{path}?fields=a,b,c,d,e,f,g"), 400, "fields")
        hidden = Program(queue.app(api_token=TOKEN, hides_bodies=True))
        problem(hidden.ask("GET", f"{path}?fields=kind"), 403)


@pytest.mark.parametrize("limit", [1, 7, 50, 1000])
@pytest.mark.parametrize("desc", ["false", "true"])
def test_sorted_list_is_complete(queue: Queue, program: Program, limit: int, desc: str) -> None:
    expected = shuffled(queue, "mail", 50)
    queue.put("other")
    found = listed(program, tube="mail", sort="pri", desc=desc, limit=limit)
    assert found == (expected if desc == "false" else expected[::-1])


def test_sorted_list_is_complete_while_jobs_change(queue: Queue, program: Program) -> None:
    shuffled(queue, "mail", 30)
    stays = listed(program, tube="mail", sort="pri")[1::2]
    seen, query = list[int](), dict[str, Any](tube="mail", sort="pri", limit=4)
    while query.get("cursor", "") is not None:
        page = program.get("/jobs", **query)
        seen += [job["id"] for job in page["jobs"]]
        query["cursor"] = page["next_cursor"]
        for id in seen:
            if id not in stays and id in queue.broker.jobs:
                finishing.delete_job(queue.broker, id, queue.now)
        queue.put("mail", pri=0)
    assert [id for id in seen if id in stays] == stays


def test_cursor_of_another_order_is_refused(queue: Queue, program: Program) -> None:
    queue.put("mail", count=3)
    by_pri = program.get("/jobs", sort="pri", limit=1)["next_cursor"]
    by_tube = program.get("/jobs", sort="tube", limit=1)["next_cursor"]
    for query in (
        {},
        {"sort": "size"},
        {"sort": "pri", "desc": "true"},
        {"sort": "tube"},
        {"sort": "pri", "q": "pri:1"},
    ):
        problem(program.ask("GET", "/jobs", query_string={"cursor": by_pri} | query), 400, "cursor")
    problem(program.ask("GET", "/jobs", query_string={"cursor": by_tube, "sort": "pri"}), 400, "cursor")
    problem(program.ask("GET", "/jobs", query_string={"desc": "true"}), 400, "desc")


def test_long_list_is_sorted_by_a_search_only(queue: Queue, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = shuffled(queue, "mail", 50)
    monkeypatch.setattr(listing, "MAX_SORTED", 49)
    assert "POST /searches" in str(problem(program.ask("GET", "/jobs", query_string={"sort": "pri"}), 400, "sort"))
    task = program.do("POST", "/searches", {"tube": "mail", "sort": "pri", "desc": True}, status=202)["id"]
    until(lambda: program.get(f"/tasks/{task}")["state"] == "done")
    assert [job["id"] for job in program.get(f"/tasks/{task}/jobs")["jobs"]] == expected[::-1]
