"""The `bury` command."""

from __future__ import annotations

from typing import Final

import click

from greenstalkctl.job_action import JobAction, JobSet, act_on_ids, act_on_sets
from greenstalkctl.queue import DELAYED, READY
from greenstalkctl.selection import job_count, parse_selection, require_tube, selection
from greenstalkctl.settings import Command, Settings


@click.command(cls=Command, short_help="Bury jobs until they are kicked.")
@selection((READY, DELAYED))
@click.pass_obj
def bury(
    settings: Settings, ids: tuple[int, ...], tube: str | None, state: str | None, count: int | None, select_all: bool
) -> None:
    """Bury jobs by id, or jobs of a tube (by default its ready jobs). No worker gets a buried job until it is kicked.

    The pri of the jobs does not change. Without --api the server must support reserve-job, as Greenstalk Server and
    beanstalkd 1.12 or later do.
    """
    selected = parse_selection(ids, tube, count, has_state=state is not None, select_all=select_all)
    with settings.open_queue() as queue:
        if selected.tube is None:
            act_on_ids(settings.out, queue, BURY, ids)
            return
        state = state or READY
        available = job_count(require_tube(queue, selected.tube), state)
        act_on_sets(settings.out, queue, BURY, [JobSet(selected.tube, state, available, selected.count)])


BURY: Final = JobAction(
    "bury",
    "buried",
    "burying",
    "no such job, or reserved by a worker, or already buried",
    lambda queue, job_id: queue.bury_job(job_id),
)
