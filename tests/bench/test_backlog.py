"""The large backlog: jobs arrive unchanged and in order, and a wrong job is detected."""

from __future__ import annotations

import subprocess
import sys


def test_small_backlog() -> None:
    argv = [sys.executable, "-m", "bench.backlog", "--jobs", "2100", "--body", "1024", "--no-dashboard"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    assert "2,100 jobs of 1,024 bytes, server with -b {dir} -f 50" in done.stdout
    assert "every job arrived once, in order, with its body unchanged" in done.stdout
