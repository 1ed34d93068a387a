"""Tasks: bounded, cancellable and observable, and a running task does not hold the event loop."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace

import gevent
import pytest
from flask import Flask, g
from flask.testing import FlaskClient
from gevent.event import Event
from werkzeug.exceptions import ServiceUnavailable

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.changes.tasks import (
    CANCELLED,
    FAILED,
    MAX_KEPT,
    MAX_RUNNING,
    RUNNING,
    Task,
    TaskFailed,
    Tasks,
)
from greenstalk_server.web.framework.access import Principal
from tests.support.daemon import TIMEOUT

from .conftest import Queue
from .forms import SAME_ORIGIN, refused
from .table import Page

ADMIN = Principal("ann", "192.0.2.1", is_admin=True, sees_bodies=True)
VIEWER = Principal("vic", "192.0.2.2", is_admin=False, sees_bodies=False)


@pytest.fixture
def tasks(app: Flask) -> Iterator[Tasks]:
    """The tasks of a dashboard, in a request by an admin."""
    with app.test_request_context():
        g.principal = ADMIN
        yield app.extensions["dashboard"].tasks


class BlockingWork:
    """Work that stops after three of ten jobs until `may_continue` is set."""

    def __init__(self) -> None:
        self.is_waiting = Event()
        self.may_continue = Event()

    def __call__(self, task: Task) -> None:
        task.total = 10
        while task.scanned < 10:
            task.scanned += 1
            task.checkpoint()
            if task.scanned == 3:
                self.is_waiting.set()
                self.may_continue.wait()


def continue_once_cancelled(task: Task, work: BlockingWork) -> None:
    while not task.is_cancelled:
        gevent.sleep(0)
    work.may_continue.set()


def nothing(task: Task) -> None:
    task.checkpoint()


def settle(*tasks: Task) -> None:
    for task in tasks:
        task.wait(TIMEOUT)
        assert not task.is_running


def test_task_runs_in_the_background_and_reports_progress(queue: Queue, tasks: Tasks, client: FlaskClient) -> None:
    work = BlockingWork()
    task = tasks.start("Count to ten", object(), work)
    work.is_waiting.wait()
    page = Page(client.get(f"/task?id={task.id}").text)
    assert "Count to ten" in page.text and "running" in page.text and "scanned 3 of 10 jobs" in page.text
    live = client.get(f"/live?page=task&id={task.id}").json
    assert live["fields"]["task-percent"] == "30" and 'value="30"' in live["parts"]["task-progress"]
    assert live["shown"] == {"task-running": True, "task-ended": False, "task-message": False}
    queue.now += 5 * SECOND
    work.may_continue.set()
    settle(task)
    live = client.get(f"/live?page=task&id={task.id}").json
    assert live["shown"] == {"task-running": False, "task-ended": True, "task-message": False}
    assert (live["fields"]["task-state"], live["fields"]["task-time"]) == ("done", "5\xa0s")


def test_page_without_scripts_reloads_while_the_task_runs(tasks: Tasks, client: FlaskClient) -> None:
    work = BlockingWork()
    task = tasks.start("x", object(), work)
    work.is_waiting.wait()
    assert '<noscript><meta http-equiv="refresh"' in client.get(f"/task?id={task.id}").text
    work.may_continue.set()
    settle(task)
    assert "http-equiv" not in client.get(f"/task?id={task.id}").text


def test_cancelled_task_ends_at_its_next_rest(tasks: Tasks, client: FlaskClient) -> None:
    work = BlockingWork()
    task = tasks.start("x", object(), work)
    work.is_waiting.wait()
    gevent.spawn(continue_once_cancelled, task, work)
    response = client.post("/task/cancel", data={"id": task.id}, headers=SAME_ORIGIN)
    assert (response.status_code, response.headers["Location"]) == (303, f"/task?id={task.id}")
    assert (task.state, task.scanned) == (CANCELLED, 4)
    assert client.post("/task/cancel", data={"id": task.id}, headers=SAME_ORIGIN).status_code == 303
    assert task.state == CANCELLED


def test_failed_task_shows_the_reason(tasks: Tasks, client: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
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


def test_number_of_running_tasks_is_bounded(tasks: Tasks, client: FlaskClient, queue: Queue) -> None:
    work = BlockingWork()
    running = [tasks.start(f"Work {n}", object(), work) for n in range(MAX_RUNNING)]
    queue.put("mail")
    page = refused(client.get("/search?q=pri:1"), 503)
    assert f"{MAX_RUNNING} searches or changes are running" in page and "Work 0; Work 1" in page
    form = {"scope": "all", "tube": "mail", "action": "kick"}
    assert "are running" in refused(client.post("/bulk/preview", data=form, headers=SAME_ORIGIN), 503)
    work.may_continue.set()
    settle(*running)
    assert client.get("/search?q=pri:1").status_code == 200


def test_number_of_kept_tasks_is_bounded_and_running_tasks_are_kept(tasks: Tasks) -> None:
    work = BlockingWork()
    oldest = tasks.start("oldest", object(), work)
    others = []
    for n in range(MAX_KEPT + 5):
        others.append(tasks.start(str(n), object(), nothing))
        settle(others[-1])
    kept = tasks.all()
    assert len(kept) == MAX_KEPT and kept[-1] is oldest and kept[0] is others[-1] and oldest.state == RUNNING
    work.may_continue.set()
    settle(oldest)


def test_removed_tasks_are_freed_without_the_collector(queue: Queue, tasks: Tasks, client: FlaskClient) -> None:
    # The collector does not see old objects (gc_tuning), so a reference cycle of a task would stay in memory.
    queue.put("mail")
    for path, form in (("/bulk", {"scope": "all", "tube": "mail", "action": "kick"}), ("/tubes", {"pattern": "m*"})):
        preview = client.post(f"{path}/preview", data=form | {"action": "kick"}, headers=SAME_ORIGIN)
        dry_run = preview.headers["Location"].partition("task=")[2]
        settle(tasks.get(dry_run))
        assert client.post(f"{path}/run", data={"task": dry_run}, headers=SAME_ORIGIN).status_code == 303
    client.get("/search?q=pri:1")
    client.get("/tube/errors?tube=mail")
    settle(*tasks.all())
    started = [weakref.ref(task) for task in tasks.all()]
    assert [task.kind for task in tasks.all()] == [
        "errors", "search", "tubes-change", "tubes-dry-run", "change", "dry-run"
    ]  # fmt: skip
    gc.collect()
    gc.disable()
    try:
        for endpoint in ("tube_errors", "search", "tube_change", "bulk", ""):
            for n in range(MAX_KEPT):
                settle(tasks.start(str(n), object(), nothing, endpoint=endpoint))
        assert [task() for task in started] == [None] * 6
    finally:
        gc.enable()


def test_viewers_do_not_evict_or_block_tasks_of_admins(tasks: Tasks) -> None:
    counted = tasks.start("counted by an admin", object(), nothing)
    settle(counted)
    g.principal = VIEWER
    for n in range(MAX_KEPT + 5):
        settle(tasks.start(str(n), object(), nothing))
    assert counted in tasks.all() and len(tasks.all()) == MAX_KEPT
    work = BlockingWork()
    running = [tasks.start(f"Work {n}", object(), work) for n in range(MAX_RUNNING - 1)]
    with pytest.raises(ServiceUnavailable):
        tasks.start("one more", object(), work)
    g.principal = ADMIN
    running.append(tasks.start("an admin's", object(), work))
    work.may_continue.set()
    settle(*running)


def test_tasks_that_need_bodies_are_hidden_with_the_bodies(queue: Queue, app: Flask, tasks: Tasks) -> None:
    secret = tasks.start("Search for body:hunter2", object(), nothing, needs_bodies=True)
    plain = tasks.start("Search for pri:1", object(), nothing)
    settle(secret, plain)
    with app.test_request_context():
        g.principal = VIEWER
        assert tasks.all() == [plain]
        with pytest.raises(Exception, match="hidden from you"):
            tasks.find({"id": secret.id}, "id")


def test_task_ends_with_the_session_of_its_principal(app: Flask) -> None:
    work, live = BlockingWork(), [True]
    with app.test_request_context():
        g.principal = replace(ADMIN, lasts=lambda: live[0])
        task = app.extensions["dashboard"].tasks.start("Work", None, work)
    work.is_waiting.wait(TIMEOUT)
    live[0] = False
    work.may_continue.set()
    settle(task)
    assert (task.state, task.scanned) == (FAILED, 4)
    assert task.message == "The session of the user who started the task has ended."
