"""The dashboard of a real daemon with real clients connected, in a real browser."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import greenstalk
import pytest

from tests.daemon import PATIENCE, Daemon, environment

from .browser import Browser, Tab, browser

FLAGS = ("-l", "127.0.0.1", "-p", "0", "--web-port", "0")
ODD_NAMES = ("//x", "..", ";", "$(reboot)", "A" * 200)

COUNTS = """name => {
    const row = [...document.querySelectorAll('#tubes tr')].find(row => row.cells[0].textContent === name);
    return row && [...row.cells].slice(1).map(cell => cell.textContent).join(' ');
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon(*FLAGS) as running:
        yield running


class Crowd:
    """Clients that stay: a producer, a worker that holds jobs, and two that wait for some."""

    def __init__(self, port: int) -> None:
        self._at_exit = ExitStack()
        address = ("127.0.0.1", port)
        self.producer = self._at_exit.enter_context(greenstalk.Client(address, use="mail.outgoing"))
        self.worker = self._at_exit.enter_context(greenstalk.Client(address, watch="mail.outgoing"))
        for tube in ("thumbnails", "webhooks/retry"):
            sock = self._at_exit.enter_context(socket.create_connection(address, PATIENCE))
            sock.sendall(b"watch %b\r\nignore default\r\nreserve\r\n" % tube.encode())

    def close(self) -> None:
        self._at_exit.close()

    def put(self, tube: str, count: int = 1, **options: Any) -> None:
        self.producer.use(tube)
        for _ in range(count):
            self.producer.put("body", **options)

    def work(self) -> None:
        """Have every state, a pause and a few odd names."""
        self.put("mail.outgoing", 1240)
        self.put("mail.outgoing", 9, priority=10)
        self.put("mail.outgoing", 17, delay=3600)
        jobs = [self.worker.reserve() for _ in range(6)]
        for job in jobs[:4]:
            self.worker.bury(job)
        self.put("reports.nightly", 2)
        self.producer.pause_tube("reports.nightly", 5400)
        self.put("thumbnails.dead-letter", 1)
        for name in ODD_NAMES:
            self.put(name)
        self.producer.use("mail.outgoing")


@pytest.fixture
def crowd(daemon: Daemon) -> Iterator[Crowd]:
    clients = Crowd(daemon.port)
    yield clients
    clients.close()


def counts(tab: Tab, name: str) -> str | None:
    return tab.page.evaluate(COUNTS, name)


def wait_for_counts(tab: Tab, name: str, expected: str | None) -> None:
    tab.page.wait_for_function(f"([name, expected]) => ({COUNTS})(name) == expected", arg=[name, expected])


def is_too_wide(tab: Tab) -> bool:
    return tab.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


MAIL = "1,243 3 2 17 4 0 1 1 1,266 –"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 800, 360])
def test_page_shows_the_tubes(chromium: Browser, daemon: Daemon, crowd: Crowd, width: int, theme: Any) -> None:
    crowd.work()
    with chromium.tab(daemon.dashboard, width, color_scheme=theme) as tab:
        tab.page.goto(daemon.dashboard)
        tab.page.wait_for_selector("#live[data-state=live]")
        assert counts(tab, "mail.outgoing") == MAIL
        assert counts(tab, "thumbnails") == "0 0 0 0 0 1 1 0 0 –"
        assert counts(tab, "reports.nightly") == "2 0 0 0 0 0 0 0 2 1\xa0h 29\xa0min"
        for name in ODD_NAMES:
            assert counts(tab, name) == "1 0 0 0 0 0 0 0 1 –"
        assert not is_too_wide(tab)
        assert tab.page.is_hidden("#unused")
        tab.screenshot(f"overview-{width}-{theme}")
        assert (tab.console, tab.elsewhere) == ([], [])


def test_page_follows_the_queue(chromium: Browser, daemon: Daemon, crowd: Crowd) -> None:
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        tab.page.wait_for_selector("#unused")
        crowd.put("aaa", 2)
        wait_for_counts(tab, "aaa", "2 0 0 0 0 0 0 1 2 –")
        assert tab.page.is_hidden("#unused")
        assert "zero" not in tab.page.locator("[data-tube=aaa] .ready").get_attribute("class").split()
        assert "zero" in tab.page.locator("[data-tube=aaa] .buried").get_attribute("class").split()
        crowd.worker.watch("aaa")
        crowd.worker.delete(crowd.worker.reserve())
        crowd.worker.bury(crowd.worker.reserve())
        wait_for_counts(tab, "aaa", "0 0 0 0 1 0 1 1 2 –")
        crowd.worker.delete(2)
        crowd.worker.ignore("aaa")
        crowd.producer.use("default")
        wait_for_counts(tab, "aaa", None)
        names = tab.page.locator("#tubes th").all_text_contents()
        assert names == sorted(names) == ["default", "mail.outgoing", "thumbnails", "webhooks/retry"]
        assert tab.page.inner_text("#summary") == "4 tubes"
        assert (tab.console, tab.elsewhere) == ([], [])


def test_filter_as_it_is_typed_stands_in_the_address(chromium: Browser, daemon: Daemon, crowd: Crowd) -> None:
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        tab.page.get_by_label("Filter tubes by name").fill("/RETRY")
        wait_for_counts(tab, "thumbnails", None)
        assert tab.page.locator("#tubes th").all_text_contents() == ["webhooks/retry"]
        assert tab.page.url == f"{daemon.dashboard}?q=%2FRETRY"
        tab.page.reload()
        assert tab.page.locator("#tubes th").all_text_contents() == ["webhooks/retry"]
        tab.page.get_by_label("Filter tubes by name").fill("nowhere")
        tab.page.wait_for_selector("#filtered-out")
        assert tab.page.is_hidden("#table")
        tab.screenshot("filtered-out")
        tab.page.get_by_role("link", name="Show every tube").click()
        assert counts(tab, "thumbnails") == "0 0 0 0 0 1 1 0 0 –"
        assert (tab.console, tab.elsewhere) == ([], [])


def test_page_without_script(chromium: Browser, daemon: Daemon, crowd: Crowd) -> None:
    crowd.work()
    with chromium.tab(daemon.dashboard, java_script_enabled=False) as tab:
        tab.page.goto(daemon.dashboard)
        assert tab.page.inner_text("[data-tube='mail.outgoing'] .ready") == "1,243"
        tab.page.fill("#q", "thumb")
        tab.page.get_by_role("button", name="Filter").click()
        assert tab.page.locator("#tubes th").all_text_contents() == ["thumbnails", "thumbnails.dead-letter"]
        tab.screenshot("without-script")
        assert (tab.console, tab.elsewhere) == ([], [])


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (360, "dark")])
def test_unused_queue(chromium: Browser, daemon: Daemon, width: int, theme: Any) -> None:
    with chromium.tab(daemon.dashboard, width, color_scheme=theme) as tab:
        tab.page.goto(daemon.dashboard)
        tab.page.wait_for_selector("#live[data-state=live]")
        assert f'greenstalk.Client(("127.0.0.1", {daemon.port}))' in tab.page.inner_text("#unused")
        assert not is_too_wide(tab)
        tab.screenshot(f"unused-{width}-{theme}")
        assert (tab.console, tab.elsewhere) == ([], [])


def test_hidden_tab_asks_for_nothing(chromium: Browser, daemon: Daemon) -> None:
    with chromium.tab(daemon.dashboard) as tab:
        asked: list[str] = []
        tab.page.on("request", lambda request: asked.append(request.url))
        tab.page.clock.install()
        tab.page.goto(daemon.dashboard)
        tab.page.wait_for_selector("#live[data-state=live]")
        show = """hidden => {
            Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }"""
        tab.page.evaluate(show, True)
        before = len(asked)
        tab.page.clock.run_for(60_000)
        assert len(asked) == before
        with tab.page.expect_request("**/overview.json"):
            tab.page.evaluate(show, False)


def test_lost_server_is_said(chromium: Browser, daemon: Daemon) -> None:
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        tab.page.wait_for_selector("#live[data-state=live]")
        daemon.stop()
        tab.page.wait_for_selector("#live[data-state=lost]")
        tab.screenshot("lost")


def test_password(chromium: Browser) -> None:
    """A page opened with the password in its address stays live, though a script may not pass the address on."""
    with Daemon(*FLAGS, environ=environment(GREENSTALK_WEB_PASSWORD="sesame")) as daemon:  # noqa: S106
        with_password = daemon.dashboard.replace("http://", "http://me:sesame@")
        with chromium.tab(daemon.dashboard) as tab:
            tab.page.goto(with_password)
            tab.page.wait_for_selector("#live[data-state=live]")
            assert (tab.console, tab.elsewhere) == ([], [])


@pytest.mark.parametrize("width", [1280, 360])
def test_page_not_found(chromium: Browser, daemon: Daemon, width: int) -> None:
    with chromium.tab(daemon.dashboard, width) as tab:
        tab.page.goto(daemon.dashboard + "nowhere")
        assert "There is no page at this address" in tab.page.inner_text("main")
        assert not is_too_wide(tab)
        tab.screenshot(f"not-found-{width}")
        tab.page.get_by_role("link", name="To the overview").click()
        tab.page.wait_for_selector("#live[data-state=live]")


def test_keyboard_reaches_everything_and_is_seen(chromium: Browser, daemon: Daemon, crowd: Crowd) -> None:
    crowd.work()
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        tab.page.wait_for_selector("#live[data-state=live]")
        reached = []
        for _ in range(5):
            tab.page.keyboard.press("Tab")
            reached.append(tab.page.evaluate("document.activeElement.id || document.activeElement.className"))
            assert tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert reached == ["skip", "brand", "jump", "button", "q"]
        tab.screenshot("focus")
