"""Errors of a tube in a real browser: from the attention sentence to a retried group, and columns of JSON fields."""

from __future__ import annotations

import json
from collections.abc import Iterator

import greenstalk
import pytest
from playwright.sync_api import expect

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .visit import FLAGS, Clients, follow, press

CONFIG = """
[attention]
buried_growth = 5

[policies.failing]
tubes = ["failing"]
max_attempts = 1
dead_letter = "failing.dead"
"""

MANY = 20_000
LONG = "TimeoutError: no answer from https://api.example.org/v1/" + "segments/" * 40 + "end"


def body(error: str, **more: object) -> bytes:
    return json.dumps({"kind": "order", "customer": {"id": 316430}, "error": error, **more}).encode()


def fail(clients: Clients, *bodies: bytes) -> list[int]:
    """Put and bury a job with each body."""
    ids = clients.put(*bodies)
    for id in ids:
        clients.worker.bury(clients.worker.reserve_job(id))
    return ids


def titles(tab: Tab) -> list[str]:
    return tab.page.locator(".error-title").all_inner_texts()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    file = tmp_path_factory.mktemp("config") / "greenstalk.toml"
    file.write_text(CONFIG)
    with Daemon(*FLAGS, "--config", str(file)) as running:
        yield running


def errors_page(daemon: Daemon, tube: str) -> str:
    return f"{daemon.dashboard}tube/errors?tube={tube}"


def test_most_common_error_is_retried_in_three_clicks(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    fail(clients, *[body(f"no route to 10.0.0.{n}") for n in range(6)], body("quota"), b"plain text")
    sentence = tab.page.locator(".condition a", has_text=f"“{clients.tube}” are buried")
    tab.page.goto(daemon.dashboard)
    while not sentence.count():  # without scripts, the page does not show conditions that begin later
        tab.page.reload()
    follow(tab, sentence.first)
    assert titles(tab) == ["no route to #", "quota", "No error in the body"]
    assert tab.page.locator(".error-group .value").all_inner_texts() == ["6", "1", "1"]
    press(tab, "Retry: no route to #")
    assert "Kick 6 jobs?" in tab.page.inner_text("h1")
    assert f'tube:{clients.tube} state:buried error:"no route to #"' in tab.page.inner_text("main")
    press(tab, "Kick 6 jobs")
    tab.page.locator("[data-task-state]", has_text="done").wait_for()
    assert clients.states() == (6, 0, 0, 2)
    follow(tab, tab.page.get_by_role("link", name="Go back"))
    assert titles(tab) == ["quota", "No error in the body"]
    follow(tab, tab.page.get_by_role("link", name="Jobs", exact=True))
    follow(tab, tab.page.get_by_role("link", name="Errors", exact=True))
    assert titles(tab) == ["quota", "No error in the body"]


def test_group_is_moved_and_deleted(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    fail(clients, body("late 1"), body("late 2"), body("quota"))
    tab.page.goto(errors_page(daemon, clients.tube))
    tab.page.get_by_label("More: quota").click()
    tab.page.get_by_label("Move to tube").last.fill(f"{clients.tube}.later")
    with tab.page.expect_navigation():
        tab.page.get_by_role("button", name="Move").click()
    press(tab, "Move 1 job")
    tab.page.locator("[data-task-state]", has_text="done").wait_for()
    tab.page.goto(errors_page(daemon, clients.tube))
    assert titles(tab) == ["late #"]
    tab.page.get_by_label("More: late").click()
    press(tab, "Delete: late #")
    tab.page.get_by_label("to confirm").fill(clients.tube)
    press(tab, "Delete 2 jobs")
    tab.page.locator("[data-task-state]", has_text="done").wait_for()
    assert clients.producer.stats_tube(f"{clients.tube}.later")["current-jobs-buried"] == 1
    assert clients.states() == (0, 0, 0, 0)


def test_long_grouping_opens_its_result(tab: Tab, daemon: Daemon) -> None:
    tube = "many"
    with greenstalk.Client(("127.0.0.1", daemon.port), use=tube, watch=tube, encoding=None) as client:
        if client.stats_tube(tube)["current-jobs-buried"] == 0:
            for n in range(MANY):
                client.bury(client.reserve_job(client.put(body(f"late {n}", pad="x" * 300))))
    tab.page.goto(f"{errors_page(daemon, tube)}&refresh=1")
    expect(tab.page.locator(".error-group .value")).to_have_text([f"{MANY:,}"])
    assert titles(tab) == ["late #"]


def test_live_rows_have_fields_and_whole_errors(chromium: Browser, daemon: Daemon) -> None:
    clients = Clients(daemon, "live")
    with chromium.tab(daemon.dashboard) as tab:
        fail(clients, body("late"))
        tab.page.goto(f"{clients.url}&state=buried&cols=customer.id")
        tab.page.wait_for_selector("#live[data-state=live]")
        fail(clients, body(LONG))
        cell = tab.page.locator(".jobs td.error").nth(1)
        expect(cell).to_have_text(LONG)
        expect(cell).to_have_attribute("title", LONG)
        expect(tab.page.locator(".jobs td.json").nth(1)).to_have_text("316430")
        assert (tab.console, tab.elsewhere) == ([], [])
    clients.close()


@pytest.fixture(scope="module")
def tube(daemon: Daemon) -> Iterator[str]:
    """A tube with failed jobs of many kinds."""
    clients = Clients(daemon, "a-tube.with-a-rather-long-name.of.several-words.that-must-not-overflow")
    errors = [*[f"no route to 10.0.0.{n}" for n in range(60)], *["quota exceeded"] * 20, LONG, "x" * 250]
    fail(clients, *[body(error) for error in errors], b"plain text " * 30, "\u202eevil".encode())
    yield clients.tube
    clients.close()
