"""Write deploy/requirements.txt and deploy/build-requirements.txt: the image's packages from PyPI, with hashes.

Usage: python -m tools.image.requirements

uv resolves the requirements of pyproject.toml to the newest versions. The files are valid for each Python that the
project supports and for each processor, and name no registry.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from typing import Any, Final

from tools.distributions.sources import REPOSITORY

INSTALLED: Final = REPOSITORY / "deploy" / "requirements.txt"
TO_BUILD: Final = REPOSITORY / "deploy" / "build-requirements.txt"
WORK: Final = REPOSITORY / "build" / "uv"
HEADER: Final = (
    "# Packages of the image, with their hashes. `make requirements` writes this file from pyproject.toml.\n"
)
OPTIONS: Final = (
    "--quiet",
    "--universal",
    "--python-version=3.11",
    "--generate-hashes",
    "--no-annotate",
    "--no-header",
)


def direct(*extras: str) -> list[str]:
    """Return the requirements of the server and its *extras*, without those that are built from this checkout."""
    project: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    optional = [each for extra in extras for each in project["optional-dependencies"][extra]]
    return [each for each in (*project["dependencies"], *optional) if not each.startswith("greenstalk-client")]


REQUIREMENTS: Final = {INSTALLED: direct("postgresql", "oidc"), TO_BUILD: direct("compile")}
"""Requirements by file. The build imports the dashboard and follows its imports, so it needs the server's requirements
too."""


def main() -> None:
    """Resolve the requirements of both files to the same versions, and write the files."""
    subprocess.run((sys.executable, "-m", "venv", WORK), check=True)
    subprocess.run((WORK / "bin" / "pip", "install", "--quiet", "uv"), check=True)
    pinned: list[str] = []
    for file, requirements in REQUIREMENTS.items():
        source, constraints = WORK / "requirements.in", WORK / "constraints.txt"
        source.write_text("\n".join(requirements))
        constraints.write_text("\n".join(pinned))
        command = (WORK / "bin" / "uv", "pip", "compile", *OPTIONS, "--constraints", constraints, source)
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        file.write_text(HEADER + text)
        pinned = [line.removesuffix(" \\") for line in text.splitlines() if not line.startswith(" ")]


if __name__ == "__main__":
    main()
