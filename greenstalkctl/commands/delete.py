"""Deleting jobs: some, or all of a tube."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from greenstalkctl.deed import Deed, Share, do_ids, do_shares
from greenstalkctl.exits import Misuse
from greenstalkctl.params import STATE, TUBE
from greenstalkctl.selection import chosen, existing, jobs_in, selection
from greenstalkctl.server import STATES, Server
from greenstalkctl.settings import Settings, Verb
from greenstalkctl.text import plural

DELETE: Final = Deed("deleted", "deleting", "not there, or reserved: only its worker can delete it", Server.delete)


@click.command(cls=Verb, short_help="Delete some jobs.")
@selection(STATES)
@click.pass_obj
def delete(
    settings: Settings, ids: tuple[int, ...], tube: str | None, state: str | None, count: int | None, takes_all: bool
) -> None:
    """Delete jobs: those with these IDs, or a number of a tube in one state, next ones first."""
    which = chosen(ids, tube, count, names_state=state is not None, takes_all=takes_all)
    if which.tube is None:
        with settings.connect() as server:
            settings.out.confirm(f"delete {plural(len(ids))} from {server.address}")
            do_ids(settings.out, server, DELETE, ids)
        return
    if state is None:
        raise Misuse("say which jobs: --state ready, delayed or buried (`clear` takes them all)")
    with settings.connect() as server:
        there_are = jobs_in(existing(server, which.tube), state)
        _delete(settings, server, [Share(which.tube, state, min(which.count or there_are, there_are))])


@click.command(cls=Verb, short_help="Delete all jobs of a tube.")
@click.argument("tubes", type=TUBE, nargs=-1, required=True, metavar="TUBE...")
@click.option("--state", "states", type=STATE, multiple=True, help="Only jobs in this state; may be repeated.")
@click.pass_obj
def clear(settings: Settings, tubes: tuple[str, ...], states: tuple[str, ...]) -> None:
    """Delete all jobs that a tube has now, save those that workers hold."""
    with settings.connect() as server:
        found = [(tube, existing(server, tube)) for tube in tubes]
        shares = [Share(tube, state, jobs_in(stats, state)) for tube, stats in found for state in states or STATES]
        _delete(settings, server, shares)


def _delete(settings: Settings, server: Server, shares: Sequence[Share]) -> None:
    """Ask, unless there is nothing to lose, then delete."""
    if total := sum(share.limit for share in shares):
        tubes = ", ".join(dict.fromkeys(share.tube for share in shares))
        settings.out.confirm(f"delete {plural(total)} of {tubes} from {server.address}")
    do_shares(settings.out, server, DELETE, shares)
