"""The website that `make site` has built: `make test-site` checks it as files and in a browser.

Sphinx itself has checked the links between pages, their anchors, and that the navigation has every page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from html import unescape
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from tests.web.browser import browser

SITE: Final = Path(__file__).resolve().parents[2] / "build" / "site"
EXTERNAL: Final = SITE.with_name("site-external-links")
"""A list of the links to other hosts. Nothing fetches them."""

DOCUMENTS: Final = sorted(SITE.rglob("*.html"))


class Page(HTMLParser):
    """The anchors, links and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: unescape(value or "") for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        self.loaded |= {values[name] for name in ("src", "href") if tag != "a" and name in values}


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    """Every page of the site."""
    assert DOCUMENTS, "run make site"
    return {path: Page(path) for path in DOCUMENTS}


def test_each_link_has_a_target(pages: dict[Path, Page]) -> None:
    broken, external = [], set()
    for path, page in pages.items():
        for link in page.links | page.loaded:
            if urlsplit(link).scheme or link.startswith("//"):
                external.add(link)
                continue
            parts = urlsplit(unquote(link))
            target = (path.parent / parts.path).resolve() if parts.path else path
            if not target.exists() or (target in pages and parts.fragment not in pages[target].anchors):
                broken.append(f"{path.relative_to(SITE)}: {link}")
    EXTERNAL.write_text("".join(f"{link}\n" for link in sorted(external)))
    assert not broken


def test_each_page_can_be_reached_from_the_first(pages: dict[Path, Page]) -> None:
    first = SITE / "index.html"
    reached, rest = {first}, [first]
    while rest:
        path = rest.pop()
        for link in pages[path].links:
            target = (path.parent / unquote(urldefrag(link)[0])).resolve()
            if target in pages and target not in reached:
                reached.add(target)
                rest.append(target)
    assert set(pages) - reached == {SITE / "search.html"}  # reached by a form, not by a link


def test_no_page_loads_a_file_of_another_host(pages: dict[Path, Page]) -> None:
    assert not [link for page in pages.values() for link in page.loaded if urlsplit(link).netloc]
    for sheet in SITE.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text()), sheet


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    """The address of a web server with the site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(SITE))) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    """Logs nothing."""

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(("words", "page"), [("dead letter", "docs/retries.html"), ("outbox", "docs/outbox.html")])
def test_search_finds_a_page_and_asks_no_other_host(home: str, words: str, page: str) -> None:
    with browser() as chromium, chromium.tab(home) as tab:
        tab.page.goto(home)
        tab.page.get_by_role("textbox", name="Search").fill(words)
        tab.page.keyboard.press("Enter")
        tab.page.locator(f'#search-results a[href*="{page}"]').first.click()
        tab.page.wait_for_url(f"**/{page}*")
        assert (tab.console, tab.elsewhere) == ([], [])
