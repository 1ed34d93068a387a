"""Policies of the dashboard and the API: changes, dry runs, duplicates, and redrives of dead letters."""

from __future__ import annotations

import time
from typing import Any

import pytest
from flask import Flask
from werkzeug.exceptions import Conflict, NotFound

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, finishing, policy_changes, reserving, ticking
from greenstalk_server.core.policies.policy import PolicyError, parse_policy
from greenstalk_server.web.app import Dashboard
from greenstalk_server.web.changes import bulk
from greenstalk_server.web.changes.bulk import Bulk, Change
from greenstalk_server.web.changes.operations import Operations, Put
from greenstalk_server.web.changes.task_parts import TaskParts
from greenstalk_server.web.changes.tasks import CANCELLED, DONE, FAILED, Task
from greenstalk_server.web.features.policies import changes as policies
from greenstalk_server.web.features.policies.changes import Effect
from greenstalk_server.web.framework.failures import PutRefused
from greenstalk_server.web.framework.shards import ALONE
from greenstalk_server.web.reads.jobs.query import parse
from tests.support.daemon import TIMEOUT

from .conftest import Queue, changing


@pytest.fixture(autouse=True)
def _context(app: Flask) -> Any:
    """Provide the request context of an admin."""
    with app.test_request_context():
        app.preprocess_request()
        yield


@pytest.fixture
def dashboard(app: Flask) -> Dashboard:
    return app.extensions["dashboard"]  # type: ignore[no-any-return]


@pytest.fixture
def operations(queue: Queue, dashboard: Dashboard) -> Operations:
    return Operations(*changing(queue, dashboard))


def settle(queue: Queue) -> None:
    """Let the broker apply the policies to existing tubes and jobs; less than a millisecond passes for the jobs."""
    for _ in range(1000):
        queue.now += 100
        due = ticking.tick(queue.broker, queue.now)
        if not queue.broker.is_sweeping and (due is None or due > queue.now):
            return
    raise AssertionError("the broker does not settle")


def set_policy(queue: Queue, name: str = "mail", **document: Any) -> None:
    policy_changes.set_policy(queue.broker, parse_policy(name, {"tubes": ["mail"]} | document), queue.now)
    settle(queue)


def fail(queue: Queue, id: int, times: int) -> None:
    """Reserve and release the job *id*, *times* times."""
    worker = queue.connect()
    for _ in range(times):
        assert reserving.reserve_job(queue.broker, worker, id, queue.now)
        assert finishing.release(queue.broker, worker, id, 0, 0, queue.now)
    connecting.disconnect(queue.broker, worker, queue.now)


def dry_run(dashboard: Dashboard, name: str = "mail", **document: Any) -> Task:
    task = dashboard.policies.dry_run(parse_policy(name, {"tubes": ["mail"]} | document))
    task.wait(TIMEOUT)
    return task


def effect(dashboard: Dashboard, **document: Any) -> Effect:
    task = dry_run(dashboard, **document)
    assert (task.state, task.message) == (DONE, "")
    assert isinstance(task.subject, Effect)
    return task.subject


def counts(found: Effect) -> dict[str, int]:
    """Return the counts of jobs that are not 0."""
    names = ("expired", "dead_lettered", "buried", "evicted", "over_cap", "held")
    return {name: getattr(found, name) for name in names if getattr(found, name)}


# Changes


def test_set_policy_is_in_force_listed_and_in_the_audit_log(queue: Queue, dashboard: Dashboard) -> None:
    dashboard.policies.set(parse_policy("mail", {"tubes": ["mail.*"], "max_reserved": 3}))
    found = queue.broker.policies.effective(b"mail.high")
    assert found is not None
    assert found.describe() == {"max_reserved": {"value": 3, "policy": "mail"}}
    (listed,) = dashboard.policies.all()
    assert listed == dashboard.policies.get("mail")
    assert (listed.is_from_file, listed.problem) == (False, "")
    assert listed.document == {"tubes": ["mail.*"], "priority": 0, "max_reserved": 3}
    entry = dashboard.audit.entries[-1]
    assert (entry.what, entry.details["policy"]) == ("policy/set", "mail")
    assert '"max_reserved":3' in str(entry.details["document"])
    dashboard.policies.remove("mail")
    assert queue.broker.policies.effective(b"mail.high") is None
    assert dashboard.audit.entries[-1].what == "policy/remove"
    with pytest.raises(NotFound, match="no policy “mail”"):
        dashboard.policies.remove("mail")


def test_policy_of_the_file_can_only_be_read(queue: Queue, dashboard: Dashboard) -> None:
    dashboard.policies.set(parse_policy("mail", {"tubes": ["mail"], "max_attempts": 3}))
    policy_changes.set_file_policies(
        queue.broker, [parse_policy("mail", {"tubes": ["mail"], "max_attempts": 9})], queue.now
    )
    first, second = dashboard.policies.all()
    assert (first.is_from_file, first.problem, first.document["max_attempts"]) == (True, "", 9)
    assert (second.is_from_file, second.document["max_attempts"]) == (False, 3)
    assert "A policy of the same name in the configuration file" in second.problem
    for refused in (dashboard.policies.set, dashboard.policies.dry_run):
        with pytest.raises(PolicyError, match="is set in the configuration file"):
            refused(parse_policy("mail", {"tubes": ["*"]}))
    dashboard.policies.remove("mail")  # the one without effect
    with pytest.raises(PolicyError, match="is set in the configuration file"):
        dashboard.policies.remove("mail")


# Dry runs


def test_dry_run_counts_what_the_policy_then_does(queue: Queue, dashboard: Dashboard) -> None:
    ids = queue.put("mail", count=10)
    queue.put("other", count=5)
    delayed = queue.put("mail", delay=60, count=2)
    fail(queue, ids[0], 3)
    fail(queue, ids[1], 2)
    for id in ids[2:4]:
        finishing.bury_job(queue.broker, id, queue.now)
    queue.now += 100 * SECOND
    queue.put("mail", count=4)
    policy: dict[str, Any] = {
        "max_attempts": 3,
        "dead_letter": "failed",
        "expire_after": 90,
        "buried_expire_after": 90,
        "expired_to": "drop",
    }
    before = len(queue.broker.jobs)
    found = effect(dashboard, **policy)
    assert len(queue.broker.jobs) == before and queue.broker.tubes[b"mail"].policy_state is None
    # ids[0] has failed; ids[1], six others, the two delayed and the two buried jobs are too old.
    assert counts(found) == {"dead_lettered": 1, "expired": 11}
    assert (found.tubes, found.changed_tubes, found.jobs, found.sample) == (1, 1, 16, ["mail"])
    set_policy(queue, **policy)
    assert len(queue.broker.jobs) == before - 11
    assert queue.broker.tubes[b"failed"].job_count == 1
    assert queue.broker.tubes[b"mail"].job_count == 4
    assert not any(id in queue.broker.jobs for id in delayed)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"max_jobs": 7}, {"over_cap": 3}),
        ({"max_jobs": 7, "overflow": "drop-oldest"}, {"evicted": 3}),
        ({"max_jobs": 7, "overflow": "dead-letter-oldest", "dead_letter": "failed"}, {"dead_lettered": 3}),
        ({"max_bytes": 22, "overflow": "drop-oldest"}, {"evicted": 5}),
        ({"max_bytes": 22, "max_jobs": 3}, {"over_cap": 7}),
        ({"max_bytes": 40, "max_jobs": 10}, {}),
        ({"max_reserved": 4}, {"held": 6}),
        ({"rate": 1, "rate_burst": 3}, {"held": 7}),
        ({"rate": 1, "rate_burst": 3, "max_jobs": 8, "overflow": "drop-oldest"}, {"evicted": 2, "held": 5}),
        ({"max_attempts": 1}, {}),
        ({"unique": "body"}, {}),
        ({"max_job_size": 1, "ttr_max": 1, "copy_to": ["other"]}, {}),
    ],
)
def test_dry_run_counts_caps_and_holds(
    queue: Queue, dashboard: Dashboard, policy: dict[str, Any], expected: dict[str, int]
) -> None:
    queue.put("mail", count=10)  # of four bytes each
    assert counts(effect(dashboard, **policy)) == expected
    set_policy(queue, **policy)
    gone = expected.get("evicted", 0) + expected.get("dead_lettered", 0)
    assert queue.broker.tubes[b"mail"].job_count == 10 - gone


def test_dry_run_considers_the_other_policies(queue: Queue, dashboard: Dashboard) -> None:
    queue.put("mail", count=10)
    set_policy(queue, "strict", priority=5, max_reserved=2)
    found = effect(dashboard, max_reserved=9)
    assert (found.tubes, found.changed_tubes) == (1, 0)
    assert counts(found) == {"held": 8}


def test_dry_run_of_narrower_patterns_includes_the_tubes_that_are_left_out(queue: Queue, dashboard: Dashboard) -> None:
    queue.put("mail")
    queue.put("post")
    set_policy(queue, "all", tubes=["*"], max_reserved=1)
    found = effect(dashboard, name="all", tubes=["mail"], max_reserved=1)
    assert (found.tubes, found.changed_tubes) == (1, 2)
    assert sorted(found.sample) == ["default", "mail", "post"]


def test_dry_run_warns_of_a_loop(queue: Queue, dashboard: Dashboard) -> None:
    queue.put("mail")
    set_policy(queue, "back", tubes=["failed"], dead_letter="mail")
    (warning,) = effect(dashboard, dead_letter="failed").warnings
    assert "failed" in warning and "mail" in warning
    assert dashboard.policies.warnings() == []
    dashboard.policies.set(parse_policy("mail", {"tubes": ["mail"], "dead_letter": "failed"}))
    assert dashboard.policies.warnings() == [warning]


def test_dry_run_ends_in_bounded_time_and_says_so(
    queue: Queue, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put("mail", count=10)
    monkeypatch.setattr(policies, "MAX_DRY_RUN_TIME", -1.0)
    task = dry_run(dashboard, expire_after=5)
    assert task.state == FAILED
    assert "stopped after" in task.message


# Puts


def new(body: bytes = b"hello", tube: bytes = b"mail") -> Put:
    return Put(tube, 1000, 0, 60, body)


def test_copy_of_a_unique_job_is_refused(queue: Queue, operations: Operations) -> None:
    set_policy(queue, unique="body")
    job = queue.broker.jobs[operations.put(new()).id]
    with pytest.raises(Conflict, match=f"job {job.id} has the same body"):
        operations.copy_job(job, b"hello", 0)
    assert len(queue.broker.jobs) == 1


# Redrive


@pytest.fixture
def dead(queue: Queue) -> list[int]:
    """Four jobs of `mail` that are dead letters in `failed`."""
    ids = queue.put("mail", count=4)
    for id in ids:
        fail(queue, id, 1)
    set_policy(queue, max_attempts=1, dead_letter="failed")
    assert queue.broker.tubes[b"failed"].ready.count == 4
    return ids


@pytest.fixture
def changes(queue: Queue, dashboard: Dashboard) -> Bulk:
    return Bulk(*changing(queue, dashboard), parts=TaskParts(dashboard.tasks, ALONE))


def redrive(changes: Bulk, query: str = "tube:failed", ids: tuple[int, ...] | None = None, rate: float = 0) -> Task:
    task = changes.start_run(changes.plan(Change("redrive"), parse(query), ids, rate), is_forced=False)
    task.wait(TIMEOUT)
    return task


def test_redrive_of_a_held_job_or_into_a_full_tube_is_refused(
    queue: Queue, operations: Operations, dead: list[int]
) -> None:
    held, other = (queue.broker.jobs[id] for id in dead[:2])
    reserving.reserve_job(queue.broker, queue.connect(), held.id, queue.now)
    with pytest.raises(Conflict, match="a client holds it"):
        operations.redrive_job(held)
    queue.put("mail")
    set_policy(queue, "cap", max_jobs=1)
    with pytest.raises(PutRefused, match="“mail” cannot take the job") as refused:
        operations.redrive_job(other)
    assert refused.value.status == 507
    assert {held.tube.name, other.tube.name} == {b"failed"}


def test_bulk_redrive_moves_all_dead_letters_and_counts_those_that_stay(
    queue: Queue, changes: Bulk, dead: list[int]
) -> None:
    queue.put("failed")
    queue.put("mail")
    set_policy(queue, "cap", max_jobs=3)
    task = redrive(changes)
    assert (task.state, task.matched, task.done, task.skipped) == (DONE, 5, 2, 2)
    assert task.message == (
        "2 jobs stay as they are: the tube that the job came from is full, or a limit of the server is reached."
    )
    assert queue.broker.tubes[b"mail"].job_count == 3
    assert queue.broker.tubes[b"failed"].job_count == 3


def test_bulk_redrive_keeps_to_its_rate(queue: Queue, changes: Bulk, dead: list[int]) -> None:
    began = time.monotonic()
    task = redrive(changes, rate=10)
    assert task.done == 4
    assert 0.25 <= time.monotonic() - began < 5
    assert "at most 10 jobs per second" in [fact.text for fact in task.facts]


def test_waiting_redrive_can_be_cancelled(queue: Queue, changes: Bulk, dead: list[int]) -> None:
    plan = changes.plan(Change("redrive"), parse("tube:failed"), None, rate=0.001)
    task = changes.start_run(plan, is_forced=False)
    task.wait(0.1)
    assert (task.is_running, task.done) == (True, 1)
    task.cancel()
    task.wait(2 * bulk.MAX_THROTTLE_SLEEP)
    assert (task.state, task.done) == (CANCELLED, 1)
    assert queue.broker.tubes[b"failed"].job_count == 3
