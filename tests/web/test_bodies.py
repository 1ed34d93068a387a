"""Bodies that are only on disk: pages and endpoints read them, and do not cache them."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import gevent
import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.body_cache import Bodies
from greenstalk_server.core.jobs.job import BURIED, SECOND, Job
from greenstalk_server.core.operations import editing, finishing, putting
from greenstalk_server.journal.files import Directory
from greenstalk_server.journal.segment import name_of
from greenstalk_server.journal.startup import recover
from greenstalk_server.journal.writer import JournalWriter
from greenstalk_server.net.body_loader import Loader
from greenstalk_server.net.committer import Committer
from greenstalk_server.protocol.extended_stats import server_extension
from greenstalk_server.web.features.jobs.export import LARGE_BODY
from greenstalk_server.web.reads.jobs.bodies import BATCH_SIZE, ON_DISK
from tests.support import invariants
from tests.support.daemon import TIMEOUT

from .api.conftest import TOKEN, Program, problem
from .conftest import Queue
from .forms import SAME_ORIGIN, post, refused
from .table import Page
from .test_search import find, ids, task_id

LIMIT = 256 * 2**20
SEGMENT = 65536
"""Bytes of a journal file; a larger job starts a new file."""

PAD = b"." * 100
"""Bodies below this size in bytes are not evicted."""


class DiskQueue(Queue):
    """A queue with a journal in *directory* and a memory limit of zero, so that every evictable body is evicted."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        files = Directory(str(directory))
        journal = JournalWriter(files, SEGMENT, 0, os.urandom)
        self.broker = Broker(self.broker.facts, journal, max_job_size=8 * 2**20)
        self.bodies = self.broker.bodies = Bodies(LIMIT, can_evict=True)
        recover(files, self.broker, journal, self.now, is_strict=True)
        self.bodies.margin = LIMIT
        self.committer = Committer(journal, Loader(self.broker, journal, self.bodies))
        self.committer.start()

    def commit(self) -> bool:
        return self.committer.wait(TIMEOUT)

    def job(self, id: int) -> Job:
        return self.broker.jobs[id]

    def put_on_disk(self, tube: str, *bodies: bytes, pri: int = 2000) -> list[int]:
        """Put jobs and evict their bodies."""
        ids = [putting.put_into(self.broker, tube.encode(), pri, 0, 60 * SECOND, body, self.now) for body in bodies]
        self.evict(*ids)
        return ids

    def evict(self, *ids: int) -> None:
        """Evict the bodies of these jobs, by moving the journal on to a new file."""
        assert putting.put_into(self.broker, b"filler", 0, 0, SECOND, b"f" * SEGMENT, self.now) > 0
        assert self.commit()
        with gevent.Timeout(TIMEOUT):
            while any(self.job(id).body is not None for id in ids):
                gevent.sleep(0.001)
        invariants.check(self.broker)

    def damage(self, id: int) -> None:
        """Make the body of a job unreadable: overwrite its record on the disk."""
        path = self.directory / name_of(self.job(id).segment)
        size = path.stat().st_size
        path.write_bytes(os.urandom(size))


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[DiskQueue]:
    made = DiskQueue(tmp_path)
    yield made
    invariants.check(made.broker)
    made.committer.stop()


@pytest.fixture
def app(queue: DiskQueue) -> Flask:
    return queue.app(queue.commit, api_token=TOKEN)


@pytest.fixture
def program(app: Flask) -> Program:
    return Program(app)


def body(n: int) -> bytes:
    return b'{"number": %d, "pad": "%b"}' % (n, PAD)


def with_change_during_read(queue: DiskQueue, ask: Any, change: Any) -> TestResponse:
    """Return the response to *ask*, with *change* made while the body is being read."""
    asking = gevent.spawn(ask)
    gevent.sleep(0)
    assert not asking.ready()
    change()
    asking.join(TIMEOUT)
    assert asking.successful()
    return asking.value  # type: ignore[no-any-return]


# One job


def test_job_page_shows_the_body_and_leaves_it_on_disk(queue: DiskQueue, client: FlaskClient) -> None:
    [id] = queue.put_on_disk("mail", body(7))
    page = Page(client.get(f"/job?id={id}").text)
    assert '"number": 7' in page.text and "JSON, only on disk" in page.text
    assert client.get(f"/job/body?id={id}").data == body(7)
    assert queue.job(id).body is None


def test_job_with_body_on_disk_can_be_moved_copied_and_changed(
    queue: DiskQueue, client: FlaskClient, program: Program
) -> None:
    one, two, three = queue.put_on_disk("mail", body(1), body(2), body(3))
    assert post(client, "/job/move", id=one, tube="moved").status_code == 303
    response = post(client, "/job/copy", id=two, delay=0)
    copy = int(parse_qs(urlsplit(response.headers["Location"]).query)["id"][0])
    assert program.do("POST", f"/jobs/{three}/move", {"tube": "moved"})["body"] == body(3).decode()
    answer = program.do("POST", f"/jobs/{two}/copy", status=201)
    assert program.do("PATCH", f"/jobs/{two}", {"pri": 3})["body"] == body(2).decode()
    expected = {one: ("moved", 1), copy: ("mail", 2), three: ("moved", 3), answer["id"]: ("mail", 2), two: ("mail", 2)}
    queue.evict(*expected)
    for id, (tube, n) in expected.items():
        assert queue.job(id).tube.name == tube.encode()
        assert program.ask("GET", f"/jobs/{id}/body").data == body(n)


def test_hidden_bodies_are_not_read_from_disk(queue: DiskQueue) -> None:
    [id] = queue.put_on_disk("mail", body(7))
    app = queue.app(queue.commit, api_token=TOKEN, hides_bodies=True)
    queue.damage(id)
    page = Page(app.test_client().get(f"/job?id={id}").text)
    assert "Bodies are hidden from you" in page.text and "cannot be read back" not in page.text
    assert Program(app).get(f"/jobs/{id}")["body"] is None


def test_job_deleted_while_its_body_is_read(queue: DiskQueue, client: FlaskClient) -> None:
    one, two = queue.put_on_disk("mail", body(1), body(2))
    gone = with_change_during_read(
        queue, lambda: client.get(f"/job?id={one}"), lambda: finishing.delete_job(queue.broker, one, queue.now)
    )
    assert f"Job {one} does not exist" in refused(gone, 404)
    move = partial(post, client, "/job/move", id=two, tube="moved")
    assert f"Job {two} does not exist" in refused(
        with_change_during_read(queue, move, lambda: finishing.delete_job(queue.broker, two, queue.now)), 404
    )
    assert b"moved" not in queue.broker.tubes


# Lists


def test_lists_mark_bodies_on_disk_and_read_none(queue: DiskQueue, client: FlaskClient) -> None:
    [away] = queue.put_on_disk("mail", body(7))
    near = putting.put_into(queue.broker, b"mail", 2000, 0, SECOND, b"near", queue.now)
    rows = client.get("/live?page=tube&tube=mail&state=ready").json["rows"]["jobs"]
    assert [(row[0], row[-1]) for row in rows] == [(str(away), ON_DISK), (str(near), "near")]
    assert ON_DISK in Page(client.get("/tube?tube=mail&state=ready").text).text
    assert queue.job(away).body is None


@pytest.mark.parametrize("query", [{"tube": "mail", "state": "ready"}, {"q": "body:pad"}, {"tube": "mail"}])
def test_lists_of_the_api_contain_bodies(queue: DiskQueue, program: Program, query: dict[str, Any]) -> None:
    found = queue.put_on_disk("mail", *[body(n) for n in range(30)])
    pages = program.pages("/jobs", "jobs", limit=7, **query)
    assert [len(page) for page in pages if page] == [7, 7, 7, 7, 2]
    answer = [(job["id"], job["body"]) for page in pages for job in page]
    assert answer == [(id, body(n).decode()) for n, id in enumerate(found)]
    assert program.get("/jobs", bodies="false", **query)["jobs"][0]["body"] is None
    assert all(queue.job(id).body is None for id in found)


# Bulk


def test_search_reads_bodies_in_batches_and_keeps_none(queue: DiskQueue, client: FlaskClient) -> None:
    found = queue.put_on_disk("mail", *[body(n) for n in range(2 * BATCH_SIZE + 50)])
    near = putting.put_into(queue.broker, b"mail", 2000, 0, SECOND, b'"number": 42, is near', queue.now)
    before = queue.bodies.in_memory
    page = find(client, '"\\"number\\": 42,"')
    assert ids(page) == [found[42], near]
    assert queue.bodies.in_memory == before
    page = find(client, "tube:mail -number")
    assert ids(page) == []


def test_export_contains_bodies_on_disk(queue: DiskQueue, client: FlaskClient) -> None:
    large = b"\0" + b"x" * LARGE_BODY
    bodies = [*[body(n) for n in range(BATCH_SIZE + 10)], large, b"=" + PAD]
    found = queue.put_on_disk("mail", *bodies)
    lines = [json.loads(line) for line in client.get("/export?format=jsonl&tube=mail").text.splitlines()]
    assert [line["id"] for line in lines] == found
    assert [line["body"] for line in lines[:-2]] == [part.decode() for part in bodies[:-2]]
    assert lines[-2]["encoding"] == "base64" and lines[-1]["body"] == "=" + PAD.decode()
    rows = list(csv.DictReader(io.StringIO(client.get("/export?format=csv&q=body:number").text)))
    assert [row["body"] for row in rows] == [part.decode() for part in bodies[:-2]]
    assert all(queue.job(id).body is None for id in found)


def test_records_out_of_order_or_twice_in_a_file(queue: DiskQueue, client: FlaskClient) -> None:
    found = queue.put_on_disk("mail", *[body(n) for n in range(10)])
    for n in (1, 2):
        for id in reversed(found[n:]):
            assert editing.edit_job(queue.broker, id, queue.now, body=body(100 * n + id)) == 0
        queue.evict(*found)
    for id in found[8:] * 2:
        assert editing.edit_job(queue.broker, id, queue.now, pri=1, body=body(id)) == 0
    queue.evict(*found)
    expected = [body(0), body(100 + found[1]), *[body(200 + id) for id in found[2:8]], *map(body, found[8:])]
    lines = [json.loads(line) for line in client.get("/export?format=jsonl&tube=mail").text.splitlines()]
    assert [line["body"] for line in lines] == [part.decode() for part in expected]
    assert all(queue.job(id).body is None for id in found)


@pytest.mark.parametrize(
    ("change", "field"), [({"action": "move", "to": "moved"}, "tube"), ({"action": "pri", "pri": 5}, "pri")]
)
def test_bulk_change_keeps_bodies(queue: DiskQueue, program: Program, change: dict[str, Any], field: str) -> None:
    found = queue.put_on_disk("mail", *[body(n) for n in range(BATCH_SIZE + 20)])
    asked = {"q": '"\\"number\\": 1"', "dry_run": False, **change}
    task = program.do("POST", "/bulk", asked, status=202)
    with gevent.Timeout(TIMEOUT):
        while task["state"] == "running":
            gevent.sleep(0.01)
            task = program.get(f"/tasks/{task['id']}")
    changed = {id: n for n, id in enumerate(found) if str(n).startswith("1")}
    assert (task["state"], task["changed"], task["message"]) == ("done", len(changed), "")
    queue.evict(*changed)
    jobs = [job for page in program.pages("/jobs", "jobs") for job in page if job["tube"] != "filler"]
    assert [(job["id"], job["body"]) for job in jobs] == [(id, body(n).decode()) for n, id in enumerate(found)]
    assert {job["id"] for job in jobs if job[field] == list(change.values())[1]} == changed.keys()


def test_bulk_kick_and_delete_read_no_bodies(queue: DiskQueue, program: Program) -> None:
    found = queue.put_on_disk("mail", *[body(n) for n in range(10)])
    for id in found:
        finishing.bury_job(queue.broker, id, queue.now)
    for id in found:
        queue.damage(id)
    assert program.do("POST", "/bulk", {"action": "kick", "ids": found, "dry_run": False}, status=202)["changed"] == 10
    deleted = program.do("POST", "/bulk", {"action": "delete", "ids": found, "dry_run": False}, status=202)
    assert deleted["changed"] == 10 and b"mail" not in queue.broker.tubes


# Unreadable bodies


def test_unreadable_body_is_reported_and_the_job_can_be_deleted(
    queue: DiskQueue, client: FlaskClient, program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    [id] = queue.put_on_disk("mail", body(1))
    queue.damage(id)
    with caplog.at_level(logging.ERROR):
        page = client.get(f"/job?id={id}").text
    assert "cannot be read back from the journal" in page and f"Delete job {id}" in page
    assert [record.getMessage().split(":")[:2] for record in caplog.records] == [
        ["journal", f" the body of job {id} cannot be read back"]
    ]
    for path in ("/job/form", "/job/body"):
        assert f"The body of job {id} is only on disk" in refused(client.get(f"{path}?id={id}"), 500)
    for path, form in (("/job/move", {"tube": "other"}), ("/job/copy", {"delay": 0}), ("/job/edit", {})):
        assert f"The body of job {id} is only on disk" in refused(post(client, path, id=id, **form), 500)
    assert "cannot be read back" in problem(program.ask("GET", f"/jobs/{id}/body"), 500)["detail"]
    assert "cannot be read back" in problem(program.ask("PATCH", f"/jobs/{id}", json={"pri": 1}), 500)["detail"]
    assert program.get(f"/jobs/{id}")["body"] is None
    assert program.get("/jobs")["jobs"][0]["body"] is None
    assert queue.job(id).pri == 2000
    assert post(client, "/job/delete", id=id).status_code == 303


def test_bulk_operations_skip_unreadable_bodies(queue: DiskQueue, client: FlaskClient, program: Program) -> None:
    [lost] = queue.put_on_disk("mail", body(1))
    [sound] = queue.put_on_disk("mail", body(2))
    assert queue.job(lost).segment != queue.job(sound).segment
    queue.damage(lost)
    page = find(client, "number")
    assert ids(page) == [sound]
    state = client.get(f"/live?page=search&{task_id(page)}").json
    assert state["fields"]["task-message"].startswith("1 job could not be searched")
    lines = [json.loads(line) for line in client.get("/export?format=jsonl&tube=mail").text.splitlines()]
    assert [(line["encoding"], line["body"]) for line in lines] == [(None, None), ("utf-8", body(2).decode())]
    rows = list(csv.DictReader(io.StringIO(client.get("/export?format=csv&tube=mail").text)))
    assert [(row["encoding"], row["body"]) for row in rows] == [("", ""), ("utf-8", body(2).decode())]
    task = program.do("POST", "/bulk", {"action": "pri", "pri": 1, "tube": "mail", "dry_run": False}, status=202)
    assert (task["state"], task["changed"]) == ("done", 1)
    assert "1 job stays as it is" in task["message"]
    assert (queue.job(lost).pri, queue.job(sound).pri) == (2000, 1)


def test_http_reserve_buries_a_job_with_an_unreadable_body(queue: DiskQueue, program: Program) -> None:
    [lost] = queue.put_on_disk("mail", body(1))
    queue.damage(lost)
    refusal = problem(program.ask("POST", "/reserve", json={"tubes": ["mail"]}), 503)
    assert f"The body of job {lost} cannot be read back" in refusal["detail"]
    assert queue.job(lost).state == BURIED


# Figures


def test_figures_count_bodies_in_memory_and_on_disk(queue: DiskQueue, client: FlaskClient, program: Program) -> None:
    queue.put_on_disk("mail", body(1), body(2))
    [filler] = [job for job in queue.broker.jobs.values() if job.tube.name == b"filler"]
    putting.put_into(queue.broker, b"mail", 0, 0, SECOND, b"near", queue.now)
    assert queue.commit()
    with gevent.Timeout(TIMEOUT):
        while filler.body is not None:
            gevent.sleep(0.001)
    away = 2 * len(body(1)) + SEGMENT
    fields = client.get("/live?page=overview").json["fields"]
    assert fields["bodies_on_disk"] == f"{away / 1000:.1f}\xa0kB of 3 jobs"
    assert fields["bodies_in_memory"] == "4\xa0bytes of 1 job"
    assert (fields["memory_limit"], fields["memory_taken"]) == ("268\xa0MB", f"{queue.bodies.taken / 1000:.1f}\xa0kB")
    answer = program.get("/server")
    assert answer["bodies"] == {
        "limit": LIMIT,
        "taken": queue.bodies.taken,
        "in_memory": 1,
        "bytes_in_memory": 4,
        "on_disk": 3,
        "bytes_on_disk": away,
        "is_full": False,
    }
    extended = server_extension(queue.broker)
    assert (extended.body_bytes_in_memory, extended.body_bytes_on_disk) == (4, away)
    metrics = client.get("/metrics").text
    for line in (
        'greenstalk_body_bytes{where="memory"} 4.0',
        f'greenstalk_body_bytes{{where="disk"}} {away}.0',
        'greenstalk_bodies{where="memory"} 1.0',
        'greenstalk_bodies{where="disk"} 3.0',
        "greenstalk_memory_limit_bytes 2.68435456e+08",
        f"greenstalk_memory_taken_bytes {queue.bodies.taken}.0",
        "greenstalk_memory_full 0.0",
    ):
        assert f"\n{line}\n" in metrics


def test_put_beyond_the_memory_limit_is_explained() -> None:
    queue = Queue()
    queue.broker.bodies = Bodies(2000, can_evict=False)
    app = queue.app(api_token=TOKEN)
    program = Program(app)
    jobs = [{"tube": "mail", "body": "x" * 500}] * 3
    answer = problem(program.ask("POST", "/jobs", json=jobs), 507)
    assert "(--memory-limit)" in answer["detail"] and "2 of the jobs were put" in answer["detail"]
    assert len(answer["put"]) == 2
    assert Program(app).get("/server")["bodies"]["is_full"] is False
    form = {"tube": "mail", "pri": 1, "delay": 0, "ttr": 1, "body": "x" * 500}
    assert "(--memory-limit)" in refused(app.test_client().post("/tube/put", data=form, headers=SAME_ORIGIN), 503)
