"""The dashboard of `--processes 2` in a real browser: pages about both shards fit, update live, and act."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import greenstalk
import psutil
import pytest
from playwright.sync_api import expect

from greenstalk_server.core.tube_shards import TubeShards
from tests.support.daemon import Daemon
from tests.support.ports import free_ports

from .browser import Browser, Tab, View
from .test_browser_layout import problems_of
from .visit import AXE, notice_text, press

SHARDS: Final = 2
VIEWS: Final[tuple[View, ...]] = ((360, "dark"), (1440, "light"))
LONG: Final = "billing.invoices.reminders-of-the-second-level"


@dataclass
class Queue:
    """A server with two processes, and the ids of jobs."""

    daemon: Daemon
    home: str
    client: greenstalk.Client
    buried: int
    moving: int

    def tab_api(self, tab: Tab, path: str, **data: Any) -> Any:
        return tab.page.request.post(f"{self.home}api/v1{path}", data=data).json()


def tube_on(shard: int, prefix: str) -> str:
    names = [f"{prefix}{number}" for number in range(20)]
    return next(name for name in names if TubeShards(SHARDS).shard_of(name.encode()) == shard)


HERE, THERE, WIDE = tube_on(0, "mail"), tube_on(1, "video"), tube_on(1, LONG)


@pytest.fixture(scope="module")
def queue() -> Iterator[Queue]:
    """Jobs on both shards, ready and buried with errors, and one to move."""
    [port] = free_ports(1)
    with Daemon("--processes", str(SHARDS), "-l", "127.0.0.1", "-p", "0", "--web-port", str(port)) as daemon:
        client = greenstalk.Client(("127.0.0.1", daemon.port))
        buried = 0
        for tube in (HERE, THERE, WIDE):
            client.use(tube)
            for number in range(3):
                client.put("ready")
                id = client.put(json.dumps({"error": f"no route to 10.0.0.{number}"}))
                client.bury(client.reserve_job(id))
                buried = id if tube == THERE else buried
        client.use(HERE)
        moving = client.put("moves")
        yield Queue(daemon, f"http://127.0.0.1:{port}/", client, buried, moving)
        client.close()


def test_pages_about_both_shards_fit(chromium: Browser, queue: Queue) -> None:
    problems: dict[str, list[Any]] = {}
    with chromium.tab(queue.home) as tab:
        tab.page.add_init_script(AXE)
        policy = {"tubes": ["*"], "max_attempts": 3}
        tab.page.request.put(f"{queue.home}api/v1/policies/retries", data=policy)
        dry_run = queue.tab_api(tab, "/policies/retries/dry-run", **policy, max_jobs=5)["id"]
        change = queue.tab_api(tab, "/tubes/kick?pattern=*")["id"]
        pages = {
            "overview": "",
            "tube": f"tube?tube={WIDE}&state=buried",
            "job": f"job?id={queue.buried}",
            "servers": "servers",
            "errors": "errors",
            "policy": f"policy?task={dry_run}",
            "tube-change": f"tubes/change?task={change}",
        }
        for name, path in pages.items():
            tab.page.goto(queue.home + path)
            tab.screenshots(f"processes-{name}", VIEWS)
            for width, theme in VIEWS:
                tab.show(width, theme)
                if found := problems_of(tab, width):
                    problems[f"{name}-{width}-{theme}"] = found
        assert problems == {}
        assert (tab.console, tab.elsewhere) == ([], [])


def test_overview_and_tube_of_the_other_shard_update_live(chromium: Browser, queue: Queue) -> None:
    with chromium.tab(queue.home) as tab:
        for path in ("", f"tube?tube={THERE}"):
            tab.page.goto(queue.home + path)
            shown = tab.page.locator(f"tr[data-key='{THERE}'] td.ready") if not path else tab.page.locator(".tab").first
            before = queue.client.stats_tube(THERE)["current-jobs-ready"]
            expect(shown).to_contain_text(str(before))
            queue.client.use(THERE)
            queue.client.put("more")
            expect(shown).to_contain_text(str(before + 1))
        assert (tab.console, tab.elsewhere) == ([], [])


def test_job_of_the_other_shard_is_retried_and_the_change_undone(chromium: Browser, queue: Queue) -> None:
    with chromium.tab(queue.home) as tab:
        tab.page.goto(f"{queue.home}job?id={queue.buried}")
        press(tab, "Retry")
        assert "ready" in tab.page.inner_text("[data-part=badges]")
        assert "Undo" in notice_text(tab)
        press(tab, "Undo")
        expect(tab.page.locator("main")).to_contain_text("Undo: Retry job")
        tab.page.goto(f"{queue.home}job?id={queue.buried}")
        expect(tab.page.locator("[data-part=badges]")).to_contain_text("buried")
        assert (tab.console, tab.elsewhere) == ([], [])


def test_job_that_is_moving_has_no_actions_until_it_has_arrived(chromium: Browser, queue: Queue) -> None:
    with chromium.tab(queue.home, 1440) as tab:
        pids = [one["pid"] for one in tab.page.request.get(f"{queue.home}api/v1/servers").json()["processes"]]
        other = psutil.Process(pids[1])
        other.suspend()
        try:
            queue.tab_api(tab, f"/jobs/{queue.moving}/move", tube=THERE)
            tab.page.goto(f"{queue.home}job?id={queue.moving}")
            tab.screenshot("processes-moving-1440-light")
            assert f"moving to the tube {THERE} (shard 1)" in tab.page.inner_text("[data-part=who]")
            assert tab.page.locator("[data-part=actions] :is(button, a)").count() == 0
            assert problems_of(tab, 1024) == []
        finally:
            other.resume()
        tab.page.goto(f"{queue.home}job?id={queue.moving}")
        expect(tab.page.locator("[data-part=crumb]")).to_contain_text(THERE)
        expect(tab.page.locator("[data-part=actions] a")).to_have_text("Edit")
