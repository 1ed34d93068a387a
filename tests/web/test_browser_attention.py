"""“Needs attention” on the overview of a real server, in a real browser: a condition comes and goes."""

from __future__ import annotations

from pathlib import Path

import greenstalk

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .visit import FLAGS


def test_condition_goes_when_its_cause_is_gone(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "greenstalk.toml"
    file.write_text("[attention]\nno_consumers = 1\n")
    with Daemon(*FLAGS, "--config", str(file)) as daemon, chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        with greenstalk.Client(("127.0.0.1", daemon.port), use="mail") as producer:
            producer.put("body")
            tab.page.locator(".condition a", has_text="1 job is ready, but no worker").wait_for()
            tab.page.wait_for_selector("[data-key=mail] .badge[data-state=warning]:has-text('no workers')")
            assert badges(tab) == ("1", "(1) Tubes · Greenstalk Server", "favicon-warning.svg")
            producer.reserve_job(1)
            producer.bury(greenstalk.Job(1, "body"))
            tab.page.wait_for_selector("[data-key=mail] .badge[data-state=failure]:has-text('buried')")
            assert badges(tab) == ("1", "(1) Tubes · Greenstalk Server", "favicon-failure.svg")
            producer.kick(1)
            with greenstalk.Client(("127.0.0.1", daemon.port), watch="mail"):
                tab.page.get_by_role("heading", name="Nothing needs attention").wait_for()
                tab.page.wait_for_selector("[data-key=mail] .badge:text-is('')", state="attached")
                assert badges(tab) == ("", "Tubes · Greenstalk Server", "favicon.svg")


def badges(tab: Tab) -> tuple[str, str, str]:
    """Return the count of conditions in the navigation, the title, and the file of the icon."""
    icon = tab.page.locator("link[rel=icon]").get_attribute("href") or ""
    return tab.page.locator("nav [data-badge=alerts]").inner_text(), tab.page.title(), icon.rpartition("/")[2]
