"""The `cluster` commands: show the shards and servers of a queue in a database, and move a shard. They need the API."""

from __future__ import annotations

import time
from typing import Final

import click

from greenstalkctl.api import Api, ClusterServer, Shard, ShardMove
from greenstalkctl.errors import CommandError, NoResult, Refused, Unreachable
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.settings import Settings, SubGroup
from greenstalkctl.table import Cell, Column, Table

SHARDS: Final = (
    Column("shard", 0),
    Column("owner", 1, "name"),
    Column("epoch", 3),
    Column("followers", 2, "text"),
)
SERVERS: Final = (
    Column("server", 0, "name"),
    Column("state", 1, "text"),
    Column("behind", 2),
    Column("machine", 4, "text"),
    Column("version", 3, "text"),
    Column("id", 5, "text"),
)

RELAYED: Final = (
    Column("relayed link of", 0, "name"),
    Column("and", 1, "name"),
    Column("over", 2, "name"),
)

WHAT: Final = "list of shards"

MOVE_TIMEOUT: Final = 30.0
"""Seconds that a move may take."""

POLL_INTERVAL: Final = 0.2
"""Seconds between two requests for the shards."""

MAX_AGE: Final = 5.0
"""Seconds without an answer of the database after which the list says so."""

SHOWN_ID: Final = 8
"""Digits of the id of a server that are shown, and that name it."""


@click.group(cls=SubGroup, invoke_without_command=True, short_help="Show shards, and move one (needs --api).")
@click.pass_context
def cluster(ctx: click.Context) -> None:
    """Show the shards of a queue in PostgreSQL, their owners and followers, and the servers with their lag.

    `cluster move` moves a shard to another server.
    """
    if ctx.invoked_subcommand is not None:
        return
    settings: Settings = ctx.obj
    with settings.open_api(WHAT) as api:
        found, data = api.cluster()
    out = settings.out
    shards = out.table(SHARDS, map(_shard_row, found.shards))
    parts: list[Table | str] = [shards, "", out.table(SERVERS, map(_server_row, found.servers))]
    if found.relayed:
        parts += ["", out.table(RELAYED, [[link.server, link.peer, link.relay] for link in found.relayed])]
    out.show(data, *parts)
    if found.age > MAX_AGE:
        out.note(f"the database has not answered for {found.age:.0f} s; this was so before")


@cluster.command(short_help="Move a shard to another server.")
@click.argument("shard", type=click.IntRange(0), help="The number of the shard.")
@click.argument(
    "target", default="", metavar="[SERVER]", help="A server that leads no shard: its name, or the beginning of its id."
)
@click.pass_obj
def move(settings: Settings, shard: int, target: str) -> None:
    """Move SHARD to SERVER, or without it to a server that follows SHARD; wait until SHARD has its new owner.

    The former owner finishes the commands in progress, and closes the connections of its own clients.
    """
    with settings.open_api(WHAT) as api, Interrupt() as interrupt:
        requested = api.request_shard_move(shard, target)
        moved = _wait(api, requested, interrupt)
    result = {"shard": shard, "former_owner": requested.owner, "owner": moved.owner, "epoch": moved.epoch}
    settings.out.show(result, f"shard {shard}: {requested.owner or 'nobody'} has handed over to {moved.owner}")


def _wait(api: Api, move: ShardMove, interrupt: Interrupt) -> Shard:
    """Return the shard once *move* is done; raise NoResult or Interrupted.

    If it is shard 0, the dashboard moves too, so requests may fail meanwhile.
    """
    until, trouble = time.monotonic() + MOVE_TIMEOUT, ""
    while True:
        try:
            shards, trouble = api.cluster()[0].shards, ""
        except CommandError as error:
            if not _may_pass(error):
                raise
            shards, trouble = [], f": {error}"
        for one in shards:
            if one.shard == move.shard and move.is_done(one):
                return one
        interrupt.wait(POLL_INTERVAL)
        interrupt.check(f"interrupted; shard {move.shard} may still move")
        if time.monotonic() > until:
            raise NoResult(f"shard {move.shard} was not moved within {MOVE_TIMEOUT:g} s, and may still move{trouble}")


def _may_pass(error: CommandError) -> bool:
    """Return whether *error* may be one of a dashboard that moves."""
    return isinstance(error, Unreachable) or (isinstance(error, Refused) and error.word == "503")


def _shard_row(one: Shard) -> list[Cell]:
    followers = [f"{each.server} ({_lag(each.behind)})" for each in one.followers]
    return [one.shard, one.owner, one.epoch, ", ".join(followers) or None]


def _server_row(one: ClusterServer) -> list[Cell]:
    state = one.state if one.shard is None else f"{one.state} shard {one.shard}"
    behind = _lag(one.behind) if one.state == "follows" else None
    return [one.server, state, behind, one.machine, one.version, one.id[:SHOWN_ID]]


def _lag(behind: float | None) -> str:
    return "reading" if behind is None else f"{behind:.1f} s"
