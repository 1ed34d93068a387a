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
from greenstalkctl.server import Server
from greenstalkctl.settings import Settings, Verb
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
}
"""The key that sorts by a column, its name in JSON, and its title, where the key is a capital letter."""

NAMES: Final = tuple(name for name, _ in COLUMNS.values())
TITLES: Final = tuple(title for _, title in COLUMNS.values())


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
        return sorted(by_name, key=lambda row: row[self.column], reverse=self.is_reversed != (self.column != "tube"))


@click.command(cls=Verb, short_help="Show the tubes live.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, help="Seconds a look.")
@click.option("--once", is_flag=True, help="Look twice, print one table, and end.")
@click.option("--sort", type=click.Choice(NAMES), default="tube", show_default=True, help="By which column first.")
@click.pass_obj
def top(settings: Settings, interval: float, once: bool, sort: str) -> None:
    """Show the tubes live, with puts and deletes per second.

    Keys: the capital letter in a column's title sorts by it, and again the other way round; q ends it.
    """
    order = Order(sort)
    with settings.connect() as server:
        if once:
            before, now = look(server), _later(server, interval)
            found = order.sort(rows(before, now))
            settings.out.show({"server": now.server, "tubes": found}, _page(server, now, found, ""))
        elif settings.is_json:
            _stream(settings, server, interval, order)
        elif sys.stdout.isatty():
            _live(settings, server, interval, order)
        else:
            raise Misuse("a live table needs a terminal; use --once or --json")


def _later(server: Server, seconds: float) -> Look:
    sleep(seconds)
    return look(server)


def _stream(settings: Settings, server: Server, interval: float, order: Order) -> None:
    before = look(server)
    while True:
        now = _later(server, interval)
        settings.out.show({"server": now.server, "tubes": order.sort(rows(before, now))})
        before = now


def _live(settings: Settings, server: Server, interval: float, order: Order) -> None:
    """Redraw after each look and each key, until q."""
    before = now = look(server)
    with Keyboard() as keyboard, Live(console=settings.out.console(), screen=True, auto_refresh=False) as live:
        while True:
            page = _page(server, now, order.sort(rows(before, now)), f"by {order.column}; q ends")
            live.update(page, refresh=True)
            key = keyboard.key(now.time + interval - monotonic())
            if key == "q":
                return
            order.press(key)
            if not key:
                before, now = now, look(server)


def _page(server: Server, now: Look, found: list[dict[str, Any]], hint: str) -> RenderableType:
    stats = now.server
    about = (
        f"{server.address}  version {stats['version']}  up {stats['uptime']} s  "
        f"connections {stats['current-connections']}  workers {stats['current-workers']}  {hint}"
    )
    return Group(Text(printable(about), style="bold"), table(TITLES, ([row[name] for name in NAMES] for row in found)))
