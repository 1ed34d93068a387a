"""Searches and bulk changes in a real browser, with a real daemon and clients, with and without scripts."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import greenstalk
import pytest
from playwright.sync_api import expect

from tests.support.daemon import TIMEOUT, Daemon
from tests.support.processes import join

from .browser import Browser, Tab
from .visit import AXE, AXE_VIOLATIONS, WITH_AND_WITHOUT_SCRIPTS, Clients, follow, is_too_wide, press

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


@WITH_AND_WITHOUT_SCRIPTS
def test_selected_jobs_are_deleted_after_dry_run_and_confirmation(tab: Tab, clients: Clients) -> None:
    ids = clients.put(*[HOSTILE] * 6)
    tab.page.goto(clients.url)
    for at in (1, 3):
        boxes(tab).nth(at).check()
    choose(tab, "Delete")
    press(tab, "Preview")
    shown = tab.page.inner_text("main")
    assert "Delete 2 jobs?" in shown and f"2 ticked jobs of tube:{clients.tube} state:ready" in shown
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


def test_all_matches_except_held_jobs_are_moved(tab: Tab, clients: Clients) -> None:
    clients.put(*[b"no route"] * 4, b"fine")
    held = clients.worker.reserve(timeout=0)
    tab.page.goto(clients.url)
    tab.page.get_by_label("Filter these jobs by a query").fill("size:8")
    press(tab, "Filter")
    assert boxes(tab).count() == 3
    choose(tab, "Move to another tube")
    tab.page.get_by_label("All ready jobs that match").check()
    tab.page.get_by_label("Destination tube").fill(f"{clients.tube}.retry")
    press(tab, "Preview")
    assert f"tube:{clients.tube} state:ready size:8" in tab.page.inner_text("main")
    press(tab, "Move 3 jobs")
    wait_done(tab)
    assert clients.states() == (1, 1, 0, 0)
    assert clients.producer.stats_tube(f"{clients.tube}.retry")["current-jobs-ready"] == 3
    clients.worker.delete(held)


def test_forced_kick_takes_a_job_from_its_worker(tab: Tab, clients: Clients) -> None:
    clients.put(b"x", ttr=600)
    held = clients.worker.reserve(timeout=0)
    tab.page.goto(f"{clients.url}&state=reserved")
    boxes(tab).first.check()
    choose(tab, "Kick")
    press(tab, "Preview")
    assert "1 job held by a client: not changed, unless you force the change below" in tab.page.inner_text("main")
    tab.page.get_by_role("checkbox", name="Force the change").check()
    tab.page.get_by_label("to confirm").fill(clients.tube)
    press(tab, "Kick by force")
    assert "1 kicked" in wait_done(tab)
    assert clients.states() == (1, 0, 0, 0)
    with pytest.raises(greenstalk.NotFoundError):
        clients.worker.touch(held)


def test_search_lists_updates_and_links_to_jobs(tab: Tab, clients: Clients) -> None:
    [one, _, three] = clients.put(b"order 17", b"other", b"ORDER 18")
    tab.page.goto(clients.url.replace("tube?", "search?"))
    tab.page.get_by_label("Jobs that match").fill(f"tube:{clients.tube} ~order")
    press(tab, "Search")
    assert "scanned" in wait_done(tab)
    assert tab.page.locator("tbody th.id a").all_text_contents() == [str(one), str(three)]
    tab.page.locator("tbody th.id a").first.click()
    assert tab.page.inner_text("h1") == f"Job {one}"


def test_search_explains_errors_and_syntax(tab: Tab, daemon: Daemon) -> None:
    tab.page.goto(f"{daemon.dashboard}search")
    tab.page.get_by_label("Jobs that match").fill("age:soon")
    press(tab, "Search")
    assert (
        "“age:soon” must be a comparison with a number, such as 30, 30s" in tab.page.get_by_role("alert").inner_text()
    )
    tab.console.clear()  # the browser logs the status 400
    assert "reserves:>3" in tab.page.inner_text(".query-words")


def test_export_saves_all_matches(tab: Tab, clients: Clients) -> None:
    ids = clients.put(*[HOSTILE] * 130)
    tab.page.goto(f"{clients.url}&q=script")
    with tab.page.expect_download() as download:
        tab.page.get_by_role("link", name="JSONL").click()
    assert download.value.suggested_filename == f"jobs-{clients.tube}-ready.jsonl"
    lines = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
    assert [line["id"] for line in lines] == ids and {line["body"] for line in lines} == {HOSTILE.decode()}


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
        assert tab.page.get_by_label("New value").is_visible()
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


@WITH_AND_WITHOUT_SCRIPTS
def test_long_dry_run_opens_its_confirmation(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    put_many(daemon, clients.tube, MANY)
    tab.page.goto(clients.url)
    choose(tab, "Move to another tube")
    tab.page.get_by_label("All ready jobs").check()
    tab.page.get_by_label("Destination tube").fill("archive")
    with kept_busy(daemon):
        press(tab, "Preview")
        assert "/task?id=" in tab.page.url, "the dry run ended before the response"
        assert tab.page.inner_text("h1") == f"Dry run: move tube:{clients.tube} state:ready to “archive”"
    tab.page.wait_for_url("**/bulk?task=*")
    assert tab.page.inner_text("h1") == f"Move {MANY:,} jobs to “archive”?"


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


def test_cancelled_dry_run_is_reported(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    put_many(daemon, clients.tube, MANY)
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(clients.url)
        choose(tab, "Bury")
        tab.page.get_by_label("All ready jobs").check()
        with kept_busy(daemon):
            press(tab, "Preview")
            press(tab, "Cancel")
        assert "The dry run was cancelled" in tab.page.inner_text("main")
        assert (tab.console, tab.elsewhere) == ([], [])


def test_task_page_describes_the_change(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    clients.put(*[b"x"] * 3)
    target = f"{clients.tube}.archive"

    def start(action: str, field: str, value: str, button: str) -> dict[str, str]:
        choose(tab, action)
        tab.page.get_by_label("All ready jobs").check()
        tab.page.get_by_label(field).fill(value)
        press(tab, "Preview")
        press(tab, button)
        wait_done(tab)
        rows = [row.inner_text().split("\n") for row in tab.page.locator("main .entries > div").all()]
        return {label: value for label, value in rows if label != "Started"}

    tab.page.goto(clients.url)
    shown = start("Set the priority", "New value", "77", "Set the priority of 3 jobs")
    which = f"tube:{clients.tube} state:ready"
    assert tab.page.inner_text("h1") == f"Set the priority of {which} to 77"
    assert shown == {"Query": which, "Tube": clients.tube, "New priority": "77"}
    assert "3 given another priority" in tab.page.inner_text(".task-counts")
    tab.page.goto(clients.url)
    shown = start("Move to another tube", "Destination tube", target, "Move 3 jobs")
    assert tab.page.inner_text("h1") == f"Move {which} to “{target}”"
    assert shown == {"Query": which, "Tube": clients.tube, "Target tube": target}
    assert "3 moved" in tab.page.inner_text(".task-counts")
    follow(tab, tab.page.locator("a", has=tab.page.get_by_title(target, exact=True)))
    assert tab.page.inner_text("h1") == target
    assert tab.page.locator(".jobs tbody tr").count() == 3


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
        clients.worker.delete(clients.worker.reserve(timeout=0))
        assert (tab.console, other.console) == ([], [])


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (360, "dark")])
def test_pages_fit(chromium: Browser, daemon: Daemon, clients: Clients, width: int, theme: Any) -> None:
    clients.put(*[HOSTILE * 20] * 3, b"")
    clients.bury(1)
    clients.producer.use("A" * 200)
    clients.put(b"x")
    with chromium.tab(daemon.dashboard, width, color_scheme=theme) as tab:
        pages = [
            "search?q=pri:x",
            f"search?tube={clients.tube}",
            f"tube?tube={clients.tube}&q=script",
            "task",
        ]
        for path in [*pages, f"search?q=tube:{'A' * 200}"]:
            tab.page.goto(daemon.dashboard + path)
            check(tab, f"{path[:20]}-{width}-{theme}".replace("/", "_"))
        tab.page.goto(clients.url)
        choose(tab, "Delete")
        tab.page.get_by_label("All ready jobs").check()
        press(tab, "Preview")
        check(tab, f"bulk-{width}-{theme}")
        tab.page.get_by_label("to confirm").fill(clients.tube)
        press(tab, "Delete 4 jobs")
        wait_done(tab)
        check(tab, f"task-{width}-{theme}")
        assert (tab.console[1:], tab.elsewhere) == ([], [])  # the browser logs the status 400


def check(tab: Tab, name: str) -> None:
    tab.page.evaluate("document.querySelectorAll('#bulk-panel, .query-help').forEach((one) => { one.open = true; })")
    tab.screenshot(name)
    assert not is_too_wide(tab), name
    assert tab.page.evaluate(f"{AXE};{AXE_VIOLATIONS}") == [], name
