"""Deleting jobs: some, or all of a tube."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import click

from greenstalkctl.api import Api, Change
from greenstalkctl.deed import Deed, Share, do_ids, do_shares
from greenstalkctl.exits import Misuse
from greenstalkctl.params import STATE, TUBE
from greenstalkctl.queue import STATES
from greenstalkctl.selection import chosen, existing, jobs_in, selection
from greenstalkctl.server import Server
from greenstalkctl.settings import Settings, Verb
from greenstalkctl.task import counted
from greenstalkctl.text import plural

DELETE: Final = Deed(
    "delete",
    "deleted",
    "deleting",
    "not there, or reserved: only its worker can delete it",
    lambda queue, job_id: queue.delete(job_id),
)


@click.command(cls=Verb, short_help="Delete some jobs.")
@selection(STATES)
@click.pass_obj
def delete(
    settings: Settings, ids: tuple[int, ...], tube: str | None, state: str | None, count: int | None, takes_all: bool
) -> None:
    """Delete jobs: those with these IDs, or a number of a tube in one state, next ones first."""
    which = chosen(ids, tube, count, names_state=state is not None, takes_all=takes_all)
    if which.tube is None:
        with settings.reach() as queue:
            settings.out.confirm(f"delete {plural(len(ids))} from {queue.address}")
            do_ids(settings.out, queue, DELETE, ids)
        return
    if state is None:
        raise Misuse("say which jobs: --state ready, delayed or buried (`clear` takes them all)")
    with settings.reach() as queue:
        there_are = jobs_in(existing(queue, which.tube), state)
        _delete(settings, queue, [Share(which.tube, state, there_are, which.count)])


@click.command(cls=Verb, short_help="Delete all jobs of a tube.")
@click.argument("tubes", type=TUBE, nargs=-1, required=True, metavar="TUBE...", help="The tubes to clear.")
@click.option("--state", "states", type=STATE, multiple=True, help="Only jobs in this state; may be repeated.")
@click.pass_obj
def clear(settings: Settings, tubes: tuple[str, ...], states: tuple[str, ...]) -> None:
    """Delete all jobs that a tube has now, save those that workers hold."""
    with settings.reach() as queue:
        found = [(tube, existing(queue, tube)) for tube in tubes]
        shares = [Share(tube, state, jobs_in(stats, state)) for tube, stats in found for state in states or STATES]
        _delete(settings, queue, shares)


def _counted(api: Api, share: Share) -> Share:
    """*share* as the server counts it, which then spares whatever comes while somebody is asked."""
    if share.count is not None or not share.there_are:
        return share
    task = counted(api, Change(DELETE.action, share.tube, share.state))
    return replace(share, there_are=task.matched, counted=task.id)


def _delete(settings: Settings, queue: Server | Api, shares: Sequence[Share]) -> None:
    """Ask, unless there is nothing to lose, then delete: no more than was asked about."""
    if isinstance(queue, Api):
        shares = [_counted(queue, share) for share in shares]
    if total := sum(share.limit for share in shares):
        tubes = ", ".join(dict.fromkeys(share.tube for share in shares))
        settings.out.confirm(f"delete {plural(total)} of {tubes} from {queue.address}")
    do_shares(settings.out, queue, DELETE, shares)
