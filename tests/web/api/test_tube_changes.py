"""Changes of many tubes over the API."""

from __future__ import annotations

import pytest

from greenstalk_server.core.operations import finishing

from ..conftest import Queue
from .conftest import Program, problem
from .test_tasks import ended


@pytest.fixture
def tubes(queue: Queue) -> Queue:
    for tube, count in (("billing.a", 1), ("billing.b", 2), ("mail", 3)):
        for id in queue.put(tube, count=count):
            finishing.bury_job(queue.broker, id, queue.now)
    return queue


def test_dry_run_then_run(tubes: Queue, program: Program) -> None:
    task = ended(program, program.do("POST", "/tubes/kick", status=202, pattern="billing.*"))
    assert (task["kind"], task["changed"], task["scanned"]) == ("tubes-dry-run", 0, 4), "the fourth is `default`"
    assert task["tubes"] == {
        "action": "kick",
        "pattern": "billing.*",
        "matched": 2,
        "tubes": 2,
        "jobs": 3,
        "sample": [{"tube": "billing.b", "jobs": 2}, {"tube": "billing.a", "jobs": 1}],
        "undo": "This can be undone for a day, except for jobs that are reserved or changed by then.",
        "run": None,
    }
    run = ended(program, program.do("POST", f"/tasks/{task['id']}/run", status=202))
    assert (run["kind"], run["state"], run["changed"]) == ("tubes-change", "done", 3)
    assert (program.get(f"/tasks/{task['id']}")["tubes"]["run"], run["tubes"]["undo"]) == (run["id"], None)
    assert [len(tubes.broker.tubes[name].buried) for name in (b"billing.a", b"billing.b", b"mail")] == [0, 0, 3]


def test_pause_and_resume_at_once(tubes: Queue, program: Program) -> None:
    body = {"seconds": 0.5, "reason": "a  b"}
    task = ended(program, program.do("POST", "/tubes/pause", body, 202, pattern="*i*"))
    assert task["tubes"]["undo"] is None
    task = ended(program, program.do("POST", "/tubes/pause", body, 202, pattern="*i*", dry_run="false"))
    assert (task["kind"], task["changed"]) == ("tubes-change", 3)
    assert program.get("/tube", tube="mail")["pause_reason"] == "a b"
    task = ended(program, program.do("POST", "/tubes/resume", status=202, pattern="mail", dry_run="false"))
    assert task["changed"] == 1
    paused = {tube["name"]: tube["is_paused"] for tube in program.get("/tubes")["tubes"]}
    assert paused == {"billing.a": True, "billing.b": True, "default": False, "mail": False}


def test_bad_input_is_refused(tubes: Queue, program: Program) -> None:
    problem(program.ask("POST", "/tubes/resume"), 400, "pattern")
    problem(program.ask("POST", "/tubes/resume?pattern=a%20b"), 400, "pattern")
    problem(program.ask("POST", "/tubes/resume?pattern=*&dry_run=maybe"), 400, "dry_run")
    problem(program.ask("POST", "/tubes/pause?pattern=*", json={"seconds": 0}), 400, "seconds")
    problem(program.ask("POST", "/tubes/kick?pattern=*", json={"state": "ready"}), 400, "state")
