"""“Needs attention” on the overview of a real server, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import greenstalk
import pytest

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .visit import FLAGS

TUBES = 40

BOTTOMS = "elements => elements.map(element => element.getBoundingClientRect().bottom)"


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A server that reports tubes without workers after a second."""
    file = tmp_path_factory.mktemp("config") / "greenstalk.toml"
    file.write_text("[attention]\nno_consumers = 1\n")
    with Daemon(*FLAGS, "--config", str(file)) as daemon:
        yield daemon


def test_condition_goes_when_its_cause_is_gone(chromium: Browser, impatient: Daemon) -> None:
    with chromium.tab(impatient.dashboard) as tab:
        tab.page.goto(impatient.dashboard)
        with greenstalk.Client(("127.0.0.1", impatient.port), use="mail") as producer:
            id = producer.put("body")
            tab.page.locator(".condition a", has_text="1 job is ready, but no worker").wait_for()
            tab.page.wait_for_selector("[data-key=mail] .badge[data-state=warning]:has-text('no workers')")
            assert badges(tab) == ("1", "(1) Tubes · Greenstalk Server", "favicon-warning.svg")
            producer.reserve_job(id)
            producer.bury(greenstalk.Job(id, "body"))
            tab.page.wait_for_selector("[data-key=mail] .badge[data-state=failure]:has-text('buried')")
            assert badges(tab) == ("1", "(1) Tubes · Greenstalk Server", "favicon-failure.svg")
            producer.kick(1)
            with greenstalk.Client(("127.0.0.1", impatient.port), watch="mail"):
                tab.page.get_by_role("heading", name="Nothing needs attention").wait_for()
                tab.page.wait_for_selector("[data-key=mail] .badge:text-is('')", state="attached")
                assert badges(tab) == ("", "Tubes · Greenstalk Server", "favicon.svg")
            producer.delete(id)


def test_bad_day_fits_the_first_screen(chromium: Browser, impatient: Daemon) -> None:
    with greenstalk.Client(("127.0.0.1", impatient.port)) as producer, chromium.tab(impatient.dashboard) as tab:
        for number in range(TUBES):
            producer.use(f"tube{number:02}")
            producer.put("body")
        tab.page.goto(impatient.dashboard)
        tab.page.locator(".condition", has_text=f"{TUBES - 5} more").wait_for()
        for width, height, tubes in ((1440, 900, 10), (1024, 768, 5)):
            tab.page.set_viewport_size({"width": width, "height": height})
            assert tab.page.locator(".glance").evaluate_all(BOTTOMS)[0] < height
            assert tab.page.locator(".condition").evaluate_all(BOTTOMS)[4] < height
            assert tab.page.locator("#tubes tr").evaluate_all(BOTTOMS)[tubes - 1] < height


def badges(tab: Tab) -> tuple[str, str, str]:
    """Return the count of conditions in the navigation, the title, and the file of the icon."""
    icon = tab.page.locator("link[rel=icon]").get_attribute("href") or ""
    return tab.page.locator("nav [data-badge=alerts]").inner_text(), tab.page.title(), icon.rpartition("/")[2]
