"""Signing in and out in a real browser, with and without JavaScript."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import greenstalk
import pytest

from tests.support.daemon import Daemon, environment

from .browser import Browser, Tab, View
from .test_guard import basic
from .visit import FLAGS, WITH_AND_WITHOUT_SCRIPTS, is_too_wide, press, violations

PASSWORD = "sesame"  # noqa: S105
VIEWS: tuple[View, ...] = ((360, "dark"), (1440, "light"))
REFUSED = "the server responded with a status of 401"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(*FLAGS, environ=environment(GREENSTALK_WEB_PASSWORD=PASSWORD)) as running:
        with greenstalk.Client(("127.0.0.1", running.port), use="mail") as queue:
            queue.put("hello")
        yield running


def enter(tab: Tab, password: str, name: str = "ann") -> None:
    tab.page.fill("#name", name)
    tab.page.fill("#password", password)
    press(tab, "Sign in")


def end_sessions(daemon: Daemon) -> None:
    request = urllib.request.Request(  # noqa: S310
        f"{daemon.dashboard}api/v1/sessions", method="DELETE", headers=basic("op", PASSWORD)
    )
    with urllib.request.urlopen(request) as response:  # noqa: S310
        assert json.load(response)["sessions"] >= 1


@WITH_AND_WITHOUT_SCRIPTS
def test_sign_in_returns_to_the_page_and_sign_out_to_the_sign_in_page(tab: Tab, daemon: Daemon) -> None:
    tab.page.goto(f"{daemon.dashboard}tube?tube=mail")
    assert tab.page.title() == "Sign in · Greenstalk Server"
    enter(tab, PASSWORD)
    assert tab.page.url == f"{daemon.dashboard}tube?tube=mail"
    assert tab.page.inner_text("h1") == "mail"
    assert "Signed in as ann, admin" in tab.page.text_content("#settings")
    tab.page.click("#settings > summary")
    press(tab, "Sign out")
    assert "You are signed out." in tab.page.inner_text("main")
    tab.page.goto(f"{daemon.dashboard}search")
    assert tab.page.title() == "Sign in · Greenstalk Server"


def test_live_page_says_that_the_session_has_ended(chromium: Browser, daemon: Daemon) -> None:
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        enter(tab, PASSWORD)
        tab.page.wait_for_selector("#live[data-state=live]")
        end_sessions(daemon)
        tab.page.get_by_text("Signed out. Reload to sign in.").wait_for()
        assert not [line for line in tab.console if REFUSED not in line]


def test_page_stays_live_after_a_password_in_the_url(chromium: Browser, daemon: Daemon) -> None:
    """The browser keeps the password as part of the address, and `fetch` rejects relative URLs of such an address."""
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard.replace("http://", "http://me:other@"))
        enter(tab, PASSWORD)
        tab.page.wait_for_selector("#live[data-state=live]")
        assert (tab.console, tab.elsewhere) == ([], [])


def test_pages_are_accessible(chromium: Browser, daemon: Daemon) -> None:
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        check(tab, "login")
        enter(tab, "wrong")
        check(tab, "login-wrong")
        enter(tab, PASSWORD)
        check(tab, "signed-in")
        tab.page.goto(f"{daemon.dashboard}sessions")
        check(tab, "sessions")


def check(tab: Tab, name: str) -> None:
    tab.screenshots(name, VIEWS)
    for width, theme in VIEWS:
        tab.show(width, theme)
        assert violations(tab) == []
        assert not is_too_wide(tab)
        small = tab.page.evaluate(
            "[...document.querySelectorAll('.signin input:not([type=hidden]), .signin .button, .sign-out .button, "
            ".sessions .button')].filter(one => one.getBoundingClientRect().height < 24).map(one => one.outerHTML)"
        )
        assert small == []
