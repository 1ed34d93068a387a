"""The errors of all tubes: their page, the API, the row of a failing tube, and the tab of a tube."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.job_attributes import DeadLetterReason
from greenstalk_server.core.jobs.job import SECOND, STATE_NAMES
from greenstalk_server.core.operations import connecting, finishing, policy_changes, reserving
from greenstalk_server.core.policies.policy import parse_policy
from greenstalk_server.web.features.errors import errors, groups
from greenstalk_server.web.features.errors.errors import ALL_BURIED
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.reads.jobs import matching
from tests.support.daemon import TIMEOUT

from .conftest import Queue
from .test_query import job
from .test_tube_errors import carry_out, dead_letter, failing, hidden_fields, put, read, shown
from .turns import LoopIterations


def test_groups_are_over_all_tubes(queue: Queue, client: FlaskClient) -> None:
    put(queue, *[failing("HTTP 503 from upstream")] * 2, failing("card declined"), tube="a")
    put(queue, failing("HTTP 503 from upstream"), failing("HTTP 404 from upstream"), tube="b")
    queue.now += 7200 * SECOND
    put(queue, failing("HTTP 503 from upstream"), tube="c")
    assert shown(client, "/errors") == [
        ("HTTP 503 from upstream", "4"),
        ("card declined", "1"),
        ("HTTP 404 from upstream", "1"),
    ]
    first = client.get("/api/v1/errors").json["groups"][0]
    assert (first["jobs"], first["new"], first["tubes"], first["other_tubes"]) == (4, 1, ["a", "b", "c"], 0)
    assert first["q"] == 'state:buried error:"HTTP 503 from upstream"'
    assert "1 in the last hour" in " ".join(client.get("/errors").text.split())


def test_tubes_of_a_group_are_ranked_and_their_number_is_bounded(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_TUBES", 7)
    for number in range(9):
        put(queue, *[failing("late")] * (number + 1), tube=f"t{number}")
    (group,) = client.get("/api/v1/errors").json["groups"]
    assert (group["jobs"], group["tubes"], group["other_tubes"]) == (45, ["t6", "t5", "t4", "t3", "t2"], 2)
    page = client.get("/errors").text
    assert 'href="/tube/errors?tube=t6"' in page and "and 2 other tubes" in page
    monkeypatch.setattr(groups, "MAX_TUBE_COUNTS", 3)
    (group,) = client.get("/api/v1/errors?refresh=true").json["groups"]
    assert (group["jobs"], group["tubes"], group["other_tubes"]) == (45, ["t2", "t1", "t0"], 0)


def test_end_of_a_grouping_yields_between_groups(short_steps: None) -> None:
    found = groups.ErrorGroups(ALL_BURIED, (), 0)
    for number in range(groups.MAX_GROUPS):
        word = f"{chr(97 + number // 26)}{chr(97 + number % 26)}"
        found.add(job(id=number), json.dumps(failing(word)).encode())
    with LoopIterations() as loop:
        found.close(Pace())
    assert len(found.groups) == groups.MAX_GROUPS
    assert loop.count >= groups.MAX_GROUPS


def test_grouping_yields_between_jobs(queue: Queue, client: FlaskClient, short_steps: None) -> None:
    for tube in ("a", "b"):
        put(queue, *[failing(f"late {number}") for number in range(100)], tube=tube)
    with LoopIterations() as loop:
        assert shown(client, "/errors") == [("late #", "200")]
    assert loop.count >= 200


@pytest.mark.parametrize("path", ["/api/v1/errors", "/api/v1/tube/errors?tube=mail"])
@pytest.mark.parametrize(("most_ids", "scanned"), [(3, 3), (2, 8)])
def test_only_buried_jobs_are_scanned(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch, path: str, most_ids: int, scanned: int
) -> None:
    """With more buried jobs than can be copied in one step, all jobs of the server are scanned."""
    monkeypatch.setattr(matching, "MAX_COLLECTED_IDS", 2)
    monkeypatch.setattr(errors, "MAX_BURIED_IDS", most_ids)
    put(queue, *[failing("late")] * 3)
    queue.put("mail", count=5)
    found = client.get(path).json
    assert [(group["error"], group["jobs"]) for group in found["groups"]] == [("late", 3)]
    assert client.get(f"/api/v1/tasks/{found['task']}").json["scanned"] == scanned


def test_retry_changes_exactly_the_jobs_of_the_group(queue: Queue, client: FlaskClient) -> None:
    retried = put(queue, failing("HTTP 503"), tube="a") + put(queue, failing("HTTP 503"), tube="b")
    (kept,) = put(queue, failing("HTTP 404"), tube="a")
    carry_out(client, hidden_fields(read(client, "/errors"), "kick"))
    assert [STATE_NAMES[queue.broker.jobs[id].state] for id in retried] == ["ready", "ready"]
    assert list(queue.broker.tubes[b"a"].buried) == [kept]


def test_dead_letters_have_a_list_of_their_own(queue: Queue, client: FlaskClient) -> None:
    policy = parse_policy("mail", {"tubes": ["mail"], "max_attempts": 1, "dead_letter": "failed"})
    policy_changes.set_file_policies(queue.broker, [policy], queue.now)
    worker = queue.connect()
    connecting.watch(queue.broker, worker, b"mail")
    (id,) = put(queue, failing("late"), is_buried=False)
    assert reserving.reserve_job(queue.broker, worker, id, queue.now) is not None
    finishing.release(queue.broker, worker, id, 0, 0, queue.now)
    assert shown(client, "/errors") == []
    assert shown(client, "/errors?jobs=dead-letters") == [("late", "1")]
    (group,) = client.get("/api/v1/errors?jobs=dead_letters").json["groups"]
    assert (group["tubes"], group["retry"]) == (["failed"], "redrive")
    assert 'Errors <span class="count">1</span>' in client.get("/tube?tube=failed").text


def test_row_of_a_failing_tube_names_its_most_common_error(queue: Queue, client: FlaskClient) -> None:
    put(queue, *[failing("HTTP 503 from upstream")] * 2, failing("card declined"))
    queue.now += SECOND
    client.application.extensions["dashboard"].attention.tick()
    client.get("/errors")
    page = client.get("/").text
    assert (
        '<span class="top-error" title="The most common error of its buried jobs">HTTP 503 from upstream</span>' in page
    )
    for path in ("/tube?tube=mail", "/tube/errors?tube=mail", "/tube/history?tube=mail"):
        assert 'Errors <span class="count">3</span>' in client.get(path).text


def test_most_dead_letters_of_a_group_decide_its_retry(queue: Queue, client: FlaskClient) -> None:
    dead = put(queue, *[failing("late")] * 2, *[failing("lost")] * 2)
    for id in (dead[0], dead[1], dead[2]):
        dead_letter(queue, id, DeadLetterReason.ATTEMPTS)
    put(queue, failing("lost"))
    found = client.get("/api/v1/errors").json["groups"]
    assert [(group["error"], group["retry"]) for group in found] == [("lost", "kick"), ("late", "redrive")]


def test_page_of_all_tubes_does_not_show_the_errors_of_one(queue: Queue, client: FlaskClient) -> None:
    put(queue, failing("late"))
    task = client.get("/api/v1/tube/errors?tube=mail").json["task"]
    assert client.get(f"/errors?task={task}").status_code == 404
    task = client.get("/api/v1/errors").json["task"]
    assert shown(client, f"/errors?task={task}") == [("late", "1")]


def test_overview_groups_the_errors_in_the_background(queue: Queue, client: FlaskClient) -> None:
    put(queue, failing("card declined"))
    client.get("/")
    dashboard = client.application.extensions["dashboard"]
    assert not list(dashboard.tasks._kept), "nothing needs attention yet"
    queue.now += SECOND
    dashboard.attention.tick()
    client.get("/")
    (task,) = dashboard.tasks._kept.values()
    task.wait(TIMEOUT)
    assert "card declined" in client.get("/").text
    assert list(dashboard.tasks._kept) == [task.id], "the result is used for a minute"
    assert client.get("/api/v1/tasks").json["tasks"] == [], "no principal has started the task"
    queue.now += 59 * SECOND
    client.get("/")
    assert list(dashboard.tasks._kept) == [task.id]
    queue.now += 2 * SECOND
    client.get("/")
    assert len(dashboard.tasks._kept) == 2


def test_overview_groups_the_errors_for_a_hundredth_of_the_time(queue: Queue, client: FlaskClient) -> None:
    put(queue, failing("card declined"))
    queue.now += SECOND
    dashboard = client.application.extensions["dashboard"]
    dashboard.attention.tick()
    client.get("/")
    (task,) = dashboard.tasks._kept.values()
    task.wait(TIMEOUT)
    task.started_at = task.ended_at - 6 * SECOND
    queue.now = task.ended_at + 599 * SECOND
    client.get("/")
    assert list(dashboard.tasks._kept) == [task.id]
    queue.now += 2 * SECOND
    client.get("/")
    assert len(dashboard.tasks._kept) == 2


def test_hidden_bodies_hide_the_errors(queue: Queue, visit: Callable[..., FlaskClient]) -> None:
    client = visit(hides_bodies=True)
    put(queue, failing("card declined"))
    queue.now += SECOND
    client.application.extensions["dashboard"].attention.tick()
    assert client.get("/errors").status_code == 403
    assert client.get("/api/v1/errors").status_code == 403
    page = client.get("/").text
    assert "card declined" not in page and ">Errors<" not in page
