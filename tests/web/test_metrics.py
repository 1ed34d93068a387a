"""The metrics: names, values, counters that never decrease, bounded labels, and access.

Also compares `docs/metrics.md`, the Grafana dashboard and the alert rules with the metrics of a running server.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import gevent
import pytest
import yaml
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import BURIED, SECOND
from greenstalk_server.core.operations import (
    connecting,
    editing,
    finishing,
    kicking,
    policy_changes,
    putting,
    reserving,
    ticking,
)
from greenstalk_server.core.policies.policy import PolicySet, parse_policy
from greenstalk_server.web.features.history.tube_counters import POLICY_ACTIONS
from greenstalk_server.web.features.metrics import ledger
from greenstalk_server.web.features.metrics.exporter import SAMPLE_BATCH
from greenstalk_server.web.features.metrics.ledger import LABEL_RETENTION, MAX_LABELS, OTHER, TUBE_BATCH
from greenstalk_server.web.framework.cooperative import Pace
from tests.support import invariants
from tests.support.daemon import REPOSITORY, TIMEOUT, Daemon, environment

from .conftest import Queue
from .forms import SAME_ORIGIN
from .test_guard import basic
from .turns import LoopIterations

DOCS = REPOSITORY / "docs"

ADMIN = "sesame"
VIEWER = "look-on"

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Series:
    """Return every sample by name and labels; check that each is there once."""
    series: Series = {}
    for sample in samples(text):
        key = (sample.name, tuple(sorted(sample.labels.items())))
        assert key not in series, key
        series[key] = sample.value
    return series


def samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type != "unknown", family.name
        yield from family.samples


class Scraper:
    """Requests the metrics, and checks that no counter decreases while its label exists."""

    def __init__(self, client: FlaskClient) -> None:
        self.client = client
        self.series: Series = {}

    def scrape(self) -> Series:
        response = self.client.get("/metrics")
        assert response.status_code == 200
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        series = parse(response.text)
        for key, value in series.items():
            if key[0].endswith(("_total", "_bucket", "_count", "_sum")):
                assert value >= self.series.get(key, 0), key
        self.series = series
        return series

    def value(self, name: str, **labels: str) -> float:
        return self.series[f"greenstalk_{name}", tuple(sorted(labels.items()))]

    def tubes(self) -> set[str]:
        return {dict(labels)["tube"] for name, labels in self.series if name == "greenstalk_tube_waiting"}

    def total(self, word: str) -> float:
        """Return the sum of a counter over all tubes."""
        name = f"greenstalk_tube_jobs_{word}_total"
        return sum(value for (found, _), value in self.series.items() if found == name)


@pytest.fixture
def scraper(queue: Queue) -> Scraper:
    return Scraper(queue.app().test_client())


def worker(queue: Queue, tube: str) -> Client:
    client = queue.connect()
    connecting.use(queue.broker, client, tube.encode())
    connecting.watch(queue.broker, client, tube.encode())
    connecting.ignore(queue.broker, client, b"default")
    return client


def put(queue: Queue, client: Client, body: bytes = b"body", pri: int = 2000, ttr: int = 60) -> int:
    id = queue.broker.allocate_id()
    assert putting.put(queue.broker, client, id, pri, 0, ttr * SECOND, body, queue.now) > 0
    return id


def finish(queue: Queue, client: Client) -> None:
    job = reserving.reserve(queue.broker, client, queue.now)
    assert job is not None and finishing.delete(queue.broker, client, job.id, queue.now)


# Values


def test_server_metrics(queue: Queue, scraper: Scraper) -> None:
    client = worker(queue, "mail")
    queue.connect()
    connecting.note_producer(queue.broker, client)
    connecting.note_worker(queue.broker, client)
    queue.broker.counters.cmd_reserve_with_timeout += 3
    queue.now += 90 * SECOND
    scraper.scrape()
    assert scraper.value("build_info", version="9.8.7", build="compiled") == 1
    assert scraper.value("uptime_seconds") == 90
    roles = ("any", "producer", "worker", "waiting")
    assert [scraper.value("connections", role=role) for role in roles] == [2, 1, 1, 0]
    assert scraper.value("connections_total") == 2
    assert scraper.value("commands_total", command="reserve-with-timeout") == 3
    assert len([name for name, _ in scraper.series if name == "greenstalk_commands_total"]) == 22


def test_jobs_of_a_tube_by_state(queue: Queue, scraper: Scraper) -> None:
    client = worker(queue, "mail")
    ids = [put(queue, client, b"x" * 10, pri=pri) for pri in (0, 1023, 1024, 5, 6, 7)]
    put(queue, client, b"")
    queue.put("mail", delay=9)
    finishing.bury_job(queue.broker, ids[3], queue.now)
    assert [reserving.reserve_job(queue.broker, client, id, queue.now) is not None for id in ids[4:]] == [True, True]
    scraper.scrape()
    states = ("ready", "reserved", "delayed", "buried")
    assert [scraper.value("tube_jobs", tube="mail", state=state) for state in states] == [4, 2, 1, 1]
    assert scraper.value("tube_jobs_urgent", tube="mail") == 2
    assert scraper.value("tube_bytes", tube="mail") == 6 * 10 + 4
    assert scraper.value("tube_watching", tube="mail") == 1
    assert scraper.value("tube_jobs", tube="default", state="ready") == 0


def test_ages_pauses_and_waiting(queue: Queue, scraper: Scraper) -> None:
    client, broker = worker(queue, "mail"), queue.broker
    scraper.scrape()
    assert scraper.value("tube_oldest_ready_age_seconds", tube="mail") == 0
    assert reserving.reserve(broker, client, queue.now) is None
    reserving.wait(broker, client, None, queue.now)
    put(queue, worker(queue, "idle"))
    editing.pause_tube(broker, b"idle", 10 * SECOND, queue.now)
    queue.now += 3 * SECOND + SECOND // 2
    scraper.scrape()
    assert scraper.value("tube_waiting", tube="mail") == 1
    assert scraper.value("connections", role="waiting") == 1
    assert scraper.value("tube_oldest_ready_age_seconds", tube="idle") == 3.5
    assert scraper.value("tube_pause_remaining_seconds", tube="idle") == 6.5
    assert [scraper.value("tube_paused", tube=tube) for tube in ("idle", "mail")] == [1, 0]
    queue.now += 7 * SECOND  # the pause has ended, but no tick has run
    scraper.scrape()
    assert scraper.value("tube_paused", tube="idle") == 0
    assert scraper.value("tube_pause_remaining_seconds", tube="idle") == 0


def test_each_counter_of_a_tube(queue: Queue, scraper: Scraper) -> None:
    client, broker = worker(queue, "mail"), queue.broker
    for _ in range(7):
        put(queue, client, ttr=1)
    for _ in range(6):
        assert reserving.reserve(broker, client, queue.now) is not None
    held = list(client.reserved)
    for id in held[:1]:
        finishing.release(broker, client, id, 0, 0, queue.now)
    for id in held[1:3]:
        finishing.bury(broker, client, id, 0, queue.now)
    kicking.kick(broker, broker.tubes[b"mail"], BURIED, 2, queue.now)
    for id in held[3:5]:
        finishing.delete(broker, client, id, queue.now)
    queue.now += SECOND
    ticking.tick(broker, queue.now)
    scraper.scrape()
    words = ("put", "reserved", "released", "buried", "kicked", "deleted", "timed_out")
    counts = {word: scraper.value(f"tube_jobs_{word}_total", tube="mail") for word in words}
    assert counts == {
        "put": 7, "reserved": 6, "released": 1, "buried": 2, "kicked": 2, "deleted": 2, "timed_out": 1
    }  # fmt: skip


def bucket(scraper: Scraper, name: str, seconds: float) -> float:
    """Return the count of the smallest bucket that includes *seconds*."""
    key = f"greenstalk_{name}_bucket"
    bounds = sorted((float(dict(labels)["le"]), value) for found, labels in scraper.series if found == key
                    for value in [scraper.series[found, labels]])  # fmt: skip
    assert [value for _, value in bounds] == sorted(value for _, value in bounds)
    return next(value for bound, value in bounds if bound >= seconds)


def test_waits_and_runs_include_dropped_tubes(queue: Queue, scraper: Scraper) -> None:
    for tube, wait, run in (("a", 1, 2), ("b", 100, 200), ("c", 10**6, 10**7)):
        client = worker(queue, tube)
        put(queue, client, ttr=10**8)
        queue.now += wait * SECOND
        job = reserving.reserve(queue.broker, client, queue.now)
        assert job is not None
        queue.now += run * SECOND
        finishing.delete(queue.broker, client, job.id, queue.now)
        if tube == "a":
            connecting.disconnect(queue.broker, client, queue.now)
            assert b"a" not in queue.broker.tubes
    scraper.scrape()
    assert [bucket(scraper, "job_wait_seconds", at) for at in (0.5, 2, 100, 400_000, float("inf"))] == [0, 1, 2, 2, 3]
    assert [bucket(scraper, "job_run_seconds", at) for at in (1, 3, 300, 400_000, float("inf"))] == [0, 1, 2, 2, 3]
    assert scraper.value("job_wait_seconds_sum") == 1_000_101
    assert scraper.value("job_run_seconds_sum") == 10_000_202
    assert scraper.value("job_run_seconds_count") == 3


def test_requests_by_endpoint_method_and_code(queue: Queue) -> None:
    client = queue.app(password=ADMIN).test_client()
    client.get("/healthz")
    client.head("/healthz")
    client.get("/")
    client.get("/nowhere-1", headers=basic("", ADMIN))
    client.get("/nowhere-2", headers=basic("", ADMIN))
    client.post("/tube/pause")
    client.open("/healthz", method="BREW")
    response = client.get("/metrics", headers=basic("", ADMIN))
    found = {tuple(labels[key] for key in ("endpoint", "method", "code")): sample.value
             for sample in samples(response.text)
             if sample.name == "greenstalk_http_request_duration_seconds_count"
             for labels in [sample.labels]}  # fmt: skip
    assert found == {
        ("healthz", "GET", "200"): 1,
        ("healthz", "HEAD", "200"): 1,
        ("overview", "GET", "401"): 1,
        ("none", "GET", "404"): 2,
        ("tube_pause", "POST", "403"): 1,
        ("none", "other", "403"): 1,
    }


# Policies


def set_policies(queue: Queue, **policies: dict[str, Any]) -> None:
    """Replace the policies by *policies*, and let the broker apply them to existing tubes."""
    policy_changes.set_policies(
        queue.broker, PolicySet([parse_policy(name, document) for name, document in policies.items()]), queue.now
    )
    while queue.broker.is_sweeping:
        queue.now += 1
        ticking.tick(queue.broker, queue.now)


def fail(queue: Queue, client: Client, times: int = 1) -> None:
    """Reserve and release the first job of *client*'s tubes, *times* times."""
    for _ in range(times):
        job = reserving.reserve(queue.broker, client, queue.now)
        assert job is not None and finishing.release(queue.broker, client, job.id, 0, 0, queue.now)


def actions(scraper: Scraper, tube: str) -> dict[str, float]:
    """Return the actions of policies on *tube* that are not zero."""
    found = {dict(labels)["action"]: value for (name, labels), value in scraper.series.items()
             if name == "greenstalk_tube_policy_total" and dict(labels)["tube"] == tube}  # fmt: skip
    assert not found or set(found) == set(POLICY_ACTIONS.values())
    return {action: value for action, value in found.items() if value}


def test_actions_of_policies(queue: Queue, scraper: Scraper) -> None:
    mail = {"max_attempts": 1, "dead_letter": "mail.failed", "expire_after": 60, "max_jobs": 2, "copy_to": ["audit"]}
    set_policies(queue, mail={"tubes": ["mail"], **mail}, once={"tubes": ["once"], "unique": "body"})
    client, once = worker(queue, "mail"), worker(queue, "once")
    put(queue, client)
    fail(queue, client)
    for _ in range(2):
        put(queue, client)
    assert putting.put(queue.broker, client, queue.broker.allocate_id(), 0, 0, SECOND, b"", queue.now) < 0
    queue.now += 61 * SECOND
    for _ in range(3):
        ticking.tick(queue.broker, queue.now)
    first = put(queue, once)
    assert putting.put(queue.broker, once, queue.broker.allocate_id(), 9000, 0, SECOND, b"body", queue.now) == first
    scraper.scrape()
    assert actions(scraper, "mail") == {"dead_lettered": 1, "refused": 1, "expired": 2, "copied": 3}
    assert actions(scraper, "mail.failed") == {"received": 1}
    assert actions(scraper, "once") == {"duplicate": 1}
    assert actions(scraper, "audit") == actions(scraper, OTHER.decode()) == {}
    assert scraper.value("tube_dead_letters", tube="mail.failed") == 1


def test_held_tubes_by_reason(queue: Queue, scraper: Scraper) -> None:
    set_policies(
        queue, busy={"tubes": ["busy"], "max_reserved": 1}, slow={"tubes": ["slow"], "rate": 0.1}, free={"tubes": ["*"]}
    )
    for tube in ("busy", "slow", "free"):
        client = worker(queue, tube)
        for _ in range(2):
            put(queue, client)
        assert reserving.reserve(queue.broker, client, queue.now) is not None
    scraper.scrape()
    reasons = ("rate", "max_reserved")
    held = {tube: [scraper.value("tube_held", tube=tube, reason=reason) for reason in reasons]
            for tube in ("busy", "slow", "free")}  # fmt: skip
    assert held == {"busy": [0, 1], "slow": [1, 0], "free": [0, 0]}
    assert actions(scraper, "busy") == {"reserved_hold": 1} and actions(scraper, "slow") == {"rate_hold": 1}
    queue.now += 10 * SECOND
    scraper.scrape()
    assert scraper.value("tube_held", tube="slow", reason="rate") == 0


# Dropped tubes


def test_counters_of_a_tube_outlive_it(queue: Queue, scraper: Scraper) -> None:
    for round in range(1, 4):
        client = worker(queue, "mail")
        put(queue, client)
        finish(queue, client)
        scraper.scrape()
        assert scraper.value("tube_jobs_put_total", tube="mail") == round
        connecting.disconnect(queue.broker, client, queue.now)
        assert b"mail" not in queue.broker.tubes
        scraper.scrape()
        assert scraper.value("tube_jobs_put_total", tube="mail") == round
        assert scraper.value("tube_watching", tube="mail") == 0
        queue.now += LABEL_RETENTION
    scraper.scrape()
    queue.now += 1
    scraper.scrape()
    assert "mail" not in scraper.tubes()


class Churn:
    """Tubes that are created and dropped, step by step, with jobs that are put and finished."""

    def __init__(self, queue: Queue, seed: int, tubes: int) -> None:
        self.queue, self.dice, self.tubes = queue, random.Random(seed), tubes  # noqa: S311
        self.clients: dict[str, Client] = {}

    def step(self) -> None:
        queue, dice = self.queue, self.dice
        name = f"tube-{dice.randrange(self.tubes)}"
        client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = worker(queue, name)
        tube = queue.broker.tubes[name.encode()]
        for _ in range(dice.choice((0, 1, 1, 9))):
            put(queue, client)
        while tube.ready.count and dice.random() < 0.95:
            queue.now += dice.randrange(SECOND)
            finish(queue, client)
        if not tube.ready.count and dice.random() < 0.4:
            connecting.disconnect(queue.broker, self.clients.pop(name), queue.now)

    def finish(self) -> None:
        for client in self.clients.values():
            while client.used.ready.count:
                finish(self.queue, client)


@pytest.mark.parametrize("seed", range(2))
def test_no_counter_decreases_or_loses_events(queue: Queue, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The increases of all series, as Prometheus adds them up, equal the server's own counts."""
    monkeypatch.setattr(ledger, "MAX_LABELS", 5)
    scraper, churn, labels, puts = Scraper(queue.app().test_client()), Churn(queue, seed, 12), set[str](), 0.0
    for _ in range(200):
        churn.step()
        queue.now += churn.dice.choice((1, SECOND, LABEL_RETENTION // 5))
        if churn.dice.random() < 0.5:
            before = scraper.series
            scraper.scrape()
            assert len(scraper.tubes()) <= 5 + 1
            labels |= scraper.tubes()
            puts += sum(value - before.get((name, tube), 0) for (name, tube), value in scraper.series.items()
                        if name == "greenstalk_tube_jobs_put_total")  # fmt: skip
            assert puts == queue.broker.counters.total_jobs
            ended = queue.broker.counters.total_jobs - len(queue.broker.jobs)
            assert scraper.value("job_wait_seconds_count") == scraper.value("job_run_seconds_count") == ended
    invariants.check(queue.broker)
    assert len(labels) > 5 + 1, "no label was given to another tube"


@pytest.mark.parametrize(("labels", "scrapers"), [(10, 1), (MAX_LABELS, 2)])
def test_events_during_a_scrape_do_not_tear_it(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, labels: int, scrapers: int
) -> None:
    """The scrape switches after every tube. With two scrapers, one may not see that a label starts again at zero."""
    monkeypatch.setattr(ledger, "MAX_LABELS", labels)
    monkeypatch.setattr(ledger, "LABEL_RETENTION", 10**6 * SECOND)
    monkeypatch.setattr(ledger, "TUBE_BATCH", 1)
    monkeypatch.setattr(Pace, "yield_if_due", lambda self: gevent.sleep(0))
    app, churn, steps = queue.app(), Churn(queue, 1, 30), 0
    scraper = Scraper(app.test_client())

    def scrape_continuously() -> None:
        second = Scraper(app.test_client())
        while True:
            second.scrape()

    def churn_continuously() -> None:
        nonlocal steps
        while True:
            churn.step()
            steps += 1
            gevent.sleep(0)

    others = [gevent.spawn(churn_continuously)] + [gevent.spawn(scrape_continuously) for _ in range(scrapers - 1)]
    for _ in range(25):
        scraper.scrape()
    assert not any(other.dead for other in others)
    gevent.killall(others)
    assert steps > 25 * 10, "nothing changed during the scrapes"
    churn.finish()
    scraper.scrape()
    total = queue.broker.counters.total_jobs
    assert scraper.value("job_wait_seconds_count") == scraper.value("job_run_seconds_count") == total
    assert bucket(scraper, "job_wait_seconds", float("inf")) == total


# More tubes than labels


def test_at_most_a_thousand_labels(queue: Queue, scraper: Scraper) -> None:
    client = queue.connect()
    for number in range(MAX_LABELS + 500):
        connecting.use(queue.broker, client, b"tube-%d" % number)
        put(queue, client, b"12345")
    scraper.scrape()
    first = scraper.tubes()
    assert len(first) == MAX_LABELS + 1
    others = MAX_LABELS + 500 - (MAX_LABELS - ("default" in first))
    assert scraper.value("tube_jobs", tube=OTHER.decode(), state="ready") == others
    assert scraper.value("tube_bytes", tube=OTHER.decode()) == 5 * others
    assert scraper.total("put") == MAX_LABELS + 500
    scraper.scrape()
    assert scraper.tubes() == first


def test_other_has_sums_but_the_longest_age_and_pause(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_LABELS", 2)  # default, and the first tube
    scraper = Scraper(queue.app().test_client())
    queue.put("large", count=9)
    for age in range(3):
        queue.put(f"small-{age}")
        editing.pause_tube(queue.broker, b"small-%d" % age, (10 + age) * SECOND, queue.now)
        queue.now += SECOND
    scraper.scrape()
    assert scraper.tubes() == {"default", "large", OTHER.decode()}
    names = ("tube_paused", "tube_pause_remaining_seconds", "tube_oldest_ready_age_seconds")
    assert [scraper.value(name, tube=OTHER.decode()) for name in names] == [3, 11, 3]


def test_label_of_a_dropped_tube_goes_to_an_existing_one(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_LABELS", 3)
    scraper = Scraper(queue.app().test_client())
    clients = [worker(queue, name) for name in ("a", "b")]
    for client in clients:
        put(queue, client)
        finish(queue, client)
    scraper.scrape()
    connecting.disconnect(queue.broker, clients[0], queue.now)
    scraper.scrape()
    assert scraper.tubes() == {"a", "b", "default", OTHER.decode()}
    worker(queue, "c")
    scraper.scrape()
    assert scraper.tubes() == {"b", "c", "default", OTHER.decode()}


# Yielding


def test_scrape_of_two_thousand_tubes_yields(queue: Queue, short_steps: None) -> None:
    for number in range(2000):
        client = worker(queue, f"tube-{number}")
        put(queue, client)
        put(queue, client)
        finish(queue, client)
    scraper = queue.app().test_client()
    with LoopIterations() as turns:
        samples = scraper.get("/metrics").data.count(b"\ngreenstalk_tube_")
    sampled, formatted = 2000 // TUBE_BATCH, samples // SAMPLE_BATCH
    made = (samples - 3 * MAX_LABELS) // SAMPLE_BATCH  # the metrics of the four states are made together
    assert samples > 10_000 and turns.count >= sampled + made + formatted


# Access

TOKEN = "s3cret/token+with=signs"  # noqa: S105


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_without_password_and_token_metrics_are_open(queue: Queue) -> None:
    client = queue.app().test_client()
    assert client.get("/metrics").status_code == 200
    assert client.get("/metrics", headers={"Host": "prometheus.example"}).status_code == 421


@pytest.mark.parametrize("options", [{}, {"password": ADMIN}, {"viewer_password": VIEWER, "is_read_only": True}])
def test_token_opens_the_metrics(queue: Queue, options: dict[str, Any]) -> None:
    client = queue.app(metrics_token=TOKEN, **options).test_client()
    assert client.get("/metrics", headers=bearer(TOKEN)).status_code == 200
    assert client.get("/metrics", headers=bearer(TOKEN) | {"Host": "prometheus.example"}).status_code == 200
    wrong = ("", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "tök")
    assert {client.get("/metrics", headers=bearer(token)).status_code for token in wrong} == {401}


def test_with_a_token_the_metrics_are_never_open(queue: Queue) -> None:
    client = queue.app(metrics_token=TOKEN).test_client()
    assert client.get("/").status_code == 200
    response = client.get("/metrics")
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer ")
    assert "greenstalk_" not in response.text
    assert client.get("/metrics", headers=basic("", TOKEN)).status_code == 401


def test_token_opens_nothing_else(queue: Queue) -> None:
    queue.put("mail")
    client = queue.app(metrics_token=TOKEN, password=ADMIN).test_client()
    for path in ("/", "/tube?tube=mail", "/job?id=1", "/job/body?id=1", "/live?page=overview", "/audit"):
        assert client.get(path, headers=bearer(TOKEN)).status_code == 401, path
    ours = bearer(TOKEN) | SAME_ORIGIN
    assert client.post("/tube/pause", data={"tube": "mail", "seconds": "9"}, headers=ours).status_code == 401
    assert client.post("/metrics", headers=ours).status_code == 401


def test_wrong_tokens_do_not_lock_out_logins(queue: Queue) -> None:
    client = queue.app(metrics_token=TOKEN, password=ADMIN).test_client()
    assert {client.get("/metrics", headers=bearer("wrong")).status_code for _ in range(10)} == {401}
    assert client.get("/metrics", headers=bearer(TOKEN)).status_code == 429
    assert client.get("/", headers=basic("", ADMIN)).status_code == 200
    queue.now += 61 * SECOND
    assert client.get("/metrics", headers=bearer(TOKEN)).status_code == 200


def test_metrics_are_served_inside_and_outside_the_prefix(queue: Queue) -> None:
    client = queue.app(url_prefix="/queue", metrics_token=TOKEN).test_client()
    for path in ("/metrics", "/queue/metrics"):
        assert client.get(path, headers=bearer(TOKEN)).status_code == 200
        assert client.get(path).status_code == 401


# A running server, the Grafana dashboard and the alert rules


@pytest.fixture(scope="module")
def exposition(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The metrics of a real server with a journal after some work; check that they need the token."""
    file = tmp_path_factory.mktemp("policies") / "greenstalk.toml"
    file.write_text('[policies.mail]\ntubes = ["mail", "default"]\nmax_attempts = 1\ndead_letter = "mail.failed"\n')
    with file.open("a") as appended:
        appended.write("[attention]\ndisk_free = 9000000000000000000\n")  # a condition, so that it has a metric
        appended.write('[alerts.own]\ntemplate = "json"\nurl = "https://127.0.0.1:1/"\nfor = "1h"\n')  # never sent to
    flags = ["-l", "127.0.0.1", "-p", "0", "--web-port", "0", "--memory-limit", str(2**30), "--config", str(file)]
    flags += ["-f", "0", "-b", str(tmp_path_factory.mktemp("journal"))]
    with Daemon(*flags, environ=environment(GREENSTALK_METRICS_TOKEN=TOKEN)) as daemon:
        daemon.ask(b"use mail\r\nput 0 0 60 5\r\nhello\r\n")
        daemon.ask(b"watch mail\r\nreserve\r\ndelete 1\r\n")
        daemon.ask(b"use mail\r\nput 0 0 60 5\r\nhello\r\nwatch mail\r\nreserve\r\nrelease 2 0 0\r\n")
        where = f"{daemon.dashboard}metrics"
        with pytest.raises(HTTPError) as refused:
            urlopen(where, timeout=TIMEOUT)  # noqa: S310  our own server, on loopback
        refused.value.close()
        assert refused.value.code == 401
        urlopen(Request(where, headers=bearer(TOKEN)), timeout=TIMEOUT).close()  # noqa: S310
        with urlopen(Request(where, headers=bearer(TOKEN)), timeout=TIMEOUT) as response:  # noqa: S310
            return str(response.read().decode())


@pytest.fixture(scope="module")
def exported(exposition: str) -> dict[str, set[str]]:
    """Return the labels of each sample name."""
    exported: dict[str, set[str]] = {}
    for sample in samples(exposition):
        exported.setdefault(sample.name, set()).update(sample.labels)
    return exported


def test_running_server_measures_its_syncs(exposition: str) -> None:
    series = {name: value for (name, labels), value in parse(exposition).items() if not labels}
    assert series["greenstalk_journal_sync_seconds_count"] >= 2
    assert 0 < series["greenstalk_journal_sync_seconds_sum"] < TIMEOUT
    assert series["greenstalk_journal_bytes"] >= 10_485_760
    assert 0 < series["greenstalk_journal_disk_free_bytes"] <= shutil.disk_usage(tempfile.gettempdir()).total
    assert series["greenstalk_job_wait_seconds_count"] == 2


def expressions(found: object) -> Iterator[str]:
    """Yield every `expr`, and every query of a variable, in a dashboard or in rules."""
    if isinstance(found, dict):
        for key, value in found.items():
            if isinstance(value, str) and (key in ("expr", "definition") or (key == "query" and "(" in value)):
                yield value
            yield from expressions(value)
    elif isinstance(found, list):
        for value in found:
            yield from expressions(value)


def test_grafana_dashboard_uses_existing_metrics(exported: dict[str, set[str]]) -> None:
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text())
    used = set(re.findall(r"\bgreenstalk_\w+", " ".join(expressions(dashboard))))
    assert len(used) > 20 and used <= exported.keys()


def test_alert_rules_use_existing_metrics(exported: dict[str, set[str]]) -> None:
    """tests/deploy/test_alerts.py runs the rules; this test checks their metrics and the labels in their texts."""
    group, shared = yaml.safe_load((DOCS / "prometheus-alerts.yml").read_text())["groups"]
    exported |= {name: set() for name in ("greenstalk_leader", "greenstalk_replication_lag_seconds")}
    for rule in group["rules"] + shared["rules"]:
        used = set(re.findall(r"\bgreenstalk_\w+", rule["expr"]))
        assert used <= exported.keys() and (used or rule["alert"] == "GreenstalkDown")
        labels = {"job", "instance"}.union(*(exported[name] for name in used))
        assert set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))) <= labels


def test_documentation_lists_every_metric(exposition: str) -> None:
    """Each metric is in the table, with its type and its labels."""
    rows = re.compile(r"^\| `(greenstalk_\w+)` \| (\w+) \| ([^|]*)\|", re.MULTILINE)
    listed = rows.findall((DOCS / "metrics.md").read_text())
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in listed}
    assert len(documented) == len(listed)
    assert documented == {name: (kind, labels - {"le"}) for name, kind, labels in families(exposition)}


def families(text: str) -> Iterator[tuple[str, str, set[str]]]:
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        yield name, family.type, set().union(*(sample.labels for sample in family.samples))
