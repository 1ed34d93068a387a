"""The errors of a tube over the API: groups whose searches select exactly their jobs."""

from __future__ import annotations

from typing import Any

from greenstalk_server.core.jobs.job import SECOND

from ..conftest import Queue
from ..test_tube_errors import dead_letter, failing, put
from .conftest import TOKEN, Program, problem


def errors(program: Program, tube: str = "mail", **query: str) -> Any:
    return program.get("/tube/errors", 200, tube=tube, **query)


def test_failed_jobs_are_grouped(queue: Queue, program: Program) -> None:
    first, second = put(queue, failing("no route to 10.0.0.1"), failing("no route to 10.0.0.2"))
    queue.now += 60 * SECOND
    [third] = put(queue, "text")
    found = errors(program)
    assert (found["state"], found["jobs"], found["others"], found["unread"]) == ("done", 3, 0, 0)
    assert found["groups"] == [
        {
            "error": "no route to #",
            "reason": None,
            "jobs": 2,
            "new": 2,
            "tubes": ["mail"],
            "other_tubes": 0,
            "first_at": "2027-01-15T08:00:00Z",
            "last_at": "2027-01-15T08:00:00Z",
            "sample": second,
            "sample_error": "no route to 10.0.0.2",
            "sample_body": '{"kind": "order", "error": "no route to 10.0.0.2"}',
            "q": 'tube:mail state:buried error:"no route to #"',
            "retry": "kick",
        },
        {
            "error": None,
            "reason": None,
            "jobs": 1,
            "new": 1,
            "tubes": ["mail"],
            "other_tubes": 0,
            "first_at": "2027-01-15T08:01:00Z",
            "last_at": "2027-01-15T08:01:00Z",
            "sample": third,
            "sample_error": "",
            "sample_body": "text",
            "q": "tube:mail state:buried -error:* -reason:*",
            "retry": "kick",
        },
    ]
    listed = [[job["id"] for job in program.get("/jobs", q=group["q"])["jobs"]] for group in found["groups"]]
    assert listed == [[first, second], [third]]


def test_group_is_retried(queue: Queue, program: Program) -> None:
    ids = put(queue, failing("late 1"), failing("late 2"), failing("quota"), tube="mail.dead", is_buried=False)
    for id in ids:
        dead_letter(queue, id, 1)
    [group, _] = errors(program, tube="mail.dead")["groups"]
    assert (group["retry"], group["q"]) == ("redrive", 'tube:mail.dead -state:reserved error:"late #"')
    program.do("POST", "/bulk", {"action": group["retry"], "q": group["q"], "dry_run": False}, 202)
    assert [queue.broker.jobs[id].tube.name for id in ids] == [b"mail", b"mail", b"mail.dead"]


def test_state_and_field_select_jobs_and_error(queue: Queue, program: Program) -> None:
    put(queue, failing("a", why="quota 1"), failing("b", why="quota 2"))
    [id] = put(queue, failing("c", why="later"), is_buried=False)
    dead_letter(queue, id, 2)
    put(queue, "x", is_buried=False)
    assert [group["error"] for group in errors(program, state="buried", field="why")["groups"]] == ["quota #"]
    groups = errors(program, state="ready", field="error.none")["groups"]
    assert [(group["reason"], group["retry"]) for group in groups] == [("expired", "redrive"), (None, None)]


def test_bad_input_is_refused(queue: Queue, program: Program) -> None:
    problem(program.ask("GET", "/tube/errors?tube=gone"), 404)
    put(queue, "x")
    problem(program.ask("GET", "/tube/errors?tube=mail&field=a..b"), 400, "field")
    problem(program.ask("GET", "/tube/errors?tube=mail&state=reserved"), 400, "state")
    hidden = Program(queue.app(api_token=TOKEN, hides_bodies=True))
    problem(hidden.ask("GET", "/tube/errors?tube=mail"), 403)
