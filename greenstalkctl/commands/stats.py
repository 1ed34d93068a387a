"""Figures: of the server, of all tubes, of one."""

from __future__ import annotations

from typing import Final

import click

from greenstalkctl.api import Api
from greenstalkctl.columns import column
from greenstalkctl.output import pairs
from greenstalkctl.params import TUBE
from greenstalkctl.selection import existing
from greenstalkctl.settings import Settings, Verb

COLUMNS: Final = {
    "tube": "name",
    "ready": "current-jobs-ready",
    "urgent": "current-jobs-urgent",
    "reserved": "current-jobs-reserved",
    "delayed": "current-jobs-delayed",
    "buried": "current-jobs-buried",
    "waiting": "current-waiting",
    "total": "total-jobs",
    "pause-left": "pause-time-left",
}
"""Figures of a tube, by the names of their columns."""

COLUMNS_OF_API: Final = {
    "oldest": "oldest-ready-age",
    "puts/s": "puts-per-second",
    "deletes/s": "deletes-per-second",
}
"""Those that the protocol does not have."""

ALL_COLUMNS: Final = COLUMNS | COLUMNS_OF_API


@click.command(cls=Verb, short_help="Show the figures of the server.")
@click.pass_obj
def stats(settings: Settings) -> None:
    """Show the figures of the server, by the names that the protocol has for them; with --api, some more."""
    with settings.reach() as queue:
        figures = queue.stats()
    settings.out.show(figures, pairs(figures))


@click.command(cls=Verb, short_help="List the tubes and their jobs by state.")
@click.option(
    "--sort",
    type=click.Choice(tuple(ALL_COLUMNS)),
    default="tube",
    metavar="COLUMN",
    help=f"Largest first, by this column: {', '.join(ALL_COLUMNS)}.",
)
@click.pass_obj
def tubes(settings: Settings, sort: str) -> None:
    """List the tubes with how many jobs they have in each state.

    With --api also for how many seconds the oldest ready job has been so, and the puts and deletes per second.
    """
    with settings.reach_api(f"column {sort!r}") if sort in COLUMNS_OF_API else settings.reach() as queue:
        found = queue.figures()
    columns = ALL_COLUMNS if isinstance(queue, Api) else COLUMNS
    found.sort(key=lambda figures: str(figures["name"]))
    if sort != "tube":
        found.sort(key=lambda figures: figures[columns[sort]] or 0, reverse=True)
    rows = ([figures[key] for key in columns.values()] for figures in found)
    shown = settings.out.table([column(name) for name in columns], rows, keep=column(sort).title)
    settings.out.show(found, shown)


@click.command(cls=Verb)
@click.argument("name", metavar="TUBE", type=TUBE, help="The name of the tube.")
@click.pass_obj
def tube(settings: Settings, name: str) -> None:
    """Show the figures of one tube."""
    with settings.reach() as queue:
        figures = existing(queue, name)
    settings.out.show(figures, pairs(figures))
