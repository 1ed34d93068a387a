"""Output of commands: tables, lines or JSON on stdout, questions and progress on stderr.

Untrusted text must pass through `printable` before it comes here. No text is interpreted as markup.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from greenstalkctl.errors import InvalidUsage, NoResult
from greenstalkctl.table import Cell, Column, Table, cell
from greenstalkctl.text import document, printable

Advance: TypeAlias = Callable[[int], None]
"""Advances a progress bar by a number of jobs."""

UNLIMITED_WIDTH: Final = 1_000_000
"""Table width in characters without a terminal: in a pipe, no column is dropped and no cell is cut."""


class Output:
    """Writes the output of a command as the global options ask."""

    def __init__(
        self,
        *,
        is_json: bool,
        assumes_yes: bool,
        has_colour: bool,
        has_header: bool = True,
        is_quiet: bool = False,
    ) -> None:
        self.is_json = is_json
        self._is_quiet = is_quiet
        self._has_header = has_header
        self._assumes_yes = assumes_yes
        self._colours: Literal["auto"] | None = "auto" if has_colour else None

    def show(self, data: Any, *human: RenderableType) -> None:
        """Write *data* as one line of JSON with --json, else the *human* parts; a str is written unchanged."""
        if self._is_quiet:
            return
        if self.is_json:
            click.echo(document(data))
            return
        for part in human:
            if isinstance(part, str):
                click.echo(part)
            else:
                self.console().print(part, soft_wrap=isinstance(part, Text))

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], keep: str = "") -> Table:
        """Return a table that fits the terminal; the column with the title *keep* is never dropped."""
        return Table(columns, rows, keep, has_header=self._has_header)

    def note(self, text: str) -> None:
        """Write a message that is not a result to stderr."""
        if not self._is_quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Write a message to stderr, with --quiet too."""
        click.echo(text, err=True)

    def console(self) -> Console:
        """Return a console on the current stdout."""
        width = None if sys.stdout.isatty() else UNLIMITED_WIDTH
        return Console(color_system=self._colours, width=width, highlight=False, markup=False)

    def confirm(self, what: str) -> None:
        """Ask for confirmation of *what*.

        Raise NoResult unless the answer is yes, and InvalidUsage if there is no terminal to ask on.
        """
        if self._assumes_yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InvalidUsage(f"this would {what}; without a terminal to confirm on, add --yes")
        click.echo(f"This will {what}. Continue? [y/N]: ", nl=False, err=True)
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise NoResult("nothing was done")

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Advance]:
        """Show a progress bar on stderr if that is a terminal; yield the function that advances it."""
        if self._is_quiet or not sys.stderr.isatty():
            yield lambda _: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True, color_system=self._colours, markup=False)
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda count: progress.advance(task, count)


def key_value_lines(entries: Mapping[str, Any]) -> Text:
    """Return names and values, one pair per line. The terminal wraps long values, so that they can be copied whole.

    An entry of a mapping is named by both keys, as in `dead-letter.reason`.
    """
    pairs = list(_flat(entries))
    width = max((len(name) for name, _ in pairs), default=0) + 2
    return Text("\n").join(
        [Text(printable(name).ljust(width), style="dim") + cell(_exact(value)) for name, value in pairs]
    )


def _exact(value: Cell) -> Cell:
    """Return *value*, a fraction as text with all its digits, at most six."""
    if not isinstance(value, float):
        return value
    shown = f"{value:.6f}".rstrip("0")
    return f"{shown}0" if shown.endswith(".") else shown


def _flat(entries: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Cell]]:
    for key, value in entries.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", ", ".join(map(str, value)) or None
        else:
            yield f"{prefix}{key}", value
