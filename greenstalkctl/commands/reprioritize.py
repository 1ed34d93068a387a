"""The `reprioritize` command."""

from __future__ import annotations

import click

from greenstalkctl.job_action import JobAction, act_on_ids
from greenstalkctl.params import JOB_ID, PRI
from greenstalkctl.settings import Command, Settings


@click.command(cls=Command, short_help="Change the priority of jobs.")
@click.argument("ids", nargs=-1, required=True, type=JOB_ID, metavar="ID...", help="The ids of the jobs.")
@click.option("--pri", type=PRI, required=True, help="The new priority; 0 is the most urgent.")
@click.pass_obj
def reprioritize(settings: Settings, ids: tuple[int, ...], pri: int) -> None:
    """Change the priority of ready, delayed and buried jobs. Without --api the server needs the extensions."""
    action = JobAction(
        "reprioritize",
        "reprioritized",
        "reprioritizing",
        "no such job, or reserved by a worker",
        lambda queue, job_id: queue.reprioritize(job_id, pri),
    )
    with settings.open_queue() as queue:
        act_on_ids(settings.out, queue, action, ids)
