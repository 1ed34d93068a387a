"""Setting jobs aside: no worker gets a buried job until it is kicked."""

from __future__ import annotations

from typing import Final

import click

from greenstalkctl.deed import Deed, Share, do_ids, do_shares
from greenstalkctl.queue import DELAYED, READY
from greenstalkctl.selection import chosen, existing, jobs_in, selection
from greenstalkctl.settings import Settings, Verb


@click.command(cls=Verb, short_help="Set jobs aside until they are kicked.")
@selection((READY, DELAYED))
@click.pass_obj
def bury(
    settings: Settings, ids: tuple[int, ...], tube: str | None, state: str | None, count: int | None, takes_all: bool
) -> None:
    """Bury jobs: those with these IDs, or a number of a tube (ready ones, without --state).

    They keep their pri. Without --api the server must know reserve-job: ours does, and beanstalkd from 1.12 on.
    """
    which = chosen(ids, tube, count, names_state=state is not None, takes_all=takes_all)
    with settings.reach() as queue:
        if which.tube is None:
            do_ids(settings.out, queue, BURY, ids)
            return
        state = state or READY
        there_are = jobs_in(existing(queue, which.tube), state)
        do_shares(settings.out, queue, BURY, [Share(which.tube, state, there_are, which.count)])


BURY: Final = Deed(
    "bury",
    "buried",
    "burying",
    "not there, reserved by a worker, or buried already",
    lambda queue, job_id: queue.bury_job(job_id),
)
