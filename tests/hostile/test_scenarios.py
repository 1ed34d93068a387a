"""The benchmark of hostile requests measures the iterations of a real server."""

from __future__ import annotations

import subprocess
import sys

from tests.support.daemon import TIMEOUT


def test_scenario_is_measured() -> None:
    name = "2,000 half-open TLS connections close"
    argv = [sys.executable, "-m", "tools.hostile", name]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=2 * TIMEOUT)
    _, line = done.stdout.splitlines()
    assert line.startswith(name), done.stderr
    iteration, delay = line.removeprefix(name).split()[:2]
    assert float(iteration) > 0 and float(delay) > 0
