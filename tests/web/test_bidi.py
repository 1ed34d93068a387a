"""Texts with bidirectional control characters: pages show them in logical order, and forms do not change them."""

from __future__ import annotations

from typing import Any

import pytest
from markupsafe import Markup

from greenstalk_server.web.framework import text
from greenstalk_server.web.reads.jobs.body_format import describe_body, row_preview
from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .visit import Clients, notice_text, press

EVIL = "reason=\N{RIGHT-TO-LEFT OVERRIDE}evil\N{POP DIRECTIONAL FORMATTING}"
SPELLED = "reason=⟨U+202E⟩evil⟨U+202C⟩"
CONTROLS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

SHOWN = """controls => [document.title, document.body.innerText,
    ...[...document.querySelectorAll('[title], [aria-label]')].flatMap(one => [one.title, one.ariaLabel ?? ''])]
    .filter(shown => [...controls].some(control => shown.includes(control)))"""
"""Returns the texts of a page, except form fields, that contain a control character."""

ORDER = """([selector, word]) => {
    const walker = document.createTreeWalker(document.querySelector(selector), NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const at = walker.currentNode.data.indexOf(word);
        if (at >= 0) {
            return [...word].map((_, offset) => {
                const range = document.createRange();
                range.setStart(walker.currentNode, at + offset);
                range.setEnd(walker.currentNode, at + offset + 1);
                return range.getBoundingClientRect().left;
            });
        }
    }
    return [];
}"""
"""Returns the horizontal position of each letter of a word."""


@pytest.mark.parametrize("control", CONTROLS)
def test_control_is_spelled_out(control: str) -> None:
    assert text.spelled(f"a{control}b") == f"a⟨U+{ord(control):04X}⟩b"
    assert text.is_reordered(control)


@pytest.mark.parametrize("value", ["", "a", "שלום", "☃", "\u200d", "é", 5, None, Markup("\u202e")])
def test_other_values_are_unchanged(value: object) -> None:
    assert text.finalize(value) == value


def test_body_is_spelled_out_in_lists_and_panes() -> None:
    assert row_preview(EVIL.encode()) == SPELLED
    (pane,) = describe_body(EVIL.encode()).panes
    assert pane.text == EVIL and "spelled out" in pane.note
    assert "spelled out" not in describe_body("שלום".encode()).panes[0].note


def reads_in_order(tab: Tab, selector: str) -> bool:
    lefts = tab.page.evaluate(ORDER, [selector, "evil"])
    return len(lefts) == 4 and lefts == sorted(lefts)


def test_pages_show_texts_in_logical_order(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    [id] = clients.put(EVIL.encode())
    tab.page.goto(clients.url)
    tab.page.get_by_label("Reason").fill(EVIL)
    press(tab, "Pause")
    assert tab.page.input_value("#reason") == EVIL, "a field keeps it"
    pages = {
        clients.url: "td.body",
        f"{daemon.dashboard}job?id={id}": "pre.body",
        f"{daemon.dashboard}search?q=evil": "td.body",
        f"{daemon.dashboard}audit": ".audit .details bdi:last-of-type",
    }
    for url, selector in pages.items():
        tab.page.goto(url)
        assert tab.page.evaluate(SHOWN, CONTROLS) == [], url
        assert SPELLED in tab.page.inner_text("main"), url
        assert reads_in_order(tab, selector), url
    tab.page.goto(clients.url)
    tab.page.locator("tbody td.tick input").first.check()
    if not tab.page.locator("#bulk-panel").evaluate("panel => panel.open"):
        tab.page.get_by_text("Change many jobs").click()
    tab.page.get_by_label("Action", exact=True).select_option("Bury")
    press(tab, "Preview")
    assert SPELLED in tab.page.inner_text("td.body")
    assert tab.page.evaluate(SHOWN, CONTROLS) == []


def test_row_added_by_a_live_update_is_in_order(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    clients.put(b"x")
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(clients.url)
        tab.page.wait_for_selector("#live[data-state=live]")
        [id] = clients.put(EVIL.encode())
        tab.page.wait_for_selector(f"tr[data-key='{id}']")
        assert tab.page.inner_text(f"tr[data-key='{id}'] td.body") == SPELLED
        assert reads_in_order(tab, f"tr[data-key='{id}']")


def test_form_returns_the_body_unchanged_and_warns(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    [plain, id] = clients.put(b"x", EVIL.encode())
    tab.page.goto(f"{daemon.dashboard}job/form?id={plain}")
    assert "direction of text" not in tab.page.inner_text("main")
    tab.page.goto(f"{daemon.dashboard}job/form?id={id}")
    assert tab.page.input_value("#body") == EVIL
    assert "characters that change the direction of text" in tab.page.inner_text("main")
    tab.page.get_by_label("Priority").fill("7")
    press(tab, "Save")
    assert notice_text(tab) == f"Job {id} was changed."
    assert clients.producer.peek(id).body == EVIL.encode()


def test_name_of_a_worker_is_spelled_out(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    [id] = clients.put(b"x", ttr=600)
    body: Any = {"tubes": [clients.tube], "worker": "\N{RIGHT-TO-LEFT MARK}evil"}
    with chromium.tab(daemon.dashboard) as tab:
        answer = tab.page.request.post(f"{daemon.dashboard}api/v1/reserve", data=body)
        assert answer.ok, answer.text()
        for path in ("connections", f"job?id={id}"):
            tab.page.goto(daemon.dashboard + path)
            assert "⟨U+200F⟩evil" in tab.page.inner_text("main"), path
            assert tab.page.evaluate(SHOWN, CONTROLS) == [], path
            assert reads_in_order(tab, "main"), path
