"""docs/dependencies.md has a reason for each package that pyproject.toml names, and for no other."""

from __future__ import annotations

import re
import tomllib

from tests.support.daemon import REPOSITORY


def test_each_dependency_has_a_reason() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(each for some in project["optional-dependencies"].values() for each in some)]
    page = (REPOSITORY / "docs" / "dependencies.md").read_text()
    explained = {name for cell in re.findall(r"^\| ([^|]+) \| \S", page, re.MULTILINE) for name in cell.split(", ")}
    assert explained - {"package"} == {re.split(r"[\[<>=]", each)[0] for each in named} - {project["name"]}
