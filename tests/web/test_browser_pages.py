"""The pages of tubes and jobs in a real browser, with a real daemon and clients, with and without scripts."""

from __future__ import annotations

import re

import greenstalk
import pytest
from playwright.sync_api import expect

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .test_browser_bulk import kept_busy, put_many
from .test_browser_layout import LINES
from .test_job_actions import BODIES
from .visit import WITH_AND_WITHOUT_SCRIPTS, Clients, follow, notice_text, press

MORE = "#more > summary"
"""Opens the menu with the less common actions of a job."""


@WITH_AND_WITHOUT_SCRIPTS
def test_put_view_bury_kick_undo_and_delete(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    tab.page.goto(clients.url)
    tab.page.click("#put > summary")
    tab.page.get_by_label("Body").fill("one\ntwo ☃ <b>")
    tab.page.get_by_label("Priority", exact=True).fill("7")
    tab.page.get_by_label("TTR, s").fill("90")
    press(tab, "Put job")
    [id] = [int(text) for text in tab.page.locator(".jobs tbody th.id a").all_text_contents()]
    assert notice_text(tab) == f"Job {id} was put. Job {id}"
    assert clients.producer.peek(id).body == "one\ntwo ☃ <b>".encode()
    tab.page.locator(".jobs tbody th.id a").click()
    assert tab.page.inner_text("pre.body") == "one\ntwo ☃ <b>"
    tab.page.click(MORE)
    press(tab, "Bury: set aside")
    assert notice_text(tab) == f"Job {id} was buried. Undo"
    assert clients.states() == (0, 0, 0, 1)
    press(tab, "Retry")
    assert notice_text(tab) == f"Job {id} was retried: it is ready. Undo"
    assert clients.states() == (1, 0, 0, 0)
    press(tab, "Undo")
    assert "1 put back" in tab.page.inner_text("main")
    assert clients.states() == (0, 0, 0, 1)
    tab.page.goto(f"{daemon.dashboard}job?id={id}")
    press(tab, f"Delete job {id}")
    assert notice_text(tab) == f"Job {id} was deleted. Undo"
    assert clients.states() == (0, 0, 0, 0)
    with pytest.raises(greenstalk.NotFoundError):
        clients.producer.peek(id)


def test_pages_follow_the_queue(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    with chromium.tab(daemon.dashboard) as tube, chromium.tab(daemon.dashboard) as job:
        [id] = clients.put(b"x", ttr=60)
        tube.page.goto(f"{clients.url}&notice=kicked&n=1")
        job.page.goto(f"{daemon.dashboard}job?id={id}")
        tube.page.wait_for_selector("#live[data-state=live]")
        assert "notice" not in tube.page.url
        tube.page.click("#pause > summary")
        tube.page.fill("#seconds", "77")
        held = clients.worker.reserve()
        job.page.wait_for_selector(".badge[data-state=reserved]")
        tube.page.wait_for_selector(".tab[data-state=ready] .zero")
        clients.put(b"y")
        tube.page.wait_for_selector(".jobs tbody th.id")
        assert tube.page.input_value("#seconds") == "77"
        assert "x" in job.page.inner_text("pre.body")
        clients.worker.delete(held)
        job.page.wait_for_selector("#live[data-state=lost]")
        assert job.page.inner_text("#live") == "Deleted"
        assert tube.console == tube.elsewhere == []


FRAGILE_BODIES = (
    "empty",
    "script",
    "first line empty",
    "crlf",
    "cr",
    "tab",
    "nul",
    "escape",
    "bom",
    "noncharacter",
    "separators",
)
"""Names of bodies with bytes that a browser may change when it submits a form."""


def body_of(clients: Clients, id: int) -> bytes:
    found = clients.producer.peek(id).body
    assert isinstance(found, bytes)
    return found


@WITH_AND_WITHOUT_SCRIPTS
def test_edit(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    [id] = clients.put(b"one\r\ntwo\r\n", priority=5, ttr=60)
    tab.page.goto(f"{daemon.dashboard}job?id={id}")
    tab.page.get_by_role("link", name="Edit").click()
    assert tab.page.input_value("#body") == "one\ntwo\n"
    tab.page.get_by_label("Body", exact=True).fill("three\n<b>☃\n")
    tab.page.get_by_label("Priority").fill("7")
    press(tab, "Save")
    assert notice_text(tab) == f"Job {id} was changed. Undo"
    assert body_of(clients, id) == "three\r\n<b>☃\r\n".encode()
    assert clients.producer.stats_job(id)["pri"] == 7
    assert "Edited from the dashboard" in " ".join(tab.page.inner_text(".life").split())


def test_any_body_round_trips_through_the_form(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    with chromium.tab(daemon.dashboard, java_script_enabled=False) as tab:
        for name in FRAGILE_BODIES:
            body = BODIES[name]
            [id] = clients.put(body)
            tab.page.goto(f"{daemon.dashboard}job/form?id={id}")
            tab.page.get_by_label("Priority").fill("77")
            press(tab, "Save")
            assert notice_text(tab) == f"Job {id} was changed. Undo", name
            assert body_of(clients, id) == body, name
        assert (tab.console, tab.elsewhere) == ([], [])


def test_page_of_a_job_and_list_of_connections_follow_the_queue(
    chromium: Browser, daemon: Daemon, clients: Clients
) -> None:
    [id] = clients.put(b"x", ttr=600)
    with chromium.tab(daemon.dashboard) as job, chromium.tab(daemon.dashboard, 1024) as list_of_all:
        job.page.goto(f"{daemon.dashboard}job?id={id}")
        list_of_all.page.goto(f"{daemon.dashboard}connections?q={clients.tube}")
        job.page.wait_for_selector("text=No worker has reserved this job yet.")
        held = clients.worker.reserve()
        job.page.wait_for_selector("text=Held by a worker")
        list_of_all.page.wait_for_selector(f".connections td.holds a[href$='id={id}']")
        clients.worker.bury(held)
        job.page.wait_for_selector(".life [data-state=buried]")
        job.page.wait_for_selector("text=Last held by connection")
        with greenstalk.Client(("127.0.0.1", daemon.port), use=clients.tube, watch=clients.tube) as other_client:
            list_of_all.page.wait_for_selector(".connections tbody tr:nth-child(3)")
            other_client.put("y")
            other_client.delete(other_client.reserve())
            list_of_all.page.get_by_role("cell", name="producer and worker").wait_for()
            lines = list_of_all.page.evaluate(f"[...document.querySelectorAll('td.role')].map({LINES})")
            assert sorted(lines) == [1, 1, 2]
        list_of_all.page.wait_for_selector(".connections tbody tr:nth-child(3)", state="detached")
        assert not job.page.is_visible("text=This job was edited after")
        with chromium.tab(daemon.dashboard) as other:
            other.page.goto(f"{daemon.dashboard}job/form?id={id}")
            other.page.get_by_label("Body", exact=True).fill("y")
            press(other, "Save")
        job.page.wait_for_selector("text=This job was edited after")
        job.page.get_by_role("link", name="Load the new body").click()
        assert job.page.inner_text("pre.body") == "y"
        assert (job.console, list_of_all.console) == ([], [])


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
    expect(tab.page.locator("[data-task-state]")).to_have_text("done")
    expect(tab.page.locator(".jobs tbody tr")).to_have_count(1)
    assert tab.page.locator(".jobs tbody tr").get_attribute("data-key") == str(last)
    assert "1 matching, among all 60,001" in tab.page.inner_text(".panel-head .summary")


def test_summary_follows_workers_without_moving_the_list(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    ids = clients.put(*[b"x"] * 30)
    with chromium.tab(daemon.dashboard, 1440) as tab:
        tab.page.goto(clients.url)
        tab.page.wait_for_selector("#live[data-state=live]")
        list_top = tab.page.locator(".state-tabs").evaluate(TOP)
        assert list_top < 500, "the jobs begin on the first screen"
        held = clients.worker.reserve()
        doing = tab.page.locator(".worker-doing")
        expect(doing).to_have_text(re.compile(rf"job {ids[0]} for \d\ss"))
        for id in ids[1:]:
            clients.worker.delete(clients.worker.reserve_job(id))
        expect(tab.page.locator("[data-field=figure-delete]")).not_to_have_text("0")
        expect(tab.page.locator(".worker-rate")).not_to_have_text("0/min")
        assert tab.page.locator(".state-tabs").evaluate(TOP) == list_top
        follow(tab, doing.get_by_role("link"))
        assert tab.page.inner_text("h1") == f"Job {ids[0]}"
        clients.worker.delete(held)
        assert (tab.console, tab.elsewhere) == ([], [])
