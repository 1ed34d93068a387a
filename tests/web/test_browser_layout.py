"""Every page at three widths, with the longest texts: nothing overflows or is cut, and axe finds no broken rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Locator, Page

from greenstalk_server.web.changes.operations import MAX_REASON_LENGTH
from tests.support.daemon import Daemon

from .browser import Browser, Tab, View
from .visit import AXE, Clients, is_too_wide, url_of_module, violations
from .wide import LONG, SOLID

VIEWS: tuple[View, ...] = ((360, "dark"), (1024, "light"), (1440, "light"))

PARTS = 4
"""Number of tests that share the pages, so that none takes long."""

MIN_TARGET = 24
"""Pixels; WCAG 2.2, success criterion 2.5.8. Links within a sentence are exempt there."""

SMALL = """least => [...document.querySelectorAll(
        'a[href], button, input:not([type=hidden]), select, textarea, summary')]
    .filter(one => one.offsetParent !== null && !one.closest('.visually-hidden, .skip'))
    .filter(one => !one.matches(
        'p a, li.effects a, .field-error a, .task-message a, .predicate a, caption a'))
    .map(one => [one, one.labels?.[0]?.contains(one) ? one.labels[0] : one])
    .map(([one, target]) => [one, target.getBoundingClientRect()])
    .filter(([one, { width, height }]) => width > 0 && Math.min(width, height) < least - 0.5)
    .map(([one, { width, height }]) =>
        `${one.tagName} ${one.className || one.id} in ${one.parentElement.className || one.parentElement.tagName}`
        + ` “${one.textContent.slice(0, 20)}” ${Math.round(width)}x${Math.round(height)}`)"""
"""Returns the links, buttons and fields that are smaller than the least size."""

CUT = """() => [...document.querySelectorAll('main :is(th, td:not(.body, .pause), .badge, .value, button)')]
    .filter(one => one.offsetParent !== null && one.scrollWidth > one.clientWidth + 1)
    .filter(one => getComputedStyle(one).clipPath === 'none')
    .map(one => [one.className, one.textContent])"""
"""Returns the elements that truncate their text."""


LINES = """element => {
    const range = document.createRange();
    range.selectNodeContents(element);
    const tops = [...range.getClientRects()].map(({ top }) => Math.round(top));
    return new Set(tops).size;
}"""

BROKEN = """selector => {
    const found = [];
    const range = document.createRange();
    for (const element of document.querySelectorAll(selector)) {
        const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            for (const word of walker.currentNode.data.matchAll(/[A-Za-z0-9]+/g)) {
                range.setStart(walker.currentNode, word.index);
                range.setEnd(walker.currentNode, word.index + word[0].length);
                if (new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size > 1) {
                    found.push(word[0]);
                }
            }
        }
    }
    return found;
}"""
"""Returns the words that are broken across lines."""

OUTSIDE = """() => [...document.querySelectorAll('main *')]
    .filter(one => one.offsetParent !== null)
    .filter(one => !one.closest('.table-scroll, .pages, .points-scroll, .error-sample, pre, svg, .visually-hidden'))
    .map(one => [one, one.getBoundingClientRect()])
    .filter(([, { width, right }]) => width > 0 && right > document.documentElement.clientWidth + 1)
    .map(([one]) => `${one.tagName} ${one.className}`)"""
"""Returns the elements that reach out of the window, although an ancestor may clip them."""

NUMBERS = (
    "main :is(.value, .badge, .worker-rate, .held),"
    " .jobs :is(th.id, td.pri, td.state, td.reserves, td.timeouts, td.attempts, td.size),"
    " .tubes-of-server td:not(.attention, .pause)"
)
"""Selects the elements whose numbers and words must not break across lines."""

FULL_HEADER = """() => {
    for (const [selector, text] of [['#live', 'Reload to refresh'], ['[data-badge]', '9,999']]) {
        document.querySelectorAll(selector).forEach(one => { one.textContent = text; });
    }
    const row = document.querySelector('.masthead-row');
    const end = row.getBoundingClientRect().right - parseFloat(getComputedStyle(row).paddingRight);
    return [...row.children].filter(one => !one.matches('.pages') && one.getBoundingClientRect().right > end + 1)
        .map(one => one.className);
}"""
"""Shows the longest text and all badges in the header, and returns its parts that reach into its margin."""

TEXTS_CUT = """() => [...document.querySelectorAll(
        'main :is(.value, .note, dd, td:not(.body, .pause), .badge, .worker-rate)')]
    .filter(one => one.offsetParent !== null && one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0)
    .filter(one => getComputedStyle(one).overflow !== 'visible' && one.querySelector('.cut-name') === null)
    .map(one => `${one.className} ${one.textContent}`)"""


def pages(tab: Tab, wide: str) -> dict[str, str]:
    """Return the path of every page, by the name of its screenshots."""
    mail, long = (urlencode({"tube": name}) for name in ("mail", LONG))
    tab.page.goto(f"{wide}tube?{long}&state=reserved")
    held = tab.page.locator(".jobs tbody tr").first.get_attribute("data-key")
    worker = tab.page.locator(".worker").first.inner_text()
    change = {"action": "move", "tube": LONG, "to": SOLID}
    task = tab.page.request.post(f"{wide}api/v1/bulk", data=change).json()["id"]
    return {
        "overview": "",
        "overview-filtered": "?q=nowhere",
        **{f"tube-{state}": f"tube?{mail}&state={state}" for state in ("ready", "reserved", "delayed", "buried")},
        "tube-long": f"tube?{long}",
        "tube-solid": f"tube?{urlencode({'tube': SOLID})}&state=reserved",
        "tube-filter": f"tube?{mail}&q=pri:0",
        "tube-filter-task": "tube?tube=billing.invoices&q=pri:%3E1999",
        "tube-filter-error": f"tube?{mail}&q=pri:x",
        "attention": "attention",
        "errors": "errors",
        "tube-errors": f"tube/errors?{mail}",
        "tube-errors-long": f"tube/errors?{long}",
        "tube-history": f"tube/history?{mail}",
        "tube-history-long": f"tube/history?{long}&span=week",
        "alerts": "alerts",
        "bulk": f"bulk?task={task}",
        "task": f"task?id={task}",
        "connections": "connections",
        "connection": f"connection?number={worker}",
        "search": "search",
        "search-matches": f"search?q=tube:{LONG}",
        "job-held": f"job?id={held}",
        "job-form": f"job/form?id={held}",
        "policies": "policies",
        "policy-new": "policy",
        "tube-columns": f"tube?{mail}&state=buried&cols=data,kind,error",
        "policy": f"policy?name={'p' * 100}",
        "audit": "audit",
        "servers": "servers",
        "tasks": "task",
        "not-found": "nowhere",
    }


@pytest.fixture(scope="module")
def wide() -> Iterator[str]:
    """Serve a dashboard with the longest texts (wide.py); return its URL."""
    with url_of_module("tests.web.wide") as url:
        yield url


PROBLEMS = f"""([numbers, least]) => {{
    document.querySelectorAll('main details').forEach(one => {{ one.open = true; }});
    const found = {{
        'too wide': document.documentElement.scrollWidth > document.documentElement.clientWidth ? ['page'] : [],
        outside: ({OUTSIDE})(),
        cut: [...({CUT})(), ...({TEXTS_CUT})()],
        broken: ({BROKEN})(numbers),
        small: ({SMALL})(least),
        header: ({FULL_HEADER})(),
    }};
    return Object.entries(found).flatMap(([kind, all]) => all.map(one => `${{kind}}: ${{one}}`));
}}"""
"""Opens all details, and returns the problems of the layout. One call takes less CPU than six."""


def problems_of(tab: Tab, width: int) -> list[Any]:
    """Return what does not fit or breaks a rule on the page of *tab*, whose details are opened."""
    found: list[Any] = tab.page.evaluate(PROBLEMS, [NUMBERS, MIN_TARGET])
    if width in (360, 1440):  # one check for each theme
        found += [f"rule: {one}" for one in violations(tab)]
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_every_page_fits(chromium: Browser, wide: str, part: int) -> None:
    """Load each page once, which takes as much CPU as its checks, and show it in each view.

    The order of the views alternates: a page begins with the view in which the previous page ended.
    """
    problems: dict[str, list[Any]] = {}
    with chromium.tab(wide) as tab:
        tab.page.add_init_script(AXE)  # for each page, `violations` would send it again
        for at, (name, path) in enumerate(list(pages(tab, wide).items())[part::PARTS]):
            tab.page.goto(wide + path)
            tab.screenshots(name, VIEWS)
            for width, theme in VIEWS[:: -1 if at % 2 else 1]:
                tab.show(width, theme)
                if found := problems_of(tab, width):
                    problems[f"{name}-{width}-{theme}"] = found
        assert problems == {}
        assert [line for line in tab.console if not re.search("status of 40[04]", line)] == []
        assert tab.elsewhere == []


NAMES = """() => [...document.querySelectorAll('main .cut-name.long')].filter(one => one.offsetParent !== null).map(one => {
    const start = one.firstElementChild, end = parseFloat(getComputedStyle(one, '::after').width), box = one.getBoundingClientRect();
    return [one.title, one.textContent, start.scrollWidth > start.clientWidth,
            end > 0 && start.getBoundingClientRect().right + end <= box.right + 1,
            box.right <= one.parentElement.closest('th, td, li, div, h1, nav').getBoundingClientRect().right + 1];
})"""  # noqa: E501
"""Returns for each long name the title, the text, and whether the start is cut, the end is whole, and the name is
inside."""


def accessible_names(page: Page) -> set[str]:
    """Return the accessible names of the links and headings of *page*."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    roles = ("link", "heading")
    return {node["name"]["value"] for node in nodes if node.get("role", {}).get("value") in roles and "name" in node}


@pytest.mark.parametrize("path", ["", "connections", "audit", f"tube?tube={SOLID}", "tube/errors?tube=" + SOLID])
def test_names_are_cut_in_the_middle(chromium: Browser, wide: str, path: str) -> None:
    longest = "p" * 100 if path == "audit" else SOLID
    with chromium.tab(wide) as tab:
        tab.page.goto(wide + path)
        for width in (360, 1440):
            tab.show(width)
            names = {title: rest for title, *rest in tab.page.evaluate(NAMES)}
            for title, (text, is_cut, *is_whole) in names.items():
                assert text == title
                assert is_whole == [True, True], (width, title)
                assert is_cut or title not in (LONG, SOLID), (width, title)
            assert any(longest in title for title in names)
            assert any(title in accessible_names(tab.page) for title in names if longest in title)
        assert (tab.console, tab.elsewhere) == ([], [])


def test_rows_added_live_look_like_those_of_the_server(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        tab.page.wait_for_selector("#live[data-state=live]")
        clients.producer.use(LONG)
        clients.producer.put(b"x")
        added = tab.page.locator(f"tr[data-key='{LONG}'] th")
        added.wait_for()
        html = added.inner_html()
        tab.page.reload()
        assert tab.page.locator(f"tr[data-key='{LONG}'] th").inner_html() == html
        clients.producer.use(clients.tube)
        assert (tab.console, tab.elsewhere) == ([], [])


def test_durations_of_cards_stay_on_one_line(chromium: Browser, wide: str) -> None:
    with chromium.tab(wide, 360) as tab:
        for path, cells in (
            ("", "td.oldest"), ("tube?tube=mail&state=reserved", "td:is(.age, .left)"),
            ("tube?tube=billing.dunning&state=delayed", "td:is(.age, .left)"), ("search?q=tube:mail", "td.age"),
        ):  # fmt: skip
            tab.page.goto(wide + path)
            lines = tab.page.locator(cells).filter(visible=True).evaluate_all(f"cells => cells.map({LINES})")
            assert set(lines) == {1}, path
            assert not is_too_wide(tab)


COLUMNS_AT_WORK = ".tubes-of-server :is(.put-rate, .reserve-rate, .delete-rate, .trend, .drain, .waiting)"
"""Columns that are hidden because no worker is connected here."""


@pytest.mark.parametrize("width", [1280, 1440])
def test_long_reason_of_a_pause_is_cut_on_the_line_of_its_tube(chromium: Browser, wide: str, width: int) -> None:
    with chromium.tab(wide, width) as tab:
        tab.page.goto(wide)
        row = tab.page.locator(f"#tubes tr[data-key='{LONG}']")
        pause = row.locator(".pause")
        assert pause.inner_text().endswith(", " + "w" * MAX_REASON_LENGTH) and pause.is_visible()
        assert pause.get_attribute("title") == pause.inner_text()
        assert pause.evaluate("one => one.scrollWidth > one.clientWidth")
        other = tab.page.locator("#tubes tr[data-key='mail']")
        assert row.bounding_box()["height"] == other.bounding_box()["height"]  # type: ignore[index]
        tab.page.locator(COLUMNS_AT_WORK).evaluate_all(
            "cells => cells.forEach(one => one.style.display = 'table-cell')"
        )
        panel, last = tab.page.locator("#table"), tab.page.locator("#tubes tr td").filter(visible=True).last
        assert right(last) <= right(panel) + 1, "the table reaches out of its panel"


def right(element: Locator) -> float:
    box = element.bounding_box()
    assert box is not None
    return float(box["x"] + box["width"])


def test_link_to_the_search_syntax_opens_it(chromium: Browser, wide: str) -> None:
    with chromium.tab(wide, 1024) as tab:
        saved = {"name": "first", "q": "pri:0"}
        assert tab.page.request.post(f"{wide}api/v1/saved-searches", data=saved).status == 201
        tab.page.goto(f"{wide}search")
        assert tab.page.locator(".query-help[open]").count() == 0
        tab.page.get_by_role("link", name="first").wait_for()
        tab.page.goto("about:blank")  # a change of the fragment alone would load nothing
        tab.page.goto(f"{wide}search#how")
        tab.page.wait_for_selector(".query-help[open]")
        codes = tab.page.locator(".query-words th code").filter(visible=True)
        assert codes.count() > 10
        assert set(codes.evaluate_all(f"codes => codes.map({LINES})")) == {1}


DRAWN = """() => [...document.querySelectorAll('#tubes tr')].flatMap(row => {
    const path = row.querySelector('.trend path');
    if (!path.getAttribute('d')) {
        return [];
    }
    const mark = document.createElement('span');
    mark.style.display = 'inline-block';
    row.querySelector('.ready').append(mark);
    const baseline = mark.getBoundingClientRect().bottom;
    mark.remove();
    const { top, bottom } = path.getBoundingClientRect();
    return [[row.dataset.key, Math.round(baseline - bottom), Math.round(baseline - top)]];
})"""
"""Returns the tubes with a sparkline, and the height of its lowest and highest point above the baseline."""


def test_sparklines_share_a_baseline_and_a_scale(chromium: Browser, wide: str) -> None:
    with chromium.tab(wide, 1440) as tab:
        tab.page.goto(wide)
        heights = {name: (low, high) for name, low, high in tab.page.evaluate(DRAWN)}
    assert set(heights) == {"imports", "mail", "orders.new"}, "only tubes with puts have a sparkline"
    assert 18 <= heights["mail"][1] <= 20
    assert 3 <= heights["orders.new"][1] <= 6, "its maximum is 6 jobs per second, that of all tubes is 22"
    assert 1 <= heights["imports"][1] <= 4
    assert heights["imports"][0] >= 0
