"""Links between the pages are valid, and the index lists every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.daemon import REPOSITORY

PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("bench/*.md")])
INDEX = REPOSITORY / "docs" / "README.md"


def prose(page: Path) -> str:
    """Return the text of *page* without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    """Return the targets of *page*'s links within the project."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub generates for the headings of *page*."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_is_valid(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_index_lists_every_page() -> None:
    """A page that the index does not list would be missing on the website too."""
    named = {(INDEX.parent / name.partition("#")[0]).resolve() for name in links(INDEX)}
    assert set(PAGES) - {INDEX, REPOSITORY / "README.md"} <= named
