"""Actions on jobs and connections in a real browser, with a real daemon and clients."""

from __future__ import annotations

import base64
from typing import Any

import greenstalk
import pytest
from playwright.sync_api import expect

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .test_job_actions import BODIES
from .visit import AXE, AXE_VIOLATIONS, WITH_AND_WITHOUT_SCRIPTS, Clients, follow, is_too_wide, notice_text, press

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


def unfold(tab: Tab, name: str) -> None:
    tab.page.locator("summary", has_text=name).click()


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
    assert notice_text(tab) == f"Job {id} was changed."
    assert body_of(clients, id) == "three\r\n<b>☃\r\n".encode()
    assert clients.producer.stats_job(id)["pri"] == 7
    assert "Edited from the dashboard" in " ".join(tab.page.inner_text(".life").split())


def test_stale_edit_shows_both_versions(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    [id] = clients.put(b"theirs", ttr=60)
    tab.page.goto(f"{daemon.dashboard}job/form?id={id}")
    tab.page.get_by_label("Body", exact=True).fill("mine")
    clients.worker.release(clients.worker.reserve(), priority=99)
    press(tab, "Save")
    assert "has changed since you opened the form" in tab.page.inner_text("[role=alert]")
    assert tab.page.input_value("#body") == "mine"
    assert tab.page.inner_text("pre.body") == "theirs"
    press(tab, "Save")
    assert notice_text(tab) == f"Job {id} was changed."
    assert body_of(clients, id) == b"mine"
    tab.console.clear()  # the browser logs the status 409


def test_any_body_round_trips_through_the_form(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    with chromium.tab(daemon.dashboard, java_script_enabled=False) as tab:
        for name in FRAGILE_BODIES:
            body = BODIES[name]
            [id] = clients.put(body)
            tab.page.goto(f"{daemon.dashboard}job/form?id={id}")
            tab.page.get_by_label("Priority").fill("77")
            press(tab, "Save")
            assert notice_text(tab) == f"Job {id} was changed.", name
            assert body_of(clients, id) == body, name
        assert (tab.console, tab.elsewhere) == ([], [])


def test_binary_body_is_edited_in_base64(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    [id] = clients.put(b"text")
    tab.page.goto(f"{daemon.dashboard}job/form?id={id}")
    tab.page.get_by_role("link", name="Edit as base64").click()
    assert tab.page.input_value("#body").strip() == base64.b64encode(b"text").decode()
    tab.page.get_by_label("Body", exact=True).fill(base64.encodebytes(bytes(range(256))).decode())
    press(tab, "Save")
    assert body_of(clients, id) == bytes(range(256))


def test_move_and_copy(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    [id] = clients.put(b"x", delay=600)
    target = f"{clients.tube}/;$(..)"
    tab.page.goto(f"{daemon.dashboard}job?id={id}")
    unfold(tab, "Move to another tube")
    tab.page.get_by_label("Destination tube").fill(target)
    press(tab, "Move")
    assert notice_text(tab) == f"Job {id} was moved."
    stats = clients.producer.stats_job(id)
    assert (stats["tube"], stats["state"], stats["delay"]) == (target, "delayed", 600)
    unfold(tab, "Duplicate")
    press(tab, f"Duplicate job {id}")
    assert notice_text(tab) == f"Job {id + 1} was put as a duplicate."
    assert tab.page.inner_text("h1") == f"Job {id + 1}"
    stats = clients.producer.stats_job(id + 1)
    assert (stats["tube"], stats["state"]) == (target, "ready")
    tab.page.locator("a", has=tab.page.get_by_title(target, exact=True)).first.click()
    assert tab.page.inner_text("h1") == target


@WITH_AND_WITHOUT_SCRIPTS
def test_held_job_is_released_only_after_confirmation(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    [id] = clients.put(b"x", ttr=600)
    held = clients.worker.reserve()
    tab.page.goto(f"{daemon.dashboard}job?id={id}")
    unfold(tab, "Release")
    tab.page.get_by_role("button", name=f"Release job {id}").click()  # the browser requires the box
    assert clients.producer.stats_job(id)["state"] == "reserved"
    tab.page.locator("#confirm-release").check()
    press(tab, f"Release job {id}")
    assert notice_text(tab) == f"Job {id} was released from its client and is ready."
    with pytest.raises(greenstalk.NotFoundError):
        clients.worker.touch(held)
    assert clients.worker.reserve(timeout=0).id == id
    tab.page.goto(f"{daemon.dashboard}job?id={id}")
    unfold(tab, "Delete")
    tab.page.locator("#confirm-delete").check()
    press(tab, f"Delete job {id} permanently")
    assert notice_text(tab) == f"Job {id} was deleted."


@WITH_AND_WITHOUT_SCRIPTS
def test_connection_is_found_and_closed(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    [id] = clients.put(b"x", ttr=600)
    clients.worker.reserve()
    tab.page.goto(f"{clients.url}&state=reserved")
    follow(tab, tab.page.locator("td.holder a"))
    assert tab.page.inner_text("h1").startswith("Connection ")
    assert tab.page.locator("th.id a").all_text_contents() == [str(id)]
    tab.page.get_by_role("link", name="Connections", exact=True).first.click()
    tab.page.locator("#q").fill(clients.tube)
    tab.page.locator("#q").press("Enter")
    expect(tab.page.locator(".connections tbody tr")).to_have_count(2)
    follow(tab, tab.page.get_by_role("link", name="Longest holding a job"))
    row = tab.page.locator(".connections tbody tr").first
    assert str(id) in row.inner_text()
    row.locator("th a").click()
    unfold(tab, "Close this connection")
    tab.page.get_by_label("Yes, close it").check()
    tab.page.get_by_role("button", name="Close connection").click()
    assert "was closed. The jobs it held are ready again." in notice_text(tab)
    with pytest.raises((ConnectionError, EOFError)):
        clients.worker.reserve(timeout=0)
    assert clients.producer.stats_job(id)["state"] == "ready"


def test_pages_follow_the_queue(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    [id] = clients.put(b"x", ttr=600)
    with chromium.tab(daemon.dashboard) as job, chromium.tab(daemon.dashboard) as list_of_all:
        job.page.goto(f"{daemon.dashboard}job?id={id}")
        list_of_all.page.goto(f"{daemon.dashboard}connections?q={clients.tube}")
        job.page.wait_for_selector("text=No worker has reserved this job yet.")
        held = clients.worker.reserve()
        job.page.wait_for_selector("text=Held by a client")
        list_of_all.page.wait_for_selector(f".connections td.holds a[href$='id={id}']")
        clients.worker.bury(held)
        job.page.wait_for_selector(".life [data-state=buried]")
        job.page.wait_for_selector("text=Last held by connection")
        with greenstalk.Client(("127.0.0.1", daemon.port), watch=clients.tube):
            list_of_all.page.wait_for_selector(".connections tbody tr:nth-child(3)")
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


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (360, "dark")])
def test_pages_fit(chromium: Browser, daemon: Daemon, clients: Clients, width: int, theme: Any) -> None:
    [held, buried, binary] = clients.put(b"x" * 300, b"y", bytes(range(256)), ttr=600)
    for _ in range(9):
        clients.worker.release(clients.worker.reserve_job(held))
    clients.worker.reserve_job(held)
    clients.worker.bury(clients.worker.reserve_job(buried))
    clients.worker.watch("A" * 200)
    clients.producer.use("B" * 200)
    number = clients.worker.stats()["total-connections"]
    paths = [f"connections?q={clients.tube}", "connections?q=nothing-like-it", f"connection?number={number}"]
    paths += [f"job?id={held}", f"job?id={buried}", f"job/form?id={held}", f"job/form?id={binary}"]
    with chromium.tab(daemon.dashboard, width, color_scheme=theme) as tab:
        for path in paths:
            tab.page.goto(daemon.dashboard + path)
            for summary in tab.page.locator("details > summary").all():
                summary.click()
            tab.screenshot(f"jobs-{path.partition('?')[0].replace('/', '-')}-{path[-6:]}-{width}-{theme}")
            assert not is_too_wide(tab), path
            assert tab.page.evaluate(f"{AXE};{AXE_VIOLATIONS}") == [], path
        assert (tab.console, tab.elsewhere) == ([], [])
