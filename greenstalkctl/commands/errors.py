"""The `errors` command: the failed jobs of a tube by their error. It needs the API."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from greenstalkctl.bulk import POLL_INTERVAL, RUNNING
from greenstalkctl.errors import NoResult
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.queue import STATES
from greenstalkctl.selection import require_tube, tube_argument
from greenstalkctl.settings import Settings
from greenstalkctl.table import Cell, Column
from greenstalkctl.text import plural
from greenstalkctl.watching import ReadCommand

COLUMNS: Final = (Column("jobs", 0), Column("last", 3, "text"), Column("sample", 2), Column("error", 1, "text"))


@click.command(cls=ReadCommand, short_help="Group failed jobs by their error (needs --api).")
@tube_argument("The tube with the failed jobs.")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state. Default: buried jobs.")
@click.option("--field", default="", metavar="PATH", help="The field of the JSON body with the error: job.reason.")
@click.pass_obj
def errors(settings: Settings, tube: str, state: str | None, field: str) -> None:
    """Count the failed jobs of TUBE by their error, the most common first.

    Failed jobs are the buried ones, and in a dead-letter tube all jobs that no client holds. The error is a field of
    the JSON body, in which # replaces numbers and ids. With --json each error is one line, with the search (q) that
    finds exactly its jobs: use it for `jobs --query` and `redrive --query`.
    """
    out = settings.out
    with settings.open_api("groups of errors") as api, Interrupt() as interrupt:
        require_tube(api, tube)
        found = api.errors(tube, state, field, is_fresh=True)
        while found.state == RUNNING:
            if interrupt.wait(POLL_INTERVAL):
                api.cancel(found.task)
            interrupt.check("interrupted; the task was cancelled")
            found = api.errors(tube, state, field, is_fresh=False)
        if not found.groups:
            raise NoResult(f"tube {tube} has no failed jobs on {api.address}")
        for group in found.groups if out.is_json else ():
            out.show(msgspec.to_builtins(group))
        if not out.is_json:
            rows: list[list[Cell]] = [[group.jobs, group.last_at, group.sample, group.title] for group in found.groups]
            others = [f"{plural(found.others)} with other errors"] if found.others else []
            out.show(None, out.table(COLUMNS, rows), *others)
