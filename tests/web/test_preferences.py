"""The theme and the time zone: a form sets a cookie, and redirects back to the page and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import greenstalk
import pytest
from flask.testing import FlaskClient

from tests.support.daemon import Daemon

from .browser import Browser
from .conftest import Queue
from .forms import SAME_ORIGIN


def choose(client: FlaskClient, theme: str, back: str = "/") -> str:
    response = client.post("/theme", data={"theme": theme, "back": back}, headers=SAME_ORIGIN)
    assert response.status_code == 303
    return response.headers["Location"]


def root(client: FlaskClient) -> str:
    return client.get("/").text.split("<html", 1)[1].split(">", 1)[0]


def test_choice_is_kept_until_auto(client: FlaskClient) -> None:
    assert root(client) == ' lang="en"'
    for theme in ("dark", "light"):
        choose(client, theme)
        assert root(client) == f' lang="en" data-theme="{theme}"'
    choose(client, "auto")
    assert root(client) == ' lang="en"'
    assert client.get_cookie("theme") is None


@pytest.mark.parametrize("cookie", ["", "blue", 'dark" onload="x', "auto"])
def test_invalid_cookie_is_ignored(client: FlaskClient, cookie: str) -> None:
    client.set_cookie("theme", cookie)
    assert root(client) == ' lang="en"'


def test_cookie_attributes(queue: Queue) -> None:
    client = queue.app(url_prefix="/queue").test_client()
    response = client.post("/queue/theme", data={"theme": "dark"}, headers=SAME_ORIGIN)
    cookie = response.headers["Set-Cookie"]
    assert cookie.startswith("theme=dark; ")
    for part in ("Max-Age=31536000", "HttpOnly", "Path=/queue", "SameSite=Lax"):
        assert part in cookie
    assert "Secure" not in cookie
    secure = client.post("/queue/theme", data={"theme": "dark"}, headers=SAME_ORIGIN, base_url="https://localhost")
    assert "; Secure;" in secure.headers["Set-Cookie"]


@pytest.mark.parametrize("back", ["/", "/tube?tube=//x&state=ready", "/job?id=5", "/tube?tube=%2Flead"])
def test_redirects_back(client: FlaskClient, back: str) -> None:
    assert choose(client, "dark", back) == back


@pytest.mark.parametrize(
    "back",
    ["", "//evil.example", "/\\evil.example", "\\\\evil.example", "https://evil.example/", "javascript:alert(1)",
     "/\t/evil.example", "/\n/evil.example", "\t//evil.example", "/a\\b", "tube?tube=x", " /"],
)  # fmt: skip
def test_does_not_redirect_to_other_sites(client: FlaskClient, back: str) -> None:
    assert choose(client, "dark", back) == "/"


def test_does_not_redirect_outside_the_prefix(queue: Queue) -> None:
    client = queue.app(url_prefix="/queue").test_client()
    for back, target in (("/queue/audit", "/queue/audit"), ("/other", "/queue/"), ("/queuex/", "/queue/")):
        response = client.post("/queue/theme", data={"theme": "dark", "back": back}, headers=SAME_ORIGIN)
        assert response.headers["Location"] == target


# In a browser

GROUND = "getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(246, 248, 247)", "rgb(14, 19, 17)"

SETTINGS = "#settings > summary"


@pytest.fixture(scope="module")
def prefixed() -> Iterator[Daemon]:
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0", "--url-prefix", "/queue") as daemon:
        yield daemon


def test_each_theme_in_a_browser(chromium: Browser, prefixed: Daemon) -> None:
    with chromium.tab(prefixed.dashboard, color_scheme="dark") as tab:
        page = tab.page
        page.goto(f"{prefixed.dashboard}audit?what=pause")
        assert page.evaluate(GROUND) == DARK
        for label, ground in (("Dark", DARK), ("Light", LIGHT), ("Auto", DARK)):
            page.click(SETTINGS)
            with page.expect_navigation():
                page.get_by_role("button", name=label, exact=True).click()
            assert page.evaluate(GROUND) == ground
            assert page.url == f"{prefixed.dashboard}audit?what=pause"
            assert page.locator("[name=theme][aria-pressed=true]").text_content() == label
        assert tab.console == []


def test_zone_is_kept_until_utc(client: FlaskClient) -> None:
    for zone, attribute in (("local", ' data-zone="local"'), ("utc", "")):
        response = client.post("/zone", data={"zone": zone, "back": "/audit"}, headers=SAME_ORIGIN)
        assert (response.status_code, response.headers["Location"]) == (303, "/audit")
        assert root(client) == f' lang="en"{attribute}'
    assert client.get_cookie("zone") is None
    assert client.post("/zone", data={"zone": "mars"}, headers=SAME_ORIGIN).status_code == 400


def test_all_times_follow_the_zone(chromium: Browser, prefixed: Daemon) -> None:
    """Darwin is 9:30 hours ahead of UTC, all year."""
    with chromium.tab(prefixed.dashboard, timezone_id="Australia/Darwin") as tab:
        page = tab.page
        page.goto(f"{prefixed.dashboard}tube?tube=default")
        page.click("#pause > summary")
        with page.expect_navigation():
            page.get_by_role("button", name="1 h", exact=True).click()
        page.goto(f"{prefixed.dashboard}audit")
        time = page.locator(".audit tbody tr", has_text="tube/pause").first.locator("time")
        in_utc, utc = time.inner_text(), datetime.fromisoformat(time.get_attribute("datetime") or "")
        assert in_utc == utc.strftime("%Y-%m-%d %H:%M:%S UTC")
        assert page.text_content("#zone-label") == "Times in UTC"
        page.click(SETTINGS)
        with page.expect_navigation():
            page.get_by_role("button", name="Local", exact=True).click()
        assert page.text_content("#zone-label") == "Times in Australia/Darwin"
        local = utc + timedelta(hours=9, minutes=30)
        assert time.inner_text() == local.strftime("%Y-%m-%d %H:%M:%S GMT+9:30")
        begin = local.replace(second=0)
        page.get_by_label("From (Australia/Darwin)").fill(begin.strftime("%Y-%m-%dT%H:%M"))
        with page.expect_navigation():
            page.get_by_role("button", name="Filter", exact=True).click()
        assert utc.strftime("since=%Y-%m-%dT%H%%3A%M") in page.url, "requests have UTC"
        assert page.get_by_label("From (Australia/Darwin)").input_value() == begin.strftime("%Y-%m-%dT%H:%M")
        assert time.count() == 1
        page.goto(f"{prefixed.dashboard}tube/history?tube=default")
        page.wait_for_function("() => /GMT\\+9:30$/.test(document.getElementById('charts-when').textContent)")
        assert tab.console == []


@contextmanager
def connected(daemon: Daemon) -> Iterator[greenstalk.Client]:
    with greenstalk.Client(("127.0.0.1", daemon.port), use="mail", watch="mail") as client:
        yield client


def test_live_updates_follow_the_zone(chromium: Browser, prefixed: Daemon) -> None:
    with chromium.tab(prefixed.dashboard, timezone_id="Australia/Darwin") as tab, connected(prefixed) as worker:
        page = tab.page
        worker.put("x")
        job = worker.reserve()
        page.goto(f"{prefixed.dashboard}job?id={job.id}")
        page.click(SETTINGS)
        with page.expect_navigation():
            page.get_by_role("button", name="Local", exact=True).click()
        page.wait_for_selector("#live[data-state=live]")
        worker.bury(job)
        page.wait_for_selector(".life .what:text-is('Buried')")
        times = page.locator("main time").all_text_contents()
        assert len(times) >= 4
        assert all(time.endswith(" GMT+9:30") for time in times)
        worker.delete(job)
        assert tab.console == []
