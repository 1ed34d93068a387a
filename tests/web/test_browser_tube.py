"""The page of a tube in a real browser: its summary and its filter, with and without scripts."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .test_browser_bulk import kept_busy, put_many
from .visit import Clients, follow, press

MANY = 60_000

TOP = "element => element.getBoundingClientRect().top + scrollY"


def filter_jobs(tab: Tab, query: str) -> None:
    tab.page.get_by_label("Filter these jobs by a query").fill(query)
    press(tab, "Filter")


def test_filter_examines_all_jobs_automatically(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    put_many(daemon, clients.tube, MANY)
    [last] = clients.put(b"needle", priority=9999)
    tab.page.goto(clients.url)
    with kept_busy(daemon):
        filter_jobs(tab, "needle")
    expect(tab.page.locator("[data-task-state]")).to_have_text("done", timeout=60_000)
    expect(tab.page.locator(".jobs tbody tr")).to_have_count(1)
    assert tab.page.locator(".jobs tbody tr").get_attribute("data-key") == str(last)
    assert "1 matching, among all 60,001" in tab.page.inner_text(".panel-head .summary")


def test_summary_follows_workers_without_moving_the_list(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    ids = clients.put(*[b"x"] * 30)
    with chromium.tab(daemon.dashboard, 1440) as tab:
        tab.page.goto(clients.url)
        tab.page.wait_for_selector("#live[data-state=live]")
        list_top = tab.page.locator("#jobs-title").evaluate(TOP)
        assert list_top < 500, "the jobs begin on the first screen"
        held = clients.worker.reserve()
        doing = tab.page.locator(".worker-doing")
        expect(doing).to_have_text(re.compile(rf"job {ids[0]} for \d\ss"))
        for id in ids[1:]:
            clients.worker.delete(clients.worker.reserve_job(id))
        expect(tab.page.locator("[data-field=figure-delete]")).not_to_have_text("0")
        expect(tab.page.locator(".worker-rate")).not_to_have_text("0/min")
        assert tab.page.locator("#jobs-title").evaluate(TOP) == list_top
        follow(tab, doing.get_by_role("link"))
        assert tab.page.inner_text("h1") == f"Job {ids[0]}"
        clients.worker.delete(held)
        assert (tab.console, tab.elsewhere) == ([], [])
