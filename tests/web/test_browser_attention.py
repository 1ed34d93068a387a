"""“Needs attention” on the overview of a real server, in a real browser: conditions come, are followed, and go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import greenstalk
import pytest
from playwright.sync_api import Locator

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .visit import AXE, AXE_VIOLATIONS, FLAGS, follow, is_too_wide

CONFIG = """
[attention]
no_consumers = 2
oldest_ready = 2
held_job = 2
paused = 2
buried_growth = 5
timeouts = 2

[attention.tubes."quiet.*"]
no_consumers = 0

[policies.capped]
tubes = ["capped"]
max_jobs = 20

[policies.failing]
tubes = ["failing"]
max_attempts = 1
dead_letter = "failing.dead"
"""


CUT = """() => [...document.querySelectorAll('#attention *')]
    .filter(one => one.offsetParent !== null && one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0)
    .map(one => [one.className, one.textContent])"""
"""Returns the elements of the panel that truncate their text."""

LOW = """() => [...document.querySelectorAll('#attention a')]
    .filter(one => one.offsetParent !== null && one.getBoundingClientRect().height < 24)
    .map(one => [one.getBoundingClientRect().height, one.textContent])"""
"""Returns the links of the panel that are less than 24 px high."""


class Troubles:
    """Clients that keep a server in several kinds of trouble; *held* is the id of a job that a worker holds."""

    def __init__(self, daemon: Daemon, at_exit: ExitStack) -> None:
        self._address = ("127.0.0.1", daemon.port)
        self._at_exit = at_exit
        self.producer = self._connect()
        self.held = 0

    def _connect(self, *watch: str) -> greenstalk.Client:
        client = greenstalk.Client(self._address, watch=list(watch) or "default")
        self._at_exit.callback(client.close)
        return client

    def put(self, tube: str, count: int = 1, **options: int) -> list[int]:
        self.producer.use(tube)
        return [self.producer.put("body", **options) for _ in range(count)]

    def begin(self) -> None:
        self.put("mail", 3)
        self.put("quiet.nightly", 2)
        self.put("capped", 19)
        self._connect("capped")
        buried = self._connect("reports")
        for id in self.put("reports", 7):
            buried.bury(buried.reserve_job(id))
        (self.held,) = self.put("slow")
        self._connect("slow").reserve(timeout=1)
        late = self._connect("late")
        self.put("late", 3, ttr=1)
        for _ in range(3):
            late.reserve(timeout=1)
        self.put("paused")
        self._connect("paused")
        self.producer.pause_tube("paused", 3600)
        failing = self._connect("failing")
        self.put("failing", 2)
        for _ in range(2):
            failing.release(failing.reserve(timeout=1))


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Troubles]]:
    file = tmp_path_factory.mktemp("config") / "greenstalk.toml"
    file.write_text(CONFIG)
    with Daemon(*FLAGS, "--config", str(file)) as daemon, ExitStack() as at_exit:
        troubles = Troubles(daemon, at_exit)
        troubles.begin()
        yield daemon, troubles


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


def wait_for_all(tab: Tab, url: str) -> None:
    tab.page.goto(url)
    tab.page.wait_for_selector("#live[data-state=live]")
    for tube in SENTENCES:
        sentence(tab, tube).first.wait_for()


def test_conditions_appear_live_with_links_to_the_jobs(chromium: Browser, troubled: tuple[Daemon, Troubles]) -> None:
    daemon, troubles = troubled
    with chromium.tab(daemon.dashboard) as tab:
        wait_for_all(tab, daemon.dashboard)
        assert tab.page.inner_text("#attention-title") == "Needs attention"
        assert "quiet" not in tab.page.inner_text("#attention")
        badges = tab.page.locator(".condition .badge").all_inner_texts()
        assert badges == sorted(badges), "critical before warning"
        places = {}
        for tube in SENTENCES:
            tab.page.goto(daemon.dashboard)
            follow(tab, sentence(tab, tube).first)
            url = urlsplit(tab.page.url)
            places[tube] = url.path, {name: values[0] for name, values in parse_qs(url.query).items()}
        assert places.pop("slow")[0] == "/connection"
        assert places == {
            "mail": ("/tube", {"tube": "mail"}),
            "capped": ("/tube", {"tube": "capped"}),
            "reports": ("/tube/errors", {"tube": "reports", "state": "buried"}),
            "late": ("/tube", {"tube": "late", "state": "reserved"}),
            "paused": ("/tube", {"tube": "paused"}),
            "failing": ("/tube/errors", {"tube": "failing.dead"}),
        }
        tab.page.goto(daemon.dashboard)
        follow(tab, sentence(tab, "slow").first)
        assert str(troubles.held) in tab.page.inner_text("main")
        assert (tab.console, tab.elsewhere) == ([], [])


def test_conditions_are_shown_without_scripts(chromium: Browser, troubled: tuple[Daemon, Troubles]) -> None:
    daemon, _ = troubled
    with chromium.tab(daemon.dashboard) as scripted:
        wait_for_all(scripted, daemon.dashboard)
    with chromium.tab(daemon.dashboard, java_script_enabled=False) as tab:
        tab.page.goto(daemon.dashboard)
        for tube in SENTENCES:
            assert sentence(tab, tube).count() == 1


def test_api_and_metrics_have_the_conditions_of_the_page(chromium: Browser, troubled: tuple[Daemon, Troubles]) -> None:
    daemon, _ = troubled
    with chromium.tab(daemon.dashboard) as tab:
        wait_for_all(tab, daemon.dashboard)
        shown = tab.page.locator(".condition .sentence").all_inner_texts()
    with urlopen(f"{daemon.dashboard}api/v1/attention") as response:  # noqa: S310  our own server
        found = json.load(response)
    assert found["total"] == len(found["conditions"]) == len(shown)
    kinds = {(one["condition"], one["tube"]) for one in found["conditions"]}
    assert {("no_consumers", "mail"), ("limit", "capped"), ("buried_growth", "reports"), ("held_job", "slow")} <= kinds
    with urlopen(f"{daemon.dashboard}metrics") as response:  # noqa: S310
        lines = response.read().decode().splitlines()
    assert 'greenstalk_attention{condition="no_consumers",limit="",severity="warning",tube="mail"} 1.0' in lines
    assert 'greenstalk_attention{condition="limit",limit="max_jobs",severity="warning",tube="capped"} 1.0' in lines
    assert 'greenstalk_attention_conditions{condition="journal"} 0.0' in lines


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1024, "light"), (1440, "light")])
def test_panel_fits_every_width(chromium: Browser, troubled: tuple[Daemon, Troubles], width: int, scheme: str) -> None:
    daemon, _ = troubled
    with chromium.tab(daemon.dashboard, width, color_scheme=scheme, bypass_csp=True) as tab:
        wait_for_all(tab, daemon.dashboard)
        tab.screenshot(f"attention-{scheme}-{width}")
        assert not is_too_wide(tab)
        assert tab.page.evaluate(CUT) == []
        assert tab.page.evaluate(LOW) == []
        tab.page.evaluate(AXE)
        assert tab.page.evaluate(AXE_VIOLATIONS) == []


def test_quiet_server_says_that_nothing_needs_attention(chromium: Browser) -> None:
    with Daemon(*FLAGS) as daemon, chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        tab.page.get_by_role("heading", name="Nothing needs attention", exact=True).wait_for()
        assert tab.page.locator(".condition").count() == 0
        tab.screenshot("attention-nothing")


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
