"""Location of the templates and static files.

They are at the top of the project, and are installed inside the package `web`: a checkout, an editable install and a
wheel have them in one of two places.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parents[1]


def template_folder() -> str:
    """Return the directory of the Jinja templates; raise FileNotFoundError if the installation lacks it."""
    return _folder("templates")


def static_folder() -> str:
    """Return the directory of the static files; raise FileNotFoundError if the installation lacks it."""
    return _folder("static")


def _folder(name: str) -> str:
    for parent in (PACKAGE, PACKAGE.parent):
        if (parent / name).is_dir():
            return str(parent / name)
    raise FileNotFoundError(f"{PACKAGE} was installed without the directory {name}; install it again")
