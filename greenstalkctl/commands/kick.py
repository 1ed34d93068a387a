"""Making jobs ready that are buried or delayed."""

from __future__ import annotations

from typing import Final

import click

from greenstalkctl.deed import Deed, Share, do_ids, do_shares, report
from greenstalkctl.selection import chosen, existing, jobs_in, selection
from greenstalkctl.server import BURIED, DELAYED, Server
from greenstalkctl.settings import Settings, Verb

KICK: Final = Deed("kicked", "kicking", "neither buried nor delayed", Server.kick_job)


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
    with settings.connect() as server:
        if which.tube is None:
            do_ids(settings.out, server, KICK, ids)
            return
        stats = existing(server, which.tube)
        if state is not None:  # one by one, since the protocol's kick chooses the state itself
            share = Share(which.tube, state, which.count or jobs_in(stats, state))
            do_shares(settings.out, server, KICK, [share])
            return
        there_are = jobs_in(stats, BURIED) or jobs_in(stats, DELAYED)
        bound = which.count or there_are
        report(settings.out, KICK.done, server.kick(which.tube, bound) if there_are else 0)
