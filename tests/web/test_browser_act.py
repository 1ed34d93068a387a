"""Acting on many tubes, shortcuts, the command palette and skip links, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import greenstalk
import pytest
from playwright.sync_api import expect

from greenstalk_server.web.features.tubes.pages.overview import MAX_TUBES
from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .visit import Clients, is_too_wide, violations

LOADED = "#settings:has(#keys-open:not([hidden]))"
"""The menu with the entry that keys.js shows as its last step: from then on the page handles keys."""


@pytest.fixture
def scripted(chromium: Browser, daemon: Daemon) -> Iterator[Tab]:
    """A tab with JavaScript; at the end it must have no errors and no foreign requests."""
    with chromium.tab(daemon.dashboard) as opened:
        yield opened
        assert (opened.console, opened.elsewhere) == ([], [])


def focused(tab: Tab) -> Any:
    return tab.page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")


def keys(tab: Tab, *names: str) -> None:
    for name in names:
        tab.page.keyboard.press(name)


def visit(tab: Tab, url: str) -> None:
    tab.page.goto(url)
    tab.page.wait_for_selector(LOADED)


# Many tubes


def test_form_shows_the_number_of_matching_tubes(scripted: Tab, daemon: Daemon, clients: Clients) -> None:
    clients.put(b"x")
    visit(scripted, daemon.dashboard)
    scripted.page.get_by_text("Act on tubes").click()
    expect(scripted.page.locator("#act-count")).to_contain_text("match")
    scripted.page.fill("#act-pattern", f"{clients.tube}*")
    expect(scripted.page.locator("#act-count")).to_have_text("1 tube matches")
    scripted.page.fill("#act-pattern", "no such tube")
    expect(scripted.page.locator("#act-count")).to_have_text("")
    scripted.page.select_option("#act-action", "kick")
    assert scripted.page.locator("#act-state").is_visible()
    assert scripted.page.locator("#act-preset").is_hidden()
    assert violations(scripted) == []


# Shortcuts


@pytest.mark.parametrize(("key", "heading"), [("K", "Retry 2 jobs?"), ("d", "Delete 2 jobs?")])
def test_keys_open_the_preview_of_the_selected_rows(scripted: Tab, clients: Clients, key: str, heading: str) -> None:
    clients.put(*[b"x"] * 3)
    clients.bury(3)
    visit(scripted, f"{clients.url}&state=buried")
    keys(scripted, "j", "x", "j", "j", "x", "x", "k", "x")
    assert scripted.page.locator("tbody td.tick input:checked").count() == 2
    with scripted.page.expect_navigation():
        keys(scripted, key)
    assert scripted.page.inner_text("h1") == heading
    assert clients.states() == (3, 0, 0, 3), "nothing has changed yet"


def test_key_without_a_selected_row_uses_the_focused_row(scripted: Tab, clients: Clients) -> None:
    ids = clients.put(*[b"x"] * 2)
    visit(scripted, clients.url)
    keys(scripted, "d", "m")
    assert scripted.page.locator("#bulk-panel").get_attribute("open") is None, "no row is ticked or focused"
    keys(scripted, "j", "j", "m")
    assert focused(scripted) == "bulk-to"
    scripted.page.keyboard.type(f"{clients.tube}.new")
    with scripted.page.expect_navigation():
        keys(scripted, "Enter")
    assert scripted.page.inner_text("h1") == f"Move 1 job to “{clients.tube}.new”?"
    assert str(ids[1]) in scripted.page.inner_text("tbody")


# The command palette


def results(tab: Tab) -> list[str]:
    return [" ".join(text.split()) for text in tab.page.locator("#palette-list [role=option]").all_inner_texts()]


def test_palette_finds_a_tube_by_some_letters(scripted: Tab, daemon: Daemon, clients: Clients) -> None:
    clients.put(b"x")
    visit(scripted, daemon.dashboard)
    keys(scripted, "Control+k")
    assert focused(scripted) == "find"
    letters = clients.tube.replace("mail.", "ml").upper()
    scripted.page.keyboard.type(letters)
    expect(scripted.page.locator("#palette-list")).to_contain_text(f"Tube {clients.tube}")
    assert violations(scripted) == []
    with scripted.page.expect_navigation():
        keys(scripted, "Enter")
    assert scripted.page.inner_text("h1") == clients.tube


def test_palette_opens_pages_and_jobs(scripted: Tab, daemon: Daemon, clients: Clients) -> None:
    (id,) = clients.put(b"x")
    visit(scripted, daemon.dashboard)
    scripted.page.click("#find")
    scripted.page.keyboard.type(str(id))
    assert results(scripted)[0] == f"Job {id}"
    with scripted.page.expect_navigation():
        keys(scripted, "Enter")
    assert f"Job {id}" in scripted.page.inner_text("h1")
    scripted.page.wait_for_selector(LOADED)
    keys(scripted, "Meta+k")
    scripted.page.keyboard.type("poli")
    assert results(scripted)[0] == "Page Policies"
    with scripted.page.expect_navigation():
        scripted.page.get_by_role("option", name="Page Policies").click()
    assert scripted.page.inner_text("h1") == "Policies"


def test_palette_opens_the_form_of_an_action_and_does_not_act(scripted: Tab, clients: Clients) -> None:
    clients.put(b"x")
    visit(scripted, clients.url)
    keys(scripted, "Control+k")
    assert {"Action Pause", "Action Retry", "Action Put a job", "Action Clear ready jobs"} <= set(results(scripted))
    scripted.page.keyboard.type("clear")
    keys(scripted, "Enter")
    assert focused(scripted) == "confirm"
    assert clients.states() == (1, 0, 0, 0)


def test_palette_fits(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    clients.put(b"x")
    with chromium.tab(daemon.dashboard, 360) as tab:
        for url in (daemon.dashboard, clients.url):
            visit(tab, url)
            tab.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            assert not is_too_wide(tab)
            keys(tab, "Control+k")
            tab.page.wait_for_selector("#palette-list [role=option]")
            assert not is_too_wide(tab)
            tab.screenshot("palette")
            keys(tab, "Escape")
        assert tab.console == []


# Skip links


@pytest.mark.parametrize("target", ["#pause > summary", "#kick > summary", "#put > summary", "#more > summary"])
def test_each_action_of_a_tube_is_within_ten_tabs(scripted: Tab, clients: Clients, target: str) -> None:
    clients.put(*[b"x"] * 30)
    visit(scripted, clients.url)
    for _ in range(10):
        keys(scripted, "Tab")
        if scripted.page.evaluate("document.activeElement.getAttribute('href')") == "#actions":
            keys(scripted, "Enter")
        if scripted.page.evaluate("target => document.activeElement === document.querySelector(target)", target):
            break
    else:
        pytest.fail(f"{target} is not within ten Tabs: the focus is on {focused(scripted)}")


# Pages of tubes


@pytest.fixture(scope="module")
def many(daemon: Daemon) -> Iterator[greenstalk.Client]:
    """Ready jobs in MAX_TUBES + 50 tubes, `paged.000` and so on, without a consumer."""
    with greenstalk.Client(("127.0.0.1", daemon.port)) as client:
        for number in range(MAX_TUBES + 50):
            client.use(f"paged.{number:03}")
            client.put("x")
        yield client


def rows(tab: Tab) -> list[str]:
    return tab.page.locator("#tubes tr").evaluate_all("rows => rows.map(row => row.dataset.key)")


def test_shown_page_is_live_and_the_filter_starts_from_the_first(
    scripted: Tab, daemon: Daemon, many: greenstalk.Client
) -> None:
    visit(scripted, f"{daemon.dashboard}?sort=name&q=paged&from={MAX_TUBES}")
    scripted.page.wait_for_selector("#live[data-state=live]")
    many.use("paged.120")
    many.put("x")
    scripted.page.wait_for_selector("[data-key='paged.120'] .ready:text-is('2')")
    assert len(rows(scripted)) == 50
    scripted.page.fill("#q", "paged.01")
    scripted.page.wait_for_selector("[data-key='paged.010']")
    expect(scripted.page.locator("#tubes tr")).to_have_count(10)
    assert "from" not in scripted.page.url
    expect(scripted.page.locator("nav[aria-label='Pages of tubes']")).to_have_count(0)


def test_important_columns_are_in_view_at_1024_px(chromium: Browser, daemon: Daemon, many: greenstalk.Client) -> None:
    with chromium.tab(daemon.dashboard, 1024) as tab:
        visit(tab, daemon.dashboard)
        panel = tab.page.locator("#table").bounding_box()
        assert panel is not None
        shown = tab.page.locator("#table thead th").filter(visible=True)
        keys = shown.evaluate_all("heads => heads.map(head => head.className)")
        assert {"name", "attention", "ready", "oldest"} <= set(keys)
        assert not {"urgent", "waiting", "timeout-rate"} & set(keys), "hidden in narrow windows, or zero everywhere"
        for head in shown.all():
            box = head.bounding_box()
            assert box is not None and box["x"] + box["width"] <= panel["x"] + panel["width"] + 1
        assert tab.page.get_attribute("#table thead th.attention", "aria-sort") == "descending"
