"""The scripts and pages in the programs that read them: bash, zsh, fish and man. `make test-deb` runs this."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
from pathlib import Path

import pytest

from tools.manual.__main__ import write


@pytest.fixture
def share(tmp_path: Path) -> Path:
    write(tmp_path, dt.date(2026, 11, 24))
    return tmp_path


def output(*command: str | Path) -> str:
    environ = os.environ | {"MANWIDTH": "100", "LC_ALL": "C.UTF-8", "TERM": "dumb"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_shells_accept_the_scripts(share: Path) -> None:
    for shell, directory in (("bash", "bash-completion"), ("zsh", "zsh"), ("fish", "fish")):
        scripts = [path for path in (share / directory).rglob("*") if path.is_file()]
        assert len(scripts) == 2
        for script in scripts:
            assert output(shell, "-n", script) == ""


def test_fish_completes(share: Path) -> None:
    script = share / "fish" / "vendor_completions.d" / "greenstalk-server.fish"
    found = output("fish", "--no-config", "-c", f"source {script}; complete -C 'greenstalk-server --max-tub'")
    assert {line.partition("\t")[0] for line in found.splitlines()} == {
        "--max-tube-bytes",
        "--max-tube-jobs",
        "--max-tubes",
    }


def test_man_prints_the_pages_without_warnings(share: Path) -> None:
    for page in sorted((share / "man" / "man1").iterdir()):
        printed = output("man", "--warnings", "--encoding=UTF-8", "--local-file", page)
        assert printed.count(page.stem) > 2
