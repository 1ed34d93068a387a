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
    "web": "web",
    "templates": "web/templates",
    "static": "web/static",
}
"""Each directory that is installed, and where the wheel has it."""

NEEDED_TO_BUILD = ("pyproject.toml", "README.md", "LICENSE")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, from a copy: a build leaves files behind, and may pick up those of the last one."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in NEEDED_TO_BUILD:
        shutil.copy(REPOSITORY / name, copy)
    succeed(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", copy / "dist", copy)
    (built,) = (copy / "dist").iterdir()
    return built


def test_the_wheel_holds_every_file(wheel: Path) -> None:
    expected = {
        f"{installed}/{path.relative_to(REPOSITORY / source)}"
        for source, installed in SOURCES.items()
        for path in (REPOSITORY / source).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


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
