"""Page layout in a real browser: no truncated numbers, no broken words, every control reachable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .browser import Browser, Tab
from .visit import AXE, AXE_VIOLATIONS, is_too_wide, url_of_module

WIDTHS = (360, 1024, 1440)

CUT = """() => [...document.querySelectorAll('main th, main td:not(.body), main .badge, main .value, main button')]
    .filter(one => one.offsetParent !== null && one.scrollWidth > one.clientWidth + 1)
    .filter(one => getComputedStyle(one).clipPath === 'none')
    .map(one => [one.className, one.textContent])"""
"""Returns the elements that truncate their text."""

SCROLLED = """() => [...document.querySelectorAll('.tubes-scroll')]
    .filter(one => one.scrollWidth > one.clientWidth).map(one => [one.scrollWidth, one.clientWidth])"""
"""Returns the tables that scroll horizontally."""

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

BOX = """element => {
    const { left, right, width, height } = element.getBoundingClientRect();
    return { left, right, width, height };
}"""


@pytest.fixture(scope="module")
def aged() -> Iterator[str]:
    """Serve a dashboard over a queue that is a day old (aged.py); return its URL."""
    with url_of_module("tests.web.aged") as url:
        yield url


@pytest.fixture(params=WIDTHS)
def tab(chromium: Browser, aged: str, request: pytest.FixtureRequest) -> Iterator[Tab]:
    with chromium.tab(aged, request.param) as opened:
        yield opened
        assert (opened.console, opened.elsewhere) == ([], [])


def width_of(tab: Tab) -> int:
    assert tab.page.viewport_size is not None
    return tab.page.viewport_size["width"]


def first_job(tab: Tab, aged: str, state: str) -> str:
    tab.page.goto(f"{aged}tube?tube=mail&state={state}")
    return tab.page.locator(".jobs tbody tr").first.get_attribute("data-key") or ""


@pytest.mark.parametrize("path", [*[f"tube?tube=mail&state={state}" for state in ("ready", "reserved", "buried")],
                                  "tube?tube=billing.dunning&state=delayed", "search?q=tube:mail"])  # fmt: skip
def test_job_lists_do_not_truncate_numbers(tab: Tab, aged: str, path: str) -> None:
    tab.page.goto(aged + path)
    assert tab.page.locator(".jobs tbody tr").count() > 0
    assert tab.page.evaluate(CUT) == []
    assert tab.page.evaluate(SCROLLED) == []
    assert not is_too_wide(tab)
    assert tab.page.locator("td.body").first.evaluate(BOX)["width"] >= 100
    tab.screenshot(f"layout-{path[-12:]}-{width_of(tab)}")


def test_sizes_of_large_bodies_are_not_truncated(tab: Tab, aged: str) -> None:
    tab.page.goto(f"{aged}search?q=tube:mail+size:>99999")
    assert tab.page.locator("td.size").all_text_contents() == ["100,000", "864,890", "1,000,004"]
    if width_of(tab) > 360:  # cards omit the size
        assert [cell.evaluate(LINES) for cell in tab.page.locator("td.size").all()] == [1, 1, 1]
    assert tab.page.evaluate(CUT) == []


@pytest.mark.parametrize("width", [360, 600, 840, 1024, 1280, 1440])
def test_overview_fits(chromium: Browser, aged: str, width: int) -> None:
    with chromium.tab(aged, width) as tab:
        tab.page.goto(aged)
        tab.page.wait_for_selector("#live[data-state=live]")
        assert tab.page.evaluate(SCROLLED) == []
        assert tab.page.evaluate(CUT) == []
        assert not is_too_wide(tab)
        tab.page.evaluate("live.textContent = 'No response, retrying'")  # its longest text
        assert not is_too_wide(tab)
        pause = tab.page.locator("[data-key='users.delete'] td.pause")
        assert pause.inner_text().endswith("29\xa0d 23\xa0h")
        right = tab.page.locator("#table").evaluate(BOX)["right"]
        assert pause.evaluate(BOX)["right"] <= right
        tab.screenshot(f"layout-overview-{width}")


def test_tube_names_break_only_between_words(tab: Tab, aged: str) -> None:
    tab.page.goto(aged)
    assert tab.page.locator("#tubes th a").count() == 45
    assert tab.page.evaluate(BROKEN, "#tubes th a") == []
    assert tab.page.evaluate("""() => [...document.querySelectorAll('#tubes th a')]
        .filter(one => one.scrollHeight > one.clientHeight).map(one => one.textContent)""") == []  # fmt: skip


def test_cards_of_the_overview_count_waiting_workers(chromium: Browser, aged: str) -> None:
    with chromium.tab(aged, 360) as tab:
        tab.page.goto(aged)
        assert tab.page.locator("td.waiting").first.is_visible()
        assert tab.page.locator("th.waiting a").is_visible()


def test_durations_of_cards_stay_on_one_line(chromium: Browser, aged: str) -> None:
    with chromium.tab(aged, 360) as tab:
        for path, cells in (
            ("", "td.oldest"), ("tube?tube=mail&state=reserved", "td:is(.age, .left)"),
            ("tube?tube=billing.dunning&state=delayed", "td:is(.age, .left)"), ("search?q=tube:mail", "td.age"),
        ):  # fmt: skip
            tab.page.goto(aged + path)
            lines = tab.page.locator(cells).filter(visible=True).evaluate_all(f"cells => cells.map({LINES})")
            assert set(lines) == {1}, path
            assert not is_too_wide(tab)


def test_link_to_the_search_syntax_opens_it(chromium: Browser, aged: str) -> None:
    with chromium.tab(aged, 1024) as tab:
        saved = {"name": "first", "q": "pri:0"}
        assert tab.page.request.post(f"{aged}api/v1/saved-searches", data=saved).status == 201
        tab.page.goto(f"{aged}search")
        assert tab.page.locator(".query-help[open]").count() == 0
        tab.page.get_by_role("link", name="first").wait_for()
        tab.page.goto("about:blank")  # a change of the fragment alone would load nothing
        tab.page.goto(f"{aged}search#how")
        tab.page.wait_for_selector(".query-help[open]")
        codes = tab.page.locator(".query-words th code").filter(visible=True)
        assert codes.count() > 10
        assert set(codes.evaluate_all(f"codes => codes.map({LINES})")) == {1}


FIELD_HEIGHTS = """() => [...document.querySelectorAll('main :is(input:not([type=checkbox], [type=radio]), select)')]
    .filter(one => one.offsetParent !== null).map(one => Math.round(one.getBoundingClientRect().height))"""


@pytest.mark.parametrize("path", ["audit", "alerts", "?q="])
def test_fields_of_a_page_have_one_height(tab: Tab, aged: str, path: str) -> None:
    tab.page.goto(aged + path)
    tab.page.evaluate("document.querySelectorAll('main details').forEach(one => { one.open = true; })")
    heights = tab.page.evaluate(FIELD_HEIGHTS)
    assert len(heights) >= 4
    assert max(heights) - min(heights) <= 1


@pytest.mark.parametrize("key", ["urgent", "waiting", "bury-rate", "timeout-rate"])
def test_sort_column_is_visible(tab: Tab, aged: str, key: str) -> None:
    tab.page.goto(f"{aged}?sort={key}&desc=1")
    is_seen = width_of(tab) > 360  # narrow windows show the headers as a row of links
    if is_seen:
        assert tab.page.locator(f"th.{key}").is_visible()
        assert tab.page.locator(f"td.{key}").first.is_visible()
    assert tab.page.evaluate(SCROLLED) == []


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


def test_sparklines_share_a_baseline_and_a_scale(chromium: Browser, aged: str) -> None:
    with chromium.tab(aged, 1440) as tab:
        tab.page.goto(aged)
        heights = {name: (low, high) for name, low, high in tab.page.evaluate(DRAWN)}
    assert set(heights) == {"imports", "mail", "orders.new"}, "only tubes with puts have a sparkline"
    assert 18 <= heights["mail"][1] <= 20
    assert 3 <= heights["orders.new"][1] <= 6, "its maximum is 6 jobs per second, that of all tubes is 22"
    assert 1 <= heights["imports"][1] <= 4
    assert heights["imports"][0] >= 0


@pytest.mark.parametrize("path", ["tube?tube=reports.nightly", "tube?tube=mail"])
def test_pause_is_not_truncated(tab: Tab, aged: str, path: str) -> None:
    tab.page.goto(aged + path)
    seconds = tab.page.locator("#seconds")
    seconds.fill("4294967295")
    assert seconds.evaluate("field => field.scrollWidth <= field.clientWidth")
    assert seconds.evaluate(BOX)["width"] >= 96


def test_audit_log_is_not_truncated(tab: Tab, aged: str) -> None:
    tab.page.goto(f"{aged}audit")
    assert tab.page.locator(".audit tbody tr").count() >= 7  # other tests of this module add entries
    assert tab.page.evaluate(BROKEN, ".audit tbody td, .audit tbody th") == []
    assert tab.page.evaluate(SCROLLED) == []
    assert not is_too_wide(tab)
    for name in ("at", "address", "what"):
        for cell in tab.page.locator(f".audit tbody .{name}").all():
            assert cell.evaluate(LINES) == 1, name
    details = [cell.evaluate(BOX)["width"] for cell in tab.page.locator(".audit tbody .details").all()]
    assert min(details) >= {360: 290, 1024: 300, 1440: 600}[width_of(tab)]


def test_checkboxes_are_large_enough(tab: Tab, aged: str) -> None:
    held = first_job(tab, aged, "reserved")
    for path in (f"job/form?id={held}", f"job?id={held}", "tube?tube=mail", "search?q=tube:mail"):
        tab.page.goto(aged + path)
        for summary in tab.page.locator("main details > summary").all():
            summary.evaluate("summary => { summary.parentElement.open = true; }")
        boxes = tab.page.locator("main input:is([type=checkbox], [type=radio]):visible").all()
        assert boxes, path
        least = 24 if width_of(tab) == 360 else 16
        for box in boxes:
            size: Any = box.evaluate(BOX)
            assert size["width"] >= least and size["height"] >= least, (path, size)


@pytest.mark.parametrize(("tab", "theme"), [(360, "dark"), (1440, "light")], indirect=["tab"])
def test_pages_are_accessible(tab: Tab, aged: str, theme: Any) -> None:
    tab.page.emulate_media(color_scheme=theme)
    for path in ("", "tube?tube=mail&state=reserved", "tube?tube=reports.nightly", "audit"):
        tab.page.goto(aged + path)
        assert tab.page.evaluate(f"{AXE};{AXE_VIOLATIONS}") == [], path
