"""Alerts: when conditions are sent, in which form, silences, retries, and the state on disk. The receivers are real."""

from __future__ import annotations

import hmac
import json
import random
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import gevent
import pytest
from flask.testing import FlaskClient

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.config.tables.receivers import Receiver, parse_receiver
from greenstalk_server.config.tables.thresholds import ThresholdSet
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting
from greenstalk_server.web.features.alerts.alerts import (
    FIRST_RETRY,
    MAX_RETRY,
    MAX_RETRY_AFTER,
    REJECTED_RETRY,
    TAKEOVER_TIME,
    Alerts,
)
from greenstalk_server.web.features.alerts.messages import SIGNATURE, messages
from greenstalk_server.web.features.alerts.receiver_alerts import MAX_ALERTS, MORE, RESTORED_TIME, ReceiverAlerts
from greenstalk_server.web.features.alerts.state import State
from greenstalk_server.web.features.conditions.acknowledgements import Acknowledgements
from greenstalk_server.web.features.conditions.measures import (
    BURIED_GROWTH,
    CRITICAL,
    DISK,
    LIMIT,
    WARNING,
    ActiveCondition,
    Kind,
    Link,
    Measure,
    Severity,
)
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from tests.support.pages import block
from tests.support.receiver import Received, answer
from tests.support.receiver import Receiver as Server

from .conftest import STARTED_AT, Queue
from .forms import SAME_ORIGIN
from .stored import local_store, locked

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
START = STARTED_AT
NOW = "2027-01-15T08:00:00Z"

KEYED = {"secret_env": "KEY"}
PASSWORDS = {"password": "a", "viewer_password": "v"}
OPERATOR = {"operator_password": "o"}
HERE = {"allow_plain": True, "allow_private": True, "timeout": 5}


def receiver(url: str = "https://a.example/hook", template: str = "json", **changes: Any) -> Receiver:
    table = {"template": template, "url": url, "for": 60, "resolve_after": 60, "repeat": "4h", "interval": 0}
    return parse_receiver("ops", table | changes)


def condition(
    tube: bytes = b"mail",
    kind: Kind = BURIED_GROWTH,
    severity: Severity = WARNING,
    since: int = START,
    ratio: float = 1.5,
) -> ActiveCondition:
    name = tube.decode()
    link = Link("tube", {"tube": name, "state": "buried"})
    return ActiveCondition(
        Measure(kind, severity, tube, "", ratio, 0, 15.0, 10.0, f"15 more jobs of “{name}” are buried.", link), since
    )


def unacknowledged(kind: str, tube: bytes) -> bool:
    return False


class Rounds:
    """Alerts of a receiver that are given conditions, and whose messages a receiver accepts at once."""

    def __init__(self, **changes: Any) -> None:
        self.receiver_alerts = ReceiverAlerts(receiver(**changes))
        self.now = START
        self.acknowledgements = Acknowledgements(local_store())

    def is_acknowledged(self, kind: str, tube: bytes) -> bool:
        return self.acknowledgements.has(kind, tube, self.now)

    def at(self, seconds: float, *conditions: ActiveCondition) -> list[str]:
        """Do a round *seconds* after the start; return the items that were sent: `begin mail`, `end mail`."""
        self.now = START + int(seconds * SECOND)
        self.receiver_alerts.begin_round()
        for each in conditions:
            self.receiver_alerts.take(each, self.is_acknowledged)
        self.receiver_alerts.end_round(self.now)
        batch = self.receiver_alerts.due(self.now, self.is_acknowledged)
        self.receiver_alerts.accept(batch.items, self.now)
        words = [("end" if item.is_resolved else "again" if item.is_repeat else "begin", item) for item in batch.items]
        return [f"{word} {item.key[1].decode() or item.key[0]}" for word, item in words]


# When a condition is sent


def test_condition_is_sent_once_it_has_lasted() -> None:
    rounds = Rounds()
    assert rounds.at(0, condition()) == []
    assert rounds.at(59, condition()) == []
    assert rounds.at(60, condition()) == ["begin mail"]
    assert rounds.at(61, condition()) == []


def test_end_is_sent_once_after_resolve_after() -> None:
    rounds = Rounds()
    assert rounds.at(60, condition()) == ["begin mail"]
    assert rounds.at(100) == []
    assert rounds.at(159) == []
    assert rounds.at(160) == ["end mail"]
    assert rounds.at(300) == []
    assert rounds.receiver_alerts.alerts == {}


def test_condition_that_flickers_is_sent_once() -> None:
    rounds = Rounds()
    sent = [rounds.at(60 + 10 * turn, *([condition()] if turn % 3 else [])) for turn in range(1, 40)]
    assert [items for items in sent if items] == [["begin mail"]]


def test_condition_is_repeated_while_it_lasts() -> None:
    rounds = Rounds(repeat="1h")
    assert rounds.at(60, condition()) == ["begin mail"]
    assert rounds.at(3600, condition()) == []
    assert rounds.at(3660, condition()) == ["again mail"]
    assert rounds.at(3661, condition()) == []
    assert rounds.at(7260, condition()) == ["again mail"]


def test_severity_that_rises_is_sent_at_once() -> None:
    rounds = Rounds()
    assert rounds.at(60, condition(kind=LIMIT)) == ["begin mail"]
    assert rounds.at(61, condition(kind=LIMIT, severity=CRITICAL)) == ["again mail"]
    assert rounds.at(62, condition(kind=LIMIT)) == []


def test_condition_that_is_no_longer_critical_ends_for_a_receiver_of_critical_ones() -> None:
    rounds = Rounds(severities=["critical"])
    assert rounds.at(60, condition(kind=LIMIT, severity=CRITICAL)) == ["begin mail"]
    assert rounds.at(61, condition(kind=LIMIT)) == []
    assert rounds.at(121, condition(kind=LIMIT)) == ["end mail"]


def test_interval_delays_warnings_and_not_critical_conditions() -> None:
    rounds = Rounds(interval=30)
    old = condition(b"a", since=START - HOUR)
    late = condition(b"b", since=START - HOUR)
    worst = condition(b"c", since=START - HOUR, severity=CRITICAL)
    assert rounds.at(0, old) == ["begin a"]
    assert rounds.at(5, old, late) == []
    assert rounds.at(6, old, late, worst) == ["begin c", "begin b"]


# Many conditions


def many(count: int, **changes: Any) -> list[ActiveCondition]:
    return [condition(b"t%05d" % number, since=START - HOUR, **changes) for number in range(count)]


def test_ten_thousand_conditions_are_one_bounded_message() -> None:
    rounds = Rounds()
    sent = rounds.at(0, *many(10_000))
    assert len(sent) == MAX_ALERTS
    assert rounds.receiver_alerts.more == 10_000 - MAX_ALERTS
    assert len(rounds.receiver_alerts.alerts) == MAX_ALERTS + 1
    assert rounds.at(60, *many(10_000)) == ["begin more"]
    assert rounds.at(120, *many(10_000)) == []
    assert rounds.receiver_alerts.alerts[MORE, b"", ""].sentence.startswith("9,950 more conditions need attention")


# Acknowledged conditions


def test_acknowledged_condition_is_sent_when_the_acknowledgement_ends() -> None:
    rounds = Rounds()
    rounds.acknowledgements.add("mail*", "", 600, "ada", "known", START)
    assert rounds.at(60, condition()) == []
    assert rounds.at(599, condition()) == []
    assert rounds.at(600, condition()) == ["begin mail"]


def test_end_of_a_sent_condition_is_sent_although_it_is_acknowledged() -> None:
    rounds = Rounds()
    assert rounds.at(60, condition()) == ["begin mail"]
    rounds.acknowledgements.add("", "", 86400, "ada", "known", rounds.now)
    assert rounds.at(5 * 3600, condition()) == []
    rounds.at(5 * 3600 + 1)
    assert rounds.at(5 * 3600 + 61) == ["end mail"]


# Messages


def bodies(
    to: Receiver, *conditions: ActiveCondition, key: str = "", more: int = 0
) -> list[tuple[dict[str, str], Any]]:
    receiver_alerts = ReceiverAlerts(to)
    for each in conditions:
        receiver_alerts.take(each, unacknowledged)
    receiver_alerts.end_round(START + HOUR)
    made = messages(
        to, receiver_alerts.due(START + HOUR, unacknowledged), more, "queue-1", lambda link: f"/{link.endpoint}", START
    )
    built = [message.build(key) for message in made]
    return [(dict(headers), json.loads(body)) for headers, body in built]


def test_json_message() -> None:
    to = receiver(dashboard_url="https://queue.example.com/q/", headers={"X-Team": "mail"})
    ((headers, document),) = bodies(to, condition(), more=3)
    assert headers == {"Content-Type": "application/json", "X-Team": "mail"}
    assert document == {
        "version": 1,
        "receiver": "ops",
        "source": "queue-1",
        "dashboard": "https://queue.example.com/q",
        "sent_at": "2027-01-15T08:00:00Z",
        "status": "firing",
        "conditions": [
            {
                "id": "greenstalk/queue-1/buried_growth/mail",
                "status": "firing",
                "is_repeat": False,
                "condition": "buried_growth",
                "severity": "warning",
                "tube": "mail",
                "limit": None,
                "since": "2027-01-15T08:00:00Z",
                "value": 15.0,
                "threshold": 10.0,
                "sentence": "15 more jobs of “mail” are buried.",
                "link": "https://queue.example.com/q/tube",
            }
        ],
        "more": 3,
    }


def test_json_message_of_the_page_has_the_keys_of_a_message() -> None:
    shown = json.loads(block("alerts.md", "json", "{"))
    ((_, document),) = bodies(receiver(dashboard_url="https://queue.example.com"), condition())
    assert list(shown) == list(document)
    assert list(shown["conditions"][0]) == list(document["conditions"][0])


def test_signature_of_a_json_message() -> None:
    to = receiver(**KEYED)
    receiver_alerts = ReceiverAlerts(to)
    receiver_alerts.take(condition(), unacknowledged)
    receiver_alerts.end_round(START + HOUR)
    (message,) = messages(to, receiver_alerts.due(START + HOUR, unacknowledged), 0, "q", lambda _: "/", START)
    headers, body = message.build("swordfish")
    assert headers[SIGNATURE] == f"sha256={hmac.new(b'swordfish', body, sha256).hexdigest()}"
    assert b"swordfish" not in body


def test_chat_message_escapes_markup_and_lists_at_most_20_conditions() -> None:
    to = receiver(template="slack")
    odd = condition()._replace(measure=condition().measure._replace(sentence="<!channel> & <https://e.example|x>\n"))
    ((_, document),) = bodies(to, odd)
    assert document == {"text": "*queue-1*: 1 firing\n• *warning* &lt;!channel&gt; &amp; &lt;https://e.example|x&gt; "}
    ((_, document),) = bodies(to, *many(30), more=5)
    lines = document["text"].split("\n")
    assert (len(lines), lines[0], lines[-1]) == (22, "*queue-1*: 30 firing", "• 15 more")


def test_pagerduty_events() -> None:
    to = receiver(template="pagerduty", **KEYED, dashboard_url="https://queue.example.com")
    (headers, first), (_, second) = bodies(to, condition(), condition(b"", DISK, CRITICAL), key="routing")
    assert SIGNATURE not in headers
    assert [event["payload"]["severity"] for event in (first, second)] == ["critical", "warning"]
    assert first["payload"]["component"] == "server"
    assert second == {
        "routing_key": "routing",
        "event_action": "trigger",
        "dedup_key": "greenstalk/queue-1/buried_growth/mail",
        "payload": {
            "summary": "queue-1: 15 more jobs of “mail” are buried.",
            "source": "queue-1",
            "severity": "warning",
            "timestamp": "2027-01-15T08:00:00Z",
            "component": "mail",
            "class": "buried_growth",
            "custom_details": {"value": 15.0, "threshold": 10.0},
        },
        "client": "Greenstalk Server",
        "client_url": "https://queue.example.com/tube",
    }


# With real receivers


class World:
    """Alerts about a queue with a fake clock, whose receivers are real."""

    def __init__(self, queue: Queue, *tables: dict[str, Any], directory: Path | None = None, **options: Any) -> None:
        self.queue = queue
        self.receivers = tuple([parse_receiver(f"r{n}", HERE | table) for n, table in enumerate(tables)])
        thresholds = ThresholdSet({"no_consumers": 1, "oldest_ready": 0, "backlog_growth": 0})
        self.attention = ConditionMonitor(queue.broker, queue.clock, thresholds=lambda: thresholds)
        store = local_store(directory)
        self.alerts = Alerts(
            self.attention,
            Acknowledgements(store),
            queue.clock,
            lambda: self.receivers,
            source="queue-1",
            path_of=lambda link: f"/{link.endpoint}",
            store=store,
            **options,
        )
        store.restore()

    def run(self, seconds: float = 6) -> None:
        """Let *seconds* pass, evaluate, and wait until what is due has been sent."""
        self.queue.now += int(seconds * SECOND)
        self.attention.tick()
        self.alerts.tick()
        with gevent.Timeout(30):
            gevent.joinall(list(self.alerts._sending))


def statuses(requests: list[Received]) -> list[list[str]]:
    return [[each["status"] for each in request.document["conditions"]] for request in requests]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(autouse=True)
def _no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)


def table(server: Server, **changes: Any) -> dict[str, Any]:
    return {"template": "json", "url": f"{server.url}/hook", "for": 0, "resolve_after": 0, "interval": 0} | changes


def test_condition_and_its_end_reach_a_receiver(queue: Queue, server: Server) -> None:
    queue.put("mail", count=3)
    world = World(queue, table(server))
    for _ in range(4):
        world.run()
    worker = queue.connect()
    connecting.watch(queue.broker, worker, b"mail")
    for _ in range(3):
        world.run()
    first, second = server.requests
    assert (first.path, first.document["receiver"], first.document["source"]) == ("/hook", "r0", "queue-1")
    assert first.document["conditions"][0]["tube"] == "mail"
    assert first.document["conditions"][0]["sentence"].startswith("3 jobs of “mail” are ready, but no worker")
    assert statuses([first, second]) == [["firing"], ["resolved"]]
    assert [delivery.summary for delivery in world.alerts.log] == ["1 resolved", "1 firing"]
    assert (world.alerts.sent["r0"], world.alerts.failed["r0"]) == (2, 0)


def test_failures_are_retried_with_growing_pauses(queue: Queue, server: Server) -> None:
    server.answer = answer(500, b"  sorry\n <b>\x1b[31m")
    queue.put("mail")
    world = World(queue, table(server))
    world.run()
    world.run(2)
    tried = []
    for _ in range(600):
        before = len(server.requests)
        world.run(1)
        if len(server.requests) > before:
            tried.append(world.queue.now)
    pauses = [(after - before) // SECOND for before, after in pairwise(tried)]
    assert pauses == [5, 10, 20, 40, 80, 160]
    assert world.alerts.log[0].error == "status 500, response: “sorry <b>[31m”"
    assert world.alerts.log[0].attempt == 7
    assert world.alerts.waiting("r0") == 1
    server.answer = answer(200)
    world.run(MAX_RETRY // SECOND)
    assert world.alerts.log[0].error == ""
    assert world.alerts.waiting("r0") == 0


def test_receiver_gets_only_conditions_that_still_hold_after_an_outage(queue: Queue, server: Server) -> None:
    server.answer = answer(503)
    queue.put("mail")
    world = World(queue, table(server))
    world.run()
    world.run()
    queue.put("web")
    connecting.watch(queue.broker, queue.connect(), b"mail")
    server.answer = answer(200)
    for _ in range(3):
        world.run(10)
    tubes = [[each["tube"] for each in request.document["conditions"]] for request in server.requests]
    assert tubes == [["mail"], ["web"]]


@pytest.mark.parametrize(
    ("status", "after", "wait"),
    [
        (429, "120", 120 * SECOND),
        (503, "99999999", MAX_RETRY_AFTER),
        (503, "-5", FIRST_RETRY),
        (503, "soon", FIRST_RETRY),
        (503, "Wed, 21 Oct 2015 07:28:00 GMT", FIRST_RETRY),
        (503, "Fri, 31 Dec 9999 23:59:59 GMT", MAX_RETRY_AFTER),
        (429, "", FIRST_RETRY),
        (400, "", REJECTED_RETRY),
        (404, "", REJECTED_RETRY),
        (302, "", REJECTED_RETRY),
        (502, "", FIRST_RETRY),
    ],
)
def test_time_until_a_retry(queue: Queue, server: Server, status: int, after: str, wait: int) -> None:
    server.answer = answer(status, Retry_After=after) if after else answer(status)
    queue.put("mail")
    world = World(queue, table(server))
    world.run()
    world.run()
    assert len(server.requests) == 1
    assert world.alerts.queues["r0"].next_try - queue.now == wait


def test_each_receiver_gets_its_own_conditions(queue: Queue, server: Server) -> None:
    queue.put("mail")
    queue.put("web")
    world = World(queue, table(server), table(server, tubes=["web"]), table(server, severities=["critical"]))
    world.run()
    world.run()
    sent = {request.document["receiver"]: len(request.document["conditions"]) for request in server.requests}
    assert sent == {"r0": 2, "r1": 1}


def test_receiver_that_fails_does_not_delay_others(queue: Queue, server: Server) -> None:
    queue.put("mail")
    with Server() as broken:
        broken.answer = broken.hang
        world = World(queue, table(broken, timeout=1), table(server))
        world.queue.now += 6 * SECOND
        world.attention.tick()
        world.queue.now += 6 * SECOND
        world.attention.tick()
        world.alerts.tick()
        with gevent.Timeout(30):
            while not world.alerts.sent["r1"]:
                gevent.sleep(0.001)
        assert not world.alerts.failed["r0"]
        with gevent.Timeout(30):
            gevent.joinall(list(world.alerts._sending))
    assert {delivery.receiver: delivery.error for delivery in world.alerts.log} == {
        "r0": "no complete response within 1 s",
        "r1": "",
    }


def test_pagerduty_failure_in_the_middle_repeats_only_the_rest(queue: Queue, server: Server, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("routing\n")
    accepted: list[str] = []

    def once(handler: Any) -> None:
        accepted.append(server.requests[-1].document["dedup_key"])
        answer(202 if len(accepted) != 2 else 429)(handler)

    server.answer = once
    for tube in ("a", "b", "c"):
        queue.put(tube)
    world = World(queue, table(server, template="pagerduty", secret_file=str(key)))
    world.run()
    world.run()
    world.run()
    ends = [name.rpartition("/")[2] for name in accepted]
    assert sorted([ends[0], *ends[2:]]) == ["a", "b", "c"]
    assert ends[1] == ends[2]
    assert {request.document["routing_key"] for request in server.requests} == {"routing"}


def test_standby_and_new_leader_send_nothing(queue: Queue, server: Server) -> None:
    queue.put("mail")
    status = ClusterStatus(is_active=False, journal="j", name="b")
    world = World(queue, table(server), role=lambda: status)
    world.run()
    world.run()
    assert server.requests == []
    status = ClusterStatus(is_active=True, journal="j", name="b")
    world.run(1)
    world.run(TAKEOVER_TIME // SECOND - 1)
    assert server.requests == []
    world.run(1)
    assert len(server.requests) == 1


# Restarts


def test_sent_conditions_are_not_sent_again_after_a_restart(queue: Queue, server: Server, tmp_path: Path) -> None:
    queue.put("mail")
    world = World(queue, table(server), directory=tmp_path)
    world.run()
    world.run()
    assert statuses(server.requests) == [["firing"]]
    again = World(queue, table(server), directory=tmp_path)
    for _ in range(5):
        again.run()
    assert len(server.requests) == 1
    assert [delivery.summary for delivery in again.alerts.log] == ["1 firing"]


def test_condition_that_ended_during_a_restart_is_resolved_later(queue: Queue, server: Server, tmp_path: Path) -> None:
    queue.put("mail")
    world = World(queue, table(server), directory=tmp_path)
    world.run()
    world.run()
    connecting.watch(queue.broker, queue.connect(), b"mail")
    again = World(queue, table(server), directory=tmp_path)
    again.run()
    again.run(RESTORED_TIME // SECOND - 10)
    assert len(server.requests) == 1
    again.run(10)
    assert statuses(server.requests) == [["firing"], ["resolved"]]


def test_log_survives_a_restart(queue: Queue, server: Server, tmp_path: Path) -> None:
    world = World(queue, table(server), directory=tmp_path)
    assert world.alerts.test("r0").error == ""
    assert World(queue, table(server), directory=tmp_path).alerts.log == world.alerts.log


def damaged() -> list[bytes]:
    good: dict[str, Any] = {"version": 2, "alerts": {}, "log": []}
    alert = {
        "kind": "disk", "tube": "", "detail": "", "severity": "warning", "sentence": "s", "since": 1, "value": 1,
        "threshold": 1.0, "link": ["overview", {}], "is_present": True, "ended_at": 0, "sent_at": 1,
        "sent_severity": "", "kept_until": 0,
    }  # fmt: skip
    delivery = {
        "at": NOW, "receiver": "ops", "summary": "test", "attempt": 1, "status": 200, "seconds": 0.1,
        "error": "",
    }  # fmt: skip
    changes: list[dict[str, Any]] = [
        {"version": 3},
        {"alerts": {"ops": [alert | {"link": ["overview", {"a": 1}]}]}},
        {"alerts": {"ops": [alert | {"since": 10**30}]}},
        {"alerts": {"ops": [alert | {"value": float("inf")}]}},
        {"alerts": {"ops": [alert | {"sentence": "\ud800"}]}},
        {"alerts": {"ops": [alert] * 200}},
        {"log": [delivery | {"at": "2027-01-15T08:00:00"}]},
    ]
    broken = [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff", b"{}"]
    return broken + [json.dumps(good | change).encode() for change in changes]


@pytest.mark.parametrize("content", damaged())
def test_damaged_state_is_lost(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = local_store()
    store.put("alerts", 0, b"", content)
    state = State(store)
    store.restore()
    assert (state.alerts, list(state.log)) == ({}, [])
    assert "so alerts about conditions that still hold are sent again" in caplog.text


def test_state_that_cannot_be_saved_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greenstalk_server.web.store.sqlite.BUSY_TIMEOUT", 0.01)
    store = local_store(tmp_path)
    state = State(store)
    store.restore()
    with locked(tmp_path):
        state.save({})
        assert "database is locked" in store.last_error
    store.save()
    assert not store.last_error


# Reloads


def test_changed_receiver_keeps_its_alerts(queue: Queue, server: Server) -> None:
    queue.put("mail")
    world = World(queue, table(server))
    world.run()
    world.run()
    world.receivers = (parse_receiver("r0", HERE | table(server, headers={"X-A": "b"})),)
    world.run()
    assert len(server.requests) == 1
    world.receivers = ()
    world.run()
    assert world.alerts.queues == {}


def test_test_of_a_receiver_ends_the_pause_after_failures(queue: Queue, server: Server) -> None:
    server.answer = answer(403)
    queue.put("mail")
    world = World(queue, table(server))
    world.run()
    world.run()
    assert world.alerts.test("r0").error == "status 403"
    server.answer = answer(200)
    assert world.alerts.test("r0").error == ""
    world.run(1)
    assert [delivery.summary for delivery in world.alerts.log] == ["1 firing", "test", "test", "1 firing"]
    assert server.requests[1].document["conditions"][0]["sentence"].startswith("This is a test")


# Pages and API

PROGRAM = {"X-Requested-With": "test"}


@pytest.fixture
def visited(visit: Callable[..., FlaskClient], server: Server) -> FlaskClient:
    receivers = (parse_receiver("ops", HERE | table(server, url=f"{server.url}/services/swordfish")),)
    return visit(receivers=lambda: receivers)


def test_page_shows_no_address_in_full(visited: FlaskClient, server: Server) -> None:
    page = visited.get("/alerts").text
    assert server.url in page.replace("<wbr>", "")
    assert "swordfish" not in page
    assert "swordfish" not in visited.get("/api/v1/alerts").text


def test_test_button(visited: FlaskClient, server: Server) -> None:
    response = visited.post("/alerts/test", data={"receiver": "ops"}, headers=SAME_ORIGIN)
    assert (response.status_code, response.location.partition("&")[0]) == (303, "/alerts?notice=tested")
    assert server.requests[0].path == "/services/swordfish"
    server.answer = answer(500, b"out of order")
    response = visited.post("/alerts/test", data={"receiver": "ops"}, headers=SAME_ORIGIN)
    assert "notice=test-failed" in response.location
    page = visited.get("/alerts").text
    assert "status 500, response: “out of order”" in page
    assert visited.post("/alerts/test", data={"receiver": "no"}, headers=SAME_ORIGIN).status_code == 404
    audit = visited.get("/audit").text
    assert audit.count("alerts/test") == 2


def test_viewer_sees_no_alerts(visit: Callable[..., FlaskClient]) -> None:
    client = visit(**PASSWORDS)
    viewer = {"Authorization": "Basic dmlld2VyOnY="}
    assert client.get("/alerts", headers=viewer).status_code == 403
    assert client.get("/api/v1/alerts", headers=viewer).status_code == 403
    assert client.post("/alerts/test", headers=viewer | SAME_ORIGIN).status_code == 403
    assert 'href="/alerts"' not in client.get("/attention", headers=viewer).text


def test_metrics_count_messages(visited: FlaskClient, server: Server) -> None:
    visited.post("/api/v1/alerts/test", json={"receiver": "ops"})
    server.answer = answer(500)
    assert visited.post("/api/v1/alerts/test", json={"receiver": "ops"}).json["status"] == 500
    lines = visited.get("/metrics").text.splitlines()
    assert 'greenstalk_alert_messages_sent_total{receiver="ops"} 1.0' in lines
    assert 'greenstalk_alert_messages_failed_total{receiver="ops"} 1.0' in lines
    assert 'greenstalk_alert_conditions_waiting{receiver="ops"} 0.0' in lines
