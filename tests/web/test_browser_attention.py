"""“Needs attention” on the overview of a real server, in a real browser: a condition comes and goes."""

from __future__ import annotations

from pathlib import Path

import greenstalk

from tests.support.daemon import Daemon

from .browser import Browser
from .visit import FLAGS


def test_condition_goes_when_its_cause_is_gone(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "greenstalk.toml"
    file.write_text("[attention]\nno_consumers = 1\n")
    with Daemon(*FLAGS, "--config", str(file)) as daemon, chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        with greenstalk.Client(("127.0.0.1", daemon.port), use="mail") as producer:
            producer.put("body")
            tab.page.locator(".condition a", has_text="1 job is ready, but no worker").wait_for()
            tab.page.wait_for_selector("[data-key=mail] .attention:has-text('no workers')")
            with greenstalk.Client(("127.0.0.1", daemon.port), watch="mail"):
                tab.page.get_by_role("heading", name="Nothing needs attention").wait_for()
                tab.page.wait_for_selector("[data-key=mail] .badge:text-is('')", state="attached")
