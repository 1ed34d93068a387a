"""The `connections` command: the clients of the server. It needs the API."""

from __future__ import annotations

from itertools import islice
from typing import Final

import click

from greenstalkctl.errors import NoResult
from greenstalkctl.params import COUNT
from greenstalkctl.settings import Settings
from greenstalkctl.table import Cell, Column
from greenstalkctl.watching import ReadCommand

COLUMNS: Final = (
    Column("number", 0),
    Column("address", 1, "text"),
    Column("program", 4, "name"),
    Column("role", 2, "text"),
    Column("held", 3),
    Column("uses", 6, "name"),
    Column("watches", 5, "text"),
    Column("waiting since", 7, "text"),
)


@click.command(cls=ReadCommand, short_help="List the connections (needs --api).")
@click.option("--query", default="", help="Only this number, or this text in an address, program or tube name.")
@click.option(
    "--sort",
    type=click.Choice(("number", "connected", "held", "waiting")),
    default="number",
    show_default=True,
    help="Sort by the number, the oldest connection, the longest-held job, or the longest wait.",
)
@click.option("-n", "--number", type=COUNT, default=100, show_default=True, help="Maximum number of connections.")
@click.pass_obj
def connections(settings: Settings, query: str, sort: str, number: int) -> None:
    """List the clients that are connected, with the jobs that they hold. With --json each is one line."""
    out = settings.out
    with settings.open_api("list of connections") as api:
        found = list(islice(api.connections(query, sort), number))
    if not found:
        raise NoResult(f"no connection matches on {api.address}")
    if out.is_json:
        for each in found:
            out.show(each)
    else:
        out.show(None, out.table(COLUMNS, map(_row, found)))


def _row(each: dict[str, object]) -> list[Cell]:
    roles = [role for role in ("producer", "worker") if each[f"is_{role}"]]
    watches = each["watches"]
    cells = {
        "role": ", ".join(roles) or None,
        "watches": " ".join(map(str, watches)) if isinstance(watches, list) else None,
        "program": each["program"] or None,
        "waiting since": each["waiting_since"],
    }
    return [cells.get(column.title, each.get(column.title)) for column in COLUMNS]  # type: ignore[misc]
