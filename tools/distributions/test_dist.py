"""The files of `make dist`: `make test-dist` checks their contents, and builds them a second time."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from greenstalk_server import __version__
from tests.packaging.test_wheel import check_dashboard, installed_files, names, succeed
from tests.support.daemon import Daemon, environment
from tools.distributions.__main__ import CANDIDATES, DIST, WORK, interpreters
from tools.distributions.sources import CLIENT, REPOSITORY, git

pytestmark = pytest.mark.timeout(1800)

SERVER = "greenstalk_server"
LOOPBACK = ("-l", "127.0.0.1", "-p", "0", "--web-port", "0")


def archive(name: str) -> set[str]:
    """Return the paths in the archive of the distribution *name*, without the directory at the top."""
    with tarfile.open(DIST / f"{name}-{__version__}.tar.gz") as tar:
        return {member.name.partition("/")[2] for member in tar.getmembers()}


def test_archives_have_every_file_of_the_repository() -> None:
    files = set(git("ls-files").decode().splitlines())
    assert archive(SERVER) == files | {"PKG-INFO"}
    prefix = f"{CLIENT}/"
    assert archive(CLIENT) == {name.removeprefix(prefix) for name in files if name.startswith(prefix)} | {"PKG-INFO"}


def test_wheels_have_the_modules_and_the_version() -> None:
    wheels = sorted(DIST.glob(f"{SERVER}-{__version__}-*.whl"))
    assert [wheel.name.endswith("-py3-none-any.whl") for wheel in wheels].count(True) == 1
    for wheel in wheels:
        extra = {name for name in names(wheel) - installed_files() if not name.endswith("/")}
        assert names(wheel) >= installed_files()
        assert {Path(name).suffix for name in extra} == (set() if "-none-any" in wheel.name else {".so", ".cache"})
        with zipfile.ZipFile(wheel) as files:
            line = f'VERSION: Final = "{__version__}"\n'
            assert line in files.read("greenstalk_server/version.py").decode()
            assert line in files.read("greenstalkctl/version.py").decode()


def test_installed_commands_work_outside_the_checkout(tmp_path: Path) -> None:
    programs = WORK / "try" / "bin"  # make dist has installed the last wheel there
    command = (str(programs / "greenstalk-server"),)
    with Daemon(*LOOPBACK, command=command, environ=environment(), cwd=tmp_path) as daemon:
        assert daemon.ask(b"put 0 0 60 2\r\nhi\r\n") == b"INSERTED 1"
        succeed(programs / "greenstalkctl", "--server", f"127.0.0.1:{daemon.port}", "peek", "1")
        check_dashboard(daemon)
        assert daemon.stop()[0] == 0


def test_requirements_txt_names_both_distributions() -> None:
    """Buildpacks install what requirements.txt names."""
    command = (sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "-r", "requirements.txt")
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert re.search(r"Would install greenstalk-client-\S+ greenstalk-server-", done.stdout)


def test_bill_of_materials_names_each_package() -> None:
    bill = json.loads((DIST / f"{SERVER}-{__version__}.cdx.json").read_text())
    components = {component["name"] for component in bill["components"]}
    assert {"greenstalk-client", "greenstalk", "gevent", "greenlet", "Flask"} <= components
    assert bill["metadata"]["component"]["name"] == "greenstalk-server"
    assert str(REPOSITORY) not in json.dumps(bill)


def test_second_build_gives_the_same_bytes() -> None:
    def digests() -> dict[str, str]:
        files = [*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")]
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    first = digests()
    compiled = [
        tag for tag in interpreters(CANDIDATES) if any(tag.replace("cpython-", "-cp") in name for name in first)
    ]
    pythons = [interpreters(CANDIDATES)[tag] for tag in compiled]
    subprocess.run((sys.executable, "-m", "tools.distributions", *pythons), cwd=REPOSITORY, check=True)
    assert digests() == first
