"""The page of a tube in a real browser: its summary and its filter, with and without scripts."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from greenstalk_server.web.features.conditions.measures import NO_CONSUMERS
from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .test_browser_bulk import kept_busy, put_many
from .visit import AXE, AXE_VIOLATIONS, WITH_AND_WITHOUT_SCRIPTS, Clients, follow, is_too_wide, press

MANY = 60_000

TOP = "element => element.getBoundingClientRect().top + scrollY"


def filter_jobs(tab: Tab, query: str) -> None:
    tab.page.get_by_label("Filter these jobs by a query").fill(query)
    press(tab, "Filter")


@WITH_AND_WITHOUT_SCRIPTS
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


def test_filter_is_cancelled_and_cleared(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    put_many(daemon, clients.tube, MANY)
    tab.page.goto(clients.url)
    with kept_busy(daemon):
        filter_jobs(tab, "-body:x")
        assert "No match so far." in tab.page.inner_text("main")
        press(tab, "Cancel")
        expect(tab.page.locator("[data-task-state]")).to_have_text("cancelled")
    assert tab.page.inner_text("h1") == clients.tube
    follow(tab, tab.page.get_by_role("link", name="Clear", exact=True))
    expect(tab.page.locator(".jobs tbody tr")).to_have_count(100)


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


def test_first_screen_without_scripts(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    [id] = clients.put(b"x")
    held = clients.worker.reserve()
    with chromium.tab(daemon.dashboard, 1440, java_script_enabled=False) as tab:
        tab.page.goto(clients.url)
        summary = tab.page.locator(".tube-summary")
        for text in ("Oldest ready", "Backlog", "Put/s", "Timeouts/s", "Ready, last hour", f"job {id}", "1 working"):
            assert text in summary.inner_text(), text
        tabs = tab.page.get_by_role("navigation", name="Pages of this tube")
        assert tabs.get_by_role("link").all_text_contents() == ["Jobs", "Errors", "History", "Policy"]
        follow(tab, summary.get_by_role("link", name=str(id)))
        assert tab.page.inner_text("h1") == f"Job {id}"
        clients.worker.delete(held)
        assert (tab.console, tab.elsewhere) == ([], [])


def test_summary_is_accessible_and_fits(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    clients.put(*[b"x"] * 3)
    held = clients.worker.reserve()
    theme: Any
    for width, theme in ((360, "light"), (1024, "dark"), (1440, "dark")):
        with chromium.tab(daemon.dashboard, width, color_scheme=theme) as tab:
            tab.page.goto(clients.url)
            tab.page.wait_for_selector("#live[data-state=live]")
            assert tab.page.evaluate(f"{AXE};{AXE_VIOLATIONS}") == []
            assert not is_too_wide(tab)
            assert (tab.console, tab.elsewhere) == ([], [])
    clients.worker.delete(held)


def test_badge_has_the_same_name_as_in_the_overview(tab: Tab, clients: Clients) -> None:
    clients.put(b"x")
    clients.worker.watch("default")
    clients.worker.ignore(clients.tube)
    tab.page.goto(clients.url)
    assert tab.page.inner_text(".badges") == NO_CONSUMERS.label == "no consumers"


def test_audit_log_is_filtered_by_deletions(tab: Tab, clients: Clients) -> None:
    clients.put(*[b"x"] * 3)
    tab.page.goto(clients.url)
    tab.page.locator("tbody td.tick input").first.check()
    if not tab.page.locator("#bulk-panel").evaluate("panel => panel.open"):
        tab.page.get_by_text("Change many jobs").click()
    tab.page.get_by_label("Action", exact=True).select_option("Delete")
    press(tab, "Preview")
    tab.page.get_by_label("to confirm").fill(clients.tube)
    press(tab, "Delete 1 job")
    expect(tab.page.locator("[data-task-state]")).to_have_text("done")
    tab.page.goto(clients.url.partition("tube?")[0] + "audit")
    tab.page.get_by_label("Action, such as delete").fill("delete")
    tab.page.get_by_label("Tube", exact=True).fill(clients.tube)
    press(tab, "Filter")
    row = tab.page.locator(".audit tbody tr")
    expect(row).to_have_count(1)
    assert "bulk/end" in row.inner_text() and "action delete" in row.inner_text()
    follow(tab, row.get_by_role("link", name="task"))
    assert "1 deleted" in tab.page.inner_text("main")
