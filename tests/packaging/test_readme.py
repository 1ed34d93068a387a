"""The README as the description of the distributions: its links work where only the description is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import REPOSITORY

FILES = ("pyproject.toml", "setup.py", "README.md", "greenstalk_server/build.py", "greenstalk_server/version.py")
ADDRESS = "https://example.com/queue"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that `setup.py` reads, in a directory without git."""
    (tmp_path / "greenstalk_server").mkdir()
    for name in FILES:
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def description(checkout: Path) -> str:
    command = (sys.executable, "setup.py", "--quiet", "--long-description")
    return subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True).stdout


def targets(text: str) -> set[str]:
    """Return the targets of links and images."""
    return set(re.findall(r"\]\(([^)]*)\)", text))


def test_links_are_left_out_without_an_address(checkout: Path) -> None:
    text = description(checkout)
    assert "![" not in text
    assert {target.partition(":")[0] for target in targets(text)} == {"https"}
    assert "## Run it" in text


def test_links_begin_with_the_address_of_the_repository(checkout: Path) -> None:
    with (checkout / "pyproject.toml").open("a") as file:
        file.write(f'\n[project.urls]\nRepository = "{ADDRESS}"\n')
    release = checkout / "greenstalk_server" / "version.py"
    release.write_text(re.sub(r'(?m)^(VERSION: Final = )".*"$', r'\1"1.2.3"', release.read_text()))
    found = targets(description(checkout))
    assert {f"{ADDRESS}/raw/v1.2.3/docs/screenshot.png", f"{ADDRESS}/blob/v1.2.3/docs/start.md"} <= found
    paths = {name for name in targets((REPOSITORY / "README.md").read_text()) if not name.startswith("https:")}
    assert {name for name in found if name.startswith(ADDRESS)} == {
        f"{ADDRESS}/{'raw' if name.endswith('.png') else 'blob'}/v1.2.3/{name}" for name in paths
    }
