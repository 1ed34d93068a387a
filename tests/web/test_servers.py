"""The page of several servers: real ones, and ones that are gone, slow, or hostile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from flask.testing import FlaskClient

from greenstalk_server.config.tables.peers import parse_peer
from greenstalk_server.config.tables.targets import MAX_URL
from greenstalk_server.web.features.servers.servers import MAX_TEXT, REFRESH_INTERVAL
from greenstalk_server.web.framework.outbound import MAX_RESPONSE
from tests.support.daemon import Daemon, environment
from tests.support.receiver import Receiver, answer

from .browser import Browser
from .conftest import Queue
from .visit import FLAGS, is_too_wide, violations

HERE = {"allow_plain": True, "allow_private": True, "timeout": 30}

STATS = {
    "version": "1.2.3", "hostname": "far-host", "uptime": 90061, "current_connections": 7, "current_jobs_ready": 1234,
    "current_jobs_reserved": 2, "current_jobs_delayed": 3, "current_jobs_buried": 4,
}  # fmt: skip
FIGURES = {"stats": STATS, "rates": {"put": 1.5, "reserve": 2.5, "delete": 0.0}, "role": "leader", "new": [{}]}
ATTENTION = {"total": 3, "conditions": [{"severity": "critical", "sentence": "The disk is full.", "tube": None}]}


@pytest.fixture
def other() -> Iterator[Receiver]:
    with Receiver() as running:
        running.answer = serving(FIGURES, ATTENTION)
        yield running


def serving(figures: Any, attention: Any) -> Callable[[BaseHTTPRequestHandler], None]:
    def respond(handler: BaseHTTPRequestHandler) -> None:
        document = attention if "/attention" in handler.path else figures
        answer(200, document if isinstance(document, bytes) else json.dumps(document).encode())(handler)

    return respond


@pytest.fixture
def listed(queue: Queue) -> Callable[..., FlaskClient]:
    """Return a function that creates a client of a dashboard with these other servers."""

    def make(*tables: dict[str, Any], **options: Any) -> FlaskClient:
        peers = tuple([parse_peer(f"s{n}", HERE | table) for n, table in enumerate(tables)])
        return queue.app(peers=lambda: peers, **options).test_client()

    return make


def statuses(client: FlaskClient) -> list[dict[str, Any]]:
    """Return the other servers in the API once each has responded or failed."""
    while True:
        response = client.get("/api/v1/servers")
        assert response.status_code == 200
        found: list[dict[str, Any]] = response.json["servers"][1:]
        if "pending" not in {each["state"] for each in found}:
            return found


def status(client: FlaskClient) -> dict[str, Any]:
    """Return the only other server in the API once it has responded or failed."""
    (found,) = statuses(client)
    return found


def test_figures_of_another_server(listed: Callable[..., FlaskClient], other: Receiver, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("swordfish\n")
    client = listed({"url": f"{other.url}/queue/", "token_file": str(token)})
    found = status(client)
    assert (found["name"], found["state"], found["role"], found["problem"]) == ("s0", "reachable", "leader", "")
    assert found["address"] == other.url
    assert found["figures"] == {
        "version": "1.2.3", "hostname": "far-host", "uptime": 90061, "connections": 7, "ready": 1234, "reserved": 2,
        "delayed": 3, "buried": 4, "put": 1.5, "reserve": 2.5, "delete": 0.0, "conditions": 3,
        "worst": "The disk is full.", "severity": "critical",
    }  # fmt: skip
    assert [request.path for request in other.requests] == [
        "/queue/api/v1/server",
        "/queue/api/v1/attention?limit=1",
    ]
    assert {request.headers["authorization"] for request in other.requests} == {"Bearer swordfish"}
    page = client.get("/servers").text
    assert "1,234" in page
    assert f'href="{other.url}/queue/"' in page
    assert "swordfish" not in page


def test_this_server_comes_first(listed: Callable[..., FlaskClient], queue: Queue) -> None:
    queue.put("mail", count=3)
    this, *others = listed().get("/api/v1/servers").json["servers"]
    assert others == []
    assert (this["name"], this["is_this"], this["role"], this["state"]) == ("queue-host", True, "single", "reachable")
    assert (this["figures"]["ready"], this["figures"]["version"]) == (3, "9.8.7")


def test_server_is_queried_again_only_after_the_interval(
    listed: Callable[..., FlaskClient], queue: Queue, other: Receiver
) -> None:
    client = listed({"url": other.url})
    for _ in range(5):
        status(client)
    assert len(other.requests) == 2
    queue.now += REFRESH_INTERVAL
    status(client)
    assert len(other.wait_for(4)) == 4


def test_servers_are_queried_at_the_same_time(listed: Callable[..., FlaskClient], other: Receiver) -> None:
    def respond(handler: BaseHTTPRequestHandler) -> None:
        other.wait_for(6)
        serving(FIGURES, ATTENTION)(handler)

    other.answer = respond
    servers = statuses(listed(*[{"url": other.url}] * 6))
    assert [server["state"] for server in servers] == ["reachable"] * 6


def test_server_that_does_not_respond_is_unreachable(listed: Callable[..., FlaskClient], other: Receiver) -> None:
    other.answer = other.hang
    found = status(listed({"url": other.url, "timeout": 1}))
    assert (found["state"], found["problem"]) == ("unreachable", "no complete response within 1 s")


def test_page_does_not_wait_for_a_slow_server(listed: Callable[..., FlaskClient], other: Receiver) -> None:
    other.answer = other.hang
    assert "pending" in listed({"url": other.url}).get("/servers").text


def test_standby_is_not_a_failure(listed: Callable[..., FlaskClient], other: Receiver) -> None:
    line = b"standby of the journal mail: a is active, 0.1 s behind\n"
    other.answer = answer(503, line)
    found = status(listed({"url": other.url}))
    assert (found["state"], found["role"], found["figures"]) == ("standby", "standby", None)
    assert found["problem"] == line.decode().strip()


def stats(**changes: Any) -> dict[str, Any]:
    return FIGURES | {"stats": STATS | changes}


@pytest.mark.parametrize(
    "figures",
    [
        b"", b"<html>", b"null", b"[]", b"{}", b"\xff", b"[" * 60_000, stats(uptime=-1), stats(uptime="1"),
        stats(current_jobs_ready=2**63), stats(current_jobs_ready=10**400), stats(version=7), stats(hostname=None),
        FIGURES | {"rates": {"put": 1e300, "reserve": 0, "delete": 0}}, b"x" * (MAX_RESPONSE + 1),
    ],
)  # fmt: skip
def test_response_of_another_form_is_an_error(
    listed: Callable[..., FlaskClient], other: Receiver, figures: Any
) -> None:
    other.answer = serving(figures, ATTENTION)
    found = status(listed({"url": other.url}))
    assert (found["state"], found["figures"]) == ("unreachable", None)
    assert found["problem"] in (
        "the response does not come from a Greenstalk Server of this version",
        "the response is too long",
    )


def test_texts_of_another_server_are_escaped(listed: Callable[..., FlaskClient], other: Receiver) -> None:
    evil = "<script>alert(1)</script>\u202e\x1b[31m\n" + "x" * 2000
    condition = {"severity": evil, "sentence": evil}
    other.answer = serving(stats(version=evil, hostname=evil), {"total": 1, "conditions": [condition]})
    client = listed({"url": other.url})
    found = status(client)["figures"]
    assert len(found["version"]) == len(found["worst"]) == MAX_TEXT
    assert "\x1b" not in found["worst"]
    assert found["severity"] == "warning"
    page = client.get("/servers").text
    assert "<script>alert" not in page
    assert "\u202e" not in page


def test_address_in_a_file_is_not_shown(listed: Callable[..., FlaskClient], other: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(f"{other.url}/swordfish")
    client = listed({"url_file": str(file)})
    assert status(client)["address"] == f"in the file {file}"
    assert "swordfish" not in client.get("/servers").text
    assert len(f"{other.url}/swordfish") < MAX_URL


CONFIG = """
[servers.second]
url = "{second}"
token_env = "SECOND_TOKEN"
allow_plain = true
allow_private = true

[servers.gone]
url = "http://127.0.0.1:1/"
allow_plain = true
allow_private = true
"""


def test_real_servers_in_a_browser(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "greenstalk.toml"
    secret = environment(GREENSTALK_API_VIEWER_TOKEN="swordfish")  # noqa: S106
    with Daemon(*FLAGS, environ=secret) as second:
        file.write_text(CONFIG.format(second=second.dashboard))
        with Daemon(*FLAGS, "--config", str(file), environ=environment(SECOND_TOKEN="swordfish")) as first:  # noqa: S106
            second.ask(b"use mail\r\nput 0 0 60 2\r\nhi\r\n")
            with urlopen(f"{first.dashboard}api/v1/servers") as response:  # noqa: S310
                servers = {server["name"]: server for server in json.load(response)["servers"]}
            assert servers["second"]["figures"]["ready"] == 1
            assert "Connection refused" in servers["gone"]["problem"]
            with chromium.tab(first.dashboard, 360) as tab:
                tab.page.goto(first.dashboard)
                tab.page.get_by_role("link", name="Servers").click()
                row = tab.page.get_by_role("row", name="second")
                assert row.get_by_role("link").get_attribute("href") == second.dashboard
                row.get_by_text("nothing", exact=True).wait_for()
                tab.page.get_by_role("row", name="gone").get_by_text("unreachable", exact=True).wait_for()
                second.ask(b"use mail\r\nput 0 0 60 2\r\nhi\r\n")
                row.locator("td.ready").get_by_text("2", exact=True).wait_for()
                assert not is_too_wide(tab)
                assert violations(tab) == []
                assert (tab.console, tab.elsewhere) == ([], [])
