"""Jobs over the API: the same operations as on a page, on jobs in every state, with the same durability."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND, STATE_NAMES, Job
from greenstalk_server.core.journal import NullJournal
from greenstalk_server.core.operations import draining, finishing, kicking, policy_changes, putting, reserving, ticking
from greenstalk_server.core.policies.policy import PolicySet, parse_policy
from greenstalk_server.web.features.jobs.jobs import MAX_JSON_BODY
from greenstalk_server.web.framework.notices import NOT_DURABLE
from tests.support import invariants

from ..conftest import Queue
from .conftest import TOKEN, Program, problem

MARKER = b'{"marker":"tHe-mArKeR"}'


def put(program: Program, body: object, status: int = 201) -> Any:
    return program.do("POST", "/jobs", body, status)


def what(program: Program) -> list[str]:
    return [entry["what"] for entry in program.get("/audit")["entries"]]


@pytest.fixture
def worker(queue: Queue) -> Client:
    return queue.connect()


@pytest.fixture
def ids(queue: Queue, worker: Client) -> dict[str, int]:
    """A job in each state, all in `mail`."""
    ready, buried, reserved = queue.put("mail", count=3)
    (delayed,) = queue.put("mail", delay=60)
    finishing.bury_job(queue.broker, buried, queue.now)
    reserving.reserve_job(queue.broker, worker, reserved, queue.now)
    return {"ready": ready, "delayed": delayed, "buried": buried, "reserved": reserved}


def state(queue: Queue, id: int) -> str:
    invariants.check(queue.broker)
    return STATE_NAMES[queue.broker.jobs[id].state]


# Puts


def test_put_and_get(queue: Queue, program: Program) -> None:
    response = program.ask("POST", "/jobs", json={"tube": "a/b;c", "body": "grüß\n", "pri": 7, "ttr": 9})
    assert response.status_code == 201
    assert response.get_json() == {"id": 1, "tube": "a/b;c", "state": "ready"}
    assert response.headers["Location"] == "/api/v1/jobs/1"
    queue.now += 5 * SECOND
    assert program.get("/jobs/1") == {
        "id": 1,
        "tube": "a/b;c",
        "state": "ready",
        "pri": 7,
        "age": 5,
        "delay": 0,
        "ttr": 9,
        "time_left": 0,
        "time_reserved": 0,
        "file": 0,
        "reserves": 0,
        "timeouts": 0,
        "releases": 0,
        "buries": 0,
        "kicks": 0,
        "attempts": 0,
        "created_at": "2027-01-15T08:00:00Z",
        "expires_at": None,
        "dead_letter": None,
        "held_by": None,
        "moving_to": None,
        "tags": None,
        "size": 7,
        "encoding": "utf-8",
        "body": "grüß\n",
        "events": [],
        "message": None,
    }
    assert queue.broker.jobs[1].body == "grüß\n".encode()
    assert what(program) == ["tube/put"]


@given(body=st.binary(max_size=200))
@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_body_round_trips(queue: Queue, program: Program, body: bytes) -> None:
    id = put(program, {"tube": "mail", "encoding": "base64", "body": base64.b64encode(body).decode()})["id"]
    found = program.get(f"/jobs/{id}")
    result = found["body"].encode() if found["encoding"] == "utf-8" else base64.b64decode(found["body"])
    assert result == body
    again = put(program, {"tube": "mail", "encoding": found["encoding"], "body": found["body"]})["id"]
    assert program.ask("GET", f"/jobs/{again}/body").data == body


def test_raw_body_is_a_download(queue: Queue, program: Program) -> None:
    id = put(program, {"tube": "mail", "body": "<script>"})["id"]
    response = program.ask("GET", f"/jobs/{id}/body")
    assert response.mimetype == "application/octet-stream"
    assert response.headers["Content-Disposition"] == f'attachment; filename="job-{id}.bin"'


def test_put_with_tags(queue: Queue, program: Program) -> None:
    tags = {"idempotency_key": "k", "idempotency_ttl": 9, "group": "g", "concurrency_key": "c", "concurrency_limit": 2}
    assert put(program, {"tube": "mail", "tags": tags}) == {"id": 1, "tube": "mail", "state": "ready"}
    duplicate = {"id": 1, "tube": "mail", "state": "ready", "is_duplicate": True}
    assert put(program, {"tube": "mail", "tags": {"idempotency_key": "k"}}) == duplicate
    waiting = put(program, [{"tube": "mail", "tags": {"after": "g"}}])
    assert waiting == [{"id": 3, "tube": "mail", "state": "delayed"}]
    assert program.get("/jobs/1")["tags"] == {**tags, "after": None}
    found = program.get("/jobs/3")
    assert (found["state"], found["time_left"]) == ("delayed", 0)
    assert found["tags"]["after"] == "g"
    assert found["tags"]["concurrency_limit"] is None
    program.do("DELETE", "/jobs/1", None, 204)
    ticking.tick(queue.broker, queue.now)  # the deletion has armed it
    assert program.get("/jobs/3")["state"] == "ready"
    assert program.get("/jobs/3")["events"][-1]["kind"] == "unblocked"
    assert put(program, {"tube": "mail", "tags": {"idempotency_key": "k"}})["id"] == 4  # an operator frees the key
    invariants.check(queue.broker)


@pytest.mark.parametrize(
    "tags",
    [{"group": "a:b"}, {"group": "g", "after": "g"}, {"concurrency_key": "c", "concurrency_limit": 0}, {"other": 1}],
)
def test_put_with_bad_tags_is_refused(queue: Queue, program: Program, tags: dict[str, object]) -> None:
    response = program.ask("POST", "/jobs", json={"tube": "mail", "tags": tags})
    assert response.status_code == 400
    assert "tags" in response.get_data(as_text=True)
    assert not queue.broker.jobs


def test_put_many(queue: Queue, program: Program) -> None:
    found = put(program, [{"tube": f"t{at % 3}", "body": str(at), "delay": at % 2} for at in range(1000)])
    assert [job["id"] for job in found] == list(range(1, 1001))
    assert found[1] == {"id": 2, "tube": "t1", "state": "delayed"}
    assert [queue.broker.jobs[id].body for id in (1, 1000)] == [b"0", b"999"]
    entries = program.get("/audit")["entries"]
    assert sorted((one["details"]["tube"], one["details"]["jobs"]) for one in entries) == [
        ("t0", 334), ("t1", 333), ("t2", 333),
    ]  # fmt: skip


def test_largest_body(queue: Queue) -> None:
    queue.broker.max_job_size = 10 * MAX_JSON_BODY
    program = Program(queue.app(api_token=TOKEN))
    packed = base64.b64encode(b"\xff" * MAX_JSON_BODY).decode()
    for body, encoding in (("x\n" * (MAX_JSON_BODY // 2), "utf-8"), ("\U0001f331" * (MAX_JSON_BODY // 4), "utf-8"),
                           (packed, "base64")):  # fmt: skip
        id = put(program, {"tube": "mail", "body": body, "encoding": encoding})["id"]
        found = program.get(f"/jobs/{id}")
        assert (found["body"], found["encoding"]) == (body, encoding)
    problem(program.ask("POST", "/jobs", json={"tube": "mail", "body": "x" * (MAX_JSON_BODY + 1)}), 400, "body")


# Refusals


def test_larger_body_is_returned_raw_only(queue: Queue, program: Program) -> None:
    queue.broker.max_job_size = 2 * MAX_JSON_BODY
    id = putting.put_into(queue.broker, b"mail", 0, 0, SECOND, b"x" * (MAX_JSON_BODY + 1), queue.now)
    found = program.get(f"/jobs/{id}")
    assert (found["size"], found["body"], found["encoding"]) == (MAX_JSON_BODY + 1, None, None)
    assert len(program.ask("GET", f"/jobs/{id}/body").data) == MAX_JSON_BODY + 1


class FullJournal(NullJournal):
    """Accepts *left* more jobs."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def put(self, job: Job) -> bool:
        self.left -= 1
        return self.left >= 0

    def replace(self, old: Job, new: Job) -> bool:
        return False


def test_full_disk(queue: Queue, ids: dict[str, int]) -> None:
    queue.broker.journal = FullJournal(2)
    program = Program(queue.app(api_token=TOKEN))
    found = problem(program.ask("POST", "/jobs", json=[{"tube": "full"}] * 5), 507)
    assert found["put"] == [5, 6]
    assert "2 of the jobs were put" in found["detail"]
    assert queue.broker.tubes[b"full"].ready.count == 2
    problem(program.ask("POST", "/jobs", json={"tube": "full"}), 507)
    problem(program.ask("POST", f"/jobs/{ids['ready']}/copy"), 507)
    problem(program.ask("POST", f"/jobs/{ids['ready']}/move", json={"tube": "x"}), 507)
    problem(program.ask("PATCH", f"/jobs/{ids['ready']}", json={"pri": 1}), 507)
    assert set(what(program)) == {"tube/put"}
    invariants.check(queue.broker)


def test_journal_in_trouble(queue: Queue) -> None:
    queue.broker.journal = FullJournal(0)
    queue.broker.journal.write_error = "[Errno 5] Input/output error"
    program = Program(queue.app(api_token=TOKEN))
    found = problem(program.ask("POST", "/jobs", json=[{"tube": "full"}] * 2), 503)
    assert found["put"] == []
    assert "Input/output error" in found["detail"]
    assert "Input/output error" in problem(program.ask("POST", "/jobs", json={"tube": "full"}), 503)["detail"]


def test_draining(queue: Queue, program: Program, ids: dict[str, int]) -> None:
    draining.drain(queue.broker)
    for body in ({"tube": "mail"}, [{"tube": "mail"}]):
        assert "draining" in problem(program.ask("POST", "/jobs", json=body), 503)["detail"]
    problem(program.ask("POST", f"/jobs/{ids['ready']}/copy"), 503)
    program.do("POST", f"/jobs/{ids['buried']}/kick")


CHANGES = (
    ("POST", "/jobs", {"tube": "mail"}),
    ("POST", "/jobs", [{"tube": "mail"}]),
    ("POST", "/jobs/1/bury", None),
    ("POST", "/jobs/1/kick", None),
    ("PATCH", "/jobs/1", {"pri": 5}),
    ("POST", "/jobs/1/move", {"tube": "other"}),
    ("POST", "/jobs/1/copy", None),
    ("DELETE", "/jobs/1", None),
    ("POST", "/tube/pause?tube=mail", {"seconds": 5}),
    ("POST", "/tube/resume?tube=mail", None),
    ("POST", "/tube/kick?tube=mail", None),
    ("POST", "/tube/clear?tube=mail", {"state": "ready"}),
    ("POST", "/tube/flush?tube=other", None),
    ("DELETE", "/connections/2", None),
)


@pytest.mark.parametrize("is_safe", [True, False])
def test_every_change_waits_for_the_journal(queue: Queue, is_safe: bool) -> None:
    commits = []

    def commit() -> bool:
        commits.append(True)
        return is_safe

    program = Program(queue.app(api_token=TOKEN, commit=commit))
    queue.put("mail", count=3)
    queue.connect()
    for at, (method, path, body) in enumerate(CHANGES, start=1):
        response = program.ask(method, path, **({} if body is None else {"json": body}))
        if is_safe:
            assert response.status_code < 300, (path, response.text)
        else:
            found = problem(response, 503)
            assert NOT_DURABLE in found["detail"]
            assert ("put" in found) == (path == "/jobs" or path.endswith("/copy"))
        assert len(commits) == at, path
    assert len(what(program)) == len(CHANGES)


REPORTS = (
    ("GET", "/jobs/1", 200),
    ("GET", "/jobs/1/body", 200),
    ("GET", "/jobs/9", 404),
    ("DELETE", "/jobs/9", 404),
    ("POST", "/jobs/1/kick", 409),
)


@pytest.mark.parametrize(("method", "path", "status"), REPORTS)
def test_every_report_on_a_job_waits_for_the_journal(queue: Queue, method: str, path: str, status: int) -> None:
    """A change by another request could be undone by a crash, and a refusal reveals it too."""
    queue.put("mail")
    commits = []
    program = Program(queue.app(api_token=TOKEN, commit=lambda: not commits.append(True)))
    assert program.ask(method, path).status_code == status
    assert len(commits) == 1
    late = Program(queue.app(api_token=TOKEN, commit=lambda: False))
    assert "a crash might undo the last change" in problem(late.ask(method, path), 503)["detail"]


@pytest.mark.parametrize("path", ["/jobs", "/jobs?q=id:1", "/tubes", "/server"])
def test_counts_and_lists_do_not_wait_for_the_journal(queue: Queue, path: str) -> None:
    queue.put("mail")
    program = Program(queue.app(api_token=TOKEN, commit=lambda: False))
    assert program.ask("GET", path).status_code == 200


def test_jobs_that_were_put_before_a_refusal_are_reported_once_they_are_safe(queue: Queue) -> None:
    commits = []
    program = Program(queue.app(api_token=TOKEN, commit=lambda: not commits.append(True)))
    policy_changes.set_policies(
        queue.broker, PolicySet([parse_policy("one", {"tubes": ["mail"], "max_jobs": 1})]), queue.now
    )
    new = {"tube": "mail", "body": "x"}
    assert problem(program.ask("POST", "/jobs", json=[new, new]), 507)["put"] == [1]
    assert len(commits) == 1


# Single jobs


def test_kick(queue: Queue, program: Program, ids: dict[str, int]) -> None:
    for name in ("delayed", "buried"):
        assert program.do("POST", f"/jobs/{ids[name]}/kick")["state"] == "ready"
    for name in ("ready", "reserved"):
        assert "Only a buried or delayed job" in problem(program.ask("POST", f"/jobs/{ids[name]}/kick"), 409)["detail"]


@pytest.mark.parametrize("operation", ["bury", "release", "move", "change", "delete"])
def test_reserved_job_needs_force(queue: Queue, program: Program, ids: dict[str, int], operation: str) -> None:
    id = ids["reserved"]
    operations: dict[str, tuple[str, str, Any]] = {
        "bury": ("POST", f"/jobs/{id}/bury", {}),
        "release": ("POST", f"/jobs/{id}/release", {}),
        "move": ("POST", f"/jobs/{id}/move", {"tube": "other"}),
        "change": ("PATCH", f"/jobs/{id}", {"pri": 5}),
        "delete": ("DELETE", f"/jobs/{id}", None),
    }
    method, path, body = operations[operation]
    found = problem(program.ask(method, path, json=body), 409)
    assert "a client holds it, for at most 1\N{NO-BREAK SPACE}min more" in found["detail"]
    assert "“force”" in found["detail"]
    assert state(queue, id) == "reserved"
    if operation == "delete":
        program.do(method, path, None, 204, force="true")
        assert id not in queue.broker.jobs
    else:
        result = program.do(method, path, body | {"force": True})
        assert result["state"] == {"bury": "buried", "release": "ready"}.get(operation, "reserved")
        assert result["state"] == state(queue, id)


def test_release_and_bury_in_the_wrong_state_are_refused(program: Program, ids: dict[str, int]) -> None:
    problem(program.ask("POST", f"/jobs/{ids['ready']}/release", json={"force": True}), 409)
    problem(program.ask("POST", f"/jobs/{ids['buried']}/bury"), 409)
    problem(program.ask("POST", f"/jobs/{ids['ready']}/move", json={"tube": "mail"}), 409)


@pytest.mark.parametrize("name", ["ready", "delayed", "buried"])
def test_move_keeps_state_and_id(queue: Queue, program: Program, ids: dict[str, int], name: str) -> None:
    result = program.do("POST", f"/jobs/{ids[name]}/move", {"tube": "/other"})
    assert (result["id"], result["tube"], result["state"]) == (ids[name], "/other", name)
    assert [event["kind"] for event in result["events"]][-1] == "moved"


def test_change(queue: Queue, program: Program, ids: dict[str, int]) -> None:
    result = program.do("PATCH", f"/jobs/{ids['ready']}", {"pri": 5, "ttr": 7, "delay": 30, "body": "new"})
    assert [result[key] for key in ("pri", "ttr", "delay", "body", "state")] == [5, 7, 30, "new", "delayed"]
    invariants.check(queue.broker)
    assert program.do("PATCH", f"/jobs/{ids['ready']}", {"body": "AP8=", "encoding": "base64"})["body"] == "AP8="
    assert queue.broker.jobs[ids["ready"]].body == b"\0\xff"
    assert program.do("PATCH", f"/jobs/{ids['ready']}", {"delay": 0})["state"] == "ready"
    entries = program.get("/audit")["entries"]
    assert [one["details"]["changed"] for one in entries] == ["delay", "body", "pri, delay, ttr, body"]


def test_empty_change_is_not_audited(queue: Queue, program: Program, ids: dict[str, int]) -> None:
    for body in ({}, {"pri": 2000}, {"ttr": 60, "body": "body"}):
        assert program.do("PATCH", f"/jobs/{ids['ready']}", body)["events"] == []
    assert what(program) == []


def test_change_of_the_delay_needs_a_ready_or_delayed_job(program: Program, ids: dict[str, int]) -> None:
    for name in ("buried", "reserved"):
        problem(program.ask("PATCH", f"/jobs/{ids[name]}", json={"delay": 5, "force": True}), 409)


def test_copy(queue: Queue, program: Program, ids: dict[str, int]) -> None:
    result = program.do("POST", f"/jobs/{ids['reserved']}/copy", {"delay": 5}, 201)
    assert result == {"id": 5, "tube": "mail", "state": "delayed"}
    assert queue.broker.jobs[5].body == b"body"


def test_deleted_job_is_not_found(queue: Queue, program: Program, ids: dict[str, int]) -> None:
    program.do("DELETE", f"/jobs/{ids['ready']}", None, 204)
    message = problem(program.ask("GET", f"/jobs/{ids['ready']}"), 404)["detail"]
    assert "it was deleted" in message
    assert "no job has had this id yet" in problem(program.ask("GET", "/jobs/18446744073709551615"), 404)["detail"]
    problem(program.ask("GET", "/jobs/99999999999999999999"), 400, "id")


def test_events_and_holder(queue: Queue, program: Program, worker: Client, ids: dict[str, int]) -> None:
    broker: Broker = queue.broker
    queue.now += SECOND
    finishing.bury(broker, worker, ids["reserved"], 1, queue.now)
    kicking.kick_job(broker, ids["reserved"], queue.now)
    reserving.reserve_job(broker, worker, ids["reserved"], queue.now)
    result = program.get(f"/jobs/{ids['reserved']}")
    assert result["held_by"] == worker.number
    assert [(event["kind"], event["connection"]) for event in result["events"]] == [
        ("reserved", worker.number),
        ("buried", worker.number),
        ("kicked", None),
        ("reserved", worker.number),
    ]
    assert result["events"][1]["at"] == "2027-01-15T08:00:01Z"


# Hidden bodies


def test_hidden_bodies_appear_nowhere(queue: Queue) -> None:
    putting.put_into(queue.broker, b"mail", 0, 0, 60 * SECOND, MARKER, queue.now)
    app = queue.app(api_token=TOKEN, hides_bodies=True)
    program = Program(app)
    put(program, {"tube": "mail", "body": MARKER.decode()})
    program.do("POST", "/samples", {"name": "n", "tube": "mail", "body": MARKER.decode()}, 201)
    task = program.do("POST", "/searches", {"tube": "mail"}, 202)["id"]
    plan = program.do("POST", "/bulk", {"action": "kick", "tube": "mail"}, 202)["id"]
    lists = ["/jobs", "/jobs?tube=mail&state=ready", "/jobs/1", f"/tasks/{task}/jobs"]
    files = ["/jobs/export?format=jsonl", "/jobs/export?format=csv"]
    others = ["/tasks", f"/tasks/{task}", f"/tasks/{plan}", "/tubes", "/audit", "/server", "/connections"]
    for path in lists + files + others:
        response = program.ask("GET", path)
        assert response.status_code == 200, path
        assert "mArKeR" not in response.text, path
        assert base64.b64encode(MARKER).decode() not in response.text, path
    for method, path, body in (
        ("GET", "/jobs/1/body", None),
        ("GET", "/jobs?q=marker", None),
        ("GET", "/jobs/export?q=-body:marker", None),
        ("GET", "/samples", None),
        ("POST", "/searches", {"q": "marker"}),
        ("POST", "/bulk", {"action": "kick", "q": "marker"}),
        ("PATCH", "/jobs/1", {"body": "x"}),
    ):
        message = problem(program.ask(method, path, json=body), 403)["detail"]
        assert "idden" in message or "not shown" in message
    result = program.do("PATCH", "/jobs/1", {"pri": 3})
    assert (result["pri"], result["body"], result["encoding"]) == (3, None, None)
