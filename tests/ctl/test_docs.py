"""Examples in the documents are valid command lines, and each command has one."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import click
import pytest

from greenstalkctl.cli import cli
from greenstalkctl.settings import Settings
from tests.ctl.world import WithApi, ctl
from tests.support.daemon import environment
from tests.support.pages import block, blocks
from tests.support.peer import eventually
from tests.support.processes import ending

COMMANDS = [one.text for page in ("greenstalkctl.md", "start.md") for one in blocks(page) if one.language == "sh"]
EXAMPLES = [
    example.strip()
    for commands in COMMANDS
    for example in re.findall(r"greenstalkctl ((?:'[^']*'|[^'|<>#)&\n])*)", commands)
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_parses(example: str) -> None:
    verb, *arguments = shlex.split(re.sub(r"picture\.jpg|(?<=--file )retries\.toml", "/dev/null", example))
    group = cli.make_context("greenstalkctl", [verb, *arguments], obj=Settings())  # a command keeps its first -h option
    command = cli.commands[verb]
    if isinstance(command, click.Group) and arguments:
        group = command.make_context(verb, arguments[:1], parent=group)
        verb, *arguments = arguments
        command = command.commands[verb]
    with command.make_context(verb, arguments, parent=group) as context:
        assert context.args == []


def test_every_command_has_an_example() -> None:
    assert {shlex.split(example)[0] for example in EXAMPLES} == set(cli.commands)
    for name, command in cli.commands.items():
        if isinstance(command, click.Group):
            words = [shlex.split(example) for example in EXAMPLES]
            assert {word for first, *others in words if first == name for word in others[:1]} == set(command.commands)


def test_http_worker_needs_no_token_if_the_server_has_none(with_api: WithApi) -> None:
    ctl(with_api, "put", "hello", "--tube", "mail")
    source = block("http-jobs.md", "python", "import json")
    environ = environment(QUEUE_URL=f"{with_api.dashboard}/api/v1")
    command = [sys.executable, "-c", source]
    with ending(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"hello\n"
        eventually(lambda: ctl(with_api, "stats", "--json").json["current-jobs-reserved"] == 0, "the job is deleted")
