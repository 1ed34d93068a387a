"""Acknowledgements of conditions, and the rows in which the overview shows conditions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from flask.testing import FlaskClient
from werkzeug.exceptions import Conflict

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import finishing
from greenstalk_server.web.features.conditions import measures
from greenstalk_server.web.features.conditions.acknowledgements import MAX_ACKNOWLEDGEMENTS, Acknowledgements
from greenstalk_server.web.features.conditions.measures import (
    FAILURE,
    WARNING,
    ActiveCondition,
    Kind,
    Link,
    Measure,
    Severity,
)
from greenstalk_server.web.features.conditions.rows import MAX_ROWS, grouped
from greenstalk_server.web.framework.cooperative import Pace
from tests.support.daemon import TIMEOUT, Daemon
from tests.support.peer import eventually

from .conftest import STARTED_AT, Queue
from .forms import SAME_ORIGIN
from .stored import local_store
from .visit import FLAGS, Clients

START = STARTED_AT
PASSWORDS = {"password": "a", "viewer_password": "v", "operator_password": "o"}
PROGRAM = {"X-Requested-With": "test"}


def condition(tube: bytes, kind: Kind, jobs: int = 1, since: int = START) -> ActiveCondition:
    severity: Severity = FAILURE if kind is measures.BURIED else WARNING
    measure = Measure(kind, severity, tube, "", 1.0, 0, jobs, 1, kind.label, Link("tube", {}), jobs)
    return ActiveCondition(measure, since)


# The model


@pytest.mark.parametrize(
    ("tubes", "kind", "is_covered"),
    [
        ("", "", True), ("mail", "", True), ("m*", "", True), ("web", "", False), ("*", "buried", True),
        ("mail", "disk", False), ("", "disk", False),
    ],
)  # fmt: skip
def test_scope_of_an_acknowledgement(tubes: str, kind: str, is_covered: bool) -> None:
    some = Acknowledgements(local_store())
    some.add(tubes, kind, 60, "", "known", START)
    assert (some.covers("buried", b"mail", START) is not None) is is_covered
    assert some.has("buried", b"mail", START) is is_covered
    assert not some.has("buried", b"mail", START + 60 * SECOND)


@pytest.mark.parametrize(
    ("tubes", "kind", "covers_new", "ends"),
    [
        ("mail", "buried", False, True), ("mail", "", False, True), ("mail", "buried", True, False),
        ("mail", "no_consumers", False, False), ("mai*", "buried", False, False), ("", "", False, False),
        ("web", "buried", False, False),
    ],
)  # fmt: skip
def test_new_failure_ends_the_acknowledgement_of_its_tube(tubes: str, kind: str, covers_new: bool, ends: bool) -> None:
    some = Acknowledgements(local_store())
    one = some.add(tubes, kind, 60, "ada", "known", START, covers_new=covers_new)
    assert some.remove_failed(b"mail", START) == [], "it failed before"
    assert some.remove_failed(b"mail", START + SECOND) == ([one] if ends else [])
    assert some.all() == ([] if ends else [one])


def test_number_of_acknowledgements_is_bounded() -> None:
    some = Acknowledgements(local_store())
    for number in range(MAX_ACKNOWLEDGEMENTS):
        some.add(f"t{number}", "", 60 + number, "", "known", START)
    with pytest.raises(Conflict):
        some.add("mail", "", 60, "", "known", START)
    assert some.add("mail", "", 60, "", "known", START + 60 * SECOND).id == MAX_ACKNOWLEDGEMENTS + 1


@pytest.mark.parametrize(
    "change", [{"until": "soon"}, {"tubes": "a b"}, {"since": 1}, {"reason": None}, {"id": 0}, {"covers_new": 1}]
)
def test_damaged_acknowledgements_are_lost(change: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    now = "2027-01-15T08:00:00Z"
    one = {"id": 1, "tubes": None, "condition": None, "until": now, "since": now, "who": "", "reason": "r"}
    row = {"last": 1, "acknowledgements": [one | {"covers_new": True} | change]}
    store = local_store()
    store.put("acknowledgements", 0, b"", json.dumps(row).encode())
    some = Acknowledgements(store)
    store.restore()
    assert some.all() == []
    assert "so the acknowledgements are lost" in caplog.text


def test_rows_have_one_line_for_each_tube() -> None:
    conditions = [
        condition(b"a", measures.NO_CONSUMERS, 900),
        condition(b"b", measures.TIMEOUTS, 5),
        condition(b"b", measures.BURIED, 3),
        condition(b"c", measures.BURIED, 3, START - 1),
        condition(b"d", measures.BURIED, 4),
        condition(b"", measures.STANDBY),
        condition(b"e", measures.BURIED, 7),
    ]
    some = Acknowledgements(local_store())
    known = some.add("e", "", 60, "ada", "known", START)
    found = grouped(conditions, lambda one: some.covers(one.measure.kind.name, one.measure.tube, START), Pace())
    shown = [(row.worst.measure.tube, [one.measure.kind.name for one in row.conditions]) for row in found.active.rows]
    assert shown == [
        (b"d", ["buried"]),
        (b"c", ["buried"]),
        (b"b", ["buried", "timeouts"]),
        (b"", ["standby"]),
        (b"a", ["no_consumers"]),
    ]
    assert (found.active.failures, found.active.warnings) == (3, 2)
    assert [(row.worst.measure.tube, row.acknowledgement) for row in found.acknowledged.rows] == [(b"e", known)]


def test_many_rows_are_bounded_and_counted() -> None:
    many = [condition(b"%d" % number, measures.BURIED, number) for number in range(3000)]
    found = grouped(many, lambda _: None, Pace())
    assert [row.worst.measure.jobs for row in found.active.rows] == list(range(2999, 2999 - MAX_ROWS, -1))
    assert found.active.failures == 3000


# The pages and the API


@pytest.fixture
def failing(queue: Queue, client: FlaskClient) -> FlaskClient:
    """A dashboard whose tube `mail` has buried jobs."""
    for id in queue.put("mail", count=3):
        finishing.bury_job(queue.broker, id, queue.now)
    queue.now += SECOND
    client.application.extensions["dashboard"].attention.tick()
    return client


def flat(page: str) -> str:
    return " ".join(page.split())


def test_acknowledged_condition_stays_visible(queue: Queue, failing: FlaskClient) -> None:
    assert "1 failure" in failing.get("/").text
    form = {"tubes": "mail", "kind": "buried", "preset": "3600", "reason": "card provider is down"}
    made = failing.post("/attention/acknowledge", data=form, headers=SAME_ORIGIN)
    assert made.status_code == 303
    page = flat(failing.get("/").text)
    assert "Nothing else needs attention" in page and "1 acknowledged" in page
    assert "until" in page and "card provider is down" in page
    (shown,) = failing.get("/api/v1/attention").json["conditions"]
    assert (shown["condition"], shown["reason"]) == ("buried", "card provider is down")
    (listed,) = failing.get("/api/v1/attention/acknowledgements").json["acknowledgements"]
    assert (listed["tubes"], listed["condition"], listed["covers_new"]) == ("mail", "buried", False)
    (id,) = queue.put("mail")
    finishing.bury_job(queue.broker, id, queue.now + SECOND)
    queue.now += 10 * SECOND
    failing.application.extensions["dashboard"].attention.tick()
    assert failing.get("/api/v1/attention/acknowledgements").json == {"acknowledgements": []}
    assert "1 failure" in failing.get("/").text
    ended = failing.application.extensions["dashboard"].audit.entries[-1]
    assert (ended.what, ended.who, ended.details["cause"]) == ("attention/acknowledge/end", "", "another job failed")
    assert "another job failed" in failing.get("/audit").text.replace("<wbr>", "")


def test_acknowledgements_by_form_and_by_api(failing: FlaskClient) -> None:
    form = {"tubes": "mail.*", "kind": "no_consumers", "preset": "3600", "hours": "5", "reason": "deploy"}
    assert failing.post("/attention/acknowledge", data=form, headers=SAME_ORIGIN).status_code == 303
    made = failing.post("/api/v1/attention/acknowledgements", json={"seconds": 60, "reason": "known"})
    assert (made.status_code, made.json["id"], made.json["tubes"]) == (201, 2, None)
    listed = failing.get("/api/v1/attention/acknowledgements").json["acknowledgements"]
    assert [(each["id"], each["tubes"], each["reason"]) for each in listed] == [
        (2, None, "known"),
        (1, "mail.*", "deploy"),
    ]
    assert "deploy" in failing.get("/attention").text
    end = "/api/v1/attention/acknowledgements?id=2"
    assert failing.delete(end, headers=PROGRAM).status_code == 204
    assert failing.delete(end, headers=PROGRAM).status_code == 404
    assert failing.post("/attention/acknowledge/end", data={"id": "1"}, headers=SAME_ORIGIN).status_code == 303
    assert failing.get("/api/v1/attention/acknowledgements").json == {"acknowledgements": []}
    for reason in ("", "  "):
        given = {"seconds": 60, "reason": reason}
        assert failing.post("/api/v1/attention/acknowledgements", json=given).status_code == 400


def test_acknowledgement_until_tomorrow_ends_at_midnight_in_the_zone(queue: Queue, failing: FlaskClient) -> None:
    form = {"tubes": "mail", "preset": "tomorrow", "utc-offset": "-120", "reason": "repaired in the morning"}
    assert failing.post("/attention/acknowledge", data=form, headers=SAME_ORIGIN).status_code == 303
    (listed,) = failing.get("/api/v1/attention/acknowledgements").json["acknowledgements"]
    assert listed["until"][10:16] == "T02:00", "midnight two hours behind UTC"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tubes": "a b"}, "“tubes” must be a pattern"),
        ({"kind": "none"}, "“kind” must be one of"),
        ({"hours": "0"}, "“hours” must be a whole number from 1 to 720"),
        ({"preset": "0"}, "“preset” must be one of 3600, 28800, tomorrow, 86400, 259200, 604800, not “0”."),
        ({"reason": "x" * 201}, "“reason” must have at most 200 characters"),
        ({"reason": " "}, "“reason” is required"),
    ],
)
def test_refused_acknowledgement_keeps_the_values(client: FlaskClient, change: dict[str, str], message: str) -> None:
    form = {"tubes": "mail.typed", "kind": "disk", "preset": "3600", "reason": "typed reason"} | change
    response = client.post("/attention/acknowledge", data=form, headers=SAME_ORIGIN)
    assert response.status_code == 400
    assert message in response.text
    assert form["tubes"] in response.text and form["reason"] in response.text
    assert client.get("/api/v1/attention/acknowledgements").json == {"acknowledgements": []}


def test_operator_acknowledges_single_tubes_only(visit: Callable[..., FlaskClient]) -> None:
    client = visit(**PASSWORDS)
    operator, viewer = {"Authorization": "Basic b3BlcmF0b3I6bw=="}, {"Authorization": "Basic dmlld2VyOnY="}
    admin, path = {"Authorization": "Basic YWRtaW46YQ=="}, "/api/v1/attention/acknowledgements"
    given = {"seconds": 60, "reason": "known"}
    made = client.post(path, json=given | {"tubes": "mail"}, headers=operator)
    assert (made.status_code, made.json["who"]) == (201, "operator")
    for tubes in ("", "mail.*"):
        assert client.post(path, json=given | {"tubes": tubes}, headers=operator).status_code == 403
    assert client.post(path, json=given, headers=admin).status_code == 201
    assert client.delete(f"{path}?id=2", headers=operator | PROGRAM).status_code == 403
    assert client.post(path, json=given | {"tubes": "mail"}, headers=viewer).status_code == 403
    assert len(client.get(path, headers=viewer).json["acknowledgements"]) == 2
    assert client.delete(f"{path}?id=1", headers=operator | PROGRAM).status_code == 204


# A real server


def attention(daemon: Daemon) -> list[tuple[str, str | None]]:
    """Return the sentence of each condition of the tube, without times, and why it is acknowledged."""
    with urlopen(f"{daemon.dashboard}api/v1/attention", timeout=TIMEOUT) as response:  # noqa: S310  our own server
        conditions = json.load(response)["conditions"]
    return [
        (one["sentence"].partition(",")[0], one["reason"])
        for one in conditions
        if (one["tube"], one["condition"]) == ("mail", "buried")
    ]


def test_buried_jobs_and_their_acknowledgement_survive_a_restart(tmp_path: Path) -> None:
    flags = (*FLAGS, "-b", str(tmp_path), "-f", "0")
    with Daemon(*flags) as daemon:
        clients = Clients(daemon, "mail")
        clients.bury(540)
        clients.close()
    with Daemon(*flags) as daemon:
        named = [("540 jobs of “mail” are buried", None)]
        eventually(lambda: attention(daemon) == named, "the tube needs attention after a restart")
        with urlopen(daemon.dashboard, timeout=TIMEOUT) as response:  # noqa: S310  our own server
            page = response.read().decode()
        assert "540 jobs are buried" in page
        assert "Nothing needs attention" not in page
        given = json.dumps({"tubes": "mail", "condition": "buried", "seconds": 3600, "reason": "known"}).encode()
        to = Request(  # noqa: S310  our own server
            f"{daemon.dashboard}api/v1/attention/acknowledgements", given, {"Content-Type": "application/json"}
        )
        urlopen(to, timeout=TIMEOUT).close()  # noqa: S310  our own server
        assert attention(daemon) == [("540 jobs of “mail” are buried", "known")]
    with Daemon(*flags) as daemon:
        acknowledged = [("540 jobs of “mail” are buried", "known")]
        eventually(lambda: attention(daemon) == acknowledged, "the acknowledgement survives")
        clients = Clients(daemon, "mail")
        clients.bury(1)
        clients.close()
        active = [("541 jobs of “mail” are buried", None)]
        eventually(lambda: attention(daemon) == active, "another failure ends the acknowledgement")
