"""Tubes over the API: lists in every order, figures, pauses, and operations on all jobs of a tube."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, editing, finishing, reserving
from greenstalk_server.web.features.tubes.api.tubes import Sort
from greenstalk_server.web.features.tubes.tube_view import BY_NAME, SORTS
from tests.support import invariants

from ..conftest import Queue
from .conftest import Program, problem

HOSTILE = ["a/b", "a//jobs", "/lead", "..", "+plus", "a;b", "(x)", "$$", "_", "a" * 200]


def names(program: Program, **query: object) -> list[str]:
    return [tube["name"] for page in program.pages("/tubes", "tubes", **query) for tube in page]


def test_orders_have_the_names_of_the_page() -> None:
    assert set(get_args(Sort)) == {BY_NAME, *SORTS}


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_every_order_has_every_tube_once(queue: Queue, program: Program, limit: int) -> None:
    for at, name in enumerate(HOSTILE):
        queue.put(name, count=at + 1, delay=at % 2 * 60)
        if at % 3 == 0:
            editing.pause_tube(queue.broker, name.encode(), at * SECOND + SECOND, queue.now)
    everything = sorted([*HOSTILE, "default"])
    for sort in get_args(Sort):
        for desc in ("false", "true"):
            found = names(program, sort=sort, desc=desc, limit=limit)
            assert sorted(found) == everything, (sort, desc)
    assert names(program, limit=limit) == everything
    assert names(program, desc="true", limit=limit) == everything[::-1]
    ready = [queue.broker.tubes[name.encode()].ready.count for name in names(program, sort="ready", limit=limit)]
    assert ready == sorted(ready)
    assert names(program, q="A/", limit=limit) == ["a/b", "a//jobs"][::-1]


def test_figures(queue: Queue, program: Program) -> None:
    ids = queue.put("a/b", count=5, pri=5)
    queue.put("a/b", delay=60)
    worker = queue.connect()
    connecting.watch(queue.broker, worker, b"a/b")
    reserving.reserve_job(queue.broker, worker, ids[0], queue.now)
    finishing.bury_job(queue.broker, ids[1], queue.now)
    finishing.delete_job(queue.broker, ids[2], queue.now)
    queue.now += 5 * SECOND
    found = program.get("/tube", tube="a/b")
    counts = {"ready": 2, "urgent": 2, "reserved": 1, "delayed": 1, "buried": 1, "watching": 1, "using": 0}
    assert {name: found[name] for name in counts} == counts
    assert (found["total_jobs"], found["total_deletes"], found["bytes"]) == (6, 1, 20)
    assert (found["oldest_ready_age"], found["has_no_consumers"], found["is_paused"]) == (5, False, False)
    (listed,) = program.get("/tubes", q="a/b")["tubes"]
    assert (found["extended"]["total_buries"], found["extended"]["oldest_buried_age"]) == (1, 5)
    more = {"policy": {}, "dead_letter": None, "dead_letters_from": [], "total_pauses": 0}
    assert found == listed | more | {"extended": found["extended"]}


def test_pause_and_resume(queue: Queue, program: Program) -> None:
    queue.put("mail")
    found = program.do("POST", "/tube/pause", {"seconds": 60, "reason": " the  relay\tis down "}, tube="mail")
    assert (found["is_paused"], found["pause"], found["pause_time_left"]) == (True, 60, 59)
    assert found["pause_reason"] == "the relay is down"
    assert queue.broker.tubes[b"mail"].paused_until == queue.now + 60 * SECOND
    found = program.do("POST", "/tube/resume", tube="mail")
    assert (found["is_paused"], found["pause"], found["pause_reason"]) == (False, 0, "")
    what = [(entry["what"], entry["details"]) for entry in program.get("/audit")["entries"]]
    assert what == [
        ("tube/resume", {"tube": "mail"}),
        ("tube/pause", {"tube": "mail", "seconds": 60, "reason": "the relay is down"}),
    ]


def test_kick(queue: Queue, program: Program) -> None:
    for id in queue.put("mail", count=700):
        finishing.bury_job(queue.broker, id, queue.now)
    queue.put("mail", delay=60, count=3)
    result = program.do("POST", "/tube/kick", {"count": 100}, tube="mail")
    number = result.pop("change_number")
    assert result == {"tube": "mail", "state": "buried", "jobs": 100, "left": 600, "problem": ""}
    assert [one["number"] for one in program.do("GET", "/changes")["changes"]] == [number]
    assert program.do("POST", "/tube/kick", {"state": "delayed"}, tube="mail")["jobs"] == 3
    rest = program.do("POST", "/tube/kick", tube="mail")
    assert (rest["state"], rest["jobs"], rest["left"]) == ("buried", 600, 0)
    assert queue.broker.tubes[b"mail"].ready.count == 703
    invariants.check(queue.broker)


def test_clear(queue: Queue, program: Program) -> None:
    queue.put("mail", count=700)
    queue.put("mail", delay=60, count=3)
    result = program.do("POST", "/tube/clear", {"state": "ready"}, tube="mail")
    number = result.pop("change_number")
    assert result == {"tube": "mail", "state": "ready", "jobs": 700, "left": 0, "problem": ""}
    assert [one["number"] for one in program.do("GET", "/changes")["changes"]] == [number]
    problem(program.ask("POST", "/tube/clear?tube=mail", json={"state": "reserved"}), 400, "state")
    problem(program.ask("POST", "/tube/clear?tube=mail", json={}), 400, "state")
    assert queue.broker.tubes[b"mail"].delayed.count == 3
    invariants.check(queue.broker)


def test_flush_frees_idempotency_keys(queue: Queue, program: Program) -> None:
    tags = {"idempotency_key": "k", "idempotency_ttl": 100}
    job = {"tube": "mail", "tags": tags}
    assert program.do("POST", "/jobs", job, 201)["id"] == 1
    client = connecting.connect(queue.broker, lambda: None)
    connecting.watch(queue.broker, client, b"mail")
    assert finishing.delete(queue.broker, client, 1, queue.now)
    assert program.do("POST", "/jobs", job, 201) == {"id": 1, "tube": "mail", "state": None, "is_duplicate": True}
    assert program.do("POST", "/tube/flush", tube="mail") == {
        "tube": "mail",
        "jobs": 0,
        "change_number": None,
        "problem": "",
    }
    assert program.do("POST", "/jobs", job, 201)["id"] == 3


def test_flush_deletes_jobs_in_every_state(queue: Queue, program: Program) -> None:
    held = queue.put("mail", count=300)
    client = connecting.connect(queue.broker, lambda: None)
    connecting.watch(queue.broker, client, b"mail")
    for _ in held:
        assert reserving.reserve(queue.broker, client, queue.now) is not None
    (buried,) = queue.put("mail")
    finishing.bury_job(queue.broker, buried, queue.now)
    queue.put("mail", delay=60, count=3)
    queue.put("mail", count=700)
    (other,) = queue.put("post")
    assert program.do("POST", "/tube/flush", tube="mail")["jobs"] == 1004
    assert [*queue.broker.jobs] == [other]
    assert not client.reserved
    assert program.do("POST", "/tube/flush", tube="mail")["jobs"] == 0, "the client watches it"
    invariants.check(queue.broker)


def test_unknown_tube_is_not_found(queue: Queue, program: Program) -> None:
    for method, path, body in (
        ("GET", "/tube", None),
        ("GET", "/tubes/history", None),
        ("POST", "/tube/pause", {"seconds": 1}),
        ("POST", "/tube/resume", None),
        ("POST", "/tube/kick", None),
        ("POST", "/tube/clear", {"state": "ready"}),
        ("POST", "/tube/flush", None),
    ):
        response = program.ask(method, path, query_string={"tube": "nowhere"}, json=body)
        assert "Tube “nowhere” does not exist now" in problem(response, 404)["detail"]


def test_history(queue: Queue, program: Program) -> None:
    history = program.app.extensions["dashboard"].history
    queue.put("mail", count=20)
    for _ in range(61):
        queue.now += SECOND
        history.tick()
    found = program.get("/tubes/history", tube="mail")
    assert (found["step"], found["series"]["ready"][-1], found["before"]) == (60, 20, None)
    assert found["series"]["put"][-1] == pytest.approx(20 / 60, abs=1e-6)
    assert len(found["series"]["put"]) == 60
    for span, step, count in (("10min", 1, 600), ("day", 60, 1440), ("week", 3600, 168), ("90days", 3600, 2160)):
        found = program.get("/server/history", span=span, compare="day")
        assert (found["step"], {len(values) for values in found["series"].values()} - {count}) == (step, set())
        assert found["before"] == {}
    assert program.get("/server/history")["series"]["ready"][-1] == 20


# Marks


def test_marks(queue: Queue, program: Program) -> None:
    now = queue.now
    first = program.do("POST", "/marks", {"text": " deployed  4.2 "}, 201)
    assert (first["at"], first["text"], first["kind"]) == ("2027-01-15T08:00:00Z", "deployed 4.2", "note")
    assert (first["tube"], first["who"]) == (None, "api-token")
    program.do("POST", "/marks", {"text": "import began", "tube": "mail", "at": "2027-01-14T08:00:00+01:00"}, 201)
    program.do("POST", "/marks", {"text": "of another tube", "tube": "other"}, 201)
    assert texts(program) == ["import began", "deployed 4.2", "of another tube"], "oldest first"
    assert texts(program, tube="mail") == ["import began", "deployed 4.2"]
    assert texts(program, since="2027-01-15T00:00:00Z", tube="mail") == ["deployed 4.2"]
    assert texts(program, until="2027-01-15T00:00:00Z") == ["import began"]
    assert texts(program, limit=1) == ["of another tube"]
    assert queue.now == now


def texts(program: Program, **query: Any) -> list[str]:
    return [mark["text"] for mark in program.get("/marks", **query)["marks"]]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"text": ""}, "text"),
        ({"text": " "}, "text"),
        ({"text": "x" * 201}, "text"),
        ({"text": "x", "tube": "a b"}, "tube"),
        ({"text": "x", "at": "2026-01-15T08:00:00Z"}, "at"),
        ({"text": "x", "at": "2027-01-15T08:02:00Z"}, "at"),
    ],
)
def test_invalid_mark_is_refused(program: Program, body: dict[str, str], field: str) -> None:
    problem(program.ask("POST", "/marks", json=body), 400, field)
    assert texts(program) == []
