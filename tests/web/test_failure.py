"""The failure of a job in the API and on its page: attempts, stack trace and error group."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.job_attributes import DeadLetterReason
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import finishing, putting, reserving

from .api.conftest import TOKEN, Program
from .conftest import Queue
from .table import Page
from .test_frameworks import body_of
from .test_tube_errors import dead_letter, put

TRACE = "RouteError: no route\n  at send (mail.js:3)"
FAILED = {"error": "HTTP 503 from upstream", "trace": TRACE.replace("\n", "\\n")}


@pytest.fixture
def program(queue: Queue) -> Program:
    return Program(queue.app(api_token=TOKEN))


def fail_twice(queue: Queue, body: object) -> int:
    """Put a job, release it after 3 s, and bury it after 5 s more; return its id."""
    worker = queue.connect()
    id = queue.broker.allocate_id()
    assert putting.put(queue.broker, worker, id, 100, 0, 60 * SECOND, json.dumps(body).encode(), queue.now) > 0
    for seconds in (3, 5):
        assert reserving.reserve_job(queue.broker, worker, id, queue.now)
        queue.now += seconds * SECOND
        if seconds == 3:
            assert finishing.release(queue.broker, worker, id, 100, 0, queue.now)
        else:
            assert finishing.bury(queue.broker, worker, id, 100, queue.now)
    return id


def test_failure_has_error_trace_attempts_and_group(queue: Queue, program: Program) -> None:
    put(queue, FAILED, FAILED | {"error": "HTTP 404 from upstream"}, tube="default")
    id = fail_twice(queue, FAILED)
    found: dict[str, Any] = program.get(f"/jobs/{id}/failure")
    assert (found["error"], found["trace"]) == ("HTTP 503 from upstream", TRACE.splitlines())
    assert [(one["number"], one["outcome"]) for one in found["attempts"]] == [(1, "released"), (2, "buried")]
    assert all(one["worker"]["address"] == f"10.0.0.{one['worker']['number']}:4711" for one in found["attempts"])
    times = [(one["started_at"][17:], one["ended_at"][17:]) for one in found["attempts"]]
    assert times == [("00Z", "03Z"), ("03Z", "08Z")]
    assert (found["earlier_attempts"], found["reason"]) == (0, None)
    assert found["group"] == {
        "error": "HTTP 503 from upstream",
        "jobs": 2,
        "q": 'tube:default state:buried error:"HTTP 503 from upstream"',
    }
    assert [job["id"] for job in program.get("/jobs", q=found["group"]["q"])["jobs"]][-1] == id


def test_dead_letter_has_its_reason(queue: Queue, program: Program) -> None:
    [id] = put(queue, "no JSON", tube="mail.dead", is_buried=False)
    dead_letter(queue, id, DeadLetterReason.EXPIRED)
    found = program.get(f"/jobs/{id}/failure")
    assert (found["error"], found["reason"], found["group"], found["attempts"]) == ("", "expired", None, [])


def test_job_that_has_not_failed(queue: Queue, program: Program) -> None:
    [id] = put(queue, FAILED, is_buried=False)
    assert "has not failed" in program.get(f"/jobs/{id}/failure", 404)["detail"]


def test_hidden_body_hides_error_and_group(queue: Queue) -> None:
    id = fail_twice(queue, FAILED)
    found = Program(queue.app(api_token=TOKEN, hides_bodies=True)).get(f"/jobs/{id}/failure")
    assert (found["error"], found["trace"], found["group"], len(found["attempts"])) == ("", [], None, 2)


def test_page_of_a_failed_job_shows_why(queue: Queue, client: FlaskClient) -> None:
    put(queue, FAILED, tube="default")
    id = fail_twice(queue, FAILED)
    html = client.get(f"/job?id={id}").text
    Page(html)
    panel = html[html.index('id="failure-title"') : html.index('id="body-title"')]
    assert "HTTP 503 from upstream" in panel and "One of 2 jobs with this error" in panel
    assert f"\n{TRACE}</pre>" in panel
    assert panel.count(":4711") == 2 and '<td class="whole" data-label="Took">5\N{NO-BREAK SPACE}s</td>' in panel
    [fresh] = put(queue, FAILED, is_buried=False)
    assert "failure-title" not in client.get(f"/job?id={fresh}").text


def test_page_of_a_job_of_a_framework_shows_class_and_arguments(queue: Queue, client: FlaskClient) -> None:
    laravel, secret = put(queue, body_of("laravel"), body_of("laravel-encrypted"))
    html = client.get(f"/job?id={laravel}").text
    Page(html)
    assert "App\\Jobs\\SendMail</a>" in html and "&#34;order&#34;: 4711" in html
    assert "The arguments are encrypted" in client.get(f"/job?id={secret}").text


def test_long_arrays_in_a_json_body_fold_without_scripts(queue: Queue, client: FlaskClient) -> None:
    long, short = put(queue, {"id": 7, "lines": list(range(40))}, {"id": 7, "lines": [1]})
    html = client.get(f"/job?id={long}").text
    Page(html)
    assert '<summary><code>  &#34;lines&#34;: [</code> <span class="note">40 lines</span></summary>' in html
    assert '<details class="fold">' not in client.get(f"/job?id={short}").text
