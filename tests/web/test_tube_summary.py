"""The summary of a tube's page: figures, workers, and the chart of the last hour."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, editing, finishing, reserving, ticking
from greenstalk_server.web.features.errors.failing_workers import REUSED_FOR, WINDOW, FailingWorkers
from greenstalk_server.web.features.history.archive import Archive
from greenstalk_server.web.features.history.history import History
from greenstalk_server.web.features.history.worker_rates import INTERVAL, KEPT, WorkerRates
from greenstalk_server.web.features.tubes.pages.tube_summary import drain_text, failed_text, find_workers
from greenstalk_server.web.features.tubes.tube_view import TubeView
from greenstalk_server.web.reads.policies import DeadLetterTubes

from .conftest import Queue
from .stored import local_store
from .table import Page


def worker(queue: Queue, tube: str) -> Client:
    """Connect a client that has reserved before, and watches only *tube*."""
    client = queue.connect()
    connecting.watch(queue.broker, client, tube.encode())
    connecting.ignore(queue.broker, client, b"default")
    connecting.note_worker(queue.broker, client)
    return client


def finish(queue: Queue, client: Client, tube: str, count: int) -> None:
    """Have *client* reserve and delete *count* jobs of *tube*."""
    for id in queue.put(tube, count=count):
        reserving.reserve_job(queue.broker, client, id, queue.now)
        assert finishing.delete(queue.broker, client, id, queue.now)


def view(queue: Queue, history: History, tube: str = "mail") -> TubeView:
    found = queue.broker.tubes[tube.encode()]
    return TubeView(found, history, queue.now, DeadLetterTubes(queue.broker), None)


def test_each_end_of_a_reservation_by_its_worker_is_counted(queue: Queue) -> None:
    client, broker = worker(queue, "mail"), queue.broker
    deleted, released, buried, expired, kept = queue.put("mail", count=5)
    for id in (deleted, released, buried, expired, kept):
        reserving.reserve_job(broker, client, id, queue.now)
    finishing.delete(broker, client, deleted, queue.now)
    finishing.release(broker, client, released, 0, 0, queue.now)
    finishing.bury(broker, client, buried, 0, queue.now)
    assert client.finished == 3
    queue.now += 61 * SECOND
    ticking.tick(broker, queue.now)
    assert client.finished == 3, "timeouts do not count"


def test_throughput_covers_the_last_minute(queue: Queue) -> None:
    client, rates = worker(queue, "mail"), WorkerRates(queue.broker, queue.clock)
    finish(queue, client, "mail", 30)
    queue.now += INTERVAL * SECOND
    assert rates.per_minute(client, queue.now) == 120
    for _ in range(KEPT):
        rates.tick()
        queue.now += INTERVAL * SECOND
    assert rates.per_minute(client, queue.now) == 0
    finish(queue, client, "mail", 10)
    assert rates.per_minute(client, queue.now) == 8


def test_workers_that_hold_a_job_for_long_come_first(queue: Queue) -> None:
    rates = WorkerRates(queue.broker, queue.clock)
    waiting, busy, stuck, other = (worker(queue, "mail") for _ in range(4))
    (first,) = queue.put("mail")
    reserving.reserve_job(queue.broker, stuck, first, queue.now)
    queue.now += 40 * SECOND
    second, (elsewhere,) = queue.put("mail")[0], queue.put("other")
    reserving.reserve_job(queue.broker, busy, second, queue.now)
    reserving.reserve_job(queue.broker, other, elsewhere, queue.now)
    reserving.wait(queue.broker, waiting, None, queue.now)
    queue.now += 5 * SECOND
    found = find_workers(queue.broker, queue.broker.tubes[b"mail"], rates, queue.now)
    assert [(row.number, row.job, row.doing) for row in found.rows] == [
        (str(stuck.number), str(first), "for 45\xa0s"),
        (str(waiting.number), "", "waiting for 5\xa0s"),
        (str(busy.number), str(second), "for 5\xa0s"),
        (str(other.number), "", "busy with another tube"),
    ]
    assert found.summary == "4 (2 working, 1 waiting)"
    assert found.more == ""


def test_producers_are_not_workers_of_the_default_tube(queue: Queue) -> None:
    queue.connect()
    reserving = queue.connect()
    connecting.note_worker(queue.broker, reserving)
    found = find_workers(queue.broker, queue.broker.default_tube, WorkerRates(queue.broker, queue.clock), queue.now)
    assert [row.number for row in found.rows] == [str(reserving.number)]


@pytest.mark.parametrize(
    ("puts", "deletes", "expected"),
    [
        (40, 10, ("growing", "by 3.0/s")),
        (10, 40, ("10\xa0s", "until it is empty")),
        (20, 20, ("steady", "")),
        (0, 0, ("steady", "nothing deleted")),
    ],
)
def test_backlog_says_whether_the_tube_drains(queue: Queue, puts: int, deletes: int, expected: tuple[str, str]) -> None:
    client = worker(queue, "mail")
    old = queue.put("mail", count=30 + max(0, deletes - puts))
    queue.now += 3600 * SECOND
    history = History(queue.broker, queue.clock, Archive(local_store()))
    new = queue.put("mail", count=puts)
    for id in [*old, *new][:deletes]:
        finishing.delete(queue.broker, None, id, queue.now)
    for _ in range(10):
        queue.now += SECOND
        history.tick()
    assert client.watched
    assert drain_text(view(queue, history)) == expected


def test_backlog_without_consumers_never_drains(queue: Queue) -> None:
    history = History(queue.broker, queue.clock, Archive(local_store()))
    queue.put("mail")
    assert drain_text(view(queue, history)) == ("stays", "no workers")
    editing.pause_tube(queue.broker, b"mail", 60 * SECOND, queue.now)
    assert drain_text(view(queue, history)) == ("paused", "")


def fail(queue: Queue, client: Client, id: int, times: int, kind: str = "release") -> None:
    """Have *client* reserve the job *id* and release it, or let it time out, *times* times."""
    for _ in range(times):
        assert reserving.reserve_job(queue.broker, client, id, queue.now) is not None
        if kind == "release":
            assert finishing.release(queue.broker, client, id, 0, 0, queue.now)
        else:
            queue.now += 61 * SECOND
            ticking.tick(queue.broker, queue.now)


@pytest.mark.parametrize(
    ("deleted", "released", "expected"),
    [
        (0, 0, ("–", "")),
        (5, 0, ("0", "")),
        (0, 9, ("100\xa0%", "no job ended")),
        (2, 8, ("80\xa0%", "5.0 attempts per job")),
    ],
)
def test_share_of_failed_attempts_names_the_loop(
    queue: Queue, deleted: int, released: int, expected: tuple[str, str]
) -> None:
    client, [id] = worker(queue, "mail"), queue.put("mail")
    history = History(queue.broker, queue.clock, Archive(local_store()))
    finish(queue, client, "mail", deleted)
    fail(queue, client, id, released)
    for _ in range(10):
        queue.now += SECOND
        history.tick()
    assert failed_text(view(queue, history)) == expected


def test_failures_of_the_last_hour_by_host_and_program(queue: Queue) -> None:
    one, two, other = (worker(queue, "mail") for _ in range(3))
    one.address, two.address, other.address, other.name = "10.0.0.7:1", "10.0.0.7:2", "[fd00::1]:9", "php"
    early, first, second, buried, fine = queue.put("mail", count=5)
    fail(queue, other, early, 5)
    queue.now += WINDOW
    fail(queue, one, first, 3)
    fail(queue, two, second, 2)
    fail(queue, two, second, 1, "time out")
    reserving.reserve_job(queue.broker, other, buried, queue.now)
    finishing.bury(queue.broker, other, buried, 0, queue.now)
    fail(queue, other, early, 1)
    reserving.reserve_job(queue.broker, other, fine, queue.now)
    connecting.disconnect(queue.broker, two, queue.now)
    workers, tube = FailingWorkers(queue.broker), queue.broker.tubes[b"mail"]
    found = workers.of(tube, queue.now)
    assert found == (8, (("10.0.0.7", 6 / 8), ("[fd00::1], php", 2 / 8)))
    fail(queue, one, first, 1)
    assert workers.of(tube, queue.now) is found, "reused for a while"
    assert workers.of(tube, queue.now + REUSED_FOR).total == 9


def test_page_of_a_loop_explains_it(queue: Queue, app: Flask, client: FlaskClient) -> None:
    looping, [id] = worker(queue, "mail"), queue.put("mail")
    fail(queue, looping, id, 20)
    for _ in range(10):
        queue.now += SECOND
        app.extensions["dashboard"].history.tick()
    page = Page(client.get("/tube?tube=mail").text).text.replace("\xa0", " ")
    for words in ("Failed attempts", "100 %", "no job ended", "Released/s", "2.0", "Dead letters/s"):
        assert words in page, words
    assert f"8 failed attempts in the last hour: 100 % by {looping.address.partition(':')[0]}" in " ".join(page.split())


def live(client: FlaskClient, **args: str) -> dict[str, Any]:
    response = client.get("/live", query_string={"page": "tube", **args})
    assert response.status_code == 200
    return response.json or {}


def test_summary_is_live(queue: Queue, app: Flask, client: FlaskClient) -> None:
    holder = worker(queue, "mail")
    (id,) = queue.put("mail")
    page = Page(client.get("/tube?tube=mail").text)
    assert "never drains" not in page.text
    reserving.reserve_job(queue.broker, holder, id, queue.now)
    queue.now += 7 * SECOND
    state = live(client, tube="mail")
    assert f">job {id}</a> for 7\xa0s" in state["parts"]["workers"]
    assert state["fields"]["figure-oldest"] == "–"
    assert set(state["parts"]) >= {"badges", "trend", "workers"}
    assert app.extensions["dashboard"].worker_rates.per_minute(holder, queue.now) == 0


def test_chart_describes_itself(queue: Queue, app: Flask, client: FlaskClient) -> None:
    history = app.extensions["dashboard"].history
    for _ in range(3):
        queue.put("mail", count=20)
        for _ in range(10):
            queue.now += SECOND
            history.tick()
    page = Page(client.get("/tube?tube=mail").text)
    labels = [attributes.get("aria-label") for _, attributes in page.elements if attributes.get("class") == "drawings"]
    assert labels == ["Now: ready 60, put 2.0, reserved 0, released 0. Highest: ready, last hour 60, per second 2.0."]
