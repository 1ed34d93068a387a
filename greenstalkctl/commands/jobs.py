"""The `jobs` command: list and search jobs. It needs the API."""

from __future__ import annotations

from itertools import islice
from typing import Final

import click

from greenstalkctl import text
from greenstalkctl.api import PAGE_SIZE
from greenstalkctl.errors import NoResult
from greenstalkctl.params import COUNT
from greenstalkctl.queue import RESERVED, STATES, JobView
from greenstalkctl.selection import tube_argument
from greenstalkctl.settings import Settings
from greenstalkctl.table import Cell, Column
from greenstalkctl.watching import ReadCommand

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
MAX_BODY_WIDTH: Final = 80
"""Maximum characters of a body in the table, on a terminal and in a pipe; --json has whole bodies."""


@click.command(cls=ReadCommand, short_help="List or search jobs (needs --api).")
@tube_argument("Only jobs of this tube.", is_required=False)
@click.option("--state", type=click.Choice((*STATES, RESERVED)), help="Only jobs in this state.")
@click.option("--query", default="", help="Only jobs that match this search, as in the dashboard: 'age:>2h body:ann'.")
@click.option("-n", "--number", type=COUNT, default=20, show_default=True, help="Maximum number of jobs.")
@click.pass_obj
def jobs(settings: Settings, tube: str | None, state: str | None, query: str, number: int) -> None:
    """List the jobs of TUBE, or of all tubes.

    With a tube and a state, and without --query, jobs come in the order of that state: ready jobs as workers will get
    them, delayed and reserved jobs as they become ready, buried jobs as they were buried. Otherwise they are ordered
    by id, the oldest first. With --json each job is one line, with its whole body up to 1 MiB.
    """
    out = settings.out
    with settings.open_api("list of jobs") as api:
        rows, is_any = list[list[Cell]](), False
        for view in islice(api.jobs(tube, state, query, limit=min(number, PAGE_SIZE)), number):
            if out.is_json:
                out.show(view.stats | text.fields(view.body))
                is_any = True
            else:
                rows.append(_row(view))
        if not (rows or is_any):
            raise NoResult(f"no job matches on {api.address}")
        if rows:
            out.show(None, out.table(COLUMNS, rows))


def _row(view: JobView) -> list[Cell]:
    body = text.line(view.body)
    cells = (view.stats[column.title] for column in COLUMNS[:-1])
    return [*cells, body if len(body) <= MAX_BODY_WIDTH else f"{body[: MAX_BODY_WIDTH - 1]}…"]
