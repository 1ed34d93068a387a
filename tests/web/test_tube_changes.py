"""Changes of many tubes: the dry run finds the tubes, and the run changes exactly these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import editing, finishing
from greenstalk_server.web.changes import tube_changes
from greenstalk_server.web.changes.tasks import DONE, FAILED, Task
from greenstalk_server.web.changes.tube_changes import TubePlan
from greenstalk_server.web.framework.access import Principal
from tests.support import invariants
from tests.support.daemon import TIMEOUT

from .conftest import Queue
from .forms import SAME_ORIGIN
from .table import Page

TUBES = ("billing.mail", "billing.sms", "billing", "other")


@pytest.fixture
def buried(queue: Queue) -> dict[str, list[int]]:
    """Buried jobs in each tube: 1 in the first, 2 in the second, and so on; each tube also has a ready job."""
    found = {}
    for count, tube in enumerate(TUBES, start=1):
        found[tube] = queue.put(tube, count=count)
        for id in found[tube]:
            finishing.bury_job(queue.broker, id, queue.now)
        queue.put(tube)
    return found


@pytest.fixture(autouse=True)
def context(app: Flask) -> Any:
    """Provide the request context that `task` needs."""
    with app.test_request_context():
        app.preprocess_request()
        yield


def task(client: FlaskClient, id: str) -> Task:
    found: Task = client.application.extensions["dashboard"].tasks.find({"task": id})
    found.wait(TIMEOUT)
    assert not found.is_running
    return found


def preview(client: FlaskClient, pattern: str, action: str, **form: str) -> str:
    response = client.post("/tubes/preview", data={"pattern": pattern, "action": action, **form}, headers=SAME_ORIGIN)
    assert response.status_code == 303, Page(response.text).text
    id = response.headers["Location"].removeprefix("/tubes/change?task=")
    task(client, id)
    return id


def run(client: FlaskClient, id: str) -> Task:
    response = client.post("/tubes/run", data={"task": id}, headers=SAME_ORIGIN)
    assert response.status_code == 303, Page(response.text).text
    return task(client, response.headers["Location"].removeprefix("/task?id="))


def paused(queue: Queue) -> set[str]:
    return {name.decode() for name, tube in queue.broker.tubes.items() if tube.paused_until}


def buried_counts(queue: Queue) -> dict[str, int]:
    return {tube: len(queue.broker.tubes[tube.encode()].buried) for tube in TUBES}


def words(client: FlaskClient, path: str) -> str:
    return " ".join(Page(client.get(path).text).text.split())


def test_pause_and_resume_by_pattern(queue: Queue, client: FlaskClient, buried: dict[str, list[int]]) -> None:
    id = preview(client, "billing.*", "pause", seconds="600", reason="the relay is down")
    assert paused(queue) == set()
    shown = words(client, f"/tubes/change?task={id}")
    assert "Pause 2 tubes?" in shown and "with 2 ready jobs" in shown and "the relay is down" in shown
    assert "billing.mail" in shown and "billing.sms" in shown and "other" not in shown
    done = run(client, id)
    assert (done.state, done.done, done.verb, done.message) == (DONE, 2, "paused", "")
    assert paused(queue) == {"billing.mail", "billing.sms"}
    assert queue.broker.tubes[b"billing.sms"].pause == 600 * SECOND
    assert "the relay is down" in client.get("/tube?tube=billing.sms").text
    editing.pause_tube(queue.broker, b"other", SECOND, queue.now)
    id = preview(client, "other", "resume")
    assert words(client, f"/task?id={id}").count("Preview: resume tubes that match other")
    assert run(client, id).title == "Resume 1 tube that matches other"
    editing.pause_tube(queue.broker, b"other", SECOND, queue.now)
    id = preview(client, "billing*", "resume")
    assert "1 tube matches and would not change: not paused" in words(client, f"/tubes/change?task={id}")
    assert run(client, id).done == 2
    assert paused(queue) == {"other"}


def test_pause_does_not_say_whether_jobs_can_be_put_back(
    queue: Queue, client: FlaskClient, buried: dict[str, list[int]]
) -> None:
    client.application.extensions["dashboard"].saved_changes.limit = 100
    assert run(client, preview(client, "billing*", "pause", seconds="60")).message == ""
    assert run(client, preview(client, "billing*", "kick")).message.startswith("This cannot be undone: ")


def test_preset_of_a_pause_by_pattern(queue: Queue, client: FlaskClient, buried: dict[str, list[int]]) -> None:
    run(client, preview(client, "billing.mail", "pause", preset="tomorrow", seconds="", **{"utc-offset": "60"}))
    assert queue.broker.tubes[b"billing.mail"].pause == 15 * 3600 * SECOND, "it is 09:00 in that zone"
    page = client.post(
        "/tubes/preview", data={"pattern": "*", "action": "pause", "preset": "", "seconds": ""}, headers=SAME_ORIGIN
    )
    assert page.status_code == 400 and "“seconds” must be" in page.text


def test_kick_is_limited_to_the_jobs_that_were_counted(
    queue: Queue, client: FlaskClient, buried: dict[str, list[int]]
) -> None:
    id = preview(client, "*", "kick")
    assert "Retry 10 buried jobs of 4 tubes?" in words(client, f"/tubes/change?task={id}")
    (late,) = queue.put("billing")
    finishing.bury_job(queue.broker, late, queue.now)
    done = run(client, id)
    assert (done.done, done.verb) == (10, "jobs retried")
    assert buried_counts(queue) == {"billing.mail": 0, "billing.sms": 0, "billing": 1, "other": 0}
    invariants.check(queue.broker)


def test_audit_merges_start_and_end(queue: Queue, client: FlaskClient, buried: dict[str, list[int]]) -> None:
    done = run(client, preview(client, "billing*", "kick"))
    shown = words(client, "/audit")
    details = "action kick, pattern billing*, state buried, previewed 3, tubes 3, jobs 6, started"
    assert shown.count("pattern billing*") == 1 and details in shown
    assert f"/task?id={done.id}" in client.get("/audit").text
    assert details in words(client, "/audit?what=kick&tube=billing.sms")
    assert details not in words(client, "/audit?what=kick&tube=other")


def test_only_tubes_that_the_principal_operates(
    queue: Queue, client: FlaskClient, buried: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = preview(client, "*i*", "pause", seconds="60")  # without `other` and `default`
    monkeypatch.setattr(Principal, "operates", lambda self, tube: tube.startswith(b"billing."))
    id = preview(client, "*", "pause", seconds="60")
    plan = task(client, id).subject
    assert isinstance(plan, TubePlan) and (set(plan.tubes), plan.matched) == ({b"billing.mail", b"billing.sms"}, 2)
    done = run(client, everything)  # the dry run of another principal
    assert (done.done, done.skipped) == (2, 1)
    assert paused(queue) == {"billing.mail", "billing.sms"}


def test_too_many_tubes_are_refused(queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tube_changes, "MAX_TUBES", 3)
    for number in range(5):
        queue.put(f"tube.{number}")
    id = preview(client, "tube.*", "pause", seconds="60")
    assert task(client, id).state == FAILED
    response = client.post("/tubes/run", data={"task": id}, headers=SAME_ORIGIN)
    assert response.status_code == 409
    assert paused(queue) == set()


def test_failing_journal_stops_the_change(visit: Callable[..., FlaskClient], queue: Queue) -> None:
    app = queue.app(commit=lambda: False)
    client = app.test_client()
    queue.put("tube.a")
    with app.test_request_context():
        app.preprocess_request()
        done = run(client, preview(client, "tube.*", "pause", seconds="60"))
    assert (done.state, done.done) == (FAILED, 1)
    assert "disk does not keep up" in done.message


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("billing", ["billing", "billing.sms", "billing.mail"]),
        ("sms", ["billing.sms"]),
        ("BILMA", ["billing.mail"]),
        ("gm", ["billing.mail", "billing.sms"]),
        ("x", []),
        ("", []),
        (".*", []),
    ],
)
def test_tubes_are_found_by_characters_in_order(
    client: FlaskClient, buried: dict[str, list[int]], query: str, found: list[str]
) -> None:
    assert client.get("/tubes/find", query_string={"q": query}).json == {"tubes": found}


def test_tubes_are_counted_by_pattern(client: FlaskClient, buried: dict[str, list[int]]) -> None:
    def count(pattern: str) -> str:
        return client.get("/tubes/find", query_string={"pattern": pattern}).json["text"]  # type: ignore[index]

    assert (count("billing*"), count("other"), count("none")) == ("3 tubes match", "1 tube matches", "0 tubes match")
    assert client.get("/tubes/find?pattern=a b").status_code == 400
