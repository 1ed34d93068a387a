"""The version of the server, of greenstalkctl and of greenstalk_client: VERSION is the only place that has it.

A release has a number, such as 0.2.0. Between two releases VERSION is the next number with `.dev0`. A checkout appends
its commit: `0.2.0.dev0+g1a2b3c4d5`. `setup.py` writes VERSION with the commit into the wheels and archives that it
builds, since they have no repository. `make release` changes VERSION.

`greenstalkctl/version.py` is a link to this file, because the two packages do not import each other. `setup.py` runs
it too, so it imports the standard library alone.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

VERSION: Final = "0.2.0.dev0"

_UNRELEASED: Final = ".dev0"
_PARENT: Final = Path(__file__).resolve().parent.parent


def full_version() -> str:
    """Return VERSION, and in a checkout between two releases the commit."""
    if not VERSION.endswith(_UNRELEASED) or not (_PARENT / ".git").exists():
        return VERSION
    command = ("git", "-C", str(_PARENT), "rev-parse", "--short=9", "HEAD")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):  # git is missing, or refuses a repository of another user
        return VERSION
    return f"{VERSION}+g{done.stdout.strip()}"
