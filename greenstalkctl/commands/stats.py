"""Figures: of the server, of all tubes, of one."""

from __future__ import annotations

from typing import Final

import click

from greenstalkctl.output import pairs, table
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
    "pause left": "pause-time-left",
}


@click.command(cls=Verb, short_help="Show the figures of the server.")
@click.pass_obj
def stats(settings: Settings) -> None:
    """Show the figures of the server, by the names that the protocol has for them."""
    with settings.connect() as server:
        figures = server.stats()
    settings.out.show(figures, pairs(figures))


@click.command(cls=Verb, short_help="List the tubes and their jobs by state.")
@click.option("--sort", type=click.Choice(tuple(COLUMNS)), default="tube", help="Largest first, by this column.")
@click.pass_obj
def tubes(settings: Settings, sort: str) -> None:
    """List the tubes with how many jobs they have in each state."""
    with settings.connect() as server:
        found = [figures for name in server.tubes() if (figures := server.tube(name)) is not None]
    found.sort(key=lambda figures: str(figures["name"]))
    if sort != "tube":
        found.sort(key=lambda figures: int(figures[COLUMNS[sort]]), reverse=True)
    rows = ([figures[key] for key in COLUMNS.values()] for figures in found)
    settings.out.show(found, table(tuple(COLUMNS), rows))


@click.command(cls=Verb)
@click.argument("name", type=TUBE)
@click.pass_obj
def tube(settings: Settings, name: str) -> None:
    """Show the figures of one tube."""
    with settings.connect() as server:
        figures = existing(server, name)
    settings.out.show(figures, pairs(figures))
