"""Undo of deletions and changes: jobs come back, those that cannot are listed, and the stored jobs are bounded."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import gevent
import pytest
from flask import Flask, g
from flask.testing import FlaskClient

from greenstalk_server.config.tables.roles import Rights
from greenstalk_server.core.job_attributes import DeadLetter, DeadLetterReason
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, SECOND, Job
from greenstalk_server.core.journal import NullJournal
from greenstalk_server.core.operations import editing, finishing, policy_changes, reserving
from greenstalk_server.core.operations.undoing import undelete
from greenstalk_server.core.policies.policy import PolicySet, parse_policy
from greenstalk_server.journal.saved_jobs import SavedJobsWriter, read_saved_jobs
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.changes import saved_changes as module
from greenstalk_server.web.changes.saved_changes import LIFETIME, SavedChange, SavedChanges
from greenstalk_server.web.changes.task_parts import TaskParts
from greenstalk_server.web.changes.undo import Undo
from greenstalk_server.web.features.jobs.pages.edit import version
from greenstalk_server.web.framework.access import Principal
from greenstalk_server.web.framework.shards import ALONE
from greenstalk_server.web.store.rows import Change
from greenstalk_server.web.store.sqlite import SqliteRows
from tests.support import invariants
from tests.support.daemon import TIMEOUT, Daemon

from .conftest import Queue, changing
from .forms import post
from .table import Page
from .visit import FLAGS


def saved_changes_of(client: FlaskClient) -> SavedChanges:
    return client.application.extensions["dashboard"].saved_changes  # type: ignore[no-any-return]


def wait_for_tasks(app: Flask) -> None:
    for task in app.extensions["dashboard"].tasks._kept.values():
        task.wait(TIMEOUT)
        assert not task.is_running


def undo(client: FlaskClient, number: str) -> str:
    """Undo a deletion; return the text of the task's page."""
    response = post(client, "/undo", change=number)
    assert response.status_code == 303, Page(response.text).text
    wait_for_tasks(client.application)
    return " ".join(Page(client.get(response.headers["Location"]).text).text.split())


def offered(client: FlaskClient, location: str) -> str:
    """Return the number of the deletion that the page at *location* offers to undo; empty if none."""
    found = re.search(r'name="change" value="(\d+)"', client.get(location).text)
    return found[1] if found else ""


def clear(client: FlaskClient, state: str = "ready") -> str:
    response = post(client, "/tube/clear", tube="mail", state=state, confirm="mail")
    return offered(client, response.headers["Location"])


# Pages


def test_deleted_job_comes_back_from_the_notice(queue: Queue, client: FlaskClient) -> None:
    (id, _) = queue.put("mail", pri=7, delay=60, count=2)
    response = post(client, "/job/delete", id=str(id))
    assert id not in queue.broker.jobs
    page = undo(client, offered(client, response.headers["Location"]))
    job = queue.broker.jobs[id]
    assert (job.state, job.pri, job.body, job.deadline) == (DELAYED, 7, b"body", queue.now + 60 * SECOND)
    assert "put back" in page
    invariants.check(queue.broker)


@pytest.mark.parametrize(("state", "number"), [("ready", READY), ("delayed", DELAYED), ("buried", BURIED)])
def test_cleared_jobs_come_back_in_their_state(
    queue: Queue, client: FlaskClient, ids: list[int], state: str, number: int
) -> None:
    before = [id for id in ids if queue.broker.jobs[id].state == number]
    change = clear(client, state)
    assert not [id for id in before if id in queue.broker.jobs]
    undo(client, change)
    assert [queue.broker.jobs[id].state for id in before] == [number]


def test_clear_of_many_jobs_comes_back_in_parts(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART_SIZE", 100)
    ids = queue.put("mail", count=100)
    change = clear(client)
    assert saved_changes_of(client)._kept[int(change)].parts > module.PARTS_TOGETHER  # type: ignore[index]
    undo(client, change)
    assert list(queue.broker.jobs) == ids


def test_second_undo_is_refused(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    change = clear(client)
    undo(client, change)
    refused = post(client, "/undo", change=change)
    assert refused.status_code == 409
    assert "has been undone already" in Page(refused.text).text


def test_taken_id_is_listed_and_the_rest_comes_back(queue: Queue, client: FlaskClient) -> None:
    queue.put("other")
    ids = queue.put("mail", count=3)
    saved = SavedJobsWriter(b"salt")
    encoded = saved.encode(queue.broker.jobs[ids[1]], b"body")
    saved.add(encoded)
    change = clear(client)
    assert undelete(queue.broker, read_saved_jobs(saved.data()).jobs[0], queue.now) == 0
    page = undo(client, change)
    assert f"1 job was not put back, because a job with the id exists: {ids[1]}." in page
    assert list(queue.broker.jobs)[1:] == ids


def test_deletion_is_listed_for_a_day(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    change = clear(client)
    assert "Clear ready jobs of “mail”" in client.get("/changes").text
    queue.now += LIFETIME
    assert "No change of the last day can be undone" in client.get("/changes").text
    assert post(client, "/undo", change=change).status_code == 404


def test_bulk_deletion_says_before_that_it_can_be_undone(queue: Queue, client: FlaskClient) -> None:
    ids = queue.put("mail", count=3)
    started = post(client, "/bulk/preview", scope="all", q="", tube="mail", action="delete")
    wait_for_tasks(client.application)
    page = client.get(started.headers["Location"]).text
    assert "This can be undone for a day." in page
    run = post(client, "/bulk/run", task=started.headers["Location"].rpartition("=")[2], confirm="mail")
    wait_for_tasks(client.application)
    assert not queue.broker.jobs
    undo(client, offered(client, run.headers["Location"]))
    assert list(queue.broker.jobs) == ids


def test_deletion_above_the_limit_says_before_that_it_cannot_be_undone(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=3)
    saved_changes_of(client).limit = 100
    started = post(client, "/bulk/preview", scope="all", q="", tube="mail", action="delete")
    wait_for_tasks(client.application)
    assert "This cannot be undone: " in client.get(started.headers["Location"]).text
    assert "This cannot be undone: " in client.get("/tube?tube=mail&state=ready").text
    assert clear(client) == ""
    assert not queue.broker.jobs


DISK_FULL = "the disk is full"


def test_deletion_without_room_on_the_disk_says_that_it_cannot_be_undone(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=3)
    saved_changes_of(client).room_refusal = lambda size: DISK_FULL
    assert f"This cannot be undone: {DISK_FULL}." in client.get("/tube?tube=mail&state=ready").text
    response = post(client, "/tube/clear", tube="mail", state="ready", confirm="mail")
    assert "3 jobs deleted. This cannot be undone." in Page(client.get(response.headers["Location"]).text).text
    assert not queue.broker.jobs


def test_deletion_stops_while_all_its_jobs_can_come_back(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART_SIZE", 10)
    ids = queue.put("mail", count=100)
    saved_changes_of(client).room_refusal = lambda size: DISK_FULL if size == module.MAX_WRITE else ""
    cleared = client.post("/api/v1/tube/clear?tube=mail", json={"state": "ready"}).get_json()
    assert 0 < cleared["jobs"] == 100 - cleared["left"] < 100
    assert cleared["problem"] == f"No more changed jobs can be stored: {DISK_FULL}."
    undo(client, str(cleared["change_number"]))
    assert sorted(queue.broker.jobs) == ids
    response = post(client, "/tube/clear", tube="mail", state="ready", confirm="mail")
    assert "The clear stopped" in client.get(response.headers["Location"]).text


def test_bulk_change_that_stops_shows_the_reason_once(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART_SIZE", 10)
    queue.put("mail", count=100)
    saved_changes_of(client).room_refusal = lambda size: DISK_FULL if size == module.MAX_WRITE else ""
    task = client.post("/api/v1/bulk", json={"action": "bury", "all": True, "dry_run": False}).get_json()
    assert task["message"] == (
        f"The change has stopped. {task['changed']} jobs were changed before that."
        f" No more changed jobs can be stored: {DISK_FULL}."
    )


class FullJournal(NullJournal):
    """A journal that has room for some restored jobs, one for each True in `room`, and for no replaced job."""

    def __init__(self, *room: bool) -> None:
        super().__init__()
        self.room = list(room)

    def undelete(self, job: Job) -> bool:
        return self.room.pop(0)

    def replace(self, old: Job, new: Job) -> bool:
        return False


def test_undo_continues_after_the_last_job_that_had_room(queue: Queue, client: FlaskClient) -> None:
    ids = queue.put("mail", count=3)
    change = clear(client)
    queue.broker.journal = journal = FullJournal(True, False)
    assert "The journal cannot store the jobs: the disk has no room." in undo(client, change)
    assert list(queue.broker.jobs) == ids[:1]
    assert finishing.delete_job(queue.broker, ids[0], queue.now)
    journal.room += [True, True]
    undo(client, change)
    assert list(queue.broker.jobs) == ids[1:]


def test_oldest_deletion_is_dropped_first(queue: Queue, client: FlaskClient) -> None:
    saved_changes_of(client).limit = 1500
    numbers = []
    for _ in range(3):
        queue.put("mail", count=5)
        numbers.append(clear(client))
    kept = saved_changes_of(client)
    assert [str(number) for number in kept._kept or ()] == numbers[1:]
    assert [str(number) for number in kept._rows.sizes("jobs-before")] == numbers[1:]
    assert post(client, "/undo", change=numbers[0]).status_code == 404


def deletion_by(app: Flask, queue: Queue, name: str) -> int:
    """Save the deletion of a job by the user *name*; return its number."""
    (id,) = queue.put("mail")
    with app.app_context():
        g.principal = Principal(name, "", is_admin=True, sees_bodies=True)
        recording = app.extensions["dashboard"].saved_changes.record_deletion("Delete a job", 1, 4)
        recording.add(recording.encode(queue.broker.jobs[id], b"body"))
        number = recording.close()
    assert number is not None
    return number


@pytest.mark.parametrize(("limit", "places"), [(10**6, 4), (500, 100)])
def test_program_drops_its_own_changes_and_not_those_of_operators(
    queue: Queue, app: Flask, monkeypatch: pytest.MonkeyPatch, limit: int, places: int
) -> None:
    monkeypatch.setattr(module, "MAX_CHANGES", places)
    saved_changes = app.extensions["dashboard"].saved_changes
    saved_changes.limit = limit
    by_ada = deletion_by(app, queue, "ada")
    by_program = [deletion_by(app, queue, "api-token") for _ in range(20)]
    kept = list(saved_changes._kept)
    assert kept == [by_ada, *by_program[1 - len(kept) :]]
    assert 2 <= len(kept) <= 4


class GatedRows(SqliteRows):
    """Rows in memory whose write fails once `may_fail` is set, if `fails` was set when it began."""

    def __init__(self) -> None:
        super().__init__(None)
        self.fails = False
        self.has_begun, self.may_fail = threading.Event(), threading.Event()

    def write(self, changes: Sequence[Change], trims: Mapping[str, int]) -> None:
        if self.fails:
            self.has_begun.set()
            assert self.may_fail.wait(TIMEOUT)
            raise OSError(DISK_FULL)
        super().write(changes, trims)


def test_change_that_a_failed_write_would_have_dropped_keeps_its_rows(queue: Queue) -> None:
    rows = GatedRows()
    saved_changes = SavedChanges(rows, queue.clock, 1000)
    saved_changes.load()

    def add(size: int) -> SavedChange:
        change = SavedChange(0, "x", "", queue.now, is_deletion=True, has_bodies=True)
        saved_changes.begin(change)
        saved_changes.add_parts(change, [(b"x" * size, b"")])
        return change

    old = add(600)
    rows.fails = True
    failing = gevent.spawn(add, 601)
    assert run_in_thread(rows.has_begun.wait, TIMEOUT)
    rows.fails = False
    add(10)
    rows.may_fail.set()
    with pytest.raises(OSError, match=DISK_FULL):
        failing.get(timeout=TIMEOUT)
    assert saved_changes._kept is not None
    assert old.number in saved_changes._kept
    assert rows.read("jobs-before", old.number, old.number, None) == [(old.number, b"\0\0\0\0", b"x" * 600)]
    rows.close()


def test_deletion_without_room_beside_a_running_one_drops_no_other(queue: Queue, client: FlaskClient) -> None:
    saved_changes_of(client).limit = 1500
    queue.put("mail", count=5)
    first = clear(client)
    queue.put("mail", count=5)
    kept = saved_changes_of(client)._kept or {}
    running = kept[int(clear(client))]
    running.is_open, running.size = True, 1400
    queue.put("mail", count=5)
    assert clear(client) == ""
    assert [str(number) for number in kept] == [first, str(running.number)]


def test_large_body_comes_back(queue: Queue, client: FlaskClient) -> None:
    body = bytes(range(256)) * 1000
    ids = [*queue.put("mail"), *queue.put("mail", body=body), *queue.put("mail")]
    undo(client, clear(client))
    assert [queue.broker.jobs[id].body for id in ids] == [b"body", body, b"body"]


def test_clear_of_few_jobs_in_a_large_tube_can_be_undone(queue: Queue, client: FlaskClient) -> None:
    (small,) = queue.put("mail", delay=60)
    queue.put("mail", body=bytes(5000))
    saved_changes_of(client).limit = 1000
    assert "This can be undone for a day." in client.get("/tube?tube=mail&state=delayed").text
    assert "This cannot be undone: " in client.get("/tube?tube=mail&state=ready").text
    undo(client, clear(client, "delayed"))
    assert small in queue.broker.jobs


def test_list_has_the_newest_deletions_alone(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SHOWN", 2)
    numbers = []
    for _ in range(3):
        queue.put("mail")
        numbers.append(clear(client))
    listed = [one["number"] for one in client.get("/api/v1/changes").get_json()["changes"]]
    assert listed == [int(number) for number in reversed(numbers[1:])]
    undo(client, numbers[0])
    assert 1 in queue.broker.jobs


# Changes


def facts(queue: Queue) -> dict[int, tuple[object, ...]]:
    """Return by job the state that an undo restores, except the place among other jobs."""
    return {
        job.id: (
            (job.tube.name, job.state, job.pri, job.delay, job.ttr, job.body, job.events, job.reserves, job.buries),
            (job.kicks, job.attempts_base, job.expires_from, job.dead_letter, job.deadline * (job.state == DELAYED)),
        )
        for job in queue.broker.jobs.values()
    }


def mixed_jobs(queue: Queue) -> list[int]:
    """Put jobs of `mail` in all states but reserved, the last one a dead letter of `source`."""
    ids = [*queue.put("mail"), *queue.put("mail", delay=60), *queue.put("mail", count=2)]
    for id in ids[2:]:
        finishing.bury_job(queue.broker, id, queue.now)
    queue.broker.jobs[ids[3]].dead_letter = DeadLetter(DeadLetterReason.ATTEMPTS, b"source", 3, 1, 2).pack()
    queue.now += SECOND
    return ids


def undo_by_api(client: FlaskClient, number: int) -> Any:
    """Undo a change; return the task."""
    task = client.post(f"/api/v1/changes/{number}/undo", json={})
    wait_for_tasks(client.application)
    return client.get(f"/api/v1/tasks/{task.get_json()['id']}").get_json()


def newest(client: FlaskClient) -> int:
    """Return the number of the newest change."""
    return int(client.get("/api/v1/changes").get_json()["changes"][0]["number"])


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"action": "kick"}, 3),
        ({"action": "bury"}, 2),
        ({"action": "move", "to": "other"}, 4),
        ({"action": "pri", "pri": 7}, 4),
        ({"action": "delay", "delay": 600}, 2),
        ({"action": "redrive"}, 1),
    ],
    ids=lambda value: value["action"] if isinstance(value, dict) else "",
)
def test_bulk_change_is_undone(queue: Queue, client: FlaskClient, change: dict[str, object], changed: int) -> None:
    mixed_jobs(queue)
    before = facts(queue)
    task = client.post("/api/v1/bulk", json={**change, "all": True, "dry_run": False}).get_json()
    wait_for_tasks(client.application)
    assert facts(queue) != before
    undone = undo_by_api(client, task["change_number"])
    assert (undone["changed"], undone["refused"], undone["message"]) == (changed, [], "")
    assert facts(queue) == before
    invariants.check(queue.broker)


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("kick", {}),
        ("bury", {}),
        ("move", {"tube": "other"}),
        ("edit", {"pri": "9", "ttr": "50", "delay": "70", "body": "other", "encoding": "text"}),
        ("redrive", {}),
    ],
)
def test_notice_of_a_changed_job_offers_its_undo(
    queue: Queue, client: FlaskClient, action: str, fields: dict[str, str]
) -> None:
    id = mixed_jobs(queue)[{"kick": 2, "redrive": 3}.get(action, 1)]
    before = facts(queue)
    if action == "edit":
        fields |= {"version": version(queue.broker.jobs[id], b"body", True)}
    response = post(client, f"/job/{action}", **(fields | {"id": str(id)}))
    assert facts(queue)[id] != before[id]
    undo(client, offered(client, response.headers["Location"]))
    assert facts(queue) == before


def test_kick_of_a_tube_is_undone_in_parts_and_in_order(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART_SIZE", 100)
    ids = queue.put("mail", count=150)
    for id in ids:
        finishing.bury_job(queue.broker, id, queue.now)
    assert (
        "This can be undone for a day, except" in post(client, "/tube/kick", tube="mail", state="buried", all="1").text
    )
    response = post(client, "/tube/kick", tube="mail", state="buried", all="1", confirm="1")
    assert queue.broker.tubes[b"mail"].ready.count == 150
    undo(client, offered(client, response.headers["Location"]))
    assert list(queue.broker.tubes[b"mail"].buried) == ids


def test_kick_of_many_tubes_is_undone(queue: Queue, client: FlaskClient) -> None:
    ids = [*queue.put("mail.a", delay=60), *queue.put("mail.b", delay=60)]
    task = client.post("/api/v1/tubes/kick?pattern=mail.*&dry_run=false", json={"state": "delayed"}).get_json()
    wait_for_tasks(client.application)
    assert [queue.broker.jobs[id].state for id in ids] == [READY] * 2
    undo_by_api(client, client.get(f"/api/v1/tasks/{task['id']}").get_json()["change_number"])
    assert [queue.broker.jobs[id].state for id in ids] == [DELAYED] * 2


def test_jobs_that_cannot_be_put_back_are_listed_with_the_reason(queue: Queue, client: FlaskClient) -> None:
    ids = queue.put("mail", count=5)
    task = client.post("/api/v1/bulk", json={"action": "move", "to": "other", "all": True, "dry_run": False}).get_json()
    finishing.delete_job(queue.broker, ids[0], queue.now)
    reserving.reserve_job(queue.broker, queue.connect(), ids[1], queue.now)
    editing.edit_job(queue.broker, ids[2], queue.now, pri=3)
    policies = PolicySet([parse_policy("cap", {"tubes": ["mail"], "max_jobs": 1})])
    policy_changes.set_policies(queue.broker, policies, queue.now)
    undone = undo_by_api(client, task["change_number"])
    assert undone["changed"] == 1
    assert {one["reason"]: one["sample"] for one in undone["refused"]} == {
        "the job has been deleted since": [ids[0]],
        "a worker holds the job": [ids[1]],
        "the job has been reserved or changed since": [ids[2]],
        "the tube is at the cap of its policy": [ids[4]],
    }
    assert "1 job was not put back, because a worker holds the job:" in undone["message"]


def test_failed_undo_shows_the_reason_and_the_jobs_that_were_refused_before(queue: Queue, client: FlaskClient) -> None:
    ids = queue.put("mail", count=2)
    task = client.post("/api/v1/bulk", json={"action": "bury", "all": True, "dry_run": False}).get_json()
    finishing.delete_job(queue.broker, ids[0], queue.now)
    queue.broker.journal = FullJournal()
    page = undo(client, str(task["change_number"]))
    assert "The journal cannot store the jobs: the disk has no room. Start the undo again for the rest." in page
    assert f"1 job was not put back, because the job has been deleted since: {ids[0]}." in page


def test_undo_needs_the_right_to_operate_the_former_and_the_present_tube(queue: Queue, app: Flask) -> None:
    ids = queue.put("mail", count=2)
    client = app.test_client()
    for id, tube in zip(ids, ("open.other", "hidden"), strict=True):
        client.post(f"/api/v1/jobs/{id}/move", json={"tube": tube})
    dashboard = app.extensions["dashboard"]
    undoing = Undo(*changing(queue, dashboard), parts=TaskParts(dashboard.tasks, ALONE), shards=ALONE)
    rights = Rights(view=frozenset(("open.*", "mail")), operate=frozenset(("open.*",)))
    for change in dashboard.saved_changes._kept.values():
        with app.app_context():
            g.principal = Principal("", "", is_admin=False, sees_bodies=True, rights=rights)
            task = undoing.start(change.number)
        task.wait(TIMEOUT)
        assert "because you may not operate their tubes" in task.message
    assert [queue.broker.jobs[id].tube.name for id in ids] == [b"open.other", b"hidden"]


def test_former_body_comes_back_with_the_other_fields(queue: Queue, client: FlaskClient) -> None:
    (id,) = queue.put("mail")
    before = facts(queue)
    client.patch(f"/api/v1/jobs/{id}", json={"body": "other", "pri": 1, "ttr": 9, "renew": True})
    assert queue.broker.jobs[id].body == b"other"
    undo_by_api(client, newest(client))
    assert facts(queue) == before


def test_change_above_the_limit_says_before_that_it_cannot_be_undone(queue: Queue, client: FlaskClient) -> None:
    (id, _) = queue.put("mail", count=2)
    saved_changes_of(client).limit = 500
    started = post(client, "/bulk/preview", scope="all", q="", tube="mail", action="bury")
    wait_for_tasks(client.application)
    assert "This cannot be undone: " in client.get(started.headers["Location"]).text
    post(client, "/bulk/run", task=started.headers["Location"].rpartition("=")[2])
    wait_for_tasks(client.application)
    assert queue.broker.jobs[id].state == BURIED
    assert client.get("/api/v1/changes").get_json()["changes"] == []


def test_change_without_a_preview_is_complete_although_it_is_too_large_to_be_undone(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART_SIZE", 100)
    ids = queue.put("mail", count=200)
    saved_changes_of(client).limit = 20_000
    task = client.post("/api/v1/bulk", json={"action": "bury", "all": True, "dry_run": False}).get_json()
    wait_for_tasks(client.application)
    task = client.get(f"/api/v1/tasks/{task['id']}").get_json()
    assert (task["state"], task["changed"], task["change_number"]) == ("done", 200, None)
    assert task["message"] == "This cannot be undone: the jobs have more than 20.0\xa0kB."
    assert list(queue.broker.tubes[b"mail"].buried) == ids
    kept = saved_changes_of(client)
    assert (kept._kept, kept._rows.sizes("jobs-before"), kept._rows.sizes("change")) == ({}, {}, {})


def test_undo_stops_when_the_server_drains(queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    (id,) = queue.put("mail")
    client.post(f"/api/v1/jobs/{id}/bury", json={})
    monkeypatch.setattr(queue.broker, "is_draining", True)
    assert client.post(f"/api/v1/changes/{newest(client)}/undo", json={}).status_code == 503


# API


def test_api_undoes_a_clear(queue: Queue, client: FlaskClient) -> None:
    ids = queue.put("mail", count=2)
    cleared = client.post("/api/v1/tube/clear?tube=mail", json={"state": "ready"}).get_json()
    (listed,) = client.get("/api/v1/changes").get_json()["changes"]
    assert (listed["number"], listed["jobs"], listed["undone_at"]) == (cleared["change_number"], 2, None)
    task = client.post(f"/api/v1/changes/{cleared['change_number']}/undo", json={}).get_json()
    assert (task["state"], task["changed"], task["refused"]) == ("done", 2, [])
    assert list(queue.broker.jobs) == ids
    assert client.post(f"/api/v1/changes/{cleared['change_number']}/undo", json={}).status_code == 409


# Stored jobs


def saved(queue: Queue, count: int = 3) -> bytes:
    writer = SavedJobsWriter(b"salt")
    for id in queue.put("mail", count=count):
        encoded = writer.encode(queue.broker.jobs[id], b"body")
        writer.add(encoded)
        finishing.delete_job(queue.broker, id, queue.now)
    return writer.data()


def test_saved_jobs_are_read_as_they_were(queue: Queue) -> None:
    found = read_saved_jobs(saved(queue))
    assert [(job.id, job.tube.name, job.body, job.pri) for job in found.jobs] == [
        (id, b"mail", b"body", 2000) for id in (1, 2, 3)
    ]
    assert found.damage == ""


def test_truncated_and_damaged_jobs_are_reported_and_the_others_are_read(queue: Queue) -> None:
    data = saved(queue)
    for end in range(len(data)):
        found = read_saved_jobs(data[:end])
        assert [job.id for job in found.jobs] == [1, 2, 3][: len(found.jobs)]
    cut = read_saved_jobs(data[:-1])
    assert ([job.id for job in cut.jobs], bool(cut.damage)) == ([1, 2], True)
    at = data.index(b"body")
    flipped = read_saved_jobs(data[:at] + b"B" + data[at + 1 :])
    assert ([job.id for job in flipped.jobs], bool(flipped.damage)) == ([2, 3], True)


def test_deletions_survive_a_restart_of_the_dashboard(queue: Queue, tmp_path: Path) -> None:
    ids = queue.put("mail", count=2)
    change = clear(queue.app(directory=str(tmp_path)).test_client())
    undo(queue.app(directory=str(tmp_path)).test_client(), change)
    assert list(queue.broker.jobs) == ids
    assert post(queue.app(directory=str(tmp_path)).test_client(), "/undo", change=change).status_code == 409


def test_missing_part_is_reported(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    change = clear(client)
    kept = saved_changes_of(client)
    kept._rows.write([("jobs-before", int(change), bytes(4), None)], {})
    assert "the stored jobs are damaged (part 1 is missing)" in undo(client, change)


# A real server


def test_deletion_and_change_are_undone_after_the_server_was_killed(tmp_path: Path) -> None:
    flags = (*FLAGS, "-b", str(tmp_path), "-f", "0")
    with Daemon(*flags) as daemon:
        ids = [daemon.ask(b"put 7 0 60 4\r\nbody\r\n").removeprefix(b"INSERTED ") for _ in range(3)]
        moved = call(daemon, "bulk", {"action": "move", "to": "other", "all": True, "dry_run": False})
        cleared = call(daemon, "tube/clear?tube=other", {"state": "ready"})
        daemon.stop(signal.SIGKILL)
    with Daemon(*flags) as daemon:
        assert [daemon.ask(b"peek %b\r\n" % id) for id in ids] == [b"NOT_FOUND"] * 3
        task = call(daemon, f"changes/{cleared['change_number']}/undo", {})
        assert (task["state"], task["changed"]) == ("done", 3)
        assert [one["tube"] for one in call(daemon, "jobs")["jobs"]] == ["other"] * 3
        task = call(daemon, f"changes/{moved['change_number']}/undo", {})
        assert (task["state"], task["changed"], task["refused"]) == ("done", 3, [])
        daemon.stop(signal.SIGKILL)
    with Daemon(*flags) as daemon:
        assert [daemon.ask(b"peek %b\r\n" % id) for id in ids] == [b"FOUND %b 4" % id for id in ids]
        assert [one["tube"] for one in call(daemon, "jobs")["jobs"]] == ["default"] * 3
        assert all(one["undone_at"] for one in call(daemon, "changes")["changes"])


def call(daemon: Daemon, path: str, body: dict[str, object] | None = None) -> Any:
    """Send a request to the API; return the response."""
    data = None if body is None else json.dumps(body).encode()
    url = f"{daemon.dashboard}api/v1/{path}"
    request = Request(url, data, {"Content-Type": "application/json"})  # noqa: S310  the address is the test's own
    with urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
        return json.loads(response.read())
