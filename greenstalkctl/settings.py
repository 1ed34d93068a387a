"""What holds for every command: the global options, which may stand before the command or after it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import click

from greenstalkctl.address import Address, parse
from greenstalkctl.output import Output
from greenstalkctl.server import Server

PROGRAM: Final = "greenstalkctl"
SERVER_VARIABLE: Final = "GREENSTALKCTL_SERVER"


@dataclass(slots=True)
class Settings:
    """What the global options have set so far."""

    server: Address = field(default_factory=Address)
    timeout: float = 10.0
    is_json: bool = False
    assumes_yes: bool = False
    has_colour: bool = field(default_factory=lambda: not os.environ.get("NO_COLOR"))

    def connect(self, address: Address | None = None) -> Server:
        """Return a new connection, to the server of --server unless *address* is given; raise Unreachable."""
        return Server(address or self.server, self.timeout)

    @property
    def out(self) -> Output:
        """Where the command's words go."""
        return Output(is_json=self.is_json, assumes_yes=self.assumes_yes, has_colour=self.has_colour)


class Verb(click.Command):
    """A command that takes the global options as well, and lists them apart from its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shared = _global_options(reads_environment=False)
        self.params = [*self.params, *self._shared]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options; of the global ones, that they are allowed here too."""
        own = [param for param in self.get_params(ctx) if param not in self._shared]
        records = [record for param in own if (record := param.get_help_record(ctx)) is not None]
        with formatter.section("Options"):
            formatter.write_dl(records)
        with formatter.section("Global options"):
            formatter.write_text(f"--server, --json, --yes, --timeout, --no-color: see {PROGRAM} --help")


class Verbs(click.Group):
    """The group: it lists its commands in the order in which they were added, and reads the environment."""

    command_class = Verb

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *_global_options(reads_environment=True)]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _global_options(*, reads_environment: bool) -> list[click.Option]:
    """The options; at a command without the environment, else that would beat what stands before the command."""
    return [
        click.Option(
            ["--server"],
            metavar="HOST:PORT|unix:PATH",
            envvar=SERVER_VARIABLE if reads_environment else None,
            expose_value=False,
            callback=_setter("server", _address),
            help=f"The server; 127.0.0.1:11300 without it.  [env: {SERVER_VARIABLE}]",
        ),
        _flag("--json", "is_json", True, "Write JSON: one document, or one a line where there are many."),
        _flag("--yes", "assumes_yes", True, "Destroy without asking first."),
        click.Option(
            ["--timeout"],
            type=click.FloatRange(0, 86400, min_open=True),
            metavar="SECONDS",
            expose_value=False,
            callback=_setter("timeout", lambda value: value),
            help="How long the server may take for one answer; 10 without it.",
        ),
        _flag("--no-color", "has_colour", False, "No colours; so does the variable NO_COLOR."),
    ]


def _flag(name: str, attribute: str, value: bool, text: str) -> click.Option:
    callback = _setter(attribute, lambda _: value)
    return click.Option([name], is_flag=True, expose_value=False, callback=callback, help=text)


def _setter(attribute: str, made: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that sets *attribute* if the option is given: one that is not given overrides nothing."""

    def set_it(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value:
            setattr(ctx.ensure_object(Settings), attribute, made(value))

    return set_it


def _address(text: str) -> Address:
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error
