"""The `stats`, `tubes` and `tube` commands."""

from __future__ import annotations

import click

from greenstalkctl.api import Api
from greenstalkctl.columns import COLUMNS, OF_API, TUBE, column
from greenstalkctl.errors import NoResult
from greenstalkctl.output import key_value_lines
from greenstalkctl.params import KEY
from greenstalkctl.queue import Stats
from greenstalkctl.selection import require_tube, tube_argument
from greenstalkctl.settings import Settings
from greenstalkctl.watching import ReadCommand


@click.command(cls=ReadCommand, short_help="Show the server's statistics.")
@click.pass_obj
def stats(settings: Settings) -> None:
    """Show the server's statistics under their protocol names; with --api, also rates, journal and memory."""
    with settings.open_queue() as queue:
        server_stats = queue.stats()
    settings.out.show(server_stats, key_value_lines(server_stats))


@click.command(cls=ReadCommand, short_help="List the tubes and their jobs by state.")
@click.option(
    "--sort",
    type=click.Choice(tuple(COLUMNS)),
    default=TUBE,
    metavar="COLUMN",
    help=f"Sort by this column, the largest first: {', '.join(COLUMNS)}.",
)
@click.pass_obj
def tubes(settings: Settings, sort: str) -> None:
    """List the tubes with the number of their jobs in each state.

    With --api, also the age of the oldest ready job in seconds, and puts and deletes per second.
    """
    with settings.open_api(f"column {sort!r}") if sort in OF_API else settings.open_queue() as queue:
        all_stats = queue.all_tube_stats()
    names = [name for name in COLUMNS if isinstance(queue, Api) or name not in OF_API]
    all_stats.sort(key=lambda stats: str(stats["name"]))
    if sort != TUBE:
        all_stats.sort(key=lambda stats: stats[COLUMNS[sort].statistic] or 0, reverse=True)
    rows = ([stats[COLUMNS[name].statistic] for name in names] for stats in all_stats)
    shown = settings.out.table([column(name) for name in names], rows, keep=column(sort).title)
    settings.out.show(all_stats, shown)


@click.command(cls=ReadCommand)
@tube_argument("The name of the tube.")
@click.pass_obj
def tube(settings: Settings, tube: str) -> None:
    """Show the statistics of one tube; with --api, also the settings that policies give to it."""
    with settings.open_queue() as queue:
        tube_stats = require_tube(queue, tube)
    settings.out.show(tube_stats, key_value_lines(tube_stats | _policy_lines(tube_stats)))


@click.command(name="stats-group", cls=ReadCommand, short_help="Show the jobs of a group.")
@click.argument("group", type=KEY, help="The name of the group, as in put --group.")
@click.pass_obj
def stats_group(settings: Settings, group: str) -> None:
    """Count the jobs of a group by state, and the jobs that wait for it. The server needs the extensions."""
    with settings.connect() as server:
        group_stats = server.group(group)
        if group_stats is None:
            raise NoResult(f"there is no group {group} on {server.address}: it has no job, and no job waits for it")
    settings.out.show(group_stats, key_value_lines(group_stats))


def _policy_lines(tube_stats: Stats) -> Stats:
    """Return the policy of a tube with one text for each setting; empty if the server has not sent any."""
    policy = tube_stats.get("policy")
    if not policy:
        return {}
    return {"policy": {key: _setting(one["value"], one["policy"]) for key, one in policy.items()}}


def _setting(value: object, policy: str) -> str:
    shown = ",".join(map(str, value)) if isinstance(value, list) else value
    return f"{shown} (from {policy})"
