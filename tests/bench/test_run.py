"""A run of the benchmark, with a column for another server."""

from __future__ import annotations

import subprocess
import sys

from tests.support.daemon import REPOSITORY


def test_other_server_is_a_column() -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--attempts", "1", "--no-dashboard"]
    command += ["--modes", "put-journal", "--also", "fork=beanstalkd -l 127.0.0.1 -p {port}"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    (columns,) = [line.split() for line in result.stdout.splitlines() if line.split()[:1] == ["ours"]]
    assert columns[:3] == ["ours", "fork", "beanstalkd"]
