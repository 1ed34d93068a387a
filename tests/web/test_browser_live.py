"""Live pages in a real browser: the cost of an update, and the keyboard focus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import greenstalk
import pytest

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .visit import Clients

COUNT_LAYOUTS = """
window.asked = 0;
const collapsed = Object.getOwnPropertyDescriptor(Selection.prototype, 'isCollapsed');
Object.defineProperty(Selection.prototype, 'isCollapsed', {
    get() {
        window.asked += 1;
        return collapsed.get.call(this);
    },
});
window.asking = [];
document.addEventListener('live', () => {
    window.asking.push(window.asked);
    window.asked = 0;
});
"""
"""Counts how often each live update reads the selection, which forces a layout."""


@pytest.fixture
def quiet_tab(chromium: Browser, daemon: Daemon) -> Iterator[Tab]:
    with chromium.tab(daemon.dashboard) as opened:
        yield opened
        assert (opened.console, opened.elsewhere) == ([], [])


def focused(tab: Tab) -> Any:
    return tab.page.evaluate("document.activeElement.closest('tr')?.dataset.key ?? document.activeElement.tagName")


def follow(tab: Tab, url: str) -> None:
    tab.page.goto(url)
    tab.page.wait_for_selector("#live[data-state=live]")


def test_update_of_many_rows_reads_the_selection_once(quiet_tab: Tab, daemon: Daemon) -> None:
    quiet_tab.page.add_init_script(COUNT_LAYOUTS)
    quiet_tab.stop_clock()  # no timer fires
    tubes = [f"tube{number:02}" for number in range(40)]
    with greenstalk.Client(("127.0.0.1", daemon.port)) as producer:
        for tube in tubes:
            producer.use(tube)
            producer.put("body")
        follow(quiet_tab, f"{daemon.dashboard}?q=tube")
        for count in ("2", "3", "4"):
            for tube in tubes:
                producer.use(tube)
                producer.put("body")
            for tube in tubes:
                quiet_tab.page.wait_for_selector(f"[data-key={tube}] .ready:text-is('{count}')")
    asking = quiet_tab.page.evaluate("window.asking")
    assert len(asking) >= 4, "the first state, and an update for each round"
    assert max(asking) <= 1


def test_focus_moves_to_the_next_job_when_the_job_leaves(quiet_tab: Tab, clients: Clients) -> None:
    ids = clients.put(*[b"x"] * 4)
    follow(quiet_tab, clients.url)
    for _ in range(2):
        quiet_tab.page.keyboard.press("j")
    assert focused(quiet_tab) == str(ids[1])
    for gone, left in ((ids[1], ids[2]), (ids[2], ids[3]), (ids[3], ids[0])):
        clients.producer.delete(gone)
        quiet_tab.page.wait_for_selector(f"tr[data-key='{gone}']", state="detached")
        assert focused(quiet_tab) == str(left)
    assert quiet_tab.page.evaluate("document.activeElement.tagName") == "A"
    clients.producer.delete(ids[0])
    quiet_tab.page.wait_for_selector(f"tr[data-key='{ids[0]}']", state="detached")
    assert focused(quiet_tab) == "MAIN"
