"""The overview of a real daemon with real clients, in a real browser."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import greenstalk
import pytest
from playwright.sync_api import Route

from tests.support.daemon import TIMEOUT, Daemon
from tests.support.ports import free_ports

from .browser import Browser, Tab
from .visit import FLAGS

ODD_NAMES = ("//x", "..", ";", "$(reboot)", "A" * 200)

SHOWN = ("attention", "ready", "urgent", "reserved", "delayed", "buried", "waiting", "pause")
"""Columns whose values do not change with time."""

COUNTS = f"""name => {{
    const row = [...document.querySelectorAll('#tubes tr')].find(row => row.cells[0].textContent === name);
    const keys = {json.dumps(SHOWN)};
    return row && keys.map(key => row.querySelector('.' + key).textContent).join(' ').trim();
}}"""


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon(*FLAGS) as running:
        yield running


class Crowd:
    """Connected clients: a producer, a worker that holds jobs, and two waiting workers."""

    def __init__(self, port: int) -> None:
        self._at_exit = ExitStack()
        address = ("127.0.0.1", port)
        self.producer = self._at_exit.enter_context(greenstalk.Client(address, use="mail.outgoing"))
        self.worker = self._at_exit.enter_context(greenstalk.Client(address, watch="mail.outgoing"))
        for tube in ("thumbnails", "webhooks/retry"):
            sock = self._at_exit.enter_context(socket.create_connection(address, TIMEOUT))
            sock.sendall(b"watch %b\r\nignore default\r\nreserve\r\n" % tube.encode())
            replies = self._at_exit.enter_context(sock.makefile("rb"))
            assert [replies.readline() for _ in range(2)] == [b"WATCHING 2\r\n", b"WATCHING 1\r\n"]

    def close(self) -> None:
        self._at_exit.close()

    def put(self, tube: str, count: int = 1, **options: Any) -> None:
        self.producer.use(tube)
        for _ in range(count):
            self.producer.put("body", **options)

    def work(self) -> None:
        """Create jobs in every state, a paused tube, and tubes with odd names."""
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


def wait_for_counts(tab: Tab, name: str, expected: str | None) -> None:
    tab.page.wait_for_function(f"([name, expected]) => ({COUNTS})(name) == expected", arg=[name, expected])


def test_page_follows_the_queue(chromium: Browser, daemon: Daemon, crowd: Crowd) -> None:
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        tab.page.wait_for_selector("#unused")
        crowd.put("aaa", 2)
        wait_for_counts(tab, "aaa", "2 0 0 0 0 0 –")
        assert tab.page.is_hidden("#unused")
        assert "zero" not in tab.page.locator("[data-key=aaa] .ready").get_attribute("class").split()
        assert "zero" in tab.page.locator("[data-key=aaa] .buried").get_attribute("class").split()
        crowd.worker.watch("aaa")
        crowd.worker.delete(crowd.worker.reserve())
        crowd.worker.bury(crowd.worker.reserve())
        wait_for_counts(tab, "aaa", "0 0 0 0 1 0 –")
        crowd.worker.delete(2)
        crowd.worker.ignore("aaa")
        crowd.producer.use("default")
        wait_for_counts(tab, "aaa", None)
        names = tab.page.locator("#tubes th").all_text_contents()
        assert names == sorted(names) == ["default", "mail.outgoing", "thumbnails", "webhooks/retry"]
        assert tab.page.inner_text("#summary") == "4 tubes"
        assert (tab.console, tab.elsewhere) == ([], [])


def test_filter_updates_the_url_while_typing(chromium: Browser, daemon: Daemon, crowd: Crowd) -> None:
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
        tab.page.get_by_role("link", name="Show all tubes").click()
        wait_for_counts(tab, "thumbnails", "0 0 0 0 0 1 –")
        assert (tab.console, tab.elsewhere) == ([], [])


def test_hidden_tab_sends_no_requests(chromium: Browser, daemon: Daemon) -> None:
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
        with tab.page.expect_request("**/events?*"):
            tab.page.evaluate(show, False)
        tab.page.wait_for_function("() => document.querySelector('[data-field=uptime]').textContent !== '0\xa0s'")


def test_page_polls_if_streams_are_refused(chromium: Browser, daemon: Daemon, crowd: Crowd) -> None:
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.route("**/events?*", lambda route: route.fulfill(status=503, body="full"))
        tab.page.goto(daemon.dashboard)
        tab.page.wait_for_selector("#live[data-state=polling]:text-is('Polling')")
        crowd.put("aaa", 2)
        wait_for_counts(tab, "aaa", "2 0 0 0 0 0 –")
        crowd.put("aaa")
        wait_for_counts(tab, "aaa", "3 0 0 0 0 0 –")
        assert [line for line in tab.console if "503" not in line] == []


def test_page_polls_if_a_proxy_buffers_streams(chromium: Browser, daemon: Daemon, crowd: Crowd) -> None:
    """A proxy that buffers waits for the end of the response."""
    with chromium.tab(daemon.dashboard) as tab:
        held: list[Route] = []
        tab.page.route("**/events?*", lambda route: held.append(route))  # noqa: PLW0108  Playwright marks it
        tab.page.clock.install()
        tab.page.goto(daemon.dashboard)
        tab.page.clock.run_for(6000)
        tab.page.wait_for_selector("#live[data-state=polling]")
        for route in held:
            route.abort()
        tab.page.unroute("**/events?*")
        tab.page.clock.fast_forward(60_000)  # run_for would also fire the timeout of the new stream
        tab.page.wait_for_selector("#live[data-state=live]")


def test_sort_by_click_and_live_order(chromium: Browser, daemon: Daemon, crowd: Crowd) -> None:
    crowd.put("aaa", 2)
    crowd.put("bbb", 5)
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(f"{daemon.dashboard}?q=b")
        tab.page.get_by_label("Filter tubes by name").fill("")
        tab.page.wait_for_selector("[data-key=aaa]")
        tab.page.get_by_role("columnheader", name="Ready").get_by_role("link").click()
        tab.page.wait_for_selector("th.ready[aria-sort=descending]")
        names = tab.page.locator("#tubes th a")
        assert names.all_text_contents()[:2] == ["bbb", "aaa"]
        tab.page.wait_for_selector("#live[data-state=live]")
        names.nth(1).focus()
        crowd.put("aaa", 7)
        tab.page.wait_for_function("() => document.querySelector('#tubes th').textContent === 'aaa'")
        assert tab.page.evaluate("document.activeElement.textContent") == "aaa"
        assert (tab.console, tab.elsewhere) == ([], [])


def test_elements_in_use_are_not_replaced(chromium: Browser, daemon: Daemon, crowd: Crowd) -> None:
    crowd.put("aaa", 2)
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(f"{daemon.dashboard}tube?tube=aaa")
        tab.page.wait_for_selector("#live[data-state=live]")
        boxes = tab.page.locator(".jobs tbody [data-keep] input")
        boxes.first.check()
        crowd.producer.pause_tube("aaa", 60)
        tab.page.click("#pause > summary")
        tab.page.get_by_role("button", name="Resume now").focus()
        crowd.put("aaa", priority=1)
        tab.page.wait_for_selector(".jobs [data-key='3']")
        assert boxes.evaluate_all("all => all.map(one => [one.value, one.checked])") == [
            ["3", False], ["1", True], ["2", False],
        ]  # fmt: skip
        crowd.producer.pause_tube("aaa", 0)
        tab.page.wait_for_selector(".badges:not(:has(.badge[data-state=paused]))")
        assert tab.page.evaluate("document.activeElement.textContent") == "Resume now"
        tab.page.locator("h1").click()
        tab.page.get_by_role("button", name="Resume now").wait_for(state="detached")
        assert (tab.console, tab.elsewhere) == ([], [])


def test_page_reconnects_to_a_restarted_server(chromium: Browser) -> None:
    flags = (*FLAGS[:-1], str(free_ports(1)[0]))
    with Daemon(*flags) as daemon, chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        tab.page.wait_for_selector("#live[data-state=live]")
        daemon.stop()
        tab.page.wait_for_selector("#live[data-state=lost]")
        with Daemon(*flags) as again:
            assert again.dashboard == daemon.dashboard
            tab.page.wait_for_selector("#live[data-state=live]")
            assert tab.page.text_content("[data-field=pid]") == str(again.process.pid)


GEOMETRY = (
    "[...document.querySelectorAll('.masthead, h1, .live, main')].map(e => JSON.stringify(e.getBoundingClientRect()))"
)


@pytest.mark.parametrize("width", [360, 1280])
def test_lost_connection_dims_the_page_and_moves_nothing(chromium: Browser, width: int) -> None:
    with Daemon(*FLAGS) as daemon, chromium.tab(daemon.dashboard) as tab:
        page = tab.page
        page.set_viewport_size({"width": width, "height": 800})
        page.clock.install(time="2026-11-24T09:25:03Z")
        page.clock.pause_at("2026-11-24T09:25:03.5Z")
        page.goto(daemon.dashboard)
        page.wait_for_selector("#live[data-state=live]")
        before = page.evaluate(GEOMETRY)
        assert not page.is_visible("#lost")
        daemon.stop()
        page.wait_for_selector("#live[data-state=lost]")
        assert page.inner_text("#lost p") == "No connection: this page is as of 09:25:03 UTC."
        assert page.evaluate("getComputedStyle(document.querySelector('main')).opacity") == "0.5"
        assert page.evaluate(GEOMETRY) == before
        tab.screenshot(f"lost-{width}")


def test_lost_connection_is_retried_within_five_seconds_or_at_once(chromium: Browser) -> None:
    """The clock of the page stands still, so only the button retries."""
    flags = (*FLAGS[:-1], str(free_ports(1)[0]))
    with Daemon(*flags) as daemon, chromium.tab(daemon.dashboard) as tab:
        page = tab.page
        page.clock.install()
        page.clock.pause_at(datetime.now(UTC) + timedelta(hours=1))
        page.goto(daemon.dashboard)
        page.wait_for_selector("#live[data-state=live]")
        with page.expect_event("requestfailed", lambda request: "/live?" in request.url):
            daemon.stop()
        for _ in range(4):
            with page.expect_event("requestfailed", lambda request: "/live?" in request.url):
                page.clock.run_for(5000)
        with Daemon(*flags):
            assert page.is_visible("#lost")
            page.get_by_role("button", name="Retry now").click()
            page.wait_for_selector("#live[data-state=live]")
            assert not page.is_visible("#lost")
            assert page.get_attribute("main", "data-stale") is None
            assert page.evaluate("document.activeElement.id") == "main"


def test_keyboard_focus_reaches_everything_and_is_visible(chromium: Browser, daemon: Daemon, crowd: Crowd) -> None:
    crowd.work()
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        tab.page.wait_for_selector("#live[data-state=live]")
        reached: list[Any] = []
        while len(reached) < 40 and "q" not in reached:
            tab.page.keyboard.press("Tab")
            reached.append(tab.page.evaluate("document.activeElement.id || document.activeElement.className"))
            assert tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert reached[:2] == ["skip", "brand"]
        assert reached[-1] == "q"
        for _ in range(2):  # past the actions on tubes to the first header of the table
            tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.textContent.trim()") == "Tube"
        tab.screenshot("focus")
