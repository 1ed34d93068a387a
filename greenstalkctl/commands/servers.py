"""The `servers` command: the named servers of the configuration files."""

from __future__ import annotations

import click

from greenstalkctl.errors import NoResult
from greenstalkctl.named_servers import SYSTEM_FILE, USER_FILE
from greenstalkctl.settings import Command, Settings, load_servers
from greenstalkctl.table import Column

COLUMNS = (
    Column("name", 0, "name"),
    Column("address", 1, "text"),
    Column("api", 2, "text"),
    Column("default", 3, "text"),
)


@click.command(cls=Command, short_help="List the named servers.")
@click.pass_obj
def servers(settings: Settings) -> None:
    """List the servers of the configuration files, which --server accepts by name."""
    named = load_servers()
    if not named.servers:
        raise NoResult(f"no server has a name; write ~/.config/{USER_FILE} or {SYSTEM_FILE}")
    rows = [
        [name, str(each.address), None if each.api is None else str(each.api), "yes" if name == named.default else None]
        for name, each in named.servers.items()
    ]
    data = [dict(zip(("name", "address", "api"), row, strict=False)) | {"default": row[3] is not None} for row in rows]
    settings.out.show(data, settings.out.table(COLUMNS, rows))
