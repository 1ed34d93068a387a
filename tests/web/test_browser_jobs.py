"""Actions on jobs and connections in a real browser, with a real daemon and clients."""

from __future__ import annotations

import greenstalk
import pytest

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .test_job_actions import BODIES
from .visit import WITH_AND_WITHOUT_SCRIPTS, Clients, notice_text, press

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
