"""Tasks: bounded, cancellable, to be looked at; and nothing that runs in one holds the loop."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest
from flask import Flask, g
from flask.testing import FlaskClient
from gevent.event import Event
from werkzeug.exceptions import ServiceUnavailable

from greenstalk_server.core.job import SECOND
from greenstalk_server.web.auth.access import Visitor
from greenstalk_server.web.operations.tasks import (
    CANCELLED,
    DONE,
    FAILED,
    KEPT,
    MAX_RUNNING,
    RUNNING,
    Task,
    TaskFailed,
    Tasks,
)
from tests.daemon import PATIENCE

from .conftest import Queue
from .table import Page
from .test_actions import OURS, refused

ADMIN = Visitor("ann", "192.0.2.1", is_admin=True, sees_bodies=True)
VIEWER = Visitor("vic", "192.0.2.2", is_admin=False, sees_bodies=False)


@pytest.fixture
def tasks(app: Flask) -> Iterator[Tasks]:
    """The tasks of a dashboard that an admin is visiting."""
    with app.test_request_context():
        g.visitor = ADMIN
        yield app.extensions["dashboard"].tasks


class Patient:
    """Work of which nothing is done until it may go on."""

    def __init__(self) -> None:
        self.is_waiting = Event()
        self.may_go_on = Event()

    def __call__(self, task: Task) -> None:
        task.total = 10
        while task.scanned < 10:
            task.scanned += 1
            task.rest()
            if task.scanned == 3:
                self.is_waiting.set()
                self.may_go_on.wait()


def go_on_once_cancelled(task: Task, work: Patient) -> None:
    while not task.is_cancelled:
        gevent.sleep(0)
    work.may_go_on.set()


def nothing(task: Task) -> None:
    task.rest()


def settle(*tasks: Task) -> None:
    for task in tasks:
        task.wait(PATIENCE)
        assert not task.is_running


def test_a_task_runs_by_itself_and_tells_how_far_it_is(queue: Queue, tasks: Tasks, client: FlaskClient) -> None:
    work = Patient()
    task = tasks.start("Count to ten", object(), work)
    work.is_waiting.wait()
    page = Page(client.get(f"/task?id={task.id}").text)
    assert "Count to ten" in page.text and "running" in page.text and "scanned 3 of 10 jobs" in page.text
    live = client.get(f"/live?page=task&id={task.id}").json
    assert live["fields"]["task-percent"] == "30" and 'value="30"' in live["parts"]["task-progress"]
    assert live["shown"] == {"task-running": True, "task-ended": False, "task-message": False}
    queue.now += 5 * SECOND
    work.may_go_on.set()
    settle(task)
    live = client.get(f"/live?page=task&id={task.id}").json
    assert live["shown"] == {"task-running": False, "task-ended": True, "task-message": False}
    assert (live["fields"]["task-state"], live["fields"]["task-time"]) == ("done", "5\xa0s")


def test_without_a_script_the_page_asks_again_while_it_runs(tasks: Tasks, client: FlaskClient) -> None:
    work = Patient()
    task = tasks.start("x", object(), work)
    work.is_waiting.wait()
    assert '<noscript><meta http-equiv="refresh"' in client.get(f"/task?id={task.id}").text
    work.may_go_on.set()
    settle(task)
    assert "http-equiv" not in client.get(f"/task?id={task.id}").text


def test_cancel_ends_it_at_its_next_rest(tasks: Tasks, client: FlaskClient) -> None:
    work = Patient()
    task = tasks.start("x", object(), work)
    work.is_waiting.wait()
    gevent.spawn(go_on_once_cancelled, task, work)
    response = client.post("/task/cancel", data={"id": task.id}, headers=OURS)
    assert (response.status_code, response.headers["Location"]) == (303, f"/task?id={task.id}")
    assert (task.state, task.scanned) == (CANCELLED, 4)
    assert client.post("/task/cancel", data={"id": task.id}, headers=OURS).status_code == 303
    assert task.state == CANCELLED


def test_cancel_is_noted_once_with_what_was_cancelled(app: Flask, tasks: Tasks, client: FlaskClient) -> None:
    work = Patient()
    task = tasks.start("Count to ten", object(), work)
    gevent.spawn(go_on_once_cancelled, task, work)
    for _ in range(2):
        client.post("/task/cancel", data={"id": task.id}, headers=OURS)
    noted = [entry for entry in app.extensions["dashboard"].audit.entries if entry.what == "task/cancel"]
    assert [entry.details for entry in noted] == [{"task": task.id, "title": "Count to ten"}]


def test_cancel_comes_from_our_pages_alone(tasks: Tasks, client: FlaskClient) -> None:
    work = Patient()
    task = tasks.start("x", object(), work)
    assert client.get(f"/task/cancel?id={task.id}").status_code == 405
    assert (
        client.post("/task/cancel", data={"id": task.id}, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    )
    work.may_go_on.set()
    settle(task)
    assert task.state == DONE


def test_what_stops_and_what_fails_says_so(tasks: Tasks, client: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
    def stop(task: Task) -> None:
        raise TaskFailed("There is no <room>.")

    def fail(task: Task) -> None:
        raise ZeroDivisionError

    stopped, failed = tasks.start("a", object(), stop), tasks.start("b", object(), fail)
    settle(stopped, failed)
    assert (stopped.state, failed.state) == (FAILED, FAILED)
    assert "There is no <room>." in Page(client.get(f"/task?id={stopped.id}").text).text
    assert "server's log" in Page(client.get(f"/task?id={failed.id}").text).text
    assert "ZeroDivisionError" in caplog.text


def test_only_so_many_run_at_once(tasks: Tasks, client: FlaskClient, queue: Queue) -> None:
    work = Patient()
    running = [tasks.start(f"Work {n}", object(), work) for n in range(MAX_RUNNING)]
    queue.put("mail")
    said = refused(client.get("/search?q=pri:1"), 503)
    assert f"{MAX_RUNNING} searches or changes are running" in said and "Work 0; Work 1" in said
    form = {"scope": "all", "tube": "mail", "action": "kick"}
    assert "are running" in refused(client.post("/bulk/preview", data=form, headers=OURS), 503)
    work.may_go_on.set()
    settle(*running)
    assert client.get("/search?q=pri:1").status_code == 200


def test_only_so_many_are_kept_and_none_that_runs_is_forgotten(tasks: Tasks) -> None:
    work = Patient()
    oldest = tasks.start("oldest", object(), work)
    others = []
    for n in range(KEPT + 5):
        others.append(tasks.start(str(n), object(), nothing))
        settle(others[-1])
    kept = tasks.all()
    assert len(kept) == KEPT and kept[-1] is oldest and kept[0] is others[-1] and oldest.state == RUNNING
    work.may_go_on.set()
    settle(oldest)


def test_tasks_of_one_kind_do_not_evict_those_of_another(tasks: Tasks) -> None:
    counted = tasks.start("a dry run", object(), nothing, endpoint="bulk")
    settle(counted)
    for n in range(KEPT + 5):
        settle(tasks.start(str(n), object(), nothing, endpoint="search"))
    assert counted in tasks.all() and len(tasks.all()) == KEPT + 1


def test_viewers_neither_drive_out_nor_hold_up_what_admins_do(tasks: Tasks) -> None:
    counted = tasks.start("counted by an admin", object(), nothing)
    settle(counted)
    g.visitor = VIEWER
    for n in range(KEPT + 5):
        settle(tasks.start(str(n), object(), nothing))
    assert counted in tasks.all() and len(tasks.all()) == KEPT
    work = Patient()
    running = [tasks.start(f"Work {n}", object(), work) for n in range(MAX_RUNNING - 1)]
    with pytest.raises(ServiceUnavailable):
        tasks.start("one more", object(), work)
    g.visitor = ADMIN
    running.append(tasks.start("an admin's", object(), work))
    work.may_go_on.set()
    settle(*running)


def test_what_is_not_there(client: FlaskClient) -> None:
    for response in (
        client.get("/task?id=0123456789abcdef"),
        client.get("/live?page=task&id=no"),
        client.post("/task/cancel", data={"id": "no"}, headers=OURS),
    ):
        assert response.status_code == 404
    assert "There is no such task" in refused(client.get("/task?id=no"), 404)


def test_list_of_tasks(tasks: Tasks, client: FlaskClient) -> None:
    assert "No search or bulk change has run" in Page(client.get("/task").text).text
    settle(tasks.start("Search for <b>", object(), nothing))
    assert "Search for <b>" in Page(client.get("/task").text).text


def test_what_tells_of_bodies_is_hidden_with_them(queue: Queue, app: Flask, tasks: Tasks) -> None:
    secret = tasks.start("Search for body:hunter2", object(), nothing, needs_bodies=True)
    plain = tasks.start("Search for pri:1", object(), nothing)
    settle(secret, plain)
    with app.test_request_context():
        g.visitor = VIEWER
        assert tasks.all() == [plain]
        with pytest.raises(Exception, match="hidden from you"):
            tasks.find({"id": secret.id}, "id")


def test_work_is_known_by_who_started_it(app: Flask, tasks: Tasks) -> None:
    task = tasks.start("x", object(), lambda task: app.extensions["dashboard"].audit.note("test/done"))
    settle(task)
    [entry] = app.extensions["dashboard"].audit.entries
    assert (entry.who, entry.address) == ("ann", "192.0.2.1")
