"""Helpers for tests with a real browser and daemon: clients of the queue, and actions in a tab."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import greenstalk
import pytest
from playwright.sync_api import Locator

from tests.support.daemon import REPOSITORY, TIMEOUT, Daemon
from tests.support.processes import ending

from .browser import Tab

WITH_AND_WITHOUT_SCRIPTS = pytest.mark.parametrize("tab", [True, False], ids=["script", "no-script"], indirect=True)

FLAGS = ("-l", "127.0.0.1", "-p", "0", "--web-port", "0")

AXE = Path(__file__).with_name("vendor").joinpath("axe.min.js").read_text()
AXE_VIOLATIONS = """axe.run(document, {
        resultTypes: ['violations'], selectors: false, rules: { 'target-size': { enabled: true } },
    })
    .then(({ violations }) => violations.map(({ id, nodes }) => [id, nodes.map(node => node.html)]))"""
"""Returns the broken rules and their elements. The options omit unused results, which saves CPU time."""


@contextmanager
def url_of_module(module: str, *args: str) -> Iterator[str]:
    """Run *module*, which prints its URL and serves until its standard input ends; return the URL."""
    command = [sys.executable, "-m", module, *args]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with ending(process):
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0


class Clients:
    """A producer and a worker on a tube of their own."""

    def __init__(self, daemon: Daemon, tube: str) -> None:
        address = ("127.0.0.1", daemon.port)
        self.tube = tube
        self.producer = greenstalk.Client(address, use=tube, encoding=None)
        self.worker = greenstalk.Client(address, watch=tube, encoding=None)
        self.url = f"{daemon.dashboard}tube?tube={tube}"

    def close(self) -> None:
        for client in (self.producer, self.worker):
            client.close()

    def put(self, *bodies: bytes, **options: Any) -> list[int]:
        return [self.producer.put(body, **options) for body in bodies]

    def bury(self, count: int) -> list[int]:
        ids = self.put(*[b"x"] * count)
        for id in ids:
            self.worker.bury(self.worker.reserve_job(id))
        return ids

    def states(self) -> tuple[int, ...]:
        stats = self.producer.stats_tube(self.tube)
        return tuple(stats[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed", "buried"))


def press(tab: Tab, name: str) -> None:
    """Press a button, and wait until the page that it opens has loaded."""
    with tab.page.expect_navigation():
        tab.page.get_by_role("button", name=name, exact=True).click()


def follow(tab: Tab, link: Locator) -> None:
    """Click a link, and wait until the page that it opens has loaded: a click returns while the page is parsed."""
    with tab.page.expect_navigation():
        link.click()


def notice_text(tab: Tab) -> str:
    return tab.page.inner_text(".banner.done")


def is_too_wide(tab: Tab) -> bool:
    return tab.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def violations(tab: Tab) -> list[Any]:
    """Return the rules that axe finds broken on the page, and their elements; load axe unless the page has it."""
    if not tab.page.evaluate("'axe' in window"):
        tab.page.evaluate(AXE)
    return list(tab.page.evaluate(AXE_VIOLATIONS))
