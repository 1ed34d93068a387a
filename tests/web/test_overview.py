"""The overview page and its JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
from flask.testing import FlaskClient

from greenstalk_server.broker import WAITING
from greenstalk_server.job import BURIED, SECOND
from greenstalk_server.stats import ServerStats
from web.first_job import examples
from web.overview import COLUMNS, COMMANDS, GROUPS, TUBES_AT_MOST

from .conftest import Queue
from .table import Page

HOSTILE_NAMES = (
    "/", "//x", "a/jobs", ".", "..", "../..", "/lead", "trail/", ";", "$", "$(reboot)", "(", ")", "+", "+a+b", "a+b",
    "_", "x.y;z=1", "tube--", "A" * 200, "/" * 200, "(" + "-" * 199,
)  # fmt: skip


def page(client: FlaskClient, path: str = "/", **query: str) -> Page:
    response = client.get(path, query_string=query or None)
    assert response.status_code == 200
    return Page(response.text)


def test_each_count_stands_in_its_column(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", pri=5, count=7)
    queue.put("mail", count=1200)
    queue.put("mail", delay=30, count=4)
    worker, waiter = queue.connect(), queue.connect()
    queue.broker.watch(worker, b"mail")
    taken = [queue.broker.reserve(worker, queue.now) for _ in range(3)]
    assert taken[0]
    assert queue.broker.bury(worker, taken[0].id, 5)
    queue.broker.watch(waiter, b"other")
    queue.broker.ignore(waiter, b"default")
    assert queue.broker.wait(waiter, None, queue.now) == WAITING
    queue.broker.use(waiter, b"mail")

    shown = page(client)
    names = ["Tube", *[column.label for column in COLUMNS]]
    assert [dict(zip(names, row, strict=True)) for row in shown.tubes] == [
        {
            "Tube": "default", "Ready": "0", "Urgent": "0", "Reserved": "0", "Delayed": "0", "Buried": "0",
            "Waiting": "0", "Watching": "1", "Using": "1", "Total": "0", "Pause": "–",
        },
        {
            "Tube": "mail", "Ready": "1,204", "Urgent": "4", "Reserved": "2", "Delayed": "4", "Buried": "1",
            "Waiting": "0", "Watching": "1", "Using": "1", "Total": "1,211", "Pause": "–",
        },
        {
            "Tube": "other", "Ready": "0", "Urgent": "0", "Reserved": "0", "Delayed": "0", "Buried": "0",
            "Waiting": "1", "Watching": "1", "Using": "0", "Total": "0", "Pause": "–",
        },
    ]  # fmt: skip


def test_pause_counts_down(queue: Queue, client: FlaskClient) -> None:
    queue.broker.pause_tube(b"default", 3700 * SECOND, queue.now)
    assert page(client).tubes[0][-1] == "1\xa0h 1\xa0min"
    queue.now += 3695 * SECOND - 1
    assert page(client).tubes[0][-1] == "5\xa0s"
    queue.now += 5 * SECOND + 1
    queue.broker.tick(queue.now)
    assert page(client).tubes[0][-1] == "–"


def test_every_figure_of_stats_is_shown_once(client: FlaskClient) -> None:
    tables = [field for _, entries in GROUPS for _, field in entries] + [field for _, field in COMMANDS]
    assert sorted(tables) == sorted(field.name for field in fields(ServerStats))
    shown = page(client)
    placed = [attributes["data-field"] for _, attributes in shown.elements if "data-field" in attributes]
    assert set(placed) == set(tables)
    for value in ("9.8.7", "4711", "0123456789abcdef", "queue-host", "pdp11", "1.50 s", "0.25 s", "65,535 bytes"):
        assert value in shown.text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (7260, "2 h 1 min"),
        (86400, "1 d"),
        (100_000, "1 d 3 h"),
    ],
)
def test_uptime(queue: Queue, client: FlaskClient, seconds: int, text: str) -> None:
    queue.now += seconds * SECOND
    assert client.get("/overview.json").json["server"]["uptime"].replace("\xa0", " ") == text


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_name_is_shown_and_found(queue: Queue, client: FlaskClient, name: str) -> None:
    queue.put(name)
    queue.put("zzz")
    shown = page(client, q=name)
    assert name in [row[0] for row in shown.tubes]
    assert shown.attribute("q", "value") == name
    assert name in [row[0] for row in page(client).tubes]
    assert name in [row[0] for row in client.get("/overview.json", query_string={"q": name}).json["tubes"]]


@pytest.mark.parametrize("query", ['"><script>alert(1)</script>', "'onload=x", "&amp;", "<q", "\0", "é", "\ud800"])
def test_filter_is_escaped(client: FlaskClient, query: str) -> None:
    encoded = query.encode("utf-8", "surrogatepass")
    shown = page(client, "/?q=" + "".join(f"%{byte:02x}" for byte in encoded))
    assert shown.tubes == []
    assert [tag for tag, _ in shown.elements].count("script") == 1
    assert not any(name.startswith("on") for _, attributes in shown.elements for name in attributes)


def test_names_that_only_a_journal_could_bring_are_escaped(queue: Queue, client: FlaskClient) -> None:
    queue.put("<img src=x onerror=alert(1)>")
    shown = page(client)
    assert shown.tubes[0][0] == "<img src=x onerror=alert(1)>"
    assert [attributes["src"] for tag, attributes in shown.elements if tag == "img"] == ["/static/favicon.svg"]


def test_first_page_of_many_tubes_is_by_name(queue: Queue, client: FlaskClient) -> None:
    for number in reversed(range(250)):
        queue.put(f"x{number:03}")
    shown = page(client)
    assert [row[0] for row in shown.tubes] == ["default"] + [f"x{number:03}" for number in range(TUBES_AT_MOST - 1)]
    assert "first 100 of 251 tubes, by name" in shown.text
    assert "first 100 of 250 tubes that match, by name" in page(client, q="X").text
    found = page(client, q="x24")
    assert [row[0] for row in found.tubes] == [f"x{number}" for number in range(240, 250)]
    assert "10 of 251 tubes" in found.text


def test_filter_without_a_match_offers_the_way_back(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    shown = page(client, q=" nowhere ")
    assert shown.is_shown("filtered-out")
    assert not shown.is_shown("table")
    assert "name contains nowhere." in shown.text
    assert not page(client, q="ai").is_shown("filtered-out")


def test_unused_queue_says_how_to_put_a_first_job(queue: Queue, visit: Callable[..., FlaskClient]) -> None:
    client = visit(beanstalk="127.0.0.1:11399")
    shown = page(client)
    assert shown.is_shown("unused")
    assert 'greenstalk.Client(("127.0.0.1", 11399))' in shown.text
    [id] = queue.put("mail")
    assert not page(client).is_shown("unused")
    queue.broker.delete(None, id)
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


def test_draining_is_said(queue: Queue, client: FlaskClient) -> None:
    assert not page(client).is_shown("draining")
    queue.broker.drain()
    assert page(client).is_shown("draining")


def test_trouble_of_the_journal_is_said(queue: Queue, client: FlaskClient) -> None:
    assert not page(client).is_shown("trouble")
    queue.broker.journal.trouble = "[Errno 28] No space left on device: <disk>"
    shown = page(client)
    assert shown.is_shown("trouble")
    assert "Puts are refused" in shown.text
    assert "No space left on device: <disk>" in shown.text
    assert client.get("/overview.json").json["trouble"] == queue.broker.journal.trouble


def test_json_and_page_show_the_same_texts(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=3)
    look = client.get("/overview.json?q=a").json
    shown = page(client, q="a")
    assert look["tubes"] == shown.tubes
    assert look["summary"] in shown.text
    assert set(look["server"]) == {field.name for field in fields(ServerStats)}


def test_looking_changes_nothing(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=3)
    queue.put("mail", delay=9)
    before = client.get("/overview.json").json
    for path in ("/", "/?q=mail", "/overview.json?q=x", "/healthz", "/readyz", "/static/style.css", "/nowhere"):
        client.get(path, buffered=True)
    assert client.get("/overview.json").json == before
    assert queue.broker.kick(queue.broker.tubes[b"mail"], BURIED, 1, queue.now) == 0
    queue.broker.check()
