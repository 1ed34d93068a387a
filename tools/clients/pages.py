"""The files that a page tells its reader to save."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.support.daemon import REPOSITORY

_FILE = re.compile(r"^[^\n]*`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def files(page: str) -> Mapping[str, str]:
    """Return the files in docs/*page* by their paths: blocks of code below a line that ends with "`PATH`:"."""
    found: list[tuple[str, str]] = _FILE.findall((REPOSITORY / "docs" / page).read_text())
    assert len(dict(found)) == len(found), f"{page} has two files of one name"
    return dict(found)


def save(page: str, directory: Path) -> None:
    """Write the files of docs/*page* into *directory*."""
    for name, text in files(page).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
