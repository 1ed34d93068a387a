"""`make release`: it cuts the changelogs, tags what has passed the checks, and changes nothing if they fail."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.daemon import REPOSITORY
from tools.release import CHANGELOGS, VERSION, VERSION_FILE, Refused, git, release

CHANGES = "# Changelog\n\n## Unreleased\n\n- Something.\n\n## 0.1.0 - 2026-11-21\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the files that a release changes, at 0.2.0.dev0; its `check` builds a package."""
    (tmp_path / "greenstalk_server").mkdir()
    (tmp_path / "greenstalk_client").mkdir()
    shutil.copy(REPOSITORY / VERSION_FILE, tmp_path / VERSION_FILE)
    set_version(tmp_path, "0.2.0.dev0")
    (tmp_path / CHANGELOGS[0]).write_text(CHANGES)
    (tmp_path / CHANGELOGS[1]).write_text("# Changelog\n\n## Unreleased\n")
    (tmp_path / ".gitignore").write_text("build/\ndist/\n")
    (tmp_path / "check").write_text("mkdir dist && git log -1 --format=%s > dist/package && test ! -e fails\n")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "config", "user.name", "Test")
    git(tmp_path, "config", "user.email", "test@example.com")
    commit(tmp_path)
    return tmp_path


def set_version(repository: Path, version: str) -> None:
    path = repository / VERSION_FILE
    path.write_text(VERSION.sub(f'VERSION: Final = "{version}"', path.read_text()))


def commit(repository: Path) -> None:
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "Change")


def make(repository: Path, version: str) -> None:
    release(repository, version, ["sh", "check"])


def shown(repository: Path, revision: str, name: str) -> str:
    return git(repository, "show", f"{revision}:{name}")


def test_release_is_cut_tagged_and_followed_by_the_next_version(repository: Path) -> None:
    make(repository, "0.2.0")
    assert git(repository, "log", "--format=%s") == "Begin 0.3.0.dev0\nRelease 0.2.0\nChange"
    assert git(repository, "rev-parse", "v0.2.0^{commit}") == git(repository, "rev-parse", "HEAD~1")
    assert 'VERSION: Final = "0.2.0"\n' in shown(repository, "v0.2.0", VERSION_FILE)
    assert 'VERSION: Final = "0.3.0.dev0"\n' in shown(repository, "main", VERSION_FILE)
    day = git(repository, "log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%d", "v0.2.0")
    released = shown(repository, "v0.2.0", CHANGELOGS[0])
    assert released == CHANGES.replace("Unreleased", f"0.2.0 - {day}").strip()
    assert f"## 0.2.0 - {day}\n\nNo changes." in shown(repository, "v0.2.0", CHANGELOGS[1])
    assert shown(repository, "main", CHANGELOGS[0]) == released.replace("## 0.2.0", "## Unreleased\n\n## 0.2.0")
    assert (repository / "dist" / "package").read_text() == "Release 0.2.0\n"  # built from the commit of the tag
    assert git(repository, "status", "--porcelain") == ""
    with pytest.raises(Refused, match=r"v0\.2\.0 exists already"):
        make(repository, "0.2.0")
    with pytest.raises(Refused, match="no changes under Unreleased"):
        make(repository, "0.3.0")


def test_failed_check_changes_nothing(repository: Path) -> None:
    (repository / "fails").touch()
    commit(repository)
    head = git(repository, "rev-parse", "HEAD")
    with pytest.raises(Refused, match="`sh check` failed"):
        make(repository, "0.2.0")
    assert (git(repository, "rev-parse", "HEAD"), git(repository, "tag")) == (head, "")
    git(repository, "rm", "--quiet", "fails")
    commit(repository)
    make(repository, "0.2.0")
    assert git(repository, "tag") == "v0.2.0"


@pytest.mark.parametrize(
    ("version", "reason"),
    [("0.1.9", "not later than"), ("0.2", "not a version"), ("0.2.0.dev1", "not a version")],
)
def test_unsuitable_version_is_refused(version: str, reason: str, repository: Path) -> None:
    with pytest.raises(Refused, match=reason):
        make(repository, version)


def test_release_needs_a_clean_main(repository: Path) -> None:
    (repository / "new").touch()
    with pytest.raises(Refused, match="uncommitted changes"):
        make(repository, "0.2.0")
    (repository / "new").unlink()
    git(repository, "switch", "--quiet", "--create", "other")
    with pytest.raises(Refused, match="the branch is other, not main"):
        make(repository, "0.2.0")
