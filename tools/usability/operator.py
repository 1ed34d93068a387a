"""An operator at a browser: counts clicks and keys, and sees only the part of the page that is on the screen."""

from __future__ import annotations

import re
import time
from types import TracebackType
from typing import Final, Self

from playwright.sync_api import Locator, Page, expect

from tests.support.daemon import TIMEOUT
from tests.web.browser import Browser, Tab

WIDTH: Final = 1440
HEIGHT: Final = 900


class Operator:
    """One visit: a tab on the overview.

    clicks      clicks and selections with the mouse.
    keys        keys pressed, one per character that was typed.
    """

    def __init__(self, browser: Browser, home: str) -> None:
        self._context = browser.tab(home, WIDTH)
        self._home: str = home
        self.tab: Tab = self._context.__enter__()
        self.clicks: int = 0
        self.keys: int = 0

    def __enter__(self) -> Self:
        self.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        self.page.goto(self._home)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.__exit__(kind, error, trace)

    @property
    def page(self) -> Page:
        return self.tab.page

    def click(self, target: Locator) -> None:
        """Click *target*, which must be the only match."""
        target.click()
        self.clicks += 1

    def click_link(self, name: str | re.Pattern[str]) -> None:
        self.click(self.page.get_by_role("link", name=name))

    def click_button(self, name: str | re.Pattern[str]) -> None:
        self.click(self.page.get_by_role("button", name=name))

    def write(self, field: Locator, text: str) -> None:
        """Replace the contents of *field*: one click, one key per character. The click selects the old text."""
        field.fill(text)
        self.clicks += 1
        self.keys += len(text)

    def choose(self, field: Locator, label: str) -> None:
        """Select the option *label*: two clicks."""
        field.select_option(label=label)
        self.clicks += 2

    def press(self, key: str) -> None:
        """Press *key* on the element that has the focus."""
        self.page.keyboard.press(key)
        self.keys += 1

    def sees(self, target: Locator) -> None:
        """Assert that *target* is displayed within the screen, without scrolling."""
        expect(target).to_be_visible()
        self.page.wait_for_load_state()  # style sheets move elements
        until = time.monotonic() + TIMEOUT
        while (box := target.bounding_box()) is None:  # a live update replaced it
            assert time.monotonic() < until
        assert box["y"] + box["height"] <= HEIGHT, f"below the first screen: {target}"
