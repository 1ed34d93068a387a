"""Charts: SVG paths, JSON, pages without a script, and uPlot in a real browser."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from math import nan
from typing import Any, Self
from urllib.parse import quote, urlsplit

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.policies.policy import PolicySet, parse_policy
from greenstalk_server.web.features.history.history import Columns
from greenstalk_server.web.features.history.pages.charts import TABLE_ROWS, TUBE_CHARTS, format_value, history_json
from greenstalk_server.web.features.history.rings import SERIES, SPANS
from greenstalk_server.web.framework.sparkline import path
from tests.support.daemon import REPOSITORY, TIMEOUT, Daemon
from tests.support.processes import ending

from .browser import Browser, Tab
from .conftest import Queue
from .served import work
from .visit import AXE, AXE_VIOLATIONS

HOSTILE_NAMES = ("//x", "..", "/", ";", "$(reboot)", "a+b", "A" * 200)
INVALID_NAMES = ("", "<b>", "-x", "a b", "ä", "x\0", "A" * 201, '"><img src=x>')


def create_used_queue(hours: float = 0.1, tube: str = "mail") -> tuple[Queue, FlaskClient]:
    """Return a queue in which *tube* was used for *hours* in every way, and a client of its dashboard."""
    queue = Queue()
    app = queue.app()
    client = app.test_client()
    work(queue, app.extensions["dashboard"].history, hours, tube)
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


@pytest.mark.parametrize("values", [[], [nan, nan]])
def test_path_of_no_values_is_empty(values: list[float]) -> None:
    assert path(values, 20, 12) == ""


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
    form = {"Sec-Fetch-Site": "same-origin"}
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
    queue.broker.pause_tube(b"mail", 5 * SECOND, queue.now)  # as a client does
    assert client.put("/api/v1/policies/retry", json={"tubes": ["mail"], "max_attempts": 3}).status_code == 200
    found = client.get("/api/v1/marks").get_json()["marks"]
    assert [(mark["kind"], mark["tube"], mark["text"]) for mark in found] == [
        ("pause", "mail", "Paused for 1\xa0h"),
        ("pause", "mail", "Resumed"),
        ("pause", "mail", "Paused for 5\xa0s"),
        ("policy", None, "Policy retry set"),
    ]


def test_json_of_the_server() -> None:
    queue, client = create_used_queue()
    queue.put("other", count=5)
    one = client.get("/server/history.json").get_json()["series"]["put"][-6:]
    assert one == client.get("/tube/history.json?tube=mail").get_json()["series"]["put"][-6:] == [0.6] * 6


def test_json_of_a_dropped_tube() -> None:
    queue, client = create_used_queue()
    history = client.application.extensions["dashboard"].history
    queue.put("gone")
    queue.broker.clear(queue.broker.tubes[b"gone"], 1, 1, queue.broker.next_id, queue.now)
    assert b"gone" not in queue.broker.tubes
    for _ in range(61):
        queue.now += SECOND
        history.tick()
    response = client.get("/tube/history.json?tube=gone")
    assert response.status_code == 200
    assert client.get("/tube/history.json?tube=never").status_code == 404


def test_json_of_a_tube_without_history(queue: Queue) -> None:
    """The tube exists, but has no events."""
    client = queue.app().test_client()
    assert client.get("/tube/history.json?tube=default").get_json()["series"] == {}


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_json_of_tubes_with_odd_names(name: str) -> None:
    _, client = create_used_queue(tube=name)
    history = client.get(f"/tube/history.json?tube={quote(name, safe='')}").get_json()
    assert history["series"]["put"][-1] == 0.6
    html = client.get(f"/tube/history?tube={quote(name, safe='')}").text
    source = re.search(r'data-source="([^"]*)"', html)
    assert source is not None
    assert client.get(unescape(source[1])).get_json() == history


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_json_refuses_invalid_names(client: FlaskClient, name: str) -> None:
    response = client.get("/tube/history.json", query_string={"tube": name})
    assert response.status_code == 400
    assert "“tube”" in response.text
    assert "<b>" not in response.text and "<img src=x>" not in response.text


def test_other_links_keep_the_span(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", delay=9)
    kept = "/tube?tube=mail&amp;span=day&amp;state="
    assert client.get("/tube?tube=mail&span=day").text.count(kept) == 5
    assert kept in client.get("/live?page=tube&tube=mail&span=day").get_json()["parts"]["no_jobs"]
    assert "span=" not in client.get("/live?page=tube&tube=mail").get_json()["parts"]["no_jobs"]


def test_unknown_span(client: FlaskClient) -> None:
    assert client.get("/server/history.json?span=year").status_code == 400
    assert client.get("/tube/history?tube=default&span=year").status_code == 200


def test_numbers_have_significant_digits_only() -> None:
    _, client = create_used_queue(hours=0.5)
    text = client.get("/tube/history.json?tube=mail").text
    assert max(len(number) for number in re.findall(r"[0-9.e-]+", text)) <= len("1800000000")
    assert "NaN" not in text


# The page without a script


def test_page_has_drawings_without_a_script() -> None:
    _, client = create_used_queue(hours=0.5)
    html = client.get("/tube/history?tube=mail").text
    drawn = dict(re.findall(r'<path class="line-(\w+)" d="([^"]*)"', html))
    assert set(drawn) == set(client.get("/tube/history.json?tube=mail").get_json()["series"]) | {"run_p50", "run_p95"}
    assert all(re.fullmatch(r"(M[\d.]+ [\d.]+(h0)?(L[\d.]+ [\d.]+)*)+", line) for line in drawn.values())
    assert "style=" not in html


def test_table_has_the_last_points() -> None:
    _, client = create_used_queue(hours=0.5)
    html = client.get("/tube/history?tube=mail").text
    tables = re.findall(r'<table class="points">(.*?)</table>', html, re.DOTALL)
    assert len(tables) == len([chart for chart in TUBE_CHARTS if not chart.is_optional])
    rows = re.findall(r"<tr>\s*<th scope=\"row\">(.*?)</tr>", tables[0], re.DOTALL)
    assert len(rows) == TABLE_ROWS
    assert re.findall(r">([^<>]*UTC)<", rows[0]) == ["2027-01-15 08:30:00 UTC"]
    assert re.findall(r"<td>([^<]*)</td>", rows[0])[:2] == ["1.0", "0.50"]


def test_chart_of_policies_is_shown_once_a_policy_has_acted(queue: Queue) -> None:
    broker = queue.broker
    broker.set_policies(PolicySet([parse_policy("mail", {"tubes": ["mail"], "expire_after": 5})]), queue.now)
    app = queue.app()
    client, history = app.test_client(), app.extensions["dashboard"].history
    queue.put("mail", count=3)
    assert b"line-expire" not in client.get("/tube/history?tube=mail").data
    for _ in range(120):
        queue.now += SECOND
        broker.tick(queue.now)
        history.tick()
    for page in ("/tube/history?tube=default", "/"):
        assert ('<path class="line-expire"' in client.get(page).text) == (page == "/")
    series = client.get("/tube/history.json?tube=mail").get_json()["series"]
    assert series["expire"][-2:] == [0.05, 0] and "dead_letter" not in series


def test_span_links_keep_the_other_arguments() -> None:
    _, client = create_used_queue()
    html = client.get("/tube/history?tube=mail&span=day&compare=week&_scheme=javascript&notice=put&n=1").text
    links = [unescape(link) for link in re.findall(r'<a class="button" href="(\?[^"]*)"', html)]
    spans = [f"?tube=mail&compare=week&_scheme=javascript&span={span}" for span in SPANS]
    compares = [f"?tube=mail&span=day&_scheme=javascript{compare}" for compare in ("", "&compare=day", "&compare=week")]
    assert links == [*spans, *compares]


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


class Served:
    """A dashboard with *hours* of fake history, in a process of its own (served.py)."""

    def __init__(self, hours: float = 25) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.web.served", str(hours)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        assert self.url
        return self

    def __exit__(self, *_: object) -> None:
        with ending(self._process):
            self._process.communicate(timeout=TIMEOUT)
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as running:
        yield running


@contextmanager
def quiet_tab(chromium: Browser, served: Served, **options: Any) -> Iterator[Tab]:
    """Open a tab; check at the end that it had no errors and no requests to other hosts."""
    with chromium.tab(served.url, **options) as tab:
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

STROKES = """async png => {
    const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
    const canvas = new OffscreenCanvas(image.width, image.height).getContext('2d');
    canvas.drawImage(image, 0, 0);
    const { data } = canvas.getImageData(0, Math.floor(image.height / 2), 20, 1);
    let strokes = 0;
    let wasOn = false;
    for (let at = 0; at < data.length; at += 4) {
        const isOn = Math.abs(data[at] - data[at + 1]) + Math.abs(data[at + 1] - data[at + 2]) > 60;
        strokes += isOn && !wasOn;
        wasOn = isOn;
    }
    return strokes;
}"""
"""Counts the coloured dashes in the swatch of a legend entry."""

LEGEND = "line => getComputedStyle(document.querySelector(`.legend .line-${line}`)).color"
DRAWN = f"lines => lines.every(line => ({COLORS})().includes(({LEGEND})(line)))"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", ["tube/history?tube=mail", ""])
def test_charts_draw(chromium: Browser, served: Served, theme: str, page: str) -> None:
    with quiet_tab(chromium, served, color_scheme=theme) as tab:
        tab.page.goto(f"{served.url}{page}")
        tab.page.wait_for_selector(".plot canvas")
        tab.page.wait_for_function(DRAWN, arg=["put", "delete", "ready", "buried"])
        assert tab.page.locator(".plot svg").count() == 0
        tab.screenshot(f"charts-{theme}-{'tube' if page else 'overview'}")


def test_theme_can_change(chromium: Browser, served: Served) -> None:
    with quiet_tab(chromium, served, color_scheme="light") as tab:
        tab.page.goto(f"{served.url}tube/history?tube=mail")
        tab.page.wait_for_selector(".plot canvas")
        seen = [tab.page.evaluate(LEGEND, "put")]
        tab.page.emulate_media(color_scheme="dark")
        tab.page.wait_for_function(DRAWN, arg=["put"])
        seen.append(tab.page.evaluate(LEGEND, "put"))
        assert seen[0] not in tab.page.evaluate(COLORS)
        tab.page.evaluate("document.documentElement.dataset.theme = 'light'")
        tab.page.wait_for_function(DRAWN, arg=["put"])
        assert tab.page.evaluate(LEGEND, "put") == seen[0] != seen[1]


def test_values_under_the_cursor(chromium: Browser, served: Served) -> None:
    with quiet_tab(chromium, served) as tab:
        tab.page.goto(f"{served.url}tube/history?tube=mail")
        tab.page.wait_for_selector(".plot canvas")
        buried = tab.page.locator(".legend .line-buried .legend-value")
        assert buried.text_content() == "9,000"
        tab.page.locator(".plot .u-over").first.hover(position={"x": 100, "y": 50})
        assert buried.text_content() in {f"{count:,}" for count in range(8640, 8900)}, "all charts follow"
        tab.page.mouse.move(0, 0)
        assert buried.text_content() == "9,000"


def test_comparison_and_marks_are_drawn(chromium: Browser, served: Served) -> None:
    """The legend and the table have both values; the canvas has the text of the mark, as the list below it."""
    with quiet_tab(chromium, served) as tab:
        tab.page.add_init_script(TEXTS)
        tab.page.goto(f"{served.url}tube/history?tube=mail&span=hour&compare=day")
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


@pytest.mark.parametrize(("hours", "minutes"), [(0.05, 10), (0.5, 30)])
def test_time_scale_of_a_new_server_is_short(chromium: Browser, hours: float, minutes: int) -> None:
    with Served(hours) as young, quiet_tab(chromium, young, timezone_id="UTC", locale="en-GB") as tab:
        tab.page.goto(young.url)
        tab.page.wait_for_selector(".plot canvas")
        ends = [time.split(":") for time in tab.page.inner_text("#charts-when").removesuffix(" UTC").split(" to ")]
        begin, end = (60 * int(hour) + int(minute) for hour, minute in ends)
        assert abs((end - begin) % (24 * 60) - minutes) <= 1


@pytest.mark.parametrize("span", ["hour", "day"])
def test_times_are_utc_in_every_time_zone(chromium: Browser, served: Served, span: str) -> None:
    with quiet_tab(chromium, served, timezone_id="UTC") as tab:
        tab.page.goto(f"{served.url}tube/history?tube=mail&span={span}")
        begins = tab.page.inner_text("#charts-when")
    shown = []
    for zone, locale in (("UTC", "en-GB"), ("America/New_York", "en-US"), ("Asia/Kathmandu", "de-DE")):
        with quiet_tab(chromium, served, timezone_id=zone, locale=locale) as tab:
            tab.page.add_init_script(TICKS)
            tab.page.goto(f"{served.url}tube/history?tube=mail&span={span}")
            tab.page.wait_for_selector(".plot canvas")
            when = tab.page.inner_text("#charts-when")
            tab.page.locator(".plot .u-over").first.hover(position={"x": 100, "y": 50})
            pointed = tab.page.inner_text("#charts-when")
            shown.append((when, pointed, tab.page.evaluate("[...new Set(window.ticks)].sort()")))
    assert shown[0] == shown[1] == shown[2]
    when, pointed, ticks = shown[0]
    assert when.endswith(" UTC") and pointed.endswith(" UTC")
    assert re.fullmatch(r"(1[56] Jan, )?\d\d:\d\d:\d\d UTC", pointed)
    assert begins.endswith(" UTC")
    assert {"hour": "08:30", "day": "00:00"}[span] in ticks


def test_legend_of_a_dashed_line_is_dashed(chromium: Browser, served: Served) -> None:
    with quiet_tab(chromium, served) as tab:
        tab.page.goto(f"{served.url}tube/history?tube=mail")
        tab.page.wait_for_selector(".plot canvas")
        strokes = {}
        for line in ("wait_p50", "wait_p95", "wait_p99", "run_p50", "run_p95", "run_p99"):
            image = tab.page.locator(f".legend .line-{line}").screenshot()
            strokes[line] = tab.page.evaluate(STROKES, base64.b64encode(image).decode())
    assert strokes["wait_p50"] == strokes["run_p50"] == 1
    assert strokes["wait_p95"] == strokes["run_p95"] >= 2
    assert strokes["wait_p99"] == strokes["run_p99"] > strokes["run_p95"]


def test_span_is_switched_by_a_link(chromium: Browser, served: Served) -> None:
    for script in (True, False):
        with quiet_tab(chromium, served, java_script_enabled=script) as tab:
            tab.page.goto(f"{served.url}tube/history?tube=mail")
            assert tab.page.inner_text(".spans [aria-current]") == "Last hour"
            tab.page.get_by_role("link", name="Last day").click()
            assert tab.page.inner_text(".spans [aria-current]") == "Last day"
            assert urlsplit(tab.page.url).query == "tube=mail&span=day"
            image = tab.page.get_by_role("img", name="Jobs by state in the last day")
            assert "buried 9,000" in (image.get_attribute("aria-label") or "")


def test_tables_of_the_script_and_of_the_server_agree(chromium: Browser, served: Served) -> None:
    def tables(script: bool, zone: str) -> list[list[str]]:
        with quiet_tab(chromium, served, java_script_enabled=script, timezone_id=zone, locale="en-US") as tab:
            tab.page.goto(f"{served.url}tube/history?tube=mail")
            if script:
                tab.page.wait_for_selector(".plot canvas")
            return [table.locator("td, time").all_text_contents() for table in tab.page.locator(".points").all()]

    without = tables(False, "UTC")
    assert "" not in without[0]
    for zone in ("UTC", "America/New_York", "Asia/Kathmandu"):
        assert tables(True, zone) == without


def test_charts_fit_and_are_accessible(chromium: Browser, served: Served) -> None:
    with quiet_tab(chromium, served, width=360) as tab:
        for page in ("", "tube/history?tube=mail&span=day"):
            tab.page.goto(f"{served.url}{page}")
            tab.page.wait_for_selector(".plot canvas")
            for summary in tab.page.locator(".chart summary").all():
                summary.click()
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360
            tab.page.evaluate(AXE)
            assert tab.page.evaluate(AXE_VIOLATIONS.replace("document", "'#charts'")) == []
        tab.page.set_viewport_size({"width": 800, "height": 600})
        tab.page.wait_for_function("() => document.querySelector('.plot canvas').getBoundingClientRect().width > 330")
        tab.screenshot("charts-narrow")


def test_charts_refresh_while_visible(chromium: Browser, served: Served) -> None:
    with chromium.tab(served.url) as tab:
        asked: list[str] = []
        tab.stop_clock()
        tab.page.on("request", lambda request: asked.append(request.url) if "history.json" in request.url else None)
        with tab.page.expect_response("**/tube/history.json*"):
            tab.page.goto(f"{served.url}tube/history?tube=mail")
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


def test_charts_stay_when_the_server_does_not_respond(chromium: Browser) -> None:
    """The page stops requesting figures, and keeps the drawn charts."""
    asked: list[str] = []
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0") as daemon, chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        tab.page.wait_for_selector(".plot canvas")
        tab.page.wait_for_selector("#live[data-state=live]")
        daemon.stop()
        tab.page.wait_for_selector("#live[data-state=lost]")
        tab.page.on("request", lambda request: asked.append(request.url) if "history.json" in request.url else None)
        tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        tab.page.wait_for_timeout(200)
        assert asked == []
        assert tab.page.locator(".plot canvas").count() == 2
        assert not [line for line in tab.console if "history" in line or "uncaught" in line]


def test_history_may_have_whole_numbers() -> None:
    found = history_json(Columns(60, 120, {"ready": [3, nan, 2.5, 0.1234567]}))
    assert found == {"step": 60, "end": 120, "series": {"ready": [3, None, 2.5, 0.123457]}}
