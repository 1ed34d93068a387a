"""docs/policies.md: its examples are valid, and its tables agree with the code."""

from __future__ import annotations

import re
import shlex
import tomllib
from typing import Any

from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.policies.policy import SETTINGS, PolicySet, parse_policy
from greenstalk_server.core.policies.tube_policy_state import TubePolicyState
from tests.support.daemon import REPOSITORY
from tests.support.pages import blocks
from tests.support.world import World

PAGE = (REPOSITORY / "docs" / "policies.md").read_text()
TABLES = [one.text for one in blocks("policies.md") if one.language == "toml"]
COMMANDS = [one.text for one in blocks("policies.md") if one.text.startswith("greenstalkctl policy set ")]
BLOCKS = [tomllib.loads(text)["policies"] for text in TABLES]
RECIPES = {name: document for block in BLOCKS[:5] for name, document in block.items()}


def value_of(text: str) -> object:
    return int(text) if text.isdecimal() else text


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table after *heading*, without its head."""
    lines = PAGE.partition(f"{heading}\n")[2].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table[2:]


def test_each_command_sets_the_policy_of_its_recipe() -> None:
    assert len(COMMANDS) == len(RECIPES) == 5
    for command, (name, document) in zip(COMMANDS, RECIPES.items(), strict=True):
        first, *words = shlex.split(command)[3:]
        given: dict[str, Any] = {key: value_of(text) for key, _, text in (word.partition("=") for word in words)}
        given["tubes"] = [given["tubes"]]
        assert (first, given) == (name, document)
        parse_policy(name, document)


def test_table_lists_every_setting() -> None:
    keys = [key for row in rows("## All settings") for key in re.findall(r"`(\w+)`", row[0])]
    assert keys == ["tubes", "priority", *sorted(SETTINGS, key=keys.index)]


def test_merged_settings_match_the_table() -> None:
    policies = PolicySet([parse_policy(name, document) for name, document in BLOCKS[5].items()])
    table = rows("[policies.bulk]")
    assert len(table) == 3
    for tube, attempts, expiry in table:
        found = policies.effective(tube.strip("`").encode())
        assert found is not None
        assert attempts == f"{found.max_attempts}, from `{found.origins['max_attempts']}`"
        days = found.expire_after // (86400 * SECOND)
        assert expiry == f"{f'{days} days' if days else 'never'}, from `{found.origins['expire_after']}`"


def test_delays_of_retries_match_the_table() -> None:
    (delays,) = rows("### The delay of a retry")
    policy = PolicySet([parse_policy("mail", RECIPES["mail"])]).effective(b"mail.welcome")
    assert policy is not None
    policy_state, job = TubePolicyState(policy, b"", {}), Job(1, World().broker.default_tube, b"", 0, 0, 0, 0)
    for delay in delays[1:]:
        job.reserves += 1
        assert policy_state.retry_delay(job, 0.5) == int(delay) * SECOND
    assert len(delays) == 8
