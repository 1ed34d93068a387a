"""Bulk changes: the dry run changes nothing, and the run changes exactly the jobs that it counted, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from flask import Flask
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, Job
from greenstalk_server.core.journal import NullJournal
from greenstalk_server.core.operations import draining, finishing
from greenstalk_server.web.changes import bulk
from greenstalk_server.web.changes.tasks import CANCELLED, DONE, FAILED, Task
from greenstalk_server.web.features.jobs.pages import bulk as bulk_pages
from tests.support import invariants
from tests.support.daemon import TIMEOUT

from .conftest import Queue
from .forms import SAME_ORIGIN, refused
from .table import Page
from .test_actions import UNTOUCHED, states
from .turns import LoopIterations


@pytest.fixture
def ids(queue: Queue, ids: list[int]) -> list[int]:
    """The four jobs of `ids`; a fifth job is ready in the tube `other`."""
    queue.put("other")
    return ids


def preview(client: FlaskClient, scope: str = "all", **form: Any) -> str:
    """Run a dry run to its end, and return its id."""
    response = client.post("/bulk/preview", data={"scope": scope, **form}, headers=SAME_ORIGIN)
    assert response.status_code == 303, Page(response.text).text
    id = response.headers["Location"].removeprefix("/bulk?task=")
    task(client, id).wait(TIMEOUT)
    return id


def look(client: FlaskClient, id: str) -> Page:
    return Page(client.get(f"/bulk?task={id}").text)


def task(client: FlaskClient, id: str) -> Task:
    return client.application.extensions["dashboard"].tasks.find({"task": id})  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def context(app: Flask) -> Any:
    """Provide the request context that `task` needs."""
    with app.test_request_context():
        app.preprocess_request()
        yield


def run(client: FlaskClient, id: str, **form: str) -> Task:
    """Run the change of the dry run *id* to its end."""
    response = client.post("/bulk/run", data={"task": id, **form}, headers=SAME_ORIGIN)
    assert response.status_code == 303, Page(response.text).text
    started = task(client, response.headers["Location"].removeprefix("/task?id="))
    started.wait(TIMEOUT)
    assert not started.is_running
    return started


def words(page: Page) -> str:
    return " ".join(page.text.split())


# Actions


@pytest.mark.parametrize(
    ("form", "after", "counts"),
    [
        ({"action": "kick"}, [READY, READY, READY, RESERVED], (2, 1, 1)),
        ({"action": "bury"}, [BURIED, BURIED, BURIED, RESERVED], (2, 1, 1)),
        ({"action": "delete"}, [None, None, None, RESERVED], (3, 1, 0)),
        ({"action": "delay", "delay": "30"}, [DELAYED, DELAYED, BURIED, RESERVED], (2, 0, 2)),
        ({"action": "delay", "delay": "0"}, [READY, READY, BURIED, RESERVED], (2, 0, 2)),
        ({"action": "pri", "pri": "7"}, UNTOUCHED, (3, 1, 0)),
        ({"action": "pri", "pri": "2000"}, UNTOUCHED, (0, 0, 4)),
        ({"action": "move", "to": "new"}, UNTOUCHED, (3, 1, 0)),
        ({"action": "move", "to": "mail"}, UNTOUCHED, (0, 0, 4)),
    ],
)
def test_run_changes_what_the_dry_run_counted(
    queue: Queue, client: FlaskClient, ids: list[int], form: dict[str, str], after: list[int | None], counts: Any
) -> None:
    id = preview(client, tube="mail", **form)
    assert states(queue, ids) == UNTOUCHED
    plan = task(client, id).subject
    assert isinstance(plan, bulk.Plan)
    assert (plan.hit, plan.held, plan.others) == counts
    done = run(client, id, confirm="mail")
    assert (done.state, done.done) == (DONE, counts[0])
    assert states(queue, ids) == after
    assert queue.broker.tubes[b"other"].ready.count == 1


def test_page_shows_the_query_and_the_effects(queue: Queue, client: FlaskClient, ids: list[int]) -> None:
    page = look(client, preview(client, tube="mail", q="age:>=0", action="move", to="new"))
    message = words(page)
    assert "Query: tube:mail age:>=0" in message
    assert "3 jobs would be moved: each moves to the tube “new” in its current state" in message
    assert "Sample of affected jobs" in message and "Nothing has been changed yet" in message
    page = look(client, preview(client, tube="mail", state="buried", action="kick"))
    assert "1 job would be retried: each becomes ready" in words(page) and "held" not in words(page)
    page = look(client, preview(client, q="pri:5", action="kick"))
    assert "0 jobs would be retried" in words(page) and not any(
        tag == "form" and "bulk" in str(a.get("action")) for tag, a in page.elements
    )


# Selection


def test_only_selected_jobs_in_an_unchanged_state_are_changed(
    queue: Queue, client: FlaskClient, ids: list[int]
) -> None:
    more = queue.put("mail", count=5)
    gone, kept = more[0], more[1]
    finishing.delete_job(queue.broker, gone, queue.now)
    chosen = [kept, gone, more[2], kept, ids[2]]  # one twice, one deleted, and one buried meanwhile
    id = preview(client, "ticked", tube="mail", state="ready", id=chosen, action="delete")
    page = look(client, id)
    assert "4 selected jobs of tube:mail state:ready" in words(page) and "2 jobs would be deleted" in words(page)
    finishing.bury_job(queue.broker, kept, queue.now)
    assert run(client, id, confirm="mail").done == 1
    assert more[2] not in queue.broker.jobs and {kept, more[3], ids[2]} <= set(queue.broker.jobs)


def test_jobs_put_during_the_run_are_not_changed(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=3000)
    id = preview(client, tube="mail", action="delete")
    new: list[int] = []

    def produce() -> None:
        while len(queue.broker.jobs) > len(new) and len(new) < 50:
            new.extend(queue.put("mail", pri=0))
            gevent.sleep(0.0005)

    producer = gevent.spawn(produce)
    assert run(client, id, confirm="mail").done == 3000
    producer.join()
    assert new and list(queue.broker.jobs) == new
    invariants.check(queue.broker)


# Refusals


def test_destructive_change_of_several_tubes_requires_the_number_of_jobs(
    queue: Queue, client: FlaskClient, ids: list[int]
) -> None:
    id = preview(client, q="id:>0", action="delete")
    assert "Type the number 5 to confirm" in words(look(client, id))
    for confirm in ("", "mail", "4"):
        data = {"task": id, "confirm": confirm}
        assert "“confirm” must be “5”" in refused(client.post("/bulk/run", data=data, headers=SAME_ORIGIN), 400)
    assert run(client, id, confirm="5").done == 4
    assert list(queue.broker.jobs) == [ids[3]]


def test_double_submit_runs_once(queue: Queue, client: FlaskClient, ids: list[int]) -> None:
    id = preview(client, tube="mail", action="kick")
    first, second = run(client, id), run(client, id)
    assert first is second and first.done == 2
    finishing.bury_job(queue.broker, ids[0], queue.now)
    assert run(client, id) is first and run(client, first.id) is first
    assert states(queue, ids)[0] == BURIED
    assert "This change has already been started" in words(look(client, id))


# End of the run


def test_audit_log_has_start_and_end(queue: Queue, app: Flask, client: FlaskClient, ids: list[int]) -> None:
    id = preview(client, tube="mail", action="bury")
    assert [entry.what for entry in app.extensions["dashboard"].audit.entries] == []
    done = run(client, id, confirm="mail", force="1")
    begun, ended = app.extensions["dashboard"].audit.entries
    common = {"task": done.id, "action": "bury", "query": "tube:mail", "tube": "mail"}
    assert (begun.what, begun.details) == ("bulk/run", common | {"jobs": 3, "forced": 1})
    assert (ended.what, ended.details) == ("bulk/end", common | {"jobs": 3})


def begin(queue: Queue, tube: str) -> None:
    """Wait until the first jobs of *tube* have been buried."""
    while len(queue.broker.tubes[tube.encode()].buried) < 2:
        gevent.sleep(0)


class Room(NullJournal):
    """A journal with room for *room* edits."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def replace(self, old: Job, new: Job) -> bool:
        self.room -= 1
        return self.room >= 0


def test_run_stops_when_the_journal_has_no_room(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=10)
    id = preview(client, tube="mail", action="move", to="new")
    queue.broker.journal = Room(4)
    done = run(client, id)
    assert (done.state, done.done) == (FAILED, 4)
    page = Page(client.get(f"/task?id={done.id}").text)
    assert "The journal has no room for more records. 4 jobs were changed before that." in page.text
    invariants.check(queue.broker)


def test_run_stops_when_the_server_drains(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=5000)
    id = preview(client, tube="mail", action="bury")

    def drain_soon() -> None:
        begin(queue, "mail")
        draining.drain(queue.broker)

    drain = gevent.spawn(drain_soon)
    done = run(client, id)
    drain.join()
    assert done.state == FAILED and 0 < done.done < 5000
    assert done.message == f"The server is draining. {done.done:,} jobs were changed before that."
    again = preview(client, tube="mail", state="ready", action="bury")
    data = {"task": again}
    assert "The server is draining" in refused(client.post("/bulk/run", data=data, headers=SAME_ORIGIN), 503)


def test_run_waits_for_the_journal_and_reports_its_failure(queue: Queue, visit: Callable[..., FlaskClient]) -> None:
    waits: list[int] = []
    queue.put("mail", count=10)

    def commit() -> bool:
        waits.append(sum(job.state == BURIED for job in queue.broker.jobs.values()))
        return len(waits) < 2

    client = visit(commit=commit)
    assert run(client, preview(client, tube="mail", action="bury")).state == DONE
    assert waits == [10]
    failed = run(client, preview(client, tube="mail", action="kick"))
    assert failed.state == FAILED and "The disk does not keep up" in failed.message
    assert waits == [10, 0]


def test_run_waits_for_the_journal_between_batches(
    queue: Queue, visit: Callable[..., FlaskClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "COMMIT_BATCH_BYTES", 10 * bulk.RECORD_OVERHEAD)
    waits: list[int] = []
    client = visit(commit=lambda: not waits.append(len(queue.broker.jobs)))
    queue.put("mail", count=25)
    run(client, preview(client, tube="mail", action="delete"), confirm="mail")
    assert waits == [15, 5, 0]


def test_cancelled_run_keeps_its_changes_and_waits_for_the_journal(
    queue: Queue, visit: Callable[..., FlaskClient]
) -> None:
    waits: list[int] = []
    client = visit(commit=lambda: not waits.append(1))
    queue.put("mail", count=20_000)
    id = preview(client, tube="mail", action="bury")
    location = client.post("/bulk/run", data={"task": id}, headers=SAME_ORIGIN).headers["Location"]
    running = task(client, location.removeprefix("/task?id="))
    begin(queue, "mail")
    client.post("/task/cancel", data={"id": running.id}, headers=SAME_ORIGIN)
    running.wait(TIMEOUT)
    buried = len(queue.broker.tubes[b"mail"].buried)
    assert running.state == CANCELLED and 0 < running.done == buried < 20_000 and waits
    invariants.check(queue.broker)
    noted = [
        (entry.what, entry.details.get("jobs")) for entry in client.application.extensions["dashboard"].audit.entries
    ]
    assert noted == [("bulk/run", 20_000), ("task/cancel", None), ("bulk/end", buried)]


def test_cancelled_dry_run_cannot_be_run(queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_pages, "INITIAL_WAIT", 0.005)
    queue.put("mail", count=50_000)
    response = client.post(
        "/bulk/preview", data={"scope": "all", "tube": "mail", "action": "delete"}, headers=SAME_ORIGIN
    )
    location = response.headers["Location"]
    progress = client.get(location)
    assert progress.status_code == 303 and progress.headers["Location"].startswith("/task?id=")
    id = location.removeprefix("/bulk?task=")
    assert "Preview: delete tube:mail" in Page(client.get(f"/task?id={id}").text).text
    client.post("/task/cancel", data={"id": id}, headers=SAME_ORIGIN)
    page = look(client, id)
    assert "The preview was cancelled" in words(page) and page.text.count("Type the tube") == 0
    message = refused(client.post("/bulk/run", data={"task": id, "confirm": "mail"}, headers=SAME_ORIGIN), 409)
    assert "did not finish" in message and len(queue.broker.jobs) == 50_000


def test_bulk_change_does_not_delay_workers(queue: Queue, client: FlaskClient, short_steps: None) -> None:
    queue.put("mail", count=3000)
    id = preview(client, tube="mail", action="bury")
    buried = queue.broker.tubes[b"mail"].buried
    with LoopIterations(lambda: len(buried)) as turns:
        done = run(client, id)
    assert (done.state, done.done) == (DONE, len(buried)) == (DONE, 3000)
    assert turns.max_progress <= 2
