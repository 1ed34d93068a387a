"""Policies and dead letters in a real browser, with a real daemon and clients, with and without scripts."""

from __future__ import annotations

import greenstalk
import pytest
from playwright.sync_api import expect

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .visit import Clients, notice_text, press


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
