"""`make usability`: ten tasks of an operator in a real browser, with the time, clicks and keys of each.

python -m tools.usability

The tasks run on a server with 45 tubes and 101,000 jobs. The exit code is 1 if a task fails or needs too many clicks.
The time covers the pages only; people also need time to read.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from playwright.sync_api import Error, expect

from tests.support.daemon import TIMEOUT, Daemon
from tests.web.browser import Browser, browser
from tools.usability.operator import Operator
from tools.usability.scenario import ATTENTION, Scenario
from tools.usability.tasks import TASKS, Task

FLAGS: Final = ("-l", "127.0.0.1", "-p", "0", "--web-port", "0")


def main() -> int:
    """Carry out all tasks, and print a table of them."""
    expect.set_options(timeout=1000 * TIMEOUT)
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "server.toml")
        config.write_text(ATTENTION)
        with (
            Daemon(*FLAGS, "-b", directory, "--config", str(config)) as daemon,
            Scenario(daemon) as scenario,
            browser() as chromium,
        ):
            scenario.wait_for_conditions()
            print(f"{'task':52}{'seconds':>8}{'clicks':>8}{'keys':>6}")
            results = [run(task, chromium, daemon.dashboard, scenario) for task in TASKS]
    return 0 if all(results) else 1


def run(task: Task, chromium: Browser, home: str, scenario: Scenario) -> bool:
    """Carry out *task*, and print its line; return whether it succeeded within its limit of clicks."""
    with Operator(chromium, home) as operator:
        began, error = time.monotonic(), ""
        try:
            task.carry_out(operator, scenario)
        except (AssertionError, Error) as failure:
            error = f"FAILED: {str(failure).splitlines()[0]}"
        seconds = time.monotonic() - began
        if not error and operator.clicks > task.max_clicks:
            error = f"FAILED: more than {task.max_clicks} clicks"
        error = error or " ".join(operator.tab.console)
        print(f"{task.title:52}{seconds:8.2f}{operator.clicks:8}{operator.keys:6} {error}".rstrip(), flush=True)
    return not error


if __name__ == "__main__":
    sys.exit(main())
