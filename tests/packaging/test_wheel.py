"""The wheel: its files, and the server that runs from them. `make test-dist` installs it in an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.support.daemon import REPOSITORY, TIMEOUT, Daemon, environment

from .test_build import compiled_library

SOURCES = {
    "greenstalk_server": "greenstalk_server",
    "greenstalkctl": "greenstalkctl",
    "web": "greenstalk_server/web",
    "templates": "greenstalk_server/web/templates",
    "static": "greenstalk_server/web/static",
}
"""The directories that are installed, and their paths in the wheel."""

TEMPLATES = f"greenstalk_server/web/__pycache__/templates.{sys.implementation.cache_tag}.cache"

REMOVED = {
    "greenstalk_server/removed.py": "greenstalk_server/removed.py",
    "greenstalk_server/web/templates/removed.html": "templates/removed.html",
}
"""Files that an earlier build had, and their paths in its checkout."""

NEEDED_TO_BUILD = ("pyproject.toml", "setup.py", "README.md", "LICENSE")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that a build needs. A build writes into its checkout."""
    return copy_of_checkout(tmp_path_factory.mktemp("source"))


def copy_of_checkout(copy: Path) -> Path:
    """Copy the files that a build needs to *copy*, and return it."""
    for name in SOURCES:
        shutil.copytree(REPOSITORY / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in NEEDED_TO_BUILD:
        shutil.copy(REPOSITORY / name, copy)
    return copy


def copy_of_client(copy: Path) -> Path:
    """Copy the sources of greenstalk-client, without its links, to *copy*, and return it."""
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(REPOSITORY / "greenstalk_client", copy, ignore=ignored, dirs_exist_ok=True)
    return copy


def compile_only(copy: Path, module: str) -> None:
    """Make *module* the only one that the checkout *copy* compiles."""
    build = copy / "greenstalk_server" / "build.py"
    code, count = re.subn(r"(?ms)^COMPILED: Final = \(.*?^\)", f'COMPILED: Final = ("{module}",)', build.read_text())
    assert count == 1
    build.write_text(code)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a checkout with its compiled core."""
    copy = copy_of_checkout(tmp_path_factory.mktemp("source"))
    (copy / "build" / "compiled").mkdir(parents=True)
    shutil.copy(compiled_library(), copy / "build" / "compiled")
    return build(copy)


@pytest.fixture(scope="module")
def uncompiled(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that was built without a compiler, when the checkout had the files REMOVED too."""
    for path in REMOVED.values():
        (checkout / path).write_text("")
    wheel = build(checkout, PATH=without_a_compiler(tmp_path_factory.mktemp("bin") / "python"))
    for path in REMOVED.values():
        (checkout / path).unlink()
    return wheel.rename(checkout.parent / wheel.name)


def build(checkout: Path, **variables: str) -> Path:
    """Build the wheel of *checkout* with the packages of this environment, as pip does; return its path."""
    shutil.rmtree(checkout / "dist", ignore_errors=True)
    (checkout / "dist").mkdir()
    done = run(checkout, "-c", "from setuptools import build_meta; build_meta.build_wheel('dist')", **variables)
    return built_wheel(checkout, done)


def pip_wheel(checkout: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build the wheel by pip, which starts three more processes for it."""
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", "dist")
    return run(checkout, "-m", "pip", "wheel", *options, ".", **variables)


def run(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("GREENSTALK_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=checkout,
        env=kept | variables,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT,
        check=False,
    )


def built_wheel(checkout: Path, done: subprocess.CompletedProcess[str]) -> Path:
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (checkout / "dist").iterdir()
    return built


def without_a_compiler(directory: Path) -> str:
    """Return a PATH on which there is Python alone."""
    directory.mkdir()
    (directory / "python3").symlink_to(sys.executable)
    return str(directory)


def names(wheel: Path) -> set[str]:
    """Return the files that *wheel* installs."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_has_every_file_the_compiled_core_and_the_compiled_templates(wheel: Path) -> None:
    assert names(wheel) == installed_files() | {f"greenstalk_server/{compiled_library().name}", TEMPLATES}
    python = f"cp3{sys.version_info.minor}"
    assert wheel.name.partition(f"-{python}-{python}-linux_")[1]


@pytest.mark.usefixtures("uncompiled")
def test_pure_wheel_is_for_every_platform(checkout: Path) -> None:
    """The wheel has no file of the earlier build."""
    wheel = built_wheel(checkout, pip_wheel(checkout, GREENSTALK_PURE="1"))
    assert wheel.name.endswith("-py3-none-any.whl")
    assert names(wheel) == installed_files()


def test_without_a_compiler_the_pure_core_is_installed_and_says_what_to_install(
    uncompiled: Path, tmp_path: Path
) -> None:
    assert uncompiled.name.endswith("-py3-none-any.whl")
    assert names(uncompiled) == installed_files() | REMOVED.keys() | {"greenstalk_server/not_compiled.txt"}
    warning = first_log_line(uncompiled, tmp_path)
    assert "the core runs as pure Python, and a command costs about half more CPU: " in warning
    assert "there was no C compiler (" in warning
    assert warning.endswith("; run `apt-get install gcc libc6-dev python3-dev`, then install the server again")


def test_failing_compiler_leaves_the_pure_core_and_the_reason(tmp_path: Path) -> None:
    copy = copy_of_checkout(tmp_path / "source")
    compile_only(copy, "core/tubes/durations")  # mypyc translates all modules before it runs the C compiler
    wheel = build(copy, CC="false")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        note = archive.read("greenstalk_server/not_compiled.txt").decode()
    assert "mypyc or the C compiler failed; its messages are in the output of `pip install --verbose`" in note
    assert note.endswith("; repair that, then install the server again\n")


def test_required_compilation_fails_without_a_compiler(checkout: Path, tmp_path: Path) -> None:
    path = without_a_compiler(tmp_path / "bin")
    done = pip_wheel(checkout, PATH=path, GREENSTALK_COMPILE="1")
    assert done.returncode == 1
    (line,) = [line.strip() for line in done.stderr.splitlines() if "GREENSTALK_COMPILE" in line]
    assert line.startswith("GREENSTALK_COMPILE=1 is set, but the core cannot be compiled: there was no C compiler (")
    assert line.endswith("; run `apt-get install gcc libc6-dev python3-dev`")
    assert "Traceback" not in done.stderr


def installed_files() -> set[str]:
    """Return the paths of every file in a wheel, except the compiled core."""
    return {
        f"{installed}/{path.relative_to(REPOSITORY / source)}"
        for source, installed in SOURCES.items()
        for path in (REPOSITORY / source).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def first_log_line(wheel: Path, directory: Path) -> str:
    """Start the server of *wheel*, which is pure Python; return the first line of its log."""
    with serving(wheel, directory) as daemon:
        assert "(pure Python), process " in daemon.first_lines
        code, said = daemon.stop()
    assert code == 0
    return said.splitlines()[0]


def test_server_of_the_compiled_wheel_serves_the_dashboard(wheel: Path, tmp_path: Path) -> None:
    with serving(wheel, tmp_path) as daemon:
        assert "(compiled), process " in daemon.first_lines
        templates = tmp_path / "unpacked" / TEMPLATES
        before = templates.read_bytes()
        check_dashboard(daemon)
        assert daemon.stop()[0] == 0
    assert templates.read_bytes() == before  # the server has compiled none


def serving(wheel: Path, directory: Path) -> Daemon:
    """Start the server of *wheel*, unpacked into *directory*, with the dependencies of this environment."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "unpacked")
    environ = environment(PYTHONPATH=str(directory / "unpacked"))
    environ.pop("GREENSTALK_PURE", None)
    return Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0", environ=environ, cwd=directory)


def check_dashboard(daemon: Daemon) -> None:
    """Check that the dashboard serves its pages, and each static file unchanged."""
    assert b"<html" in fetch(daemon.dashboard).lower()
    for path in (REPOSITORY / "static").rglob("*"):
        if path.is_file():
            assert fetch(f"{daemon.dashboard}static/{path.relative_to(REPOSITORY / 'static')}") == path.read_bytes()


def install(environment: Path, *requirements: str | Path) -> None:
    succeed(sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", *requirements)


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=TIMEOUT) as response:  # noqa: S310  our own, on loopback
        assert response.status == 200
        body: bytes = response.read()
        return body


def succeed(*command: str | Path) -> str:
    """Run *command* without the variables that would let it see this checkout; return its stdout."""
    environ = {name: text for name, text in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
