"""The `flush` command: delete all jobs of a tube with one request, reserved ones included."""

from __future__ import annotations

import click

from greenstalkctl.params import TUBE
from greenstalkctl.queue import BURIED, RESERVED, STATES
from greenstalkctl.selection import job_count, require_tube
from greenstalkctl.settings import Command, Settings
from greenstalkctl.text import plural


@click.command(cls=Command, short_help="Delete all jobs of a tube, reserved ones too.")
@click.argument("tubes", type=TUBE, nargs=-1, required=True, metavar="TUBE...", help="The tubes to flush.")
@click.option("--buried", is_flag=True, help="Delete only the buried jobs.")
@click.pass_obj
def flush(settings: Settings, tubes: tuple[str, ...], buried: bool) -> None:
    """Delete all jobs that a tube has now, also those that workers hold: they notice it when they finish.

    The server needs the protocol extensions, which beanstalkd does not have. `clear` works on every server, and
    leaves reserved jobs.
    """
    with settings.connect() as server:
        states = (BURIED,) if buried else (*STATES, RESERVED)
        total = sum(
            job_count(stats, state) for tube in tubes for stats in [require_tube(server, tube)] for state in states
        )
        if total:
            which = "" if buried else ", reserved ones included,"
            settings.out.confirm(f"delete {plural(total)}{which} of {', '.join(tubes)} from {server.address}")
        flushed = sum(server.flush(tube, is_buried=buried) for tube in tubes)
    settings.out.show({"flushed": flushed}, f"flushed {plural(flushed)}")
