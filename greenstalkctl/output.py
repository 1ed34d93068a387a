"""What a command says: tables and lines for people, or JSON for programs, on stdout; questions and progress on stderr.

Text of others goes through `printable` before it comes here, and never is markup.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from greenstalkctl.exits import Misuse, Nothing
from greenstalkctl.table import Cell, Column, Table, cell
from greenstalkctl.text import document, printable

Advance: TypeAlias = Callable[[int], None]
"""Called with how many jobs more are done."""

WIDE: Final = 1_000_000
"""Columns where there is no terminal: a pipe has no edge, so nothing is dropped or cut."""


class Output:
    """Where a command's words go, as the global options ask."""

    def __init__(self, *, is_json: bool, assumes_yes: bool, has_colour: bool, has_header: bool = True) -> None:
        self.is_json = is_json
        self._has_header = has_header
        self._assumes_yes = assumes_yes
        self._colours: Literal["auto"] | None = "auto" if has_colour else None

    def show(self, data: Any, *human: RenderableType) -> None:
        """Write *data* as one line of JSON, or else what is *human*, in which a str is written as it is."""
        if self.is_json:
            click.echo(document(data))
            return
        for part in human:
            if isinstance(part, str):
                click.echo(part)
            else:
                self.console().print(part, soft_wrap=isinstance(part, Text))

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], keep: str = "") -> Table:
        """Return a table that fits the terminal; the column with the title *keep* is not dropped for that."""
        return Table(columns, rows, keep, has_header=self._has_header)

    def note(self, text: str) -> None:
        """Say on stderr what is no result."""
        click.echo(text, err=True)

    def console(self) -> Console:
        """A console on what stdout is now."""
        width = None if sys.stdout.isatty() else WIDE
        return Console(color_system=self._colours, width=width, highlight=False, markup=False)

    def confirm(self, what: str) -> None:
        """Ask whether to do *what*; raise Nothing unless the answer is yes, and Misuse where nobody can be asked."""
        if self._assumes_yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise Misuse(f"this would {what}; say --yes to do it without a terminal to ask on")
        click.echo(f"This will {what}. Go on? [y/N]: ", nl=False, err=True)
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise Nothing("nothing was done")

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Advance]:
        """Show a bar on stderr if that is a terminal; what it yields moves it."""
        if not sys.stderr.isatty():
            yield lambda _: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True, color_system=self._colours, markup=False)
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda count: progress.advance(task, count)


def pairs(entries: dict[str, Any]) -> Text:
    """Names and values, one pair a line; a terminal folds a long value itself, so that it can be copied whole."""
    width = max(map(len, entries), default=0) + 2
    lines = (Text(printable(key).ljust(width), style="dim") + cell(value) for key, value in entries.items())
    return Text("\n").join(lines)
