"""The benchmark of hostile requests measures the iterations of a real server."""

from __future__ import annotations

import subprocess
import sys


def test_scenario_is_measured() -> None:
    argv = [sys.executable, "-m", "bench.hostile", "reload of 1,000 policies"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=90)
    assert done.stderr == ""
    name, iteration, delay = done.stdout.splitlines()[1].rsplit(maxsplit=2)
    assert name == "reload of 1,000 policies"
    assert float(iteration) > 0 and float(delay) > 0
