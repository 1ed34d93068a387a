"""Undo of deletions: the jobs come back, those that cannot are listed, and the stored jobs are bounded."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from flask import Flask
from flask.testing import FlaskClient

from greenstalk_server.core import invariants
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, SECOND
from greenstalk_server.core.operations import finishing
from greenstalk_server.core.operations.undoing import undelete
from greenstalk_server.journal.saved_jobs import SavedJobsWriter, read_saved_jobs
from greenstalk_server.web.changes import removals as removals_module
from greenstalk_server.web.changes.removals import LIFETIME, Removals
from tests.support.daemon import TIMEOUT, Daemon

from .conftest import Queue
from .forms import post
from .table import Page
from .visit import FLAGS


def removals_of(client: FlaskClient) -> Removals:
    return client.application.extensions["dashboard"].removals  # type: ignore[no-any-return]


def wait_for_tasks(app: Flask) -> None:
    for task in app.extensions["dashboard"].tasks._kept.values():
        task.wait(TIMEOUT)
        assert not task.is_running


def undo(client: FlaskClient, number: str) -> str:
    """Undo a deletion; return the text of the task's page."""
    response = post(client, "/undo", removal=number)
    assert response.status_code == 303, Page(response.text).text
    wait_for_tasks(client.application)
    return " ".join(Page(client.get(response.headers["Location"]).text).text.split())


def offered(client: FlaskClient, location: str) -> str:
    """Return the number of the deletion that the page at *location* offers to undo; empty if none."""
    found = re.search(r'name="removal" value="(\d+)"', client.get(location).text)
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
    removal = clear(client, state)
    assert not [id for id in before if id in queue.broker.jobs]
    undo(client, removal)
    assert [queue.broker.jobs[id].state for id in before] == [number]


def test_clear_of_many_jobs_comes_back_in_parts(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals_module, "PART_SIZE", 100)
    ids = queue.put("mail", count=100)
    removal = clear(client)
    assert removals_of(client)._kept[int(removal)].parts > removals_module.PARTS_TOGETHER  # type: ignore[index]
    undo(client, removal)
    assert list(queue.broker.jobs) == ids


def test_second_undo_is_refused(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    removal = clear(client)
    undo(client, removal)
    refused = post(client, "/undo", removal=removal)
    assert refused.status_code == 409
    assert "has been undone already" in Page(refused.text).text


def test_taken_id_is_listed_and_the_rest_comes_back(queue: Queue, client: FlaskClient) -> None:
    queue.put("other")
    ids = queue.put("mail", count=3)
    saved = SavedJobsWriter(b"salt")
    encoded = saved.encode(queue.broker.jobs[ids[1]], b"body")
    saved.add(encoded)
    removal = clear(client)
    assert undelete(queue.broker, read_saved_jobs(saved.data()).jobs[0], queue.now) == 0
    page = undo(client, removal)
    assert f"1 job did not come back, because a job with the id exists: {ids[1]}." in page
    assert list(queue.broker.jobs)[1:] == ids


def test_deletion_is_listed_for_a_day(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    removal = clear(client)
    assert "Clear ready jobs of “mail”" in client.get("/removals").text
    queue.now += LIFETIME
    assert "No deletion of the last day can be undone" in client.get("/removals").text
    assert post(client, "/undo", removal=removal).status_code == 404


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
    removals_of(client).limit = 100
    started = post(client, "/bulk/preview", scope="all", q="", tube="mail", action="delete")
    wait_for_tasks(client.application)
    assert "This cannot be undone: " in client.get(started.headers["Location"]).text
    assert "This cannot be undone: " in client.get("/tube?tube=mail&state=ready").text
    assert clear(client) == ""
    assert not queue.broker.jobs


DISK_FULL = "the disk is full"


def test_deletion_without_room_on_the_disk_says_that_it_cannot_be_undone(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=3)
    removals_of(client).room_refusal = lambda size: DISK_FULL
    assert f"This cannot be undone: {DISK_FULL}." in client.get("/tube?tube=mail&state=ready").text
    response = post(client, "/tube/clear", tube="mail", state="ready", confirm="mail")
    assert "3 jobs deleted. This cannot be undone." in Page(client.get(response.headers["Location"]).text).text
    assert not queue.broker.jobs


def test_deletion_stops_while_all_its_jobs_can_come_back(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals_module, "PART_SIZE", 10)
    ids = queue.put("mail", count=100)
    removals_of(client).room_refusal = lambda size: DISK_FULL if size == removals_module.MAX_WRITE else ""
    cleared = client.post("/api/v1/tube/clear?tube=mail", json={"state": "ready"}).get_json()
    assert 0 < cleared["jobs"] == 100 - cleared["left"] < 100
    assert cleared["problem"] == f"No more deleted jobs can be stored: {DISK_FULL}."
    undo(client, str(cleared["removal"]))
    assert sorted(queue.broker.jobs) == ids
    response = post(client, "/tube/clear", tube="mail", state="ready", confirm="mail")
    assert "The clear stopped" in client.get(response.headers["Location"]).text


def test_undo_continues_after_the_last_job_that_had_room(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = queue.put("mail", count=3)
    removal = clear(client)
    room = [True, False]
    monkeypatch.setattr(type(queue.broker.journal), "undelete", lambda self, job: room.pop(0))
    assert "The journal cannot store the jobs: the disk has no room." in undo(client, removal)
    assert list(queue.broker.jobs) == ids[:1]
    assert finishing.delete_job(queue.broker, ids[0], queue.now)
    room += [True, True]
    undo(client, removal)
    assert list(queue.broker.jobs) == ids[1:]


def test_oldest_deletion_is_dropped_first(queue: Queue, client: FlaskClient) -> None:
    removals_of(client).limit = 1500
    numbers = []
    for _ in range(3):
        queue.put("mail", count=5)
        numbers.append(clear(client))
    kept = removals_of(client)
    assert [str(number) for number in kept._kept or ()] == numbers[1:]
    assert [str(number) for number in kept._rows.sizes("removed-jobs")] == numbers[1:]
    assert post(client, "/undo", removal=numbers[0]).status_code == 404


def test_large_body_comes_back(queue: Queue, client: FlaskClient) -> None:
    body = bytes(range(256)) * 1000
    ids = [*queue.put("mail"), *queue.put("mail", body=body), *queue.put("mail")]
    undo(client, clear(client))
    assert [queue.broker.jobs[id].body for id in ids] == [b"body", body, b"body"]


def test_clear_of_few_jobs_in_a_large_tube_can_be_undone(queue: Queue, client: FlaskClient) -> None:
    (small,) = queue.put("mail", delay=60)
    queue.put("mail", body=bytes(5000))
    removals_of(client).limit = 1000
    assert "This can be undone for a day." in client.get("/tube?tube=mail&state=delayed").text
    assert "This cannot be undone: " in client.get("/tube?tube=mail&state=ready").text
    undo(client, clear(client, "delayed"))
    assert small in queue.broker.jobs


def test_list_has_the_newest_deletions_alone(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals_module, "MAX_SHOWN", 2)
    numbers = []
    for _ in range(3):
        queue.put("mail")
        numbers.append(clear(client))
    listed = [one["number"] for one in client.get("/api/v1/removals").get_json()["removals"]]
    assert listed == [int(number) for number in reversed(numbers[1:])]
    undo(client, numbers[0])
    assert 1 in queue.broker.jobs


# API


def test_api_undoes_a_clear(queue: Queue, client: FlaskClient) -> None:
    ids = queue.put("mail", count=2)
    cleared = client.post("/api/v1/tube/clear?tube=mail", json={"state": "ready"}).get_json()
    (listed,) = client.get("/api/v1/removals").get_json()["removals"]
    assert (listed["number"], listed["jobs"], listed["undone_at"]) == (cleared["removal"], 2, None)
    task = client.post(f"/api/v1/removals/{cleared['removal']}/undo", json={}).get_json()
    assert (task["state"], task["changed"], task["refused"]) == ("done", 2, [])
    assert list(queue.broker.jobs) == ids
    assert client.post(f"/api/v1/removals/{cleared['removal']}/undo", json={}).status_code == 409


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
    removal = clear(queue.app(directory=str(tmp_path)).test_client())
    undo(queue.app(directory=str(tmp_path)).test_client(), removal)
    assert list(queue.broker.jobs) == ids
    assert post(queue.app(directory=str(tmp_path)).test_client(), "/undo", removal=removal).status_code == 409


def test_missing_part_is_reported(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    removal = clear(client)
    kept = removals_of(client)
    kept._rows.write([("removed-jobs", int(removal), bytes(4), None)], {})
    assert "the stored jobs are damaged (part 1 is missing)" in undo(client, removal)


# A real server


def test_deleted_jobs_come_back_after_the_server_was_killed(tmp_path: Path) -> None:
    flags = (*FLAGS, "-b", str(tmp_path), "-f", "0")
    with Daemon(*flags) as daemon:
        ids = [daemon.ask(b"put 7 0 60 4\r\nbody\r\n").removeprefix(b"INSERTED ") for _ in range(3)]
        cleared = call(daemon, "tube/clear?tube=default", {"state": "ready"})
        daemon.stop(signal.SIGKILL)
    with Daemon(*flags) as daemon:
        assert [daemon.ask(b"peek %b\r\n" % id) for id in ids] == [b"NOT_FOUND"] * 3
        task = call(daemon, f"removals/{cleared['removal']}/undo", {})
        assert (task["state"], task["changed"]) == ("done", 3)
        daemon.stop(signal.SIGKILL)
    with Daemon(*flags) as daemon:
        assert [daemon.ask(b"peek %b\r\n" % id) for id in ids] == [b"FOUND %b 4" % id for id in ids]
        (removal,) = call(daemon, "removals")["removals"]
        assert removal["undone_at"] is not None


def call(daemon: Daemon, path: str, body: dict[str, str] | None = None) -> Any:
    """Send a request to the API; return the response."""
    data = None if body is None else json.dumps(body).encode()
    url = f"{daemon.dashboard}api/v1/{path}"
    request = Request(url, data, {"Content-Type": "application/json"})  # noqa: S310  the address is the test's own
    with urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
        return json.loads(response.read())
