"""Setting jobs aside: no worker gets a buried job until it is kicked."""

from __future__ import annotations

from typing import Final

import click

from greenstalkctl.deed import Deed, Share, do_ids, do_shares
from greenstalkctl.selection import chosen, existing, jobs_in, selection
from greenstalkctl.server import BURIED, DELAYED, READY, Server
from greenstalkctl.settings import Settings, Verb


@click.command(cls=Verb, short_help="Set jobs aside until they are kicked.")
@selection((READY, DELAYED))
@click.pass_obj
def bury(
    settings: Settings, ids: tuple[int, ...], tube: str | None, state: str | None, count: int | None, takes_all: bool
) -> None:
    """Bury jobs: those with these IDs, or a number of a tube (ready ones, without --state).

    They keep their pri. The server must know reserve-job: ours does, and beanstalkd from 1.12 on.
    """
    which = chosen(ids, tube, count, names_state=state is not None, takes_all=takes_all)
    with settings.connect() as server:
        if which.tube is None:
            do_ids(settings.out, server, BURY, ids)
            return
        state = state or READY
        limit = which.count or jobs_in(existing(server, which.tube), state)
        do_shares(settings.out, server, BURY, [Share(which.tube, state, limit)])


def _bury(server: Server, job_id: int) -> bool:
    """Bury with the pri that it has; the protocol lets only who has reserved a job bury it."""
    stats = server.job(job_id)
    if stats is None or stats["state"] == BURIED or (job := server.reserve_job(job_id)) is None:
        return False
    return server.bury(job, stats["pri"])


BURY: Final = Deed("buried", "burying", "not there, reserved by a worker, or buried already", _bury)
