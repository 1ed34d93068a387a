"""The version: its commit between two releases, and its description in docs/upgrade.md and CHANGELOG.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from greenstalk_server import __version__
from greenstalk_server.journal import archive, record
from greenstalk_server.version import VERSION
from tests.support.daemon import REPOSITORY, TIMEOUT

from .test_build import Tree

MINOR = ".".join(VERSION.split(".")[:2])
"""The number of a minor release, whose versions write the same formats."""


def test_checkout_between_two_releases_has_its_commit() -> None:
    head = output("git", "-C", str(REPOSITORY), "rev-parse", "HEAD")
    number, _, commit = __version__.partition("+g")
    assert number == VERSION
    assert len(commit) >= 9 if VERSION.endswith(".dev0") else not commit
    assert head.startswith(commit)


def test_both_commands_print_the_version() -> None:
    journal = f"journal format {record.VERSION}"
    server = output(sys.executable, "-m", "greenstalk_server", "--version")
    assert re.fullmatch(rf"greenstalk-server {re.escape(__version__)} \((compiled|pure Python)\), {journal}", server)
    assert output(sys.executable, "-m", "greenstalkctl", "--version") == f"greenstalkctl, version {__version__}"


def test_tree_without_a_repository_has_no_commit(tmp_path: Path) -> None:
    tree = Tree(tmp_path, is_checkout=True)
    assert tree.run("import greenstalk_server; print(greenstalk_server.__version__)").stdout == f"{VERSION}\n"


def test_upgrade_page_has_the_formats_of_this_version() -> None:
    page = (REPOSITORY / "docs" / "upgrade.md").read_text()
    journal, read = record.VERSION, archive.VERSION
    assert f"| {MINOR} | {journal} | {journal} | {read} | 1 to {read} |\n" in page
    assert re.search(
        rf"^greenstalk-server {re.escape(MINOR)}\.\d+ \(compiled\), journal format {journal}$", page, re.MULTILINE
    )


def test_changelog_has_each_version_once_newest_first() -> None:
    headings = re.findall(r"^## (.*)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    dated = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - \d{4}-\d\d-\d\d", heading) for heading in headings]
    numbers = [tuple(map(int, found.groups())) for found in dated if found is not None]
    unreleased = ["Unreleased"] if VERSION.endswith(".dev0") else []
    assert headings[: len(headings) - len(numbers)] == unreleased
    assert numbers == sorted(set(numbers), reverse=True)


def output(*command: str) -> str:
    """Return what *command* prints, without the last line end."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True, cwd=REPOSITORY)
    return done.stdout.strip()
