"""The overview page and its live state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.journal import JournalStats
from greenstalk_server.core.operations import connecting, editing, finishing, reserving
from greenstalk_server.core.outcomes import WaitOutcome
from greenstalk_server.protocol.stats import ServerStats
from greenstalk_server.web.features.history.figures import WholeFigures
from greenstalk_server.web.features.history.history import History
from greenstalk_server.web.features.tubes.pages.onboarding import examples
from greenstalk_server.web.features.tubes.pages.overview import (
    COMMANDS,
    GROUPS,
    MAX_TUBES,
    OverviewBuilder,
    journal_texts,
    memory_texts,
)
from greenstalk_server.web.features.tubes.tube_view import COLUMNS, DEFAULT_ORDER, TUBE_BATCH, TubeViews
from greenstalk_server.web.framework.shards import ALONE
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.fronts import Fronts

from .conftest import Queue, visiting
from .table import Page
from .turns import LoopIterations

HOSTILE_NAMES = (
    "/", "//x", "a/jobs", ".", "..", "../..", "/lead", "trail/", ";", "$", "$(reboot)", "(", ")", "+", "+a+b", "a+b",
    "_", "x.y;z=1", "tube--", "A" * 200, "/" * 200, "(" + "-" * 199,
)  # fmt: skip


def page(client: FlaskClient, path: str = "/", **query: str) -> Page:
    response = client.get(path, query_string=query or None)
    assert response.status_code == 200
    return Page(response.text)


def live(client: FlaskClient, **query: str) -> dict[str, Any]:
    response = client.get("/live", query_string={"page": "overview"} | query)
    assert response.status_code == 200
    return response.json


def tubes(client: FlaskClient, **query: str) -> dict[str, dict[str, str]]:
    """Return the table of tubes on a page: for each tube the cells by column key, without sparklines."""
    return {
        row[0]: {column.key: cell for column, cell in zip(COLUMNS, row[1:], strict=True) if column.kind != "path"}
        for row in page(client, **query).tubes
    }


def names(client: FlaskClient, **query: str) -> list[str]:
    return [row[0] for row in page(client, **query).tubes]


CALM = {column.key: "0" for column in COLUMNS if column.kind == "text"} | {
    "attention": "", "oldest": "–", "drain": "–", "pause": "–",
}  # fmt: skip


def test_each_count_is_in_its_column(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", pri=5, count=7)
    queue.put("mail", count=1200)
    queue.put("mail", delay=30, count=4)
    worker, waiter = queue.connect(), queue.connect()
    connecting.watch(queue.broker, worker, b"mail")
    taken = [reserving.reserve(queue.broker, worker, queue.now) for _ in range(3)]
    assert taken[0]
    assert finishing.bury(queue.broker, worker, taken[0].id, 5, queue.now)
    connecting.watch(queue.broker, waiter, b"other")
    connecting.ignore(queue.broker, waiter, b"default")
    assert reserving.wait(queue.broker, waiter, None, queue.now) == WaitOutcome.WAITING
    connecting.use(queue.broker, waiter, b"mail")
    queue.now += 75 * SECOND
    assert tubes(client) == {
        "default": CALM,
        "mail": CALM | {
            "ready": "1,204", "urgent": "4", "reserved": "2", "delayed": "4", "buried": "1",
            "oldest": "1\xa0min 15\xa0s",
        },
        "other": CALM | {"waiting": "1"},
    }  # fmt: skip


def test_rates_and_values_derived_from_them(queue: Queue) -> None:
    client = queue.app().test_client()
    history: History = client.application.extensions["dashboard"].history
    worker = queue.connect()
    connecting.watch(queue.broker, worker, b"mail")
    queue.put("mail", count=100)
    for _ in range(12):
        history.tick()
        queue.now += SECOND
        queue.put("mail", count=1)
        for _ in range(4):
            job = reserving.reserve(queue.broker, worker, queue.now)
            assert job
            finishing.delete(queue.broker, worker, job.id, queue.now)
    history.tick()
    row = tubes(client)["mail"]
    assert (row["put-rate"], row["reserve-rate"], row["delete-rate"], row["bury-rate"]) == ("1.0", "4.0", "4.0", "0")
    assert (row["ready"], row["drain"]) == ("64", "22\xa0s")  # drains by three jobs per second
    fields = live(client)["fields"]
    assert (fields["rate-put"], fields["rate-delete"]) == ("1.0", "4.0")
    assert fields["spark-put"].startswith("M")
    drawn = dict(zip([column.key for column in COLUMNS], live(client)["rows"]["tubes"][1][1:], strict=True))["trend"]
    assert drawn.startswith("M")
    for _ in range(12):
        queue.now += SECOND
        queue.put("mail", count=2)
        history.tick()
    assert tubes(client)["mail"]["drain"] == "growing"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["a", "b", "c", "default"]),
        ({"sort": "name", "desc": "1"}, ["default", "c", "b", "a"]),
        ({"sort": "ready", "desc": "1"}, ["b", "c", "a", "default"]),
        ({"sort": "ready"}, ["default", "a", "c", "b"]),
        ({"sort": "oldest", "desc": "1"}, ["a", "b", "c", "default"]),
        ({"sort": "oldest"}, ["c", "b", "a", "default"]),  # tubes without an age sort last in both directions
        ({"sort": "pause", "desc": "1"}, ["c", "a", "b", "default"]),
        ({"sort": "buried", "desc": "1"}, ["a", "b", "c", "default"]),  # equal values sort by name
    ],
)
def test_tubes_are_sorted(queue: Queue, client: FlaskClient, query: dict[str, str], expected: list[str]) -> None:
    for name, count in (("a", 2), ("b", 9), ("c", 4)):
        queue.put(name, count=count)
        queue.now += SECOND
    editing.pause_tube(queue.broker, b"c", 60 * SECOND, queue.now)
    connecting.watch(queue.broker, queue.connect(), b"a")
    assert names(client, **query) == expected
    assert [row[0] for row in live(client, **query)["rows"]["tubes"]] == expected
    shown = page(client, **query)
    [head] = [attributes for _, attributes in shown.elements if "aria-sort" in attributes]
    assert head["class"] == query.get("sort", "attention")
    assert head["aria-sort"] == ("descending" if query.get("desc") or not query else "ascending")


def test_sort_links_keep_the_filter_and_the_filter_form_keeps_the_order(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=3)
    queue.put("mailbox", count=5)
    shown = page(client, q="mail", sort="ready", desc="1")
    links = [attributes["href"] for tag, attributes in shown.elements if tag == "a" and "data-narrowed" in attributes]
    assert "/?q=mail&sort=ready" in links  # reversed
    assert "/?q=mail&sort=buried&desc=1" in links
    assert "/?q=mail" in links
    assert len(links) == 1 + sum(column.rank is not None for column in COLUMNS)
    for link in links:
        assert {row[0] for row in page(client, link).tubes} == {"mail", "mailbox"}
    hidden = {a["name"]: a["value"] for tag, a in shown.elements if tag == "input" and a.get("type") == "hidden"}
    assert hidden.items() >= {"sort": "ready", "desc": "1"}.items()


def test_every_figure_is_shown_and_updated_live(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=3)
    tables = [field for _, entries in GROUPS for _, field in entries] + [field for _, field in COMMANDS]
    assert len(set(tables)) == len(tables)
    assert {field.name for field in fields(ServerStats)} < set(tables)
    shown = page(client)
    placed = {attributes["data-field"] for _, attributes in shown.elements if "data-field" in attributes}
    state = live(client)
    assert placed == set(state["fields"])
    assert set(tables) < placed
    assert {a["data-shown"] for _, a in shown.elements if "data-shown" in a} == set(state["shown"])
    for value in (
        "9.8.7",
        "compiled",
        "4711",
        "0123456789abcdef",
        "queue-host",
        "pdp11",
        "1.50 s",
        "0.25 s",
        "65,535 bytes",
    ):
        assert value in shown.text
    assert state["rows"]["tubes"] == shown.tubes
    assert state["fields"]["summary"] == "2 tubes"


def test_memory_and_journal(queue: Queue, client: FlaskClient) -> None:
    fields = live(client)["fields"]
    assert (fields["memory"], fields["journal_size"]) == ("–", "–")
    assert fields["journal_state"] == "none: jobs are in memory only"
    stats = JournalStats(
        is_on_disk=True, files=3, bytes_on_disk=20_971_520, bytes_recorded=8000, bytes_live=2000, synced_ago=61.9
    )
    assert journal_texts(stats, None) == {
        "journal_state": "ok",
        "journal_synced": "1\xa0min 1\xa0s ago",
        "journal_size": "21.0\xa0MB",
        "journal_live": "25% of 8.0\xa0kB",
        "journal_files": "3",
    }
    assert journal_texts(stats, "on fire")["journal_state"] == "failing"
    assert journal_texts(replace(stats, is_full=True, synced_ago=None), None)["journal_state"] == "disk full"
    assert memory_texts((61_234_567, 999)) == {"memory": "61.2\xa0MB", "memory_private": "999\xa0bytes"}


def links(shown: Page) -> dict[str, str]:
    """Return the relation and URL of the links to other pages of the tubes."""
    anchors = [attributes for tag, attributes in shown.elements if tag == "a" and "rel" in attributes]
    return {anchor["rel"] or "": anchor["href"] or "" for anchor in anchors}


def test_many_tubes_are_paged_by_name(queue: Queue, client: FlaskClient) -> None:
    for number in reversed(range(250)):
        queue.put(f"x{number:03}")
    shown = page(client)
    assert [row[0] for row in shown.tubes] == ["default"] + [f"x{number:03}" for number in range(MAX_TUBES - 1)]
    assert "1–100 of 251 tubes, those that need attention first" in shown.text
    assert "1–100 of 250 tubes that match, by name" in page(client, q="X", sort="name").text
    assert links(shown) == {"next": "/?from=100"}
    second = page(client, q="x", sort="name", desc="1", **{"from": "100"})
    assert [row[0] for row in second.tubes] == [f"x{number:03}" for number in range(149, 49, -1)]
    assert "101–200 of 250 tubes that match, by name, descending" in second.text
    kept = "/?q=x&sort=name&desc=1"
    assert links(second) == {"prev": kept, "next": f"{kept}&from=200"}
    last = page(client, **{"from": "200"})
    assert [row[0] for row in last.tubes] == [f"x{number:03}" for number in range(199, 250)]
    assert links(last) == {"start": "/", "prev": "/?from=100"}
    beyond = page(client, **{"from": "5000"})
    assert beyond.tubes == last.tubes, "the last page if there are fewer tubes"
    state = live(client, **{"from": "200"})
    assert state["rows"]["tubes"] == last.tubes
    assert "First page" in state["parts"]["pager"]
    assert client.get("/?from=x").status_code == 400
    found = page(client, q="x24")
    assert links(found) == {}
    assert [row[0] for row in found.tubes] == [f"x{number}" for number in range(240, 250)]
    assert "10 of 251 tubes" in found.text


def build_overview(queue: Queue, client: FlaskClient) -> tuple[OverviewBuilder, TubeViews]:
    """Return a builder of the overview, and its tubes."""
    history, clock = client.application.extensions["dashboard"].history, lambda: queue.now
    views = TubeViews(queue.broker, clock, history)
    return OverviewBuilder(
        queue.broker, views, WholeFigures(queue.broker, clock, history, ALONE, Fronts(clock, ALONE))
    ), views


@pytest.mark.parametrize("order", [DEFAULT_ORDER, Order("ready", True), Order("name", False)])
def test_only_the_tubes_of_the_page_are_viewed_in_full(
    queue: Queue, client: FlaskClient, monkeypatch: pytest.MonkeyPatch, order: Order
) -> None:
    for number in range(150):
        queue.put(f"x{number:03}")
    builder, views = build_overview(queue, client)
    viewed = list[bytes]()
    view = views.of
    monkeypatch.setattr(views, "of", lambda tube, now: viewed.append(tube.name) or view(tube, now))
    with visiting(client.application):
        builder.build("", order, queue.now)
    assert len(viewed) == MAX_TUBES


@pytest.mark.parametrize(("query", "order"), [("", DEFAULT_ORDER), ("x09", DEFAULT_ORDER), ("", Order("oldest", True))])
def test_scan_of_ten_thousand_tubes_lets_others_run(
    queue: Queue, client: FlaskClient, query: str, order: Order, short_steps: None
) -> None:
    for number in range(10_000):
        queue.put(f"x{number:05}")
    builder, _ = build_overview(queue, client)
    with visiting(client.application), LoopIterations() as turns:
        assert len(builder.build(query, order, queue.now).tubes) == MAX_TUBES
    steps = math.ceil(10_001 / TUBE_BATCH)
    assert turns.count >= steps + MAX_TUBES + steps  # ranking, rendering the page, and the totals


def test_unused_queue_shows_examples(queue: Queue, visit: Callable[..., FlaskClient]) -> None:
    client = visit(beanstalk="127.0.0.1:11399")
    shown = page(client)
    assert shown.is_shown("unused")
    assert 'greenstalk.Client(("127.0.0.1", 11399))' in shown.text
    [id] = queue.put("mail")
    assert not page(client).is_shown("unused")
    finishing.delete(queue.broker, None, id, queue.now)
    assert not page(client).is_shown("unused")


@pytest.mark.parametrize(
    ("beanstalk", "python", "shell"),
    [
        ("0.0.0.0:11300", '("127.0.0.1", 11300)', "nc 127.0.0.1 11300"),
        ("[::]:11300", '("::1", 11300)', "nc ::1 11300"),
        ("[fe80::1]:5", '("fe80::1", 5)', "nc fe80::1 5"),
        ("unix:/run/my queue", "Client('/run/my queue')", "nc -U '/run/my queue'"),
    ],
)
def test_examples_name_an_address_to_connect_to(beanstalk: str, python: str, shell: str) -> None:
    put, work, put_from_shell = examples(beanstalk)
    assert python in put.code
    assert python in work.code
    assert put_from_shell.code.endswith(shell)


def test_of_tubes_without_workers_the_one_with_more_jobs_is_first(queue: Queue, client: FlaskClient) -> None:
    for name, jobs in (("a", 2), ("b", 7), ("c", 3)):
        queue.put(name, count=jobs)
    for _ in range(100):
        queue.now += 10 * SECOND
        client.application.extensions["dashboard"].attention.tick()
    assert names(client) == ["b", "c", "a", "default"]


def test_tubes_that_need_attention_are_first(queue: Queue, client: FlaskClient) -> None:
    attention = client.application.extensions["dashboard"].attention
    for tube in ("a", "b", "c"):
        queue.connect()
        connecting.watch(queue.broker, queue.connect(), tube.encode())
    queue.put("z", count=5)
    for _ in range(100):
        queue.now += 10 * SECOND
        attention.tick()
    assert names(client) == ["z", "a", "b", "c", "default"]
    assert names(client, sort="attention") == ["a", "b", "c", "default", "z"]
    assert names(client, sort="name") == ["a", "b", "c", "default", "z"]
