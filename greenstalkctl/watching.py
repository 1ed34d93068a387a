"""Commands that only read, and that --watch repeats: in place on a terminal, one output after the other elsewhere."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout, suppress
from time import sleep
from typing import Any, Final

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from greenstalkctl.errors import EXIT_USAGE, CommandError, InvalidUsage
from greenstalkctl.settings import PROGRAM, Command, Settings, seconds_between
from greenstalkctl.text import printable

_INTERVAL: Final = f"{PROGRAM}.watch"


class ReadCommand(Command):
    """A command that changes nothing, with the option --watch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        option = click.Option(
            ["--watch"],
            type=seconds_between(0.1, 86400),
            metavar="DURATION",
            expose_value=False,
            callback=_set_interval,
            help="Repeat the command at this interval, such as 2s, until Ctrl-C.",
        )
        self.params = [*self.params[: -len(self._global_options)], option, *self._global_options]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command once, or until Ctrl-C if --watch is given."""
        interval = ctx.meta.get(_INTERVAL)
        if interval is None:
            return super().invoke(ctx)
        if ctx.params.get("raw"):
            raise InvalidUsage("--watch cannot be used with --raw")
        if sys.stdout.isatty() and not ctx.ensure_object(Settings).is_quiet:
            return self._watch(ctx, interval)
        while True:
            error = self._run(ctx)
            sys.stdout.flush()
            if error is not None:
                click.echo(f"{PROGRAM}: {error}", err=True)
            sleep(interval)

    def _watch(self, ctx: click.Context, interval: float) -> None:
        """Show the output in place of the last one; an error, such as a lost connection, is shown like an output."""
        console = ctx.ensure_object(Settings).out.console()
        title = Text(f"{ctx.command_path} every {interval:g} s; Ctrl-C quits", style="bold", no_wrap=True)
        with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                output = _TerminalOutput()
                with redirect_stdout(output):
                    error = self._run(ctx)
                shown = Text.from_ansi(output.getvalue())
                live.update(Group(title, "", shown, *([Text(error)] if error else [])), refresh=True)
                sleep(interval)

    def _run(self, ctx: click.Context) -> str | None:
        """Run the command; return the message of an error that may pass."""
        try:
            super().invoke(ctx)
        except CommandError as error:
            if error.exit_code == EXIT_USAGE:
                raise
            return printable(str(error))
        return None


class _TerminalOutput(io.StringIO):
    """Text that is written to a terminal later."""

    def isatty(self) -> bool:
        return True


def _set_interval(ctx: click.Context, _param: click.Parameter, value: float | None) -> None:
    if value is not None:
        ctx.meta[_INTERVAL] = value
