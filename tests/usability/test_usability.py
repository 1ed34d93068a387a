"""The tasks that have a limit of clicks, with a smaller backlog."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.daemon import Daemon
from tests.usability.__main__ import FLAGS
from tests.usability.operator import Operator
from tests.usability.scenario import ATTENTION, Scenario
from tests.usability.tasks import TASKS, Task
from tests.web.browser import Browser, browser

BACKLOG = 2000


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str, Scenario]]:
    """A browser, the URL of a dashboard, and its queue."""
    config = tmp_path_factory.mktemp("configuration") / "server.toml"
    config.write_text(ATTENTION)
    with (
        Daemon(*FLAGS, "--config", str(config)) as daemon,
        Scenario(daemon, BACKLOG) as scenario,
        browser() as chromium,
    ):
        scenario.wait_for_conditions()
        yield chromium, daemon.dashboard, scenario


@pytest.mark.parametrize("task", [task for task in TASKS if task.max_clicks is not None], ids=lambda task: task.title)
def test_task_needs_few_clicks(visited: tuple[Browser, str, Scenario], task: Task) -> None:
    chromium, home, scenario = visited
    with Operator(chromium, home) as operator:
        task.carry_out(operator, scenario)
        assert task.max_clicks is not None and operator.clicks <= task.max_clicks
        assert operator.tab.console == []
