"""Searches and bulk changes over the API: dry runs, runs and cancellation."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from greenstalk_server.core.jobs.job import BURIED, READY
from greenstalk_server.core.operations import draining, finishing, reserving
from greenstalk_server.web.changes import tasks
from tests.support import invariants

from ..conftest import Queue
from .conftest import Program, problem


def ended(program: Program, task: dict[str, Any]) -> dict[str, Any]:
    """Return the task once it has ended."""
    while task["state"] == "running":
        gevent.sleep(0.001)
        task = program.get(f"/tasks/{task['id']}")
    return task


def test_search(queue: Queue, program: Program) -> None:
    ids = queue.put("mail", count=30, pri=5)
    queue.put("mail", count=30)
    response = program.ask("POST", "/searches", json={"tube": "mail", "q": "pri:5"})
    assert response.status_code == 202
    task = ended(program, response.get_json())
    assert response.headers["Location"] == f"/api/v1/tasks/{task['id']}"
    assert (task["kind"], task["state"], task["matched"], task["counted"]) == ("search", "done", 30, None)
    assert task["scanned"] == task["total"] == 60
    finishing.delete_job(queue.broker, ids[3], queue.now)
    found = program.pages(f"/tasks/{task['id']}/jobs", "jobs", limit=7)
    assert [job["id"] for page in found for job in page] == ids[:3] + ids[4:]
    assert program.get("/tasks")["tasks"] == [task]


def test_dry_run_then_run(queue: Queue, program: Program) -> None:
    ids = queue.put("mail", count=30)
    worker = queue.connect()
    for id in ids[:3]:
        reserving.reserve_job(queue.broker, worker, id, queue.now)
    finishing.bury_job(queue.broker, ids[3], queue.now)
    task = ended(program, program.do("POST", "/bulk", {"action": "bury", "tube": "mail"}, 202))
    assert (task["kind"], task["changed"]) == ("dry-run", 0)
    promise = "This can be undone for a day, except for jobs that are reserved or changed by then."
    counted = {"action": "bury", "would_change": 26, "held": 3, "as_they_are": 1, "sample": ids[4:14]}
    assert task["counted"] == counted | {"undo": promise, "run": None}
    queue.put("mail", count=5)  # newer than the dry run, so not changed
    run = ended(program, program.do("POST", f"/tasks/{task['id']}/run", None, 202))
    assert (run["kind"], run["state"], run["changed"], run["counted"]) == ("change", "done", 26, None)
    assert program.get(f"/tasks/{task['id']}")["counted"]["run"] == run["id"]
    assert program.do("POST", f"/tasks/{task['id']}/run", {"force": True}, 202)["id"] == run["id"]
    states = [job.state for job in queue.broker.jobs.values()]
    assert (states.count(BURIED), states.count(READY)) == (27, 5)
    invariants.check(queue.broker)


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"action": "delete", "tube": "mail"}, 28),
        ({"action": "delete", "tube": "mail", "force": True}, 30),
        ({"action": "delete", "all": True}, 33),
        ({"action": "delete", "ids": [1, 2, 5, 5, 6, 99]}, 2),
        ({"action": "delete", "ids": [5, 6], "q": "pri:7"}, 0),
        ({"action": "move", "tube": "mail", "to": "other"}, 28),
        ({"action": "pri", "q": "tube:mail", "pri": 0}, 28),
        ({"action": "delay", "tube": "mail", "state": "ready", "delay": 60}, 28),
    ],
)
def test_change_without_a_dry_run(queue: Queue, program: Program, change: dict[str, Any], changed: int) -> None:
    ids = queue.put("mail", count=30)
    queue.put("default", count=5)
    worker = queue.connect()
    for id in ids[:2]:
        reserving.reserve_job(queue.broker, worker, id, queue.now)
    counted = ended(program, program.do("POST", "/bulk", change, 202))["counted"]
    assert counted["would_change"] + (counted["held"] if change.get("force") else 0) == changed
    task = ended(program, program.do("POST", "/bulk", change | {"dry_run": False}, 202))
    assert (task["state"], task["changed"]) == ("done", changed)
    invariants.check(queue.broker)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tube": "mail"}, "action"),
        ({"action": "explode", "tube": "mail"}, "action"),
        ({"action": "kick"}, "all"),
        ({"action": "move", "tube": "mail"}, "to"),
        ({"action": "pri", "tube": "mail"}, "pri"),
        ({"action": "delay", "tube": "mail"}, "delay"),
        ({"action": "kick", "tube": "mail", "to": "other"}, "to"),
        ({"action": "move", "tube": "mail", "to": "a b"}, "to"),
        ({"action": "kick", "ids": []}, "ids"),
        ({"action": "kick", "ids": list(range(1, 1002))}, "ids"),
        ({"action": "kick", "ids": [0]}, "ids[0]"),
        ({"action": "kick", "q": "size:x"}, "q"),
        ({"action": "kick", "tube": "mail", "dry_run": "no"}, "dry_run"),
    ],
)
def test_invalid_change_is_refused(program: Program, change: dict[str, Any], field: str) -> None:
    response = program.ask("POST", "/bulk", json=change)
    problem(response, 400, field)
    assert program.get("/tasks") == {"tasks": []}


def test_draining_server_starts_no_change(queue: Queue, program: Program) -> None:
    task = ended(program, program.do("POST", "/bulk", {"action": "kick", "all": True}, 202))
    draining.drain(queue.broker)
    problem(program.ask("POST", f"/tasks/{task['id']}/run"), 503)
    problem(program.ask("POST", "/bulk", json={"action": "kick", "all": True, "dry_run": False}), 503)


def test_cancel(queue: Queue, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled task ends between two jobs, and frees its place among the running tasks."""
    queue.put("mail", count=10)

    def checkpoint(task: tasks.Task) -> None:
        gevent.sleep(0.001)
        if task.is_cancelled:
            raise tasks.TaskCancelled
        task.scanned -= 1

    monkeypatch.setattr(tasks.Task, "checkpoint", checkpoint)
    monkeypatch.setattr(
        "greenstalk_server.web.features.search.search.candidate_ids", lambda *_: (10, iter(lambda: 1, 0))
    )
    monkeypatch.setattr("greenstalk_server.web.changes.task_model.INITIAL_WAIT", 0.01)
    started = [program.do("POST", "/searches", {"q": f"pri:{at}"}, 202) for at in range(tasks.MAX_RUNNING)]
    problem(program.ask("POST", "/searches", json={"q": "pri:99"}), 503)
    problem(program.ask("POST", f"/tasks/{started[0]['id']}/run"), 404)
    for task in started:
        assert program.do("DELETE", f"/tasks/{task['id']}")["state"] == "cancelled"
    assert [task["state"] for task in program.get("/tasks")["tasks"]] == ["cancelled"] * tasks.MAX_RUNNING
