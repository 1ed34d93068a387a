"""Policies and dead letters in a real browser, with a real daemon and clients, with and without scripts."""

from __future__ import annotations

import re
from typing import Any

import greenstalk
import pytest
from playwright.sync_api import expect

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .test_browser_bulk import boxes, choose, wait_done
from .visit import AXE, AXE_VIOLATIONS, WITH_AND_WITHOUT_SCRIPTS, Clients, is_too_wide, notice_text, press


def fill(tab: Tab, **values: str) -> None:
    """Fill the fields of the form of a policy, by their names."""
    for name, value in values.items():
        field = tab.page.locator(f"#policy-form [name={name}]")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)


def add_policy(tab: Tab, daemon: Daemon, **values: str) -> None:
    """Preview a policy, and save it."""
    tab.page.goto(f"{daemon.dashboard}policies")
    tab.page.get_by_role("link", name="New policy").click()
    fill(tab, **values)
    press(tab, "Preview")
    press(tab, "Save")
    assert notice_text(tab).startswith("The policy was saved.")


def name_of(clients: Clients) -> str:
    """Return a name for the only policy of the tube of *clients*."""
    return f"policy-{clients.tube.partition('.')[2]}"


def add_dead_letters(tab: Tab, daemon: Daemon, clients: Clients, count: int) -> list[int]:
    """Return the ids of *count* dead letters of the tube of *clients* in its tube `.failed`."""
    add_policy(tab, daemon, name=name_of(clients), tubes=clients.tube, max_attempts="1",
               dead_letter=f"{clients.tube}.failed")  # fmt: skip
    ids = clients.put(*[b"x"] * count)
    for _ in ids:
        clients.worker.release(clients.worker.reserve(timeout=5))
    return ids


@WITH_AND_WITHOUT_SCRIPTS
def test_policy_is_previewed_corrected_saved_and_deleted(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    clients.put(*[b"x"] * 5)
    tab.page.goto(f"{daemon.dashboard}policies")
    tab.page.get_by_role("link", name="New policy").click()
    fill(tab, name=name_of(clients), tubes=clients.tube, max_attempts="many", max_reserved="2", overflow="drop-oldest")
    press(tab, "Preview")
    tab.console.clear()  # the browser logs the status 400
    assert "must be a whole number of attempts" in tab.page.inner_text("#max_attempts-error")
    assert "must not be set without" in tab.page.inner_text("#overflow-error")
    assert tab.page.input_value("#max_attempts") == "many"
    assert tab.page.input_value("#max_reserved") == "2"
    assert tab.page.get_by_role("button", name="Save").count() == 0
    fill(tab, max_attempts="3", max_jobs="4")
    press(tab, "Preview")
    effect = tab.page.locator("#effect")
    expect(effect).to_contain_text("Tubes that match")
    entries = dict(zip(effect.locator("dt").all_text_contents(), effect.locator("dd").all_text_contents(), strict=True))
    assert (entries["Tubes that match"], entries["Jobs in these tubes"]) == ("1", "5")
    assert (entries["Would be dropped, above a cap"], entries["Ready jobs that would wait"]) == ("1", "2")
    assert effect.locator("li").all_text_contents()[0].strip() == clients.tube
    tab.screenshot("policy-preview")
    assert clients.states() == (5, 0, 0, 0)
    fill(tab, max_jobs="3")
    press(tab, "Save")  # values that differ from the preview
    assert "Nothing has been saved yet." in effect.inner_text()
    expect(effect).to_contain_text("Ready jobs that would wait")
    press(tab, "Save")
    assert notice_text(tab).startswith("The policy was saved.")
    while clients.states()[0] != 3:
        tab.page.wait_for_timeout(20)
    tab.page.goto(clients.url)
    assert name_of(clients) in tab.page.inner_text("#policy")
    tab.page.locator("#policy").get_by_role("link", name=name_of(clients)).first.click()
    assert tab.page.input_value("#max_jobs") == "3"
    tab.page.get_by_text("Delete", exact=True).click()
    press(tab, f"Delete the policy {name_of(clients)}")
    assert notice_text(tab) == "The policy was deleted."


def test_wait_for_a_limit_is_shown_live(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    with chromium.tab(daemon.dashboard) as tab:
        add_policy(tab, daemon, name=name_of(clients), tubes=clients.tube, max_reserved="1")
        clients.put(b"a", b"b")
        tab.page.goto(clients.url)
        tab.page.wait_for_selector("#live[data-state=live]")
        assert "Workers wait" not in tab.page.inner_text("#policy")
        held = clients.worker.reserve(timeout=5)
        with pytest.raises(greenstalk.TimedOutError):
            clients.worker.reserve(timeout=0)
        expect(tab.page.locator(".badges")).to_contain_text("at most 1 job reserved: 1 is")
        expect(tab.page.locator("#policy")).to_contain_text("Workers wait: at most 1 job reserved: 1 is.")
        clients.worker.delete(held)
        expect(tab.page.locator(".badges")).not_to_contain_text("reserved")
        assert (tab.console, tab.elsewhere) == ([], [])


def test_all_dead_letters_are_redriven(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    add_dead_letters(tab, daemon, clients, 3)
    tab.page.goto(f"{clients.url}.failed")
    assert f"Dead letters come here from {clients.tube}" in tab.page.inner_text("#policy")
    assert tab.page.locator("td.reason").all_text_contents() == ["out of attempts"] * 3
    tab.page.get_by_label("Jobs per second (empty for no limit)").fill("1000")
    press(tab, "Redrive all")
    shown = tab.page.inner_text("main")
    assert "Redrive 3 jobs?" in shown
    assert "At most 1000 jobs per second." in shown
    assert clients.states() == (0, 0, 0, 0)
    press(tab, "Redrive 3 jobs")
    assert "3 redriven" in wait_done(tab)
    assert clients.states() == (3, 0, 0, 0)


def test_selected_dead_letters_and_those_of_a_search_are_redriven(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    ids = add_dead_letters(tab, daemon, clients, 5)
    tab.page.goto(f"{clients.url}.failed")
    boxes(tab).nth(1).check()
    choose(tab, "Redrive")
    press(tab, "Preview")
    press(tab, "Redrive 1 job")
    assert "1 redriven" in wait_done(tab)
    assert clients.worker.reserve(timeout=5).id == ids[1]
    tab.page.goto(f"{clients.url}.failed")
    tab.page.get_by_label("Filter these jobs by a query").fill(f"id:>{ids[2]}")
    press(tab, "Filter")
    choose(tab, "Redrive")
    tab.page.get_by_label("All ready jobs that match").check()
    press(tab, "Preview")
    press(tab, "Redrive 2 jobs")
    assert "2 redriven" in wait_done(tab)
    assert clients.states() == (2, 1, 0, 0)


def test_one_dead_letter_is_redriven_from_its_page(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    (id,) = add_dead_letters(tab, daemon, clients, 1)
    tab.page.goto(f"{daemon.dashboard}job?id={id}")
    assert "out of attempts" in tab.page.inner_text("main")
    press(tab, "Redrive: move back to its tube")
    assert notice_text(tab) == f"Job {id} was moved back to the tube that it came from, and is ready."
    assert clients.states() == (1, 0, 0, 0)


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (360, "dark")])
def test_pages_are_accessible_and_fit(
    chromium: Browser, daemon: Daemon, clients: Clients, width: int, theme: Any
) -> None:
    with chromium.tab(daemon.dashboard, width, color_scheme=theme) as tab:
        (id,) = add_dead_letters(tab, daemon, clients, 1)
        clients.put(b"x")
        name = name_of(clients)
        paths = ["policies", "policy", f"policy?name={name}", f"tube?tube={clients.tube}",
                 f"tube?tube={clients.tube}.failed", f"job?id={id}", ""]  # fmt: skip
        for path in paths:
            tab.page.goto(daemon.dashboard + path)
            assert tab.page.evaluate(f"{AXE};{AXE_VIOLATIONS}") == [], path
            assert not is_too_wide(tab), path
            tab.screenshot(f"policies-{width}-{re.sub(r'[^a-z]+', '-', path)}")
        assert (tab.console, tab.elsewhere) == ([], [])
