"""Listing and searching jobs, which the API alone can do."""

from __future__ import annotations

from itertools import islice
from typing import Final

import click

from greenstalkctl import text
from greenstalkctl.api import PAGE
from greenstalkctl.exits import Nothing
from greenstalkctl.params import COUNT, TUBE
from greenstalkctl.queue import RESERVED, STATES, Seen
from greenstalkctl.settings import Settings, Verb
from greenstalkctl.table import Cell, Column

COLUMNS: Final = (
    Column("id", 0),
    Column("tube", 1, "name"),
    Column("state", 3, "text"),
    Column("pri", 5),
    Column("age", 4),
    Column("reserves", 7),
    Column("bytes", 6),
    Column("body", 2, "text"),
)
WIDEST: Final = 80
"""Characters of a body in the table, on a terminal and in a pipe: --json has whole bodies."""


@click.command(cls=Verb, short_help="List or search jobs (needs --api).")
@click.argument("tube", type=TUBE, required=False, help="Only jobs of this tube.")
@click.option("--state", type=click.Choice((*STATES, RESERVED)), help="Only jobs in this state.")
@click.option("--query", default="", help="Only jobs that match this search, as on the dashboard: 'age:>2h body:ann'.")
@click.option("-n", "--number", type=COUNT, default=20, show_default=True, help="How many at most.")
@click.pass_obj
def jobs(settings: Settings, tube: str | None, state: str | None, query: str, number: int) -> None:
    """List the jobs of TUBE, or of all tubes.

    Those of one tube in one state, without --query, come in the order of that state: ready ones as workers will get
    them, delayed and reserved ones as they turn ready, buried ones as they were buried. All others come by their ids,
    the oldest first. In JSON each is a line, with its whole body up to a MiB.
    """
    out = settings.out
    with settings.reach_api("list of jobs") as api:
        rows, is_any = list[list[Cell]](), False
        for seen in islice(api.jobs(tube, state, query, limit=min(number, PAGE)), number):
            if out.is_json:
                out.show(seen.stats | text.fields(seen.body))
                is_any = True
            else:
                rows.append(_row(seen))
        if not (rows or is_any):
            raise Nothing(f"there is no such job on {api.address}")
        if rows:
            out.show(None, out.table(COLUMNS, rows))


def _row(seen: Seen) -> list[Cell]:
    body = text.line(seen.body)
    figures = (seen.stats[column.title] for column in COLUMNS[:-1])
    return [*figures, body if len(body) <= WIDEST else f"{body[: WIDEST - 1]}…"]
