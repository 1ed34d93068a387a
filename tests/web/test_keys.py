"""The keyboard shortcuts of every page, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import greenstalk
import pytest

from tests.support.daemon import Daemon

from .browser import Browser, Tab

OUTSIDE = """() => [...document.querySelectorAll('#keys :is(dt, dd, kbd)')]
    .filter(one => {
        const { left, right } = one.getBoundingClientRect();
        const around = one.closest('dl').getBoundingClientRect();
        return left < around.left || right > around.right + 1;
    })
    .map(one => one.textContent)"""
"""Returns the texts of the dialog that reach out of it."""

LINES = """() => [...document.querySelectorAll('#keys dd')]
    .map(one => [...one.querySelectorAll('kbd')].map(key => Math.round(key.getBoundingClientRect().top)))
    .map(tops => new Set(tops).size)"""
"""Returns the number of lines of the keys of each shortcut."""

TUBES = ("alpha", "beta", "default")

LOADED = "#settings:has(#keys-open:not([hidden]))"
"""The menu with the entry that keys.js shows as its last step: from then on the page handles keys."""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with (
        Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0") as running,
        greenstalk.Client(("127.0.0.1", running.port)) as client,
    ):
        for tube in TUBES:
            client.use(tube)
            client.put("body")
        yield running


@pytest.fixture
def tab(chromium: Browser, daemon: Daemon) -> Iterator[Tab]:
    with chromium.tab(daemon.dashboard) as found:
        found.page.goto(daemon.dashboard)
        yield found
        assert (found.console, found.elsewhere) == ([], [])


def focused(tab: Tab) -> Any:
    return tab.page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")


def press(tab: Tab, *keys: str) -> None:
    for key in keys:
        tab.page.keyboard.press(key)


def open_help(tab: Tab) -> None:
    tab.page.click("#settings > summary")
    tab.page.get_by_role("button", name="Keyboard shortcuts").click()


def test_g_and_a_letter_open_pages(tab: Tab) -> None:
    tab.page.clock.set_fixed_time("2026-01-01")  # on a busy machine the letter may follow too late
    for letter, heading in (
        ("c", "Connections"),
        ("s", "Search jobs"),
        ("p", "Policies"),
        ("a", "Audit log"),
        ("t", "Overview"),
    ):
        press(tab, "g", letter)
        tab.page.wait_for_selector(f"h1:text-is('{heading}')", state="attached")
        tab.page.wait_for_selector(LOADED)


def test_j_and_k_move_between_rows(tab: Tab) -> None:
    seen = []
    for key in "jjjjkk":
        press(tab, key)
        seen.append(focused(tab))
    assert seen == ["alpha", "beta", "default", "default", "beta", "alpha"]
    press(tab, "Enter")
    tab.page.wait_for_selector("h1:has-text('alpha')")


def test_slash_focuses_the_filter_or_the_search_box(tab: Tab, daemon: Daemon) -> None:
    press(tab, "/")
    assert focused(tab) == "q"
    press(tab, "g", "c", "?", "/")
    assert tab.page.input_value("#q") == "gc?/", "a key in a text field is not a shortcut"
    tab.page.goto(f"{daemon.dashboard}job?id=1")
    tab.page.wait_for_selector(LOADED)
    press(tab, "/")
    assert focused(tab) == "find"


def test_r_refreshes(tab: Tab, daemon: Daemon) -> None:
    tab.page.wait_for_selector("#live[data-state=live]")
    with tab.page.expect_request("**/events?*"):
        press(tab, "r")
    tab.page.goto(f"{daemon.dashboard}audit")
    with tab.page.expect_navigation():
        press(tab, "r")


def test_help_opens_and_closes(tab: Tab) -> None:
    help = tab.page.get_by_role("dialog", name="Keyboard shortcuts")
    press(tab, "?")
    assert help.is_visible()
    press(tab, "j")
    assert focused(tab) not in TUBES, "shortcuts do not work behind the dialog"
    press(tab, "Escape")
    assert help.is_hidden()
    open_help(tab)
    help.get_by_role("button", name="Close").click()
    assert help.is_hidden()


def test_shortcuts_can_be_turned_off(tab: Tab) -> None:
    open_help(tab)
    tab.page.get_by_label("Enable shortcuts").uncheck()
    press(tab, "Escape")
    tab.page.reload()
    press(tab, "j", "?")
    assert focused(tab) not in TUBES
    assert tab.page.get_by_role("dialog").is_hidden()
    open_help(tab)
    tab.page.get_by_label("Enable shortcuts").check()
    press(tab, "Escape", "j")
    assert focused(tab) == "alpha"


def test_dialog_shows_every_shortcut_on_one_line(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 360, "height": 800})
    open_help(tab)
    tab.page.wait_for_selector("#keys[open]")
    assert tab.page.evaluate(OUTSIDE) == []
    assert set(tab.page.evaluate(LINES)) == {1}
