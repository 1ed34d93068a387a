"""The wheel: its files, and the commands that it installs with its dependencies in an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.support.daemon import PATIENCE, REPOSITORY, Daemon

SOURCES = {
    "greenstalk_server": "greenstalk_server",
    "greenstalkctl": "greenstalkctl",
    "web": "greenstalk_server/web",
    "templates": "greenstalk_server/web/templates",
    "static": "greenstalk_server/web/static",
}
"""The directories that are installed, and their paths in the wheel."""

NEEDED_TO_BUILD = ("pyproject.toml", "README.md", "LICENSE")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that a build needs, and setup.py: a build leaves files behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copytree(REPOSITORY / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (*NEEDED_TO_BUILD, "setup.py"):
        shutil.copy(REPOSITORY / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    """The wheel of a checkout with an earlier build, which had one more module and one more template."""
    ghosts = [checkout / "greenstalk_server" / "ghost.py", checkout / "templates" / "ghost.html"]
    for ghost in ghosts:
        ghost.write_text("")
    assert {"greenstalk_server/ghost.py", "greenstalk_server/web/templates/ghost.html"} <= names(build(checkout))
    for ghost in ghosts:
        ghost.unlink()
    return build(checkout)


def build(checkout: Path) -> Path:
    """Build the wheel of *checkout*; return its path."""
    shutil.rmtree(checkout / "dist", ignore_errors=True)
    succeed(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", checkout / "dist", checkout)
    (built,) = (checkout / "dist").iterdir()
    return built


def names(wheel: Path) -> set[str]:
    """Return the files that *wheel* installs."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and its dependencies."""
    environment = tmp_path_factory.mktemp("installation")
    succeed(sys.executable, "-m", "venv", "--without-pip", environment)
    install(environment, wheel)
    return environment


def test_wheel_has_every_file(wheel: Path) -> None:
    expected = {
        f"{installed}/{path.relative_to(REPOSITORY / source)}"
        for source, installed in SOURCES.items()
        for path in (REPOSITORY / source).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names(wheel) == expected


def test_compiled_build_without_a_compiler_says_what_to_install(checkout: Path, tmp_path: Path) -> None:
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


def test_installed_commands_work_outside_the_checkout(installation: Path, tmp_path: Path) -> None:
    with serving(installation, tmp_path) as daemon:
        assert daemon.ask(b"put 0 0 60 2\r\nhi\r\n") == b"INSERTED 1"
        succeed(installation / "bin" / "greenstalkctl", "--server", f"127.0.0.1:{daemon.port}", "peek", "1")
        check_dashboard(daemon)
        assert daemon.stop()[0] == 0


def test_web_py_in_the_same_environment_breaks_neither(installation: Path, tmp_path: Path) -> None:
    """web.py installs the top-level package `web`: a file of the same name would overwrite it, or be overwritten."""
    install(installation, "web.py")
    python = installation / "bin" / "python"
    imported = succeed(python, "-I", "-c", "import web; web.application((), {}); print(web.__file__)")
    (site_packages,) = installation.glob("lib/python*/site-packages")
    assert imported == f"{site_packages}/web/__init__.py\n"
    with serving(installation, tmp_path) as daemon:
        check_dashboard(daemon)
        assert daemon.stop()[0] == 0
    succeed(sys.executable, "-m", "pip", "--python", python, "uninstall", "--yes", "web.py")
    with serving(installation, tmp_path) as daemon:
        check_dashboard(daemon)
        assert daemon.stop()[0] == 0


def serving(installation: Path, directory: Path) -> Daemon:
    """Start the installed server in *directory*."""
    command = (str(installation / "bin" / "greenstalk-server"),)
    return Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0", command=command, cwd=directory)


def check_dashboard(daemon: Daemon) -> None:
    """Check that the dashboard serves its pages, and each static file unchanged."""
    assert b"<html" in fetch(daemon.dashboard).lower()
    for path in (REPOSITORY / "static").rglob("*"):
        if path.is_file():
            assert fetch(f"{daemon.dashboard}static/{path.relative_to(REPOSITORY / 'static')}") == path.read_bytes()


def install(environment: Path, requirement: str | Path) -> None:
    succeed(sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", requirement)


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:  # noqa: S310  our own, on loopback
        assert response.status == 200
        body: bytes = response.read()
        return body


def succeed(*command: str | Path) -> str:
    """Run *command* without the variables that would let it see this checkout; return its stdout."""
    environ = {name: text for name, text in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
