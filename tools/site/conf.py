"""The website of the documentation: Sphinx configuration for `make site`.

The pages have the same paths as in the repository, so a link that works on GitHub works here. docs/README.md is
the navigation: each of its headings is a section, with the pages that its table links to. A page that it does not link
to is an error.
"""

from __future__ import annotations

import re
import shutil
import sys
from itertools import starmap
from pathlib import Path
from posixpath import normpath
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
INDEX: Final = "docs/README"
NOT_SEARCHED: Final = (INDEX, "CHANGELOG", "greenstalk_client/CHANGELOG")
"""Pages that contain almost every word, so a search would list them first. The search finds only their titles."""
sys.path.insert(0, str(REPOSITORY))

from greenstalk_server.version import VERSION  # noqa: E402  after the path is set

project = "Greenstalk Server"
version = release = VERSION
extensions = ["myst_parser"]
include_patterns = ["*.md", "docs/*.md", "bench/*.md", "greenstalk_client/CHANGELOG.md"]
exclude_patterns = [".*", "build", "dist"]
root_doc = "README"
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4  # GitHub's anchors

html_theme = "furo"  # system fonts, and nothing from other hosts
html_title = f"{project} {version}"
html_favicon = "../../static/favicon.svg"
html_copy_source = False
html_use_index = False
html_show_sourcelink = False
html_show_sphinx = False


def setup(app: Any) -> None:
    """Register the functions below."""
    app.connect("source-read", add_navigation)
    app.connect("source-read", show_titles)
    app.connect("source-read", leave_out_of_search)
    app.connect("build-finished", add_index)


def add_navigation(app: Any, page: str, source: list[str]) -> None:
    """Add the index and its sections to the first page, which is read again if the index changes."""
    if page == root_doc:
        index = REPOSITORY / f"{INDEX}.md"
        app.env.note_dependency(str(index))
        source[0] += toctree("", [INDEX])
        source[0] += "".join(starmap(toctree, sections(index.read_text())))


def show_titles(_app: Any, _page: str, source: list[str]) -> None:
    """Let a link whose text is the name of a page show the title of its target."""
    source[0] = re.sub(r"\[[a-z-]+\.md\](?=\([a-z])", "[]", source[0])


def leave_out_of_search(_app: Any, page: str, source: list[str]) -> None:
    """Mark the pages in NOT_SEARCHED."""
    if page in NOT_SEARCHED:
        source[0] = f"---\nnosearch: true\n---\n{source[0]}"


def toctree(caption: str, pages: list[str]) -> str:
    """Return a part of the navigation."""
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return f"\n```{{toctree}}\n{options}\n" + "\n".join(pages) + "\n```\n"


def sections(index: str) -> list[tuple[str, list[str]]]:
    """Return each heading of the page *index* with the pages that its section links to."""
    return [
        (part.partition("\n")[0], [normpath(f"docs/{link}") for link in re.findall(r"\]\(([^)#]+\.md)\)", part)])
        for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]
    ]


def add_index(app: Any, error: Exception | None) -> None:
    """Copy the first page to index.html, which web servers look for."""
    if error is None:
        shutil.copy(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))
