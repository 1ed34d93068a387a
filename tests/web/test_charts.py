"""Charts: SVG paths, JSON, pages without a script, and uPlot in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import nan
from typing import Any

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import editing
from greenstalk_server.web.features.history.pages.charts import format_value
from greenstalk_server.web.features.history.rings import SERIES
from greenstalk_server.web.framework.sparkline import path

from .browser import Browser, Tab
from .conftest import Queue
from .forms import SAME_ORIGIN
from .served import work
from .visit import url_of_module


def create_used_queue(hours: float = 0.1) -> tuple[Queue, FlaskClient]:
    """Return a queue in which `mail` was used for *hours* in every way, and a client of its dashboard."""
    queue = Queue()
    app = queue.app()
    client = app.test_client()
    work(queue, app.extensions["dashboard"].history, hours, "mail")
    return queue, client


# The path


def test_path_scales_values() -> None:
    assert path([0, 5, 10], 20, 12) == "M0.0 11.0L10.0 6.0L20.0 1.0"
    assert path([0, 5], 20, 12, top=20) == "M0.0 11.0L20.0 8.5"
    assert path([0, 0], 20, 12) == "M0.0 11.0L20.0 11.0"


def test_path_breaks_at_unknown_values() -> None:
    assert path([1, 2, nan, 2, 1], 4, 4) == "M0.0 2.0L1.0 1.0M3.0 1.0L4.0 2.0"
    assert path([nan, 2, nan], 4, 4) == "M2.0 1.0h0"
    assert path([3], 4, 4) == "M0.0 1.0h0"


# The JSON


def test_json_of_a_tube() -> None:
    queue, client = create_used_queue(hours=0.5)
    history = client.get("/tube/history.json?tube=mail&span=hour").get_json()
    assert list(history) == ["step", "end", "series", "marks"]
    assert (history["step"], history["end"]) == (60, queue.now // SECOND)
    assert history["marks"] == []
    series = history["series"]
    assert {len(values) for values in series.values()} == {60}
    assert set(series) < set(SERIES)
    assert "kick" not in series and "delayed" not in series, "a series without events is not omitted"
    assert series["put"][:30] == [None] * 30
    puts = [6 + at // 40 % 3 * 4 for at in range(180)]
    assert series["put"][-30:] == pytest.approx([sum(puts[at : at + 6]) / 60 for at in range(0, 180, 6)], abs=0.001)
    assert series["buried"][-30:] == list(range(6, 181, 6))
    assert set(series) >= {"wait_p99", "run_p99"}
    assert client.get("/tube/history.json?tube=mail").get_json() == history, "the default span is not an hour"
    day = client.get("/tube/history.json?tube=mail&span=day").get_json()
    assert (day["step"], {len(values) for values in day["series"].values()}) == (60, {1440})
    assert day["series"]["buried"][-3:] == [168, 174, 180]
    ten = client.get("/tube/history.json?tube=mail&span=10min").get_json()
    assert (ten["step"], {len(values) for values in ten["series"].values()}) == (1, {600})


def test_json_with_the_day_before() -> None:
    """An hour of work, the same hour a day later, and one a week later."""
    queue, client = create_used_queue(hours=1)
    history = client.application.extensions["dashboard"].history
    first = client.get("/tube/history.json?tube=mail").get_json()["series"]["put"]
    queue.now += 23 * 3600 * SECOND
    work(queue, history, 1, "mail")
    day = client.get("/tube/history.json?tube=mail&compare=day").get_json()
    assert day["before"]["put"] == first
    assert "before" not in client.get("/tube/history.json?tube=mail").get_json()
    queue.now += (6 * 24 - 1) * 3600 * SECOND
    work(queue, history, 1, "mail")
    week = client.get("/tube/history.json?tube=mail&compare=week").get_json()
    assert week["before"]["put"] == pytest.approx([sum(first) / 60] * 60, rel=0.01), "kept per hour only"
    html = client.get("/tube/history?tube=mail&compare=week").text
    assert '<path class="before line-put"' in html
    assert re.search(r"<td>1\.4 \(1\.0\)</td>", html)


# Marks


def test_marks_are_shown_on_the_chart_and_in_a_list() -> None:
    queue, client = create_used_queue(hours=0.5)
    form = SAME_ORIGIN
    back = "/tube/history?tube=mail&span=day"
    assert (
        client.post("/mark/add", data={"text": "  deployed\n4.2 ", "back": back}, headers=form).headers["Location"]
        == back
    )
    assert client.post("/mark/add", data={"text": "of mail", "tube": "mail"}, headers=form).status_code == 303
    assert client.post("/mark/add", data={"text": "of other", "tube": "other"}, headers=form).status_code == 303
    assert client.post("/mark/add", data={"text": " "}, headers=form).status_code == 400
    assert client.post("/mark/add", data={"text": "x" * 201}, headers=form).status_code == 400
    marks = client.get("/tube/history.json?tube=mail").get_json()["marks"]
    assert marks == [{"at": queue.now // SECOND, "text": text, "kind": "note"} for text in ("deployed 4.2", "of mail")]
    assert [mark["text"] for mark in client.get("/server/history.json").get_json()["marks"]] == ["deployed 4.2"]
    html = client.get("/tube/history?tube=mail").text
    assert html.count('<path class="mark" d="M720.0 0V160"/>') == 2 * 3
    assert "deployed 4.2" in html and "of other" not in html
    entries = client.application.extensions["dashboard"].audit.entries
    assert [entry.what for entry in entries] == ["mark/add"] * 3


def test_pauses_and_policies_leave_marks(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    for action, body in (("pause", {"seconds": 3600, "reason": ""}), ("resume", {}), ("resume", {})):
        assert client.post(f"/api/v1/tube/{action}?tube=mail", json=body).status_code == 200
    editing.pause_tube(queue.broker, b"mail", 5 * SECOND, queue.now)  # as a client does
    assert client.put("/api/v1/policies/retry", json={"tubes": ["mail"], "max_attempts": 3}).status_code == 200
    found = client.get("/api/v1/marks").get_json()["marks"]
    assert [(mark["kind"], mark["tube"], mark["text"]) for mark in found] == [
        ("pause", "mail", "Paused for 1\xa0h"),
        ("pause", "mail", "Resumed"),
        ("pause", "mail", "Paused for 5\xa0s"),
        ("policy", None, "Policy retry set"),
    ]


# The page without a script


def test_page_has_drawings_without_a_script() -> None:
    _, client = create_used_queue(hours=0.5)
    html = client.get("/tube/history?tube=mail").text
    drawn = dict(re.findall(r'<path class="line-(\w+)" d="([^"]*)"', html))
    assert set(drawn) == set(client.get("/tube/history.json?tube=mail").get_json()["series"]) | {"run_p50", "run_p95"}
    assert all(re.fullmatch(r"(M[\d.]+ [\d.]+(h0)?(L[\d.]+ [\d.]+)*)+", line) for line in drawn.values())
    assert "style=" not in html


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (nan, "rate", "–"),
        (0.0, "rate", "0"),
        (0.1234, "rate", "0.12"),
        (4.25, "rate", "4.2"),
        (1234.5, "rate", "1,234"),
        (1234567.0, "count", "1,234,567"),
        (0.0, "seconds", "0\xa0ms"),
        (0.0003, "seconds", "0.3\xa0ms"),
        (0.27, "seconds", "270\xa0ms"),
        (4.2, "seconds", "4.2\xa0s"),
        (59.97, "seconds", "1\xa0min"),
        (3700.0, "seconds", "1\xa0h 1\xa0min"),
    ],
)
def test_values_are_formatted(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


# In a browser


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """Serve a dashboard with 25 hours of fake history (served.py); return its URL."""
    with url_of_module("tests.web.served", "25") as url:
        yield url


@contextmanager
def quiet_tab(chromium: Browser, served: str, **options: Any) -> Iterator[Tab]:
    """Open a tab; check at the end that it had no errors and no requests to other hosts."""
    with chromium.tab(served, **options) as tab:
        yield tab
        assert (tab.console, tab.elsewhere) == ([], [])


COLORS = """() => {
    const found = new Set();
    for (const canvas of document.querySelectorAll('.plot canvas')) {
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
        copy.drawImage(canvas, 0, 0);
        const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
        for (let at = 0; at < data.length; at += 4) {
            if (data[at + 3] === 255) {
                found.add(`rgb(${data[at]}, ${data[at + 1]}, ${data[at + 2]})`);
            }
        }
    }
    return [...found];
}"""
TICKS = """
window.ticks = [];
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    if (/^\\d+:\\d\\d/.test(text)) {
        window.ticks.push(text);
    }
    return fillText.call(this, text, ...rest);
};
"""
"""Records the time labels below the charts."""

TEXTS = """
window.texts = [];
const fillAny = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    window.texts.push(text);
    return fillAny.call(this, text, ...rest);
};
"""
"""Records all texts on the charts."""


LEGEND = "line => getComputedStyle(document.querySelector(`.legend .line-${line}`)).color"
DRAWN = f"lines => lines.every(line => ({COLORS})().includes(({LEGEND})(line)))"


def test_theme_can_change(chromium: Browser, served: str) -> None:
    with quiet_tab(chromium, served, color_scheme="light") as tab:
        tab.page.goto(f"{served}tube/history?tube=mail")
        tab.page.wait_for_selector(".plot canvas")
        seen = [tab.page.evaluate(LEGEND, "put")]
        tab.page.emulate_media(color_scheme="dark")
        tab.page.wait_for_function(DRAWN, arg=["put"])
        seen.append(tab.page.evaluate(LEGEND, "put"))
        assert seen[0] not in tab.page.evaluate(COLORS)
        tab.page.evaluate("document.documentElement.dataset.theme = 'light'")
        tab.page.wait_for_function(DRAWN, arg=["put"])
        assert tab.page.evaluate(LEGEND, "put") == seen[0] != seen[1]


def test_values_under_the_cursor(chromium: Browser, served: str) -> None:
    with quiet_tab(chromium, served) as tab:
        tab.page.goto(f"{served}tube/history?tube=mail")
        tab.page.wait_for_selector(".plot canvas")
        buried = tab.page.locator(".legend .line-buried .legend-value")
        assert buried.text_content() == "9,000"
        tab.page.locator(".plot .u-over").first.hover(position={"x": 100, "y": 50})
        assert buried.text_content() in {f"{count:,}" for count in range(8640, 8900)}, "all charts follow"
        tab.page.mouse.move(0, 0)
        assert buried.text_content() == "9,000"


def test_comparison_and_marks_are_drawn(chromium: Browser, served: str) -> None:
    """The legend and the table have both values; the canvas has the text of the mark, as the list below it."""
    with quiet_tab(chromium, served) as tab:
        tab.page.add_init_script(TEXTS)
        tab.page.goto(f"{served}tube/history?tube=mail&span=hour&compare=day")
        tab.page.get_by_label("What happened").fill("deployed 4.2")
        tab.page.get_by_role("button", name="Add mark").click()
        tab.page.wait_for_selector(".plot canvas")
        assert "compare=day" in tab.page.url
        buried = tab.page.locator(".legend .line-buried .legend-value")
        tab.page.wait_for_function("() => window.texts.includes('deployed 4.2')")
        assert buried.text_content() == "9,000 (360)"
        assert tab.page.locator(".mark-text").all_text_contents() == ["deployed 4.2"]
        tab.page.locator(".chart summary").first.click()
        assert re.fullmatch(r"[\d.]+ \([\d.]+\)", tab.page.locator(".points td").first.inner_text())


def test_times_are_utc_in_every_time_zone(chromium: Browser, served: str) -> None:
    with quiet_tab(chromium, served, timezone_id="UTC") as tab:
        tab.page.goto(f"{served}tube/history?tube=mail&span=day")
        begins = tab.page.inner_text("#charts-when")
    shown = []
    for zone, locale in (("UTC", "en-GB"), ("Asia/Kathmandu", "de-DE")):
        with quiet_tab(chromium, served, timezone_id=zone, locale=locale) as tab:
            tab.page.add_init_script(TICKS)
            tab.page.goto(f"{served}tube/history?tube=mail&span=day")
            tab.page.wait_for_selector(".plot canvas")
            when = tab.page.inner_text("#charts-when")
            tab.page.locator(".plot .u-over").first.hover(position={"x": 100, "y": 50})
            pointed = tab.page.inner_text("#charts-when")
            shown.append((when, pointed, tab.page.evaluate("[...new Set(window.ticks)].sort()")))
    assert shown[0] == shown[1]
    when, pointed, ticks = shown[0]
    assert when.endswith(" UTC") and pointed.endswith(" UTC")
    assert re.fullmatch(r"(1[56] Jan, )?\d\d:\d\d:\d\d UTC", pointed)
    assert begins.endswith(" UTC")
    assert "00:00" in ticks


def test_tables_of_the_script_and_of_the_server_agree(chromium: Browser, served: str) -> None:
    def tables(script: bool, zone: str) -> list[list[str]]:
        with quiet_tab(chromium, served, java_script_enabled=script, timezone_id=zone, locale="en-US") as tab:
            tab.page.goto(f"{served}tube/history?tube=mail")
            if script:
                tab.page.wait_for_selector(".plot canvas")
            return [table.locator("td, time").all_text_contents() for table in tab.page.locator(".points").all()]

    without = tables(False, "UTC")
    assert "" not in without[0]
    assert tables(True, "Asia/Kathmandu") == without


def test_charts_refresh_while_visible(chromium: Browser, served: str) -> None:
    with chromium.tab(served) as tab:
        asked: list[str] = []
        tab.stop_clock()
        tab.page.on("request", lambda request: asked.append(request.url) if "history.json" in request.url else None)
        with tab.page.expect_response("**/tube/history.json*"):
            tab.page.goto(f"{served}tube/history?tube=mail")
        tab.page.wait_for_selector(".plot canvas")
        with tab.page.expect_response("**/tube/history.json*"):
            tab.page.clock.run_for(20_000)
        tab.page.evaluate("""() => {
            Object.defineProperty(document, 'hidden', {value: true, configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }""")
        before = len(asked)
        tab.page.clock.run_for(60_000)
        assert len(asked) == before == 2
