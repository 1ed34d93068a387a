"""The page keeps its word: each example is a command line that is taken, and every command is in it."""

from __future__ import annotations

import re
import shlex

import pytest

from greenstalkctl.cli import cli
from greenstalkctl.settings import Settings
from tests.daemon import REPOSITORY

PAGE = (REPOSITORY / "docs" / "greenstalkctl.md").read_text()
README = (REPOSITORY / "README.md").read_text()
EXAMPLES = [
    example.strip()
    for block in re.findall(r"```sh\n(.*?)```", PAGE + README, re.DOTALL)
    for example in re.findall(r"greenstalkctl ((?:'[^']*'|[^'|<>#)&\n])*)", block)
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_taken(example: str) -> None:
    verb, *arguments = shlex.split(example.replace("picture.jpg", "/dev/null"))
    with cli.commands[verb].make_context(verb, arguments, obj=Settings()) as context:
        assert context.args == []


def test_every_command_has_an_example() -> None:
    assert {shlex.split(example)[0] for example in EXAMPLES} == set(cli.commands)
