"""A search and a bulk change in a real browser, about both shards of a real server with two processes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from greenstalk_server.core.tube_shards import TubeShards
from tests.support.daemon import Daemon
from tests.support.ports import free_ports

from .browser import Browser
from .visit import press

TUBES = ("mail", "web", "log", "pdf")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    [port] = free_ports(1)
    with Daemon("--processes", "2", "-l", "127.0.0.1", "-p", "0", "--web-port", str(port)) as running:
        yield running


def test_search_and_bulk_change_are_about_both_shards(chromium: Browser, daemon: Daemon) -> None:
    assert {TubeShards(2).shard_of(tube.encode()) for tube in TUBES} == {0, 1}
    ids = [
        int(daemon.ask(b"put-in-tube %b 9 0 60 6\r\nneedle\r\n" % tube.encode()).split()[1])
        for tube in TUBES
        for _ in range(2)
    ]
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(f"{daemon.dashboard}search?q=body:needle")
        rows = tab.page.locator("tbody[data-rows=matches] tr")
        expect(rows).to_have_count(len(ids))
        assert [int(row) for row in tab.page.locator("tbody th.id").all_inner_texts()] == sorted(ids)
        assert "shard" not in tab.page.inner_text("main").lower()
        daemon.ask(b"delete %d\r\n" % ids[0])
        expect(rows).to_have_count(len(ids) - 1)  # a live update
        tab.page.get_by_text("Change many jobs").click()
        tab.page.get_by_label("Action", exact=True).select_option("Delete")
        tab.page.get_by_label("All matches").check()
        press(tab, "Preview")
        assert f"Delete {len(ids) - 1} jobs?" in tab.page.inner_text("main")
        tab.page.get_by_label("to confirm").fill(str(len(ids) - 1))
        press(tab, f"Delete {len(ids) - 1} jobs")
        tab.page.locator("[data-task-state]", has_text=re.compile("done")).wait_for()
        assert f"{len(ids) - 1} deleted" in tab.page.inner_text("main")
        press(tab, "Undo")
        tab.page.locator("[data-task-state]", has_text=re.compile("done")).wait_for()
        assert f"{len(ids) - 1} put back" in tab.page.inner_text("main")
        tab.page.goto(f"{daemon.dashboard}search?q=body:needle")
        expect(rows).to_have_count(len(ids) - 1)
        assert (tab.console, tab.elsewhere) == ([], [])
