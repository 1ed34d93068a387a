"""The wheel, installed with its dependencies in an empty environment, serves from any directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.daemon import PATIENCE, REPOSITORY, Daemon

SOURCES = {
    "greenstalk_server": "greenstalk_server",
    "greenstalkctl": "greenstalkctl",
    "web": "greenstalk_server/web",
    "templates": "greenstalk_server/web/templates",
    "static": "greenstalk_server/web/static",
}
"""Each directory that is installed, and where the wheel has it."""

NEEDED_TO_BUILD = ("pyproject.toml", "README.md", "LICENSE")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build needs, and of setup.py, which it can do without: a build leaves files behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copytree(REPOSITORY / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (*NEEDED_TO_BUILD, "setup.py"):
        shutil.copy(REPOSITORY / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    """The wheel of a checkout that was built before, when it had one module and one template more."""
    ghosts = [checkout / "greenstalk_server" / "ghost.py", checkout / "templates" / "ghost.html"]
    for ghost in ghosts:
        ghost.write_text("")
    assert {"greenstalk_server/ghost.py", "greenstalk_server/web/templates/ghost.html"} <= names(build(checkout))
    for ghost in ghosts:
        ghost.unlink()
    return build(checkout)


def build(checkout: Path) -> Path:
    """Build the wheel of *checkout*, and return its path."""
    shutil.rmtree(checkout / "dist", ignore_errors=True)
    succeed(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", checkout / "dist", checkout)
    (built,) = (checkout / "dist").iterdir()
    return built


def names(wheel: Path) -> set[str]:
    """The files that *wheel* installs."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_every_file(wheel: Path) -> None:
    expected = {
        f"{installed}/{path.relative_to(REPOSITORY / source)}"
        for source, installed in SOURCES.items()
        for path in (REPOSITORY / source).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names(wheel) == expected


def test_a_compiled_build_without_a_compiler_says_what_to_install(checkout: Path, tmp_path: Path) -> None:
    only_python = tmp_path / "bin"
    only_python.mkdir()
    (only_python / "python3").symlink_to(sys.executable)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, checkout],
        env=os.environ | {"PATH": str(only_python), "GREENSTALK_COMPILE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    (line,) = [line.strip() for line in done.stderr.splitlines() if "GREENSTALK_COMPILE" in line]
    assert line.startswith("GREENSTALK_COMPILE=1 needs a C compiler, and ")
    assert line.endswith(" is missing: apt-get install gcc libc6-dev")
    assert "Traceback" not in done.stderr


def test_the_installed_command_serves_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    installation, elsewhere = tmp_path / "installation", tmp_path / "elsewhere"
    elsewhere.mkdir()
    succeed(sys.executable, "-m", "venv", "--without-pip", installation)
    succeed(sys.executable, "-m", "pip", "--python", installation / "bin" / "python", "install", wheel)
    command = (str(installation / "bin" / "greenstalk-server"),)
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0", command=command, cwd=elsewhere) as daemon:
        assert daemon.ask(b"put 0 0 60 2\r\nhi\r\n") == b"INSERTED 1"
        succeed(installation / "bin" / "greenstalkctl", "--server", f"127.0.0.1:{daemon.port}", "peek", "1")
        assert b"<html" in fetch(daemon.dashboard).lower()
        for path in (REPOSITORY / "static").rglob("*"):
            if path.is_file():
                assert fetch(f"{daemon.dashboard}static/{path.relative_to(REPOSITORY / 'static')}") == path.read_bytes()
        assert daemon.stop()[0] == 0


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:  # noqa: S310  our own, on loopback
        assert response.status == 200
        body: bytes = response.read()
        return body


def succeed(*command: str | Path) -> None:
    """Run *command* without what would let it see this checkout; fail with all that it said."""
    environ = {name: text for name, text in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
