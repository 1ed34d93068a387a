"""tools/packages: as root, it installs missing packages with one apt-get; otherwise it prints that command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.daemon import REPOSITORY, TIMEOUT

SCRIPT = (REPOSITORY / "tools" / "packages").read_text()
INSTALL = "apt-get install --yes --no-install-recommends"


class Machine:
    """A machine whose PATH has only some *programs* and an apt-get that records its arguments."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "bin"
        self._directory.mkdir()
        self._calls = directory / "calls"
        self._calls.touch()
        self.add("apt-get", f'echo "apt-get $*" >> {self._calls}')
        self.add("python3", "exit 1")  # without venv and Python.h

    def add(self, name: str, command: str = "exit 0") -> None:
        program = self._directory / name
        program.write_text(f"#!/bin/bash\n{command}\n")
        program.chmod(0o755)

    def run(self, target: str, *, is_root: bool) -> subprocess.CompletedProcess[str]:
        # A user namespace makes anyone root or nobody.
        user = ("unshare", "--user", *(["--map-root-user"] if is_root else []))
        return subprocess.run(
            [*user, "/usr/bin/env", f"PATH={self._directory}", "/bin/bash", "-s", target],
            env={name: text for name, text in os.environ.items() if name not in {"CC", "PYTHON", "GREENSTALK_PURE"}},
            input=SCRIPT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_root_installs_all_missing_packages_with_one_command(machine: Machine) -> None:
    done = machine.run("run", is_root=True)
    command = f"{INSTALL} python3-venv gcc libc6-dev python3-dev"
    assert (done.returncode, done.stdout) == (0, f"installing missing programs: {command}\n"), done.stderr
    assert machine.calls() == ["apt-get update --quiet=2", f"{command} --quiet=2"]


def test_other_users_get_the_whole_command(machine: Machine) -> None:
    done = machine.run("test", is_root=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"programs are missing; run as root: {INSTALL} python3-venv gcc libc6-dev")
    assert done.stderr.count("\n") == 1
    assert {"beanstalkd", "chromium-headless-shell", "curl", "jq", "socat", "systemd"} <= set(done.stderr.split())
    assert machine.calls() == []


def test_server_runs_without_a_compiler(machine: Machine) -> None:
    machine.add("python3", 'case "$2" in *venv*) exit 0 ;; *) exit 1 ;; esac')
    done = machine.run("run", is_root=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_is_installed_if_nothing_is_missing(machine: Machine) -> None:
    machine.add("gcc")
    machine.add("python3")
    done = machine.run("run", is_root=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.calls() == []
