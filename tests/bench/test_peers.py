"""`--peer` adds a column for another program with beanstalkd's options."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.daemon import REPOSITORY


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "--quick", "--attempts", "1", "--no-dashboard", "--no-floor"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, cwd=REPOSITORY, timeout=100, check=False
    )


def test_each_peer_is_a_column_named_after_its_program(tmp_path: Path) -> None:
    beanstalkd = shutil.which("beanstalkd")
    assert beanstalkd
    fork = tmp_path / "fork" / "beanstalkd"
    fork.parent.mkdir()
    shutil.copy(beanstalkd, fork)
    tuned = tmp_path / "tuned"
    shutil.copy(beanstalkd, tuned)
    result = run_bench("--modes", "put-journal", "--peer", str(fork), "--peer", str(tuned))
    assert result.returncode == 0, result.stderr
    (columns,) = [line.split() for line in result.stdout.splitlines() if line.split()[:1] == ["ours"]]
    assert columns[:4] == ["ours", "fork/beanstalkd", "tuned", "beanstalkd"]


def test_missing_peer_is_refused_before_the_measurement(tmp_path: Path) -> None:
    result = run_bench("--peer", str(tmp_path / "none"))
    assert result.returncode == 2
    assert f"--peer: {tmp_path}/none: not an executable program" in result.stderr


def test_two_peers_with_one_name_are_refused() -> None:
    result = run_bench("--peer", "/bin/true", "--peer", "/usr/bin/true")
    assert result.returncode == 2
    assert "two servers have one name: ours, true, true, beanstalkd" in result.stderr
