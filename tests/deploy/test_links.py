"""Links between the pages lead somewhere, and the index of docs/ has every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.daemon import REPOSITORY

PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("bench/*.md")])
INDEX = REPOSITORY / "docs" / "README.md"


def prose(page: Path) -> str:
    """The text of *page* without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    """Where *page* links to within the project."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of *page*."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_has_every_page() -> None:
    named = {name.partition("#")[0] for name in links(INDEX)}
    assert {page.name for page in PAGES if page.parent == INDEX.parent and page != INDEX} <= named
