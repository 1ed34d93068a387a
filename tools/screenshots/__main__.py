"""`make screenshots`: every page of the dashboard, in both themes and at three widths, over a scene of real work.

python -m tools.screenshots [--pages NAME,NAME] [--minutes 3] DIRECTORY

Without --pages it also replaces docs/screenshot.png. --minutes is the time for which the scene runs first, since
rates and charts need some history.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Page

from tests.support.daemon import REPOSITORY
from tests.web.browser import Browser, browser
from tools.screenshots.scene import PASSWORD, Scene

WIDTHS: Final = (360, 1024, 1440)
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
HEIGHTS: Final = {360: 740, 1024: 768, 1440: 900}
"""Height of the window by its width. A screenshot has the whole page."""

FAILING: Final = "webhooks.deliver"

HELD: Final = "job-held"

NO_TASK_RUNS: Final = "() => document.querySelector('[data-task-state]')?.textContent !== 'running'"

DOCS_SCREENSHOT: Final = REPOSITORY / "docs" / "screenshot.png"


def paths(page: Page, url: str) -> dict[str, str]:
    """Return the paths of all pages by name. The ids in them belong to the running scene."""
    failing = f"tube={FAILING}"
    page.goto(f"{url}tube?{failing}&state=buried")
    buried = page.locator(".jobs tbody tr").first.get_attribute("data-key")
    page.goto(f"{url}connections")
    connection = page.locator("tbody tr th a").last.inner_text()
    headers = {"Sec-Fetch-Site": "same-origin"}
    bulk = {"action": "delete", "tube": FAILING, "state": "buried", "q": "error:*404*"}
    task = page.request.post(f"{url}api/v1/bulk", data=bulk, headers=headers).json()["id"]
    pause = page.request.post(
        f"{url}tubes/preview",
        form={"pattern": "billing.*", "action": "pause", "seconds": "3600"},
        headers=headers,
    )
    return {
        "overview": "",
        "overview-filtered": "?q=billing",
        "tubes-change": pause.url.removeprefix(url),
        **{f"tube-{state}": f"tube?{failing}&state={state}" for state in ("ready", "reserved", "delayed", "buried")},
        "tube-paused": "tube?tube=reports.daily",
        "tube-dead-letters": "tube?tube=webhooks.failed",
        "tube-loop": "tube?tube=mail.bulk&state=delayed",
        "attention": "attention",
        "errors": "errors",
        "errors-dead-letters": "errors?jobs=dead-letters",
        "tube-errors": f"tube/errors?{failing}",
        "tube-history": f"tube/history?{failing}",
        "job-buried": f"job?id={buried}",
        HELD: "",
        "job-form": f"job/form?id={buried}",
        "bulk": f"bulk?task={task}",
        "task": f"task?id={task}",
        "tasks": "task",
        "connections": "connections",
        "connection": f"connection?number={connection}",
        "search": "search",
        "search-matches": "search?q=tube:billing.capture+state:buried",
        "policies": "policies",
        "policy": "policy?name=imports",
        "policy-new": "policy",
        "alerts": "alerts",
        "servers": "servers",
        "audit": "audit",
        "sessions": "sessions",
        "not-found": "nowhere",
    }


def held_job(page: Page, url: str) -> str:
    """Return the path of the job that a worker has reserved last; a worker needs about two seconds for one."""
    page.goto(f"{url}tube?tube={FAILING}&state=reserved")
    return f"job?id={page.locator('.jobs tbody tr').last.get_attribute('data-key')}"


def sign_in(page: Page, url: str) -> None:
    """Sign in as the scene's admin."""
    page.goto(f"{url}login")
    page.fill("#name", "ada")
    page.fill("#password", PASSWORD)
    page.click("main button")


def shoot(chromium: Browser, url: str, directory: Path, names: list[str]) -> None:
    """Write a screenshot of each page in *names*, by default of all pages, to *directory*/NAME-WIDTH-THEME.png."""
    directory.mkdir(parents=True, exist_ok=True)
    with chromium.tab(url) as tab:
        for theme in THEMES:
            tab.page.emulate_media(color_scheme=theme)
            for width in WIDTHS:
                tab.page.set_viewport_size({"width": width, "height": HEIGHTS[width]})
                tab.page.context.clear_cookies()
                tab.page.goto(f"{url}login")
                if not names or "login" in names:
                    tab.page.screenshot(path=directory / f"login-{width}-{theme}.png", full_page=True)
                sign_in(tab.page, url)
                for name, path in paths(tab.page, url).items():
                    if names and name not in names:
                        continue
                    tab.page.goto(url + (held_job(tab.page, url) if name == HELD else path))
                    tab.page.wait_for_function(NO_TASK_RUNS)
                    tab.page.wait_for_timeout(400)  # until the live state is there and the charts are drawn
                    tab.page.screenshot(path=directory / f"{name}-{width}-{theme}.png", full_page=True)


def shoot_for_docs(chromium: Browser, url: str) -> None:
    """Write the first screen of the overview to docs/screenshot.png."""
    with chromium.tab(url, color_scheme="light") as tab:
        tab.page.set_viewport_size({"width": 1280, "height": 800})
        sign_in(tab.page, url)
        tab.page.wait_for_selector("#live[data-state=live]")
        tab.page.wait_for_selector(".top-error")  # the server groups the errors after the first request
        tab.page.screenshot(path=DOCS_SCREENSHOT)


def main() -> None:
    """Run the scene, and write the screenshots."""
    parser = argparse.ArgumentParser(prog="make screenshots", description=re.sub(r"\n\n.*", "", __doc__ or ""))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pages", default="", help="names of pages, separated by commas; all by default")
    parser.add_argument("--minutes", type=float, default=3.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, Scene(Path(directory)) as scene, browser() as chromium:
        time.sleep(60 * options.minutes)
        shoot(chromium, scene.url, options.directory, options.pages.split(",") if options.pages else [])
        if not options.pages:
            shoot_for_docs(chromium, scene.url)


if __name__ == "__main__":
    main()
