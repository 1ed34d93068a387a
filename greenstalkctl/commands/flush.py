"""The `flush` and `truncate` commands: delete all jobs of a tube with one request, including reserved ones."""

from __future__ import annotations

import click

from greenstalkctl.queue import BURIED, RESERVED, STATES
from greenstalkctl.selection import job_count, require_tube, tube_argument, tube_not_found
from greenstalkctl.settings import Command, Settings
from greenstalkctl.text import plural


@click.command(cls=Command, short_help="Delete all jobs of a tube, including reserved ones.")
@tube_argument("The tubes to flush.", is_list=True)
@click.option("--buried", is_flag=True, help="Delete only the buried jobs.")
@click.pass_obj
def flush(settings: Settings, tubes: tuple[str, ...], buried: bool) -> None:
    """Delete all jobs that a tube has now, including those that workers hold.

    The next command of a worker on such a job fails with NOT_FOUND. The server needs the protocol extensions, which
    beanstalkd does not have. `clear` works on every server, but keeps reserved jobs.
    """
    with settings.connect() as server:
        states = (BURIED,) if buried else (*STATES, RESERVED)
        total = sum(
            job_count(stats, state) for tube in tubes for stats in [require_tube(server, tube)] for state in states
        )
        if total:
            which = "" if buried else ", including reserved ones,"
            settings.out.confirm(f"delete {plural(total)}{which} of {', '.join(tubes)} from {server.address}")
        flushed = sum(server.flush(tube, is_buried=buried) for tube in tubes)
    settings.out.show({"flushed": flushed}, f"flushed {plural(flushed)}")


@click.command(cls=Command, short_help="Delete all jobs of a tube; let workers finish theirs.")
@tube_argument("The tubes to truncate.", is_list=True)
@click.pass_obj
def truncate(settings: Settings, tubes: tuple[str, ...]) -> None:
    """Delete all jobs that a tube has now. Jobs that workers hold are deleted when their reservations end.

    Workers finish the jobs that they hold, and no job runs again. The server needs the protocol extensions, which
    beanstalkd does not have.
    """
    with settings.connect() as server:
        states = (*STATES, RESERVED)
        counts = [require_tube(server, tube) for tube in tubes]
        total = sum(job_count(stats, state) for stats in counts for state in states)
        if total:
            settings.out.confirm(f"delete {plural(total)} of {', '.join(tubes)} from {server.address}")
        truncated = 0
        for tube in tubes:
            count = server.truncate(tube)
            if count is None:
                raise tube_not_found(server, tube)
            truncated += count
    settings.out.show({"truncated": truncated}, f"deleted {plural(truncated)} now")
