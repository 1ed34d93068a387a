"""“Needs attention” on the overview of a real server, in a real browser: a condition comes and goes."""

from __future__ import annotations

from pathlib import Path

import greenstalk
from playwright.sync_api import Locator

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .visit import FLAGS

SENTENCES = {
    "mail": "3 jobs of “mail” are ready, but no worker watches the tube: the oldest has waited for ",
    "capped": "“capped” has 19 of at most 20 jobs (max_jobs)",
    "reports": "7 more jobs of “reports” are buried than 15 minutes ago: 7 in all.",
    "slow": "onnection ",
    "late": "3 reservations of “late” timed out in the last 15 minutes, in which 3 jobs were reserved.",
    "paused": "1 job of “paused” is ready, but the tube is paused: ",
    "failing": "2 jobs of “failing” became dead letters in the last 15 minutes, which are in “failing.dead”.",
}
"""By tube: the beginning of the sentence, or a part of it."""


def sentence(tab: Tab, tube: str) -> Locator:
    """Return the link with the sentence about *tube*."""
    return tab.page.locator(".condition a", has_text=SENTENCES[tube]).filter(has_text=tube)


def test_condition_goes_when_its_cause_is_gone(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "greenstalk.toml"
    file.write_text("[attention]\nno_consumers = 1\n")
    with Daemon(*FLAGS, "--config", str(file)) as daemon, chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        with greenstalk.Client(("127.0.0.1", daemon.port), use="mail") as producer:
            producer.put("body")
            sentence(tab, "mail").wait_for(state="detached")
            tab.page.locator(".condition a", has_text="1 job of “mail” is ready, but no worker").wait_for()
            tab.page.wait_for_selector("[data-key=mail] .attention:has-text('no consumers')")
            with greenstalk.Client(("127.0.0.1", daemon.port), watch="mail"):
                tab.page.get_by_role("heading", name="Nothing needs attention").wait_for()
                tab.page.wait_for_selector("[data-key=mail] .badge:text-is('')", state="attached")
