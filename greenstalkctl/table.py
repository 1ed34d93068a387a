"""Tables that fit the terminal: the least important columns are dropped, and long names are cut. No cell is wrapped.

A name is cut in the middle, because tube names often differ at their end; other text is cut at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from rich import table as rich_table
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from greenstalkctl.text import printable

Cell: TypeAlias = str | int | float | None

GAP: Final = 2
"""Characters between two columns."""

MIN_WIDTHS: Final = {"name": 20, "text": 16}
"""Minimum width in characters of a name or text; below it, a column is dropped instead."""

ELLIPSIS: Final = "…"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    rank            the column with the highest rank is dropped first; rank 0 is never dropped.
    kind            a `figure` is right-aligned and never cut.
    """

    title: str
    rank: int
    kind: Literal["figure", "name", "text"] = "figure"


class Table:
    """Rows below their titles, as wide as the console allows when the table is printed."""

    def __init__(
        self, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], keep: str = "", *, has_header: bool = True
    ) -> None:
        """The column with the title *keep* is never dropped."""
        self._columns = columns
        self._rows = [[cell(value) for value in row] for row in rows]
        self._keep = keep
        self._has_header = has_header

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = fit(self._columns, self._natural_widths(), options.max_width, self._keep)
        made = rich_table.Table(
            box=SIMPLE_HEAD,
            header_style="bold cyan",
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
            show_header=self._has_header,
        )
        for index, width in widths.items():
            column = self._columns[index]
            justify: Literal["left", "right"] = "right" if column.kind == "figure" else "left"
            made.add_column(
                column.title, justify=justify, width=width, no_wrap=True, overflow="crop" if width < 2 else "ellipsis"
            )
        for row in self._rows:
            made.add_row(*(_cut(self._columns[index], row[index], width) for index, width in widths.items()))
        yield made

    def _natural_widths(self) -> list[int]:
        """Return the width of each column with nothing cut."""
        titles = [cell_len(column.title) if self._has_header else 1 for column in self._columns]
        return [max([title, *(row[index].cell_len for row in self._rows)]) for index, title in enumerate(titles)]


def fit(columns: Sequence[Column], natural: Sequence[int], room: int, keep: str = "") -> dict[int, int]:
    """Choose the columns that fit in *room* characters; return the width of each by its index.

    *natural* are the widths of all *columns* with nothing cut. The column with the title *keep* is not dropped.
    """
    least = [min(width, MIN_WIDTHS.get(column.kind, width)) for column, width in zip(columns, natural, strict=True)]
    shown = list(range(len(columns)))
    by_importance = sorted(shown, key=lambda index: columns[index].rank)
    droppable = [index for index in by_importance if columns[index].rank and columns[index].title != keep]
    while droppable and sum(least[index] + GAP for index in shown) - GAP > room:
        shown.remove(droppable.pop())
    widths = {index: least[index] for index in shown}
    spare = room - sum(width + GAP for width in widths.values()) + GAP
    if spare < 0:  # the remaining columns do not fit: shrink the first
        widths[shown[0]] = max(widths[shown[0]] + spare, 1)
    wanting = sorted((i for i in shown if natural[i] > widths[i]), key=lambda i: natural[i] - widths[i])
    for count, index in zip(range(len(wanting), 0, -1), wanting, strict=True):
        more = min(natural[index] - widths[index], max(spare, 0) // count)
        widths[index] += more
        spare -= more
    return widths


def cell(value: Cell) -> Text:
    """Return *value* formatted for a table; a zero is dim."""
    shown = _shown(value)
    return Text(shown, style="dim" if shown in {"0", "0.0"} else "")


def _shown(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.1f}" if isinstance(value, float) else printable(str(value))


def _cut(column: Column, shown: Text, width: int) -> Text:
    """Return *shown*, cut in the middle to *width* characters if it is a name; other text is cut when printed."""
    if column.kind != "name" or shown.cell_len <= width or width < 3:
        return shown
    tail = (width - 1) // 2
    name = shown.plain
    end = name[-tail:]
    while cell_len(end) > tail:  # a character may be two columns wide
        end = end[1:]
    return Text(set_cell_size(name, width - 1 - cell_len(end)) + ELLIPSIS + end, style=shown.style)
