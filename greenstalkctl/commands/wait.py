"""The `wait` command: wait until a job is finished."""

from __future__ import annotations

import click

from greenstalkctl.errors import NoResult
from greenstalkctl.params import JOB_ID
from greenstalkctl.server import DELETED, TIMED_OUT
from greenstalkctl.settings import Command, Settings


@click.command(cls=Command, short_help="Wait until a job is deleted or buried.")
@click.argument("job_id", type=JOB_ID, metavar="ID", help="The id of the job.")
@click.pass_obj
def wait(settings: Settings, job_id: int) -> None:
    """Wait until a job is deleted or buried, and print which.

    Wait indefinitely, unless --timeout is on the command line. The exit code is 0 if the job was deleted, and 1 if it
    was buried, if the timeout has passed, or if there is no such job.

    The server needs the protocol extensions, which beanstalkd does not have.
    """
    with settings.connect() as server:
        end = server.wait(job_id, settings.timeout if "timeout" in settings.on_command_line else None)
        if end is None:
            raise NoResult(f"there is no job {job_id} on {server.address}; it may have been deleted")
        if end == TIMED_OUT:
            raise NoResult(f"job {job_id} was neither deleted nor buried within {settings.timeout:g} s")
    settings.out.show({"id": job_id, "end": end}, f"job {job_id} is {end}")
    if end != DELETED:
        raise NoResult(f"job {job_id} is {end}")
