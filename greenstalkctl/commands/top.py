"""The tubes, live."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from greenstalkctl.exits import Misuse
from greenstalkctl.keyboard import Keyboard
from greenstalkctl.output import table
from greenstalkctl.pulse import Look, look, rows
from greenstalkctl.queue import Queue
from greenstalkctl.settings import Seconds, Settings, Verb
from greenstalkctl.text import printable

COLUMNS: Final = {
    "t": ("tube", "Tube"),
    "r": ("ready", "Ready"),
    "v": ("reserved", "reserVed"),
    "d": ("delayed", "Delayed"),
    "b": ("buried", "Buried"),
    "w": ("waiting", "Waiting"),
    "p": ("puts_per_second", "Puts/s"),
    "x": ("deletes_per_second", "deletes/s (X)"),
    "l": ("pause_left", "pause Left"),
    "o": ("oldest", "Oldest"),
}
"""The key that sorts by a column, its name in JSON, and its title, where the key is a capital letter."""

NAMES: Final = tuple(name for name, _ in COLUMNS.values())
OF_API: Final = "oldest"
"""The column that the protocol does not have."""


@dataclass(slots=True)
class Order:
    """By which column, and which way round; figures begin with the largest, names with the first."""

    column: str = "tube"
    is_reversed: bool = False

    def press(self, key: str) -> None:
        """Sort by the column of *key*; the same key again turns it round."""
        column, _ = COLUMNS.get(key.lower(), (self.column, ""))
        if key.lower() in COLUMNS:
            self.is_reversed = column == self.column and not self.is_reversed
            self.column = column

    def sort(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows in this order; equal ones by name."""
        by_name = sorted(found, key=lambda row: str(row["tube"]))
        is_reversed = self.is_reversed != (self.column != "tube")
        return sorted(by_name, key=lambda row: row.get(self.column) or 0, reverse=is_reversed)


@click.command(cls=Verb, short_help="Show the tubes live.")
@click.option("--interval", type=Seconds(0.1, 3600), default=1.0, show_default=True, help="Seconds a look.")
@click.option("--once", is_flag=True, help="Look twice, print one table, and end.")
@click.option("--sort", type=click.Choice(NAMES), default="tube", show_default=True, help="By which column first.")
@click.pass_obj
def top(settings: Settings, interval: float, once: bool, sort: str) -> None:
    """Show the tubes live, with puts and deletes per second.

    With --api also for how many seconds the oldest ready job of each has been so.

    Keys: the capital letter in a column's title sorts by it, and again the other way round; q ends it.
    """
    order = Order(sort)
    with settings.reach_api(f"column {OF_API!r}") if sort == OF_API else settings.reach() as queue:
        if once:
            before, now = look(queue), _later(queue, interval)
            found = order.sort(rows(before, now))
            settings.out.show({"server": now.server, "tubes": found}, _page(queue, now, found, ""))
        elif settings.is_json:
            _stream(settings, queue, interval, order)
        elif sys.stdout.isatty():
            _live(settings, queue, interval, order)
        else:
            raise Misuse("a live table needs a terminal; use --once or --json")


def _later(queue: Queue, seconds: float) -> Look:
    sleep(seconds)
    return look(queue)


def _stream(settings: Settings, queue: Queue, interval: float, order: Order) -> None:
    before = look(queue)
    while True:
        now = _later(queue, interval)
        settings.out.show({"server": now.server, "tubes": order.sort(rows(before, now))})
        before = now


def _live(settings: Settings, queue: Queue, interval: float, order: Order) -> None:
    """Redraw after each look and each key, until q."""
    before = now = look(queue)
    with Keyboard() as keyboard, Live(console=settings.out.console(), screen=True, auto_refresh=False) as live:
        while True:
            page = _page(queue, now, order.sort(rows(before, now)), f"by {order.column}; q ends")
            live.update(page, refresh=True)
            key = keyboard.key(now.time + interval - monotonic())
            if key == "q":
                return
            order.press(key)
            if not key:
                before, now = now, look(queue)


def _page(queue: Queue, now: Look, found: list[dict[str, Any]], hint: str) -> RenderableType:
    stats = now.server
    about = (
        f"{queue.address}  version {stats['version']}  up {stats['uptime']} s  "
        f"connections {stats['current-connections']}  workers {stats['current-workers']}  {hint}"
    )
    shown = {name: title for name, title in COLUMNS.values() if all(name in row for row in found)}
    listed = table(tuple(shown.values()), ([row[name] for name in shown] for row in found))
    return Group(Text(printable(about), style="bold"), listed)
