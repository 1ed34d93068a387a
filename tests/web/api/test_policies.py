"""Policies in the API: changes, effective settings, dry runs, dead letters, and permissions."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from greenstalk_server.core.job_attributes import REASON_NAMES
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, finishing, policy_changes, reserving
from greenstalk_server.core.policies.policy import parse_policy
from greenstalk_server.web.features.jobs.jobs import EventKind
from greenstalk_server.web.features.jobs.pages.details import EVENTS
from greenstalk_server.web.reads.jobs.job_list import Reason

from ..conftest import STARTED_AT, Queue
from ..test_policy_operations import fail, set_policy, settle
from .conftest import TOKEN, Program, problem
from .test_tasks import ended

DEAD = {"tubes": ["mail"], "max_attempts": 2, "dead_letter": "mail.failed"}


def kill(queue: Queue, count: int = 1) -> list[int]:
    """Make *count* jobs of `mail` dead letters in `mail.failed`; return their ids."""
    ids = queue.put("mail", count=count)
    set_policy(queue, "dead", **DEAD)
    for id in ids:
        fail(queue, id, 2)
    return ids


# The vocabulary of the API


def test_words_match_the_core() -> None:
    assert set(get_args(EventKind)) == set(job_history.KINDS[1:])
    assert set(get_args(Reason)) == set(REASON_NAMES[1:])
    assert set(EVENTS) == set(range(1, len(job_history.KINDS)))


# Policies


def test_policy_is_set_replaced_listed_and_removed(queue: Queue, program: Program) -> None:
    assert program.get("/policies") == {"policies": [], "warnings": []}
    document = {"tubes": ["mail.*"], "priority": 5, "retry_delay": "1m", "retry_jitter": 0.5, "copy_to": ["audit"]}
    listed = {"name": "retries", "source": "runtime", "problem": "", "document": document}
    assert program.do("PUT", "/policies/retries", document) == {"policy": listed, "warnings": []}
    assert program.get("/policies") == {"policies": [listed], "warnings": []}
    assert program.get("/policies/retries") == listed
    replaced = program.do("PUT", "/policies/retries", {"tubes": ["*"], "rate": 2.5})
    assert replaced["policy"]["document"] == {"tubes": ["*"], "priority": 0, "rate": 2.5}
    found = queue.broker.policies.effective(b"mail")
    assert found is not None and found.rate_interval == SECOND * 2 // 5
    program.do("DELETE", "/policies/retries", status=204)
    assert program.get("/policies")["policies"] == []
    problem(program.ask("GET", "/policies/retries"), 404)
    problem(program.ask("DELETE", "/policies/retries"), 404)


@pytest.mark.parametrize(
    ("document", "field", "message"),
    [
        ({}, "tubes", "is missing"),
        ({"tubes": []}, "tubes", "must be an array of 1 to 100 tube names"),
        ({"tubes": ["a b"]}, "tubes", "cannot match any tube"),
        ({"tubes": ["a"], "max_attempts": -1}, "max_attempts", "-1: must be a whole number of attempts from 0"),
        ({"tubes": ["a"], "max_attempts": "5"}, "max_attempts", "must be a whole number"),
        ({"tubes": ["a"], "max_attempts": 2**70}, "max_attempts", ""),
        ({"tubes": ["a"], "max_attempts": True}, "max_attempts", "must be a whole number"),
        ({"tubes": ["a"], "max_attempts": None}, "max_attempts", "must be a whole number"),
        ({"tubes": ["a"], "retry_factor": 2}, "retry_factor", "must not be set without retry_delay"),
        ({"tubes": ["a"], "overflow": "explode"}, "overflow", 'must be "refuse" or "drop-oldest"'),
        ({"tubes": ["a"], "ttr_min": 9, "ttr_max": "3s"}, "ttr_max", "must not be below ttr_min"),
        ({"tubes": ["a"], "max_attemps": 3}, "max_attemps", "is not known: the fields are tubes, priority"),
        ([], "$", "must be an object"),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("PUT", "/policies/p"), ("POST", "/policies/p/dry-run")])
def test_invalid_policy_names_the_key_and_what_is_allowed(
    queue: Queue, program: Program, method: str, path: str, document: object, field: str, message: str
) -> None:
    found = problem(program.ask(method, path, json=document), 400, field)
    assert message in found["errors"][0]["message"]
    assert queue.broker.policies.policies == {}


def test_policy_of_the_file_is_read_only(queue: Queue, program: Program) -> None:
    policy_changes.set_file_policies(queue.broker, [parse_policy("mail", DEAD)], queue.now)
    assert program.get("/policies/mail")["source"] == "file"
    detail = problem(program.ask("PUT", "/policies/mail", json={"tubes": ["a"]}), 409)["detail"]
    assert detail.startswith("policy mail: is set in the configuration file; ")
    assert program.get("/policies/mail")["document"] == DEAD | {"priority": 0}


def test_set_waits_for_the_journal(queue: Queue) -> None:
    program = Program(queue.app(api_token=TOKEN, commit=lambda: False))
    for method, path, json in (("PUT", "/policies/p", {"tubes": ["a"]}), ("DELETE", "/policies/p", None)):
        response = program.ask(method, path, **({"json": json} if json else {}))
        assert "The change was made, so do not repeat the request" in problem(response, 503)["detail"]


# Dry runs


def test_dry_run_counts_and_changes_nothing(queue: Queue, program: Program) -> None:
    queue.put("mail", count=5)
    document = {"tubes": ["mail"], "max_jobs": 3, "overflow": "drop-oldest", "max_reserved": 1}
    task = ended(program, program.do("POST", "/policies/caps/dry-run", document, 202))
    assert (task["kind"], task["state"], task["counted"]) == ("policy-dry-run", "done", None)
    assert task["effect"] == {
        "policy": "caps", "tubes": 1, "changed_tubes": 1, "sample": ["mail"], "jobs": 5, "expired": 0,
        "dead_lettered": 0, "buried": 0, "evicted": 2, "over_cap": 0, "held": 2, "warnings": [],
    }  # fmt: skip
    assert program.get("/policies")["policies"] == []
    assert queue.broker.tubes[b"mail"].ready.count == 5
    problem(program.ask("POST", f"/tasks/{task['id']}/run", json={}), 404)


# Tubes


def test_tube_shows_each_setting_with_its_policy(queue: Queue, program: Program) -> None:
    queue.put("mail")
    assert program.get("/tube", tube="mail")["policy"] == {}
    program.do("PUT", "/policies/base", {"tubes": ["*"], "max_attempts": 5, "rate": 2, "copy_to": ["audit"]})
    program.do("PUT", "/policies/mail", {"tubes": ["mail"], "max_attempts": 9, "max_reserved": 3, "dead_letter": "bad"})
    settle(queue)
    tube = program.get("/tube", tube="mail")
    assert tube["policy"] == {
        "max_attempts": {"value": 9, "policy": "mail"},
        "dead_letter": {"value": "bad", "policy": "mail"},
        "max_reserved": {"value": 3, "policy": "mail"},
        "rate": {"value": 2, "policy": "base"},
        "copy_to": {"value": ["audit"], "policy": "base"},
    }
    assert (tube["dead_letter"], tube["dead_letters_from"], tube["max_reserved"], tube["rate"]) == ("bad", [], 3, 2.0)
    queue.put("bad")
    assert program.get("/tube", tube="bad")["dead_letters_from"] == ["mail"]


def test_tube_has_the_reason_of_its_hold(queue: Queue, program: Program) -> None:
    queue.put("mail", count=3)

    def held_by() -> Any:
        (tube,) = program.get("/tubes", q="mail")["tubes"]
        assert tube["held_by"] == program.get("/tube", tube="mail")["held_by"]
        return tube["held_by"]

    assert held_by() is None
    program.do("POST", "/tube/pause", {"seconds": 60}, tube="mail")
    assert held_by() == "pause"
    program.do("POST", "/tube/resume", tube="mail", json={})
    worker = queue.connect()
    connecting.watch(queue.broker, worker, b"mail")
    set_policy(queue, max_reserved=1)
    assert held_by() is None
    assert reserving.reserve(queue.broker, worker, queue.now)
    assert held_by() == "max_reserved"
    assert program.get("/tube", tube="mail")["reserved"] == 1
    set_policy(queue, rate=0.1)
    assert reserving.reserve(queue.broker, worker, queue.now)
    assert held_by() == "rate"
    counts = program.get("/tube", tube="mail")["policy_counts"]
    assert (counts["reserved_holds"], counts["rate_holds"]) == (1, 1)


# Dead letters


def test_job_shows_its_attempts_expiry_and_origin(queue: Queue, program: Program) -> None:
    (id,) = queue.put("mail")
    set_policy(queue, "dead", **DEAD, expire_after=100)
    fail(queue, id, 1)
    job = program.get(f"/jobs/{id}")
    assert (job["attempts"], job["dead_letter"], job["expires_at"]) == (1, None, "2027-01-15T08:01:40Z")
    assert STARTED_AT == 1_800_000_000 * SECOND
    fail(queue, id, 1)
    job = program.get(f"/jobs/{id}")
    dead = job["dead_letter"]
    assert (job["tube"], job["state"], job["attempts"], job["expires_at"]) == ("mail.failed", "ready", 0, None)
    assert (dead["reason"], dead["source"], dead["attempts"]) == ("attempts", "mail", 2)
    assert dead["first_at"] == dead["last_at"] == job["events"][-1]["at"]
    assert job["events"][-1]["kind"] == "dead-lettered"
    assert program.get("/jobs", tube="mail.failed")["jobs"][0]["dead_letter"] == dead


def test_expiry_is_renewed_by_an_edit(queue: Queue, program: Program) -> None:
    (id,) = queue.put("mail")
    set_policy(queue, expire_after=100, buried_expire_after=50)
    queue.now += 60 * SECOND
    assert program.get(f"/jobs/{id}")["expires_at"].startswith("2027-01-15T08:01:40")
    assert program.do("PATCH", f"/jobs/{id}", {"renew": True})["expires_at"].startswith("2027-01-15T08:02:40")
    assert program.do("POST", f"/jobs/{id}/bury", {})["expires_at"].startswith("2027-01-15T08:01:50")
    entry = program.get("/audit", what="job/edit")["entries"][0]
    assert entry["details"]["changed"] == "expiry"


def test_redrive_moves_a_job_back(queue: Queue, program: Program) -> None:
    (id,) = kill(queue)
    job = program.do("POST", f"/jobs/{id}/redrive", {})
    assert (job["tube"], job["state"], job["attempts"], job["dead_letter"]) == ("mail", "ready", 0, None)
    assert job["events"][-1]["kind"] == "redriven"
    problem(program.ask("POST", f"/jobs/{id}/redrive", json={}), 409)
    problem(program.ask("POST", "/jobs/999/redrive", json={}), 404)


@pytest.mark.parametrize(
    ("body", "moved"),
    [
        ({"tube": "mail.failed"}, [0, 1, 2]),
        ({"tube": "mail.failed", "q": "pri:1"}, []),
        ({"all": True}, [0, 1, 2]),
    ],
)
def test_redrive_of_many(queue: Queue, program: Program, body: dict[str, Any], moved: list[int]) -> None:
    ids = kill(queue, 3)
    task = ended(program, program.do("POST", "/redrive", body, 202))
    assert (task["kind"], task["state"], task["changed"]) == ("change", "done", len(moved))
    assert [at for at, id in enumerate(ids) if queue.broker.jobs[id].tube.name == b"mail"] == moved


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "all"),
        ({"tube": "mail", "rate": 0}, "rate"),
        ({"ids": []}, "ids"),
        ({"tube": "mail", "to": "x"}, "to"),
    ],
)
def test_invalid_redrive_is_refused(program: Program, body: dict[str, Any], field: str) -> None:
    problem(program.ask("POST", "/redrive", json=body), 400, field)


# Puts


def test_duplicate_put_names_the_first_job(queue: Queue, program: Program) -> None:
    program.do("PUT", "/policies/once", {"tubes": ["mail"], "unique": "body", "unique_for": 60})
    settle(queue)
    new = {"tube": "mail", "body": "x"}
    assert program.do("POST", "/jobs", new, 201) == {"id": 1, "tube": "mail", "state": "ready"}
    duplicate = {"id": 1, "tube": "mail", "state": "ready", "is_duplicate": True}
    assert program.do("POST", "/jobs", new, 201) == duplicate
    found = program.do("POST", "/jobs", [new, new | {"body": "y"}], 201)
    assert [one.get("is_duplicate") for one in found] == [True, None]
    worker = queue.connect()
    assert reserving.reserve_job(queue.broker, worker, 1, queue.now)
    assert finishing.delete(queue.broker, worker, 1, queue.now)
    assert program.do("POST", "/jobs", new, 201) == duplicate | {"state": None}


@pytest.mark.parametrize(("setting", "status"), [({"max_jobs": 1}, 507), ({"max_job_size": 2}, 413)])
def test_put_refused_by_a_policy(queue: Queue, program: Program, setting: dict[str, Any], status: int) -> None:
    queue.put("mail")
    set_policy(queue, **setting)
    detail = problem(program.ask("POST", "/jobs", json={"tube": "mail", "body": "xyz"}), status)["detail"]
    assert detail.startswith("A policy limits the tube “mail” by max_job") and detail.endswith("Nothing was put.")
