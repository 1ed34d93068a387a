"""Making jobs ready that are buried or delayed."""

from __future__ import annotations

from typing import Final

import click

from greenstalkctl.deed import Deed, Share, do_ids, do_shares, report
from greenstalkctl.queue import BURIED, DELAYED
from greenstalkctl.selection import chosen, existing, jobs_in, selection
from greenstalkctl.server import Server
from greenstalkctl.settings import Settings, Verb

KICK: Final = Deed(
    "kick", "kicked", "kicking", "neither buried nor delayed", lambda queue, job_id: queue.kick_job(job_id)
)


@click.command(cls=Verb, short_help="Make buried or delayed jobs ready.")
@selection((BURIED, DELAYED))
@click.pass_obj
def kick(
    settings: Settings, ids: tuple[int, ...], tube: str | None, state: str | None, count: int | None, takes_all: bool
) -> None:
    """Make jobs ready: those with these IDs, or a number of a tube.

    Without --state it does what the protocol's kick does: it takes buried jobs if the tube has any, and delayed ones
    if it has none.
    """
    which = chosen(ids, tube, count, names_state=state is not None, takes_all=takes_all)
    with settings.reach() as queue:
        if which.tube is None:
            do_ids(settings.out, queue, KICK, ids)
            return
        stats = existing(queue, which.tube)
        next_state = BURIED if jobs_in(stats, BURIED) else DELAYED
        there_are = jobs_in(stats, state or next_state)
        if state is None and isinstance(queue, Server):
            report(settings.out, KICK.done, queue.kick(which.tube, which.count or there_are) if there_are else 0)
            return
        # By the protocol one by one, since its kick chooses the state itself.
        do_shares(settings.out, queue, KICK, [Share(which.tube, state or next_state, there_are, which.count)])
