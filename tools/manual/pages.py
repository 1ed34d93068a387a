"""The manual pages greenstalk-server(1) and greenstalkctl(1)."""

from __future__ import annotations

import datetime as dt
import inspect
import re
from collections.abc import Iterator

import click

from greenstalk_server import __version__
from greenstalk_server.config.command_line import EXAMPLES, EXIT_CODES, HEADLINE, SIGNALS, UNITS
from greenstalk_server.config.definitions import DEFINITIONS, Definition, Kind
from greenstalkctl.cli import cli
from greenstalkctl.settings import PROGRAM as CTL
from tools.manual import roff

SERVER = "greenstalk-server"


def server_page(day: dt.date) -> str:
    """Return the page of greenstalk-server, dated *day*."""
    synopsis, _, description = HEADLINE.partition("\n\n")
    sections = (
        ("SYNOPSIS", roff.literal(re.sub(r"(?m)^(Usage:)? +", "", synopsis))),
        ("DESCRIPTION", roff.paragraphs(description) + roff.paragraphs(UNITS)),
        ("OPTIONS", "".join(_flag(row) for row in DEFINITIONS if row.flags)),
        ("ENVIRONMENT", _named("variable", "configuration file key")),
        ("CONFIGURATION FILE", _named("key", "variable")),
        ("SIGNALS", _labelled(SIGNALS)),
        ("EXIT STATUS", _labelled(EXIT_CODES)),
        ("EXAMPLES", roff.literal(EXAMPLES.partition("\n")[2])),
        ("SEE ALSO", roff.paragraphs("`greenstalkctl`(1)")),
    )
    return roff.page(SERVER, "a job queue that speaks the beanstalk protocol", __version__, day, sections)


def ctl_page(day: dt.date) -> str:
    """Return the page of greenstalkctl, dated *day*."""
    context = click.Context(cli, info_name=CTL)
    sections = (
        ("SYNOPSIS", roff.literal(f"{CTL} [OPTIONS] COMMAND [ARGS]...")),
        ("DESCRIPTION", _help(cli)),
        ("GLOBAL OPTIONS", "".join(_options(cli, context))),
        ("COMMANDS", "".join(_commands(cli, context))),
        ("SEE ALSO", roff.paragraphs(f"`{SERVER}`(1)")),
    )
    return roff.page(CTL, "inspect and change the jobs of a beanstalk server", __version__, day, sections)


def _flag(row: Definition) -> str:
    default = f" (default: {row.default})" if row.metavar and row.default else ""
    return roff.entry(" ".join(filter(None, (", ".join(row.flags), row.metavar))), row.help + default)


def _named(name: str, other: str) -> str:
    """Return the entries of all options that have the field *name*, variable or key."""
    others = {"variable": "key", "key": "variable"}
    entries = []
    for row in DEFINITIONS:
        if term := getattr(row, name):
            same = getattr(row, others[name])
            text = f"as `{row.flags[0]}`" if row.flags else row.help
            text = f"{row.implies}: {text}" if row.kind is Kind.SWITCH else text
            entries.append(roff.entry(term, f"{text}; {other} `{same}`" if same else text))
    return "".join(entries)


def _labelled(text: str) -> str:
    return roff.paragraphs(text.partition(": ")[2])


def _help(command: click.Command) -> str:
    """Return the help of *command*: click keeps the lines of a paragraph that starts with \\b."""  # noqa: D301
    parts = inspect.cleandoc(command.help or "").split("\n\n")
    return "".join(roff.literal(part[2:]) if part.startswith("\b\n") else roff.paragraphs(part) for part in parts)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    own = [param for param in command.params if param not in getattr(command, "_global_options", ())]
    for param in own:
        if isinstance(param, click.Option) and (record := param.get_help_record(context)) is not None:
            yield roff.entry(*record)


def _commands(group: click.Group, parent: click.Context) -> Iterator[str]:
    for name in group.list_commands(parent):
        command = group.commands[name]
        context = click.Context(command, info_name=name, parent=parent)
        usage = " ".join([name, *command.collect_usage_pieces(context)])
        path = context.command_path.removeprefix(f"{CTL} ").removesuffix(name)
        yield roff.subsection(path + usage, _help(command) + "".join(_options(command, context)))
        if isinstance(command, click.Group):
            yield from _commands(command, context)
