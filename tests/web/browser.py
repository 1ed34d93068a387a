"""A real browser, Debian's Chromium, which records errors and foreign requests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Page, expect, sync_playwright

BROWSERS = ("chromium-headless-shell", "chromium")
"""Commands to try in this order. Each is also the name of a Debian package.

Both have the same engine. The shell draws no window: a visit to two pages in a new tab takes 1.1 s of CPU instead of
2.2 s.
"""

FLAGS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--js-flags=--no-opt,--no-maglev",
)
"""V8 does not optimize functions of pages that are soon left: a renderer takes a fifth less of CPU time."""

AUTOFOCUS_BLOCKED = "Autofocus processing was blocked because a document already has a focused element."
"""Chromium logs this if a test uses a page before Chromium has set the focus, which depends only on their speed."""

TIMEOUT_MS = 60_000
"""Milliseconds that an action or `expect` waits, for example while other programs use the processors."""

SCREENSHOTS = "SCREENSHOTS"
"""Environment variable: a directory for screenshots, for review by a person."""


HEIGHT = 800
"""Pixels of a window."""

Theme = Literal["dark", "light"]
View = tuple[int, Theme]
"""Width of the window, and the preferred colours."""

expect.set_options(timeout=TIMEOUT_MS)


class Tab:
    """A tab in its own browser context, with its errors and requests.

    console         console messages and uncaught errors.
    elsewhere       URLs of requests to hosts other than the dashboard's.
    """

    def __init__(self, page: Page, home: str) -> None:
        self.page = page
        self.console: list[str] = []
        self.elsewhere: list[str] = []
        page.on("console", self._note_console)
        page.on("pageerror", lambda error: self.console.append(f"uncaught: {error}"))
        page.on("request", lambda request: self._note(request.url, home))

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.text != AUTOFOCUS_BLOCKED:
            self.console.append(f"{message.type}: {message.text}")

    def _note(self, url: str, home: str) -> None:
        if urlsplit(url).netloc.rpartition("@")[2] != urlsplit(home).netloc:
            self.elsewhere.append(url)

    def stop_clock(self) -> None:
        """Stop the clock of the pages that are opened from now on: only `page.clock.run_for` passes time."""
        self.page.clock.install(time="2026-01-01T00:00:00Z")
        self.page.clock.pause_at("2026-01-01T00:00:01Z")

    def show(self, width: int, theme: Theme | None = None) -> None:
        """Change the width of the window, and the preferred colours unless *theme* is None, of the open page."""
        self.page.set_viewport_size({"width": width, "height": HEIGHT})
        if theme is not None:
            self.page.emulate_media(color_scheme=theme)
        self.page.evaluate(SETTLE)

    def screenshots(self, name: str, views: Iterable[View]) -> None:
        """Save a screenshot of each of *views* if SCREENSHOTS is set."""
        if SCREENSHOTS in os.environ:
            for width, theme in views:
                self.show(width, theme)
                self.screenshot(f"{name}-{width}-{theme}")

    def screenshot(self, name: str) -> None:
        """Save a screenshot of the whole page if SCREENSHOTS is set."""
        if directory := os.environ.get(SCREENSHOTS):
            self.page.screenshot(path=Path(directory, f"{name}.png"), full_page=True)


SETTLE = """new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))
    .then(() => document.getAnimations().forEach(one => one.finish()))"""
"""Waits for two frames, in which charts take the new width of the window; then ends the transitions of colours."""


class Browser:
    """Opens tabs."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    @contextmanager
    def tab(self, home: str, width: int = 1280, **options: Any) -> Iterator[Tab]:
        """Open a tab for pages of *home*; *options* are passed to the Playwright context."""
        context = self._chromium.new_context(viewport={"width": width, "height": HEIGHT}, **options)
        context.set_default_timeout(TIMEOUT_MS)
        try:
            yield Tab(context.new_page(), home)
        finally:
            context.close()


@contextmanager
def browser() -> Iterator[Browser]:
    """Run Chromium; fail if it is not installed."""
    command = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert command is not None, f"Chromium is missing: install one of the Debian packages {' and '.join(BROWSERS)}"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=command, args=list(FLAGS))
        try:
            yield Browser(chromium)
        finally:
            chromium.close()
