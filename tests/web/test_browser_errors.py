"""Errors of a tube in a real browser: a group is moved and deleted, and rows are added live."""

from __future__ import annotations

import json

from playwright.sync_api import expect

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .visit import Clients, press

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


def errors_page(daemon: Daemon, tube: str) -> str:
    return f"{daemon.dashboard}tube/errors?tube={tube}"


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


def test_live_rows_have_fields_and_whole_errors(chromium: Browser, daemon: Daemon) -> None:
    clients = Clients(daemon, "live")
    with chromium.tab(daemon.dashboard) as tab:
        fail(clients, body("late"))
        tab.page.goto(f"{clients.url}&state=buried&cols=customer.id")
        tab.page.wait_for_selector("#live[data-state=live]")
        fail(clients, body(LONG))
        cell = tab.page.locator(".jobs td.error").first
        expect(cell).to_have_text(LONG)
        expect(cell).to_have_attribute("title", LONG)
        expect(tab.page.locator(".jobs td.json").first).to_have_text("316430")
        assert (tab.console, tab.elsewhere) == ([], [])
    clients.close()
