"""Make a release: check everything in a copy of the last commit, then commit, tag and begin the next version.

Usage: python -m tools.release VERSION CHECK [ARGUMENT ...]

CHECK is the command that checks and builds the release, in the copy. RELEASING.md describes the steps.
"""

from __future__ import annotations

import datetime as dt
import re
import shutil
import subprocess
import sys
from pathlib import Path

CHANGELOGS = ("CHANGELOG.md", "greenstalk_client/CHANGELOG.md")
VERSION_FILE = "greenstalk_server/version.py"
VERSION = re.compile(r'(?m)^VERSION: Final = "(\d+)\.(\d+)\.(\d+)(\.dev0)?"$')
UNRELEASED = re.compile(r"(?ms)^## Unreleased\n(.*?)(?=^## |\Z)")


class Refused(Exception):
    """The release cannot be made; str() says why."""


def release(repository: Path, version: str, check: list[str]) -> None:
    """Release *version* of *repository*; raise Refused, with the repository as before, if something is not right."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise Refused(f"{version} is not a version such as 0.2.0")
    if (branch := git(repository, "symbolic-ref", "--short", "HEAD")) != "main":
        raise Refused(f"the branch is {branch}, not main")
    if git(repository, "status", "--porcelain"):
        raise Refused("there are uncommitted changes")
    if git(repository, "tag", "--list", f"v{version}"):
        raise Refused(f"v{version} exists already")
    copy = repository / "build" / "release"
    git(repository, "worktree", "prune")
    shutil.rmtree(copy, ignore_errors=True)
    git(repository, "worktree", "prune")
    git(repository, "worktree", "add", "--quiet", "--detach", str(copy))
    write_version(copy, version)
    cut_changelogs(copy, version, dt.datetime.now(dt.UTC).date())
    git(copy, "commit", "--quiet", "--all", "--message", f"Release {version}")
    if subprocess.run(check, cwd=copy, check=False).returncode:
        raise Refused(f"`{' '.join(check)}` failed in {copy}; the repository is as before")
    sign = "--sign" if git(repository, "config", "--default", "", "user.signingkey") else "--annotate"
    git(copy, "tag", sign, "--message", f"Version {version}", f"v{version}")
    git(repository, "merge", "--quiet", "--ff-only", f"v{version}")
    if (copy / "dist").exists():
        shutil.copytree(copy / "dist", repository / "dist", dirs_exist_ok=True)
    git(repository, "worktree", "remove", "--force", str(copy))
    major, minor, _ = version.split(".")
    following = f"{major}.{int(minor) + 1}.0.dev0"
    write_version(repository, following)
    for name in CHANGELOGS:
        path = repository / name
        path.write_text(path.read_text().replace(f"## {version} - ", f"## Unreleased\n\n## {version} - ", 1))
    git(repository, "commit", "--quiet", "--all", "--message", f"Begin {following}")


def write_version(repository: Path, version: str) -> None:
    """Write *version* into the file that has it; raise Refused unless it is later than the one there."""
    path = repository / VERSION_FILE
    text = path.read_text()
    found = VERSION.search(text)
    assert found is not None, path
    present, new = tuple(map(int, found.groups()[:3])), tuple(map(int, version.split(".")[:3]))
    if new < present or (new == present and found[4] is None):
        raise Refused(f"{version} is not later than {found[0]}")
    path.write_text(VERSION.sub(f'VERSION: Final = "{version}"', text))


def cut_changelogs(repository: Path, version: str, day: dt.date) -> None:
    """Date the unreleased changes in each changelog; raise Refused if the first changelog has none.

    A changelog of the client without changes gets the line "No changes."
    """
    for name in CHANGELOGS:
        path = repository / name
        text = path.read_text()
        found = UNRELEASED.search(text)
        if found is None or not found[1].strip():
            if name == CHANGELOGS[0]:
                raise Refused(f"{name} has no changes under Unreleased")
            text = UNRELEASED.sub("## Unreleased\n\nNo changes.\n\n", text)
        path.write_text(text.replace("## Unreleased\n", f"## {version} - {day}\n", 1))


def git(directory: Path, *arguments: str) -> str:
    """Return the output of git in *directory*; raise Refused with its message if it fails."""
    done = subprocess.run(("git", *arguments), cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    try:
        release(Path(__file__).resolve().parents[1], sys.argv[1], sys.argv[2:])
    except Refused as reason:
        sys.exit(f"release: {reason}")
