"""Bulk changes in a real browser, with a real daemon and clients."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import greenstalk
import pytest
from playwright.sync_api import expect

from tests.support.daemon import TIMEOUT, Daemon
from tests.support.processes import join

from .browser import Browser, Tab
from .visit import Clients, press

MANY = 60_000
HOSTILE = b"</td><script>document.title = 1</script>"


def boxes(tab: Tab) -> Any:
    return tab.page.locator("tbody td.tick input")


def ticked(tab: Tab) -> list[int]:
    return [at for at, box in enumerate(boxes(tab).all()) if box.is_checked()]


def choose(tab: Tab, label: str) -> None:
    if not tab.page.locator("#bulk-panel").evaluate("panel => panel.open"):
        tab.page.get_by_text("Change many jobs").click()
    tab.page.get_by_label("Action", exact=True).select_option(label)


def wait_done(tab: Tab) -> str:
    """Wait until the task has ended, and return the state on its page; without scripts the page reloads itself."""
    tab.page.locator("[data-task-state]", has_text=re.compile("done|cancelled|failed")).wait_for()
    return tab.page.inner_text("main")


def test_selected_jobs_are_deleted_after_dry_run_and_confirmation(tab: Tab, clients: Clients) -> None:
    ids = clients.put(*[HOSTILE] * 6)
    tab.page.goto(clients.url)
    for at in (1, 3):
        boxes(tab).nth(at).check()
    choose(tab, "Delete")
    press(tab, "Preview")
    shown = tab.page.inner_text("main")
    assert "Delete 2 jobs?" in shown and f"2 selected jobs of tube:{clients.tube} state:ready" in shown
    assert "<script>" in tab.page.inner_text("tbody tr:first-child td.body")
    assert clients.states() == (6, 0, 0, 0)
    tab.page.get_by_label("to confirm").fill("something")
    press(tab, "Delete 2 jobs")
    refusal = tab.page.inner_text("main")
    assert f"“confirm” must be “{clients.tube}”, not “something”." in refusal and "Nothing was changed." in refusal
    tab.console.clear()  # the browser logs the status 400
    assert tab.page.get_by_label("to confirm").input_value() == "something"
    tab.page.get_by_label("to confirm").fill(clients.tube)
    press(tab, "Delete 2 jobs")
    assert "2 deleted" in wait_done(tab)
    assert clients.states() == (4, 0, 0, 0)
    for at, id in enumerate(ids):
        if at in (1, 3):
            with pytest.raises(greenstalk.NotFoundError):
                clients.producer.peek(id)
    tab.page.get_by_role("link", name="Go back").click()
    assert tab.page.inner_text("h1") == clients.tube


def test_shift_selects_a_range_and_the_header_selects_all(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    clients.put(*[b"x"] * 8)
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(clients.url)
        boxes(tab).nth(1).click()
        assert tab.page.locator("#bulk-panel").evaluate("panel => panel.open")
        boxes(tab).nth(5).click(modifiers=["Shift"])
        assert ticked(tab) == [1, 2, 3, 4, 5]
        assert "5" in tab.page.inner_text("#ticked")
        boxes(tab).nth(3).click()
        boxes(tab).nth(2).click(modifiers=["Shift"])
        assert ticked(tab) == [1, 4, 5]
        assert tab.page.locator("#tick-all").evaluate("box => box.indeterminate")
        tab.page.get_by_label("Select all rows").click()
        assert ticked(tab) == list(range(8))
        tab.page.get_by_label("Select all rows").click()
        assert ticked(tab) == []
        boxes(tab).nth(6).focus()
        tab.page.keyboard.press("Space")
        tab.page.keyboard.down("Shift")
        boxes(tab).nth(7).focus()
        tab.page.keyboard.press("Space")
        tab.page.keyboard.up("Shift")
        assert ticked(tab) == [6, 7]
        tab.page.get_by_label("Action", exact=True).select_option("Set the priority")
        assert tab.page.get_by_label("New priority").is_visible()
        assert not tab.page.get_by_label("Destination tube").is_visible()
        assert (tab.console, tab.elsewhere) == ([], [])


def test_selection_survives_live_updates(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    ids = clients.put(*[b"x"] * 5, priority=10)
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(clients.url)
        tab.page.wait_for_selector("#live[data-state=live]")
        for at in (2, 4):
            boxes(tab).nth(at).click()
        clients.worker.delete(clients.worker.reserve_job(ids[2]))
        [first] = clients.put(b"y", priority=1)
        tab.page.wait_for_selector(f"tr[data-key='{first}'] td.tick input[value='{first}'][aria-label='Job {first}']")
        tab.page.wait_for_selector(f"tr[data-key='{ids[2]}']", state="detached")
        assert [boxes(tab).nth(at).get_attribute("value") for at in ticked(tab)] == [str(ids[4])]
        assert tab.page.inner_text("#ticked") == ": 1"
        tab.page.get_by_label("Action", exact=True).select_option("Bury")
        press(tab, "Preview")
        press(tab, "Bury 1 job")
        assert "1 buried" in wait_done(tab)
        assert clients.states() == (4, 0, 0, 1)
        assert (tab.console, tab.elsewhere) == ([], [])


def put_many(daemon: Daemon, tube: str, count: int) -> None:
    """Put *count* jobs, pipelined."""
    with socket.create_connection(("127.0.0.1", daemon.port)) as sock, sock.makefile("rb") as replies:
        sock.sendall(f"use {tube}\r\n".encode() + b"put 5 0 60 1\r\nx\r\n" * count)
        assert replies.readline() == f"USING {tube}\r\n".encode()
        assert all(replies.readline().startswith(b"INSERTED") for _ in range(count))


@contextmanager
def kept_busy(daemon: Daemon) -> Iterator[None]:
    """Keep the server busy with commands, so that long work yields to them most of the time.

    Thousands of commands are always in flight, so that the server is busy even while this thread has no CPU.
    """
    is_over = threading.Event()
    count = 2000

    def ask() -> None:
        with socket.create_connection(("127.0.0.1", daemon.port)) as sock, sock.makefile("rb") as replies:
            for _ in range(10):
                sock.sendall(b"list-tube-used\r\n" * count)
            while not is_over.is_set():
                for _ in range(count):
                    replies.readline()
                sock.sendall(b"list-tube-used\r\n" * count)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        yield
    finally:
        is_over.set()
        join(asking)


def test_back_from_a_confirmation_skips_the_dry_run(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    put_many(daemon, clients.tube, MANY)
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(clients.url)
        choose(tab, "Bury")
        tab.page.get_by_label("All ready jobs").check()
        with kept_busy(daemon):
            press(tab, "Preview")
            assert "/task?id=" in tab.page.url
        tab.page.wait_for_url("**/bulk?task=*")
        tab.page.go_back()
        assert tab.page.inner_text("h1") == clients.tube
        assert (tab.console, tab.elsewhere) == ([], [])


def test_live_progress_and_cancel_while_workers_continue(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    put_many(daemon, clients.tube, MANY)
    with chromium.tab(daemon.dashboard) as tab, chromium.tab(daemon.dashboard) as other:
        tab.page.goto(clients.url)
        choose(tab, "Bury")
        tab.page.get_by_label("All ready jobs").check()
        press(tab, "Preview")
        tab.page.wait_for_url("**/bulk?task=*")  # the dry run may take longer than the response
        with kept_busy(daemon):
            press(tab, f"Bury {MANY:,} jobs")
            address = tab.page.url
            other.page.goto(address)
            other.page.wait_for_selector("text=/about .* left/")
            expect(tab.page.locator(".task-counts")).to_contain_text(
                re.compile(r"[1-9][\d,]* buried"), timeout=TIMEOUT * 1000
            )
            press(tab, "Cancel")
            wait_done(tab)
        buried = clients.states()[3]
        assert 0 < buried < MANY
        for page in (tab.page, other.page):
            expect(page.locator("main")).to_contain_text(f"{buried:,} buried")
            expect(page.locator("[data-task-state]")).to_have_text("cancelled")
        assert other.page.locator("progress").is_hidden()
        expect(other.page.get_by_role("button", name="Undo")).to_be_visible()  # it was loaded before there was a change
        clients.worker.delete(clients.worker.reserve(timeout=0))
        assert (tab.console, other.console) == ([], [])
