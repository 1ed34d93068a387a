"""The `top` command: a live table of the tubes."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from greenstalkctl.columns import column
from greenstalkctl.errors import InvalidUsage
from greenstalkctl.keyboard import Keyboard
from greenstalkctl.output import Output
from greenstalkctl.settings import Command, Queue, Settings, seconds_between
from greenstalkctl.snapshot import Snapshot, rows, take_snapshot
from greenstalkctl.text import printable

COLUMNS: Final = {
    "tube": ("t", "tube", "Tube"),
    "ready": ("r", "ready", "Ready"),
    "reserved": ("v", "reserved", "reserVed"),
    "delayed": ("d", "delayed", "Delayed"),
    "buried": ("b", "buried", "Buried"),
    "waiting": ("w", "waiting", "Waiting"),
    "puts/s": ("p", "puts_per_second", "Puts/s"),
    "deletes/s": ("e", "deletes_per_second", "dEletes/s"),
    "pause-left": ("l", "pause_left", "pause Left"),
    "oldest": ("o", "oldest", "Oldest"),
}
"""For each column: the key that sorts by it, its name in JSON, and its title, in which that key is a capital."""

BY_KEY: Final = {key: name for name, (key, _, _) in COLUMNS.items()}
OF_API: Final = "oldest"
"""The column that only the API has."""


@dataclass(slots=True)
class Order:
    """The sort column and direction. By default numbers are in descending, names in ascending order."""

    column: str = "tube"
    is_reversed: bool = False

    def press(self, key: str) -> None:
        """Sort by the column of *key*; pressing the same key again reverses the order."""
        column = BY_KEY.get(key.lower())
        if column is not None:
            self.is_reversed = column == self.column and not self.is_reversed
            self.column = column

    def sort(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows in this order; rows with equal values are ordered by name."""
        by_name = sorted(found, key=lambda row: str(row["tube"]))
        is_reversed = self.is_reversed != (self.column != "tube")
        _, name, _ = COLUMNS[self.column]
        return sorted(by_name, key=lambda row: row.get(name) or 0, reverse=is_reversed)


@click.command(cls=Command, short_help="Show the tubes live.")
@click.option("--interval", type=seconds_between(0.1, 3600), default=1.0, help="Time between two updates. Default: 1s.")
@click.option("--once", is_flag=True, help="Print one table and exit.")
@click.option(
    "--sort",
    type=click.Choice(tuple(COLUMNS)),
    default="tube",
    metavar="COLUMN",
    help=f"Sort by this column, the largest first: {', '.join(COLUMNS)}.",
)
@click.pass_obj
def top(settings: Settings, interval: float, once: bool, sort: str) -> None:
    """Show a live table of the tubes, with puts and deletes per second.

    With --api, also the age of each tube's oldest ready job in seconds.

    Keys: the capital letter in a column's title sorts by that column, and reverses the order when pressed again. q or
    Ctrl-C quits.
    """
    order = Order(sort)
    with settings.open_api(f"column {OF_API!r}") if sort == OF_API else settings.open_queue() as queue:
        if once:
            before, now = take_snapshot(queue), _later(queue, interval)
            found = order.sort(rows(before, now))
            settings.out.show({"server": now.server, "tubes": found}, _page(settings.out, queue, now, found, order))
        elif settings.is_json:
            _stream(settings, queue, interval, order)
        elif sys.stdout.isatty():
            _live(settings, queue, interval, order)
        else:
            raise InvalidUsage("a live table needs a terminal; use --once or --json")


def _later(queue: Queue, seconds: float) -> Snapshot:
    sleep(seconds)
    return take_snapshot(queue)


def _stream(settings: Settings, queue: Queue, interval: float, order: Order) -> None:
    before = take_snapshot(queue)
    while True:
        now = _later(queue, interval)
        settings.out.show({"server": now.server, "tubes": order.sort(rows(before, now))})
        before = now


def _live(settings: Settings, queue: Queue, interval: float, order: Order) -> None:
    """Redraw after each update and each key, until q or Ctrl-C."""
    before = now = take_snapshot(queue)
    out = settings.out
    with (
        suppress(KeyboardInterrupt),
        Keyboard() as keyboard,
        Live(console=out.console(), screen=True, auto_refresh=False) as live,
    ):
        while True:
            hint = f"by {order.column}; q quits"
            live.update(_page(out, queue, now, order.sort(rows(before, now)), order, hint), refresh=True)
            key = keyboard.read_key(now.time + interval - monotonic())
            if key == "q":
                return
            order.press(key)
            if not key:
                before, now = now, take_snapshot(queue)


def _page(
    out: Output, queue: Queue, now: Snapshot, found: list[dict[str, Any]], order: Order, hint: str = ""
) -> RenderableType:
    stats = now.server
    about = [
        hint,
        str(queue.address),
        f"connections {stats['current-connections']}",
        f"workers {stats['current-workers']}",
        f"version {stats['version']}",
        f"up {stats['uptime']} s",
    ]
    shown = {name: each for name, each in COLUMNS.items() if all(each[1] in row for row in found)}
    columns = [column(name, title) for name, (_, _, title) in shown.items()]
    listed = ([row[key] for _, key, _ in shown.values()] for row in found)
    head = Text("  ".join(map(printable, filter(None, about))), style="bold", no_wrap=True, overflow="ellipsis")
    return Group(head, out.table(columns, listed, keep=COLUMNS[order.column][2]))
