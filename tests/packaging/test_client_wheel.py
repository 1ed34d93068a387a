"""The wheel of greenstalk-client: its files, its only dependency, and the modules that an import loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.daemon import REPOSITORY
from tests.support.pages import block

from .test_wheel import copy_of_client, install, names, pip_wheel, succeed

SOURCE = REPOSITORY / "greenstalk_client"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = copy_of_client(tmp_path_factory.mktemp("client"))
    done = pip_wheel(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (copy / "dist").iterdir()
    return built


def test_wheel_has_the_modules_and_nothing_else(wheel: Path) -> None:
    modules = {f"greenstalk_client/{path.name}" for path in SOURCE.glob("*.py")}
    assert names(wheel) == modules | {"greenstalk_client/py.typed"}


def test_import_loads_greenstalk_and_the_standard_library(wheel: Path, tmp_path: Path) -> None:
    succeed(sys.executable, "-m", "venv", "--without-pip", tmp_path)
    install(tmp_path, wheel)
    code = (
        "import sys; before = set(sys.modules); import greenstalk_client, json;"
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    loaded = set(json.loads(succeed(tmp_path / "bin" / "python", "-P", "-c", code)))
    assert loaded - sys.stdlib_module_names == {"greenstalk", "greenstalk_client"}
    assert not loaded & {"asyncio", "email", "http", "multiprocessing", "ssl", "urllib"}  # slow, and not needed


def test_readme_has_the_first_program() -> None:
    """That program is run as docs/start.md has it."""
    program = block("../greenstalk_client/README.md", "python", "from greenstalk_client import Client, Job, work")
    assert program == block("start.md", "python", "from greenstalk_client import Client, Job, work")
