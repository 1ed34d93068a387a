"""The `redrive` command: move dead letters back to the tubes that they came from. It needs the API."""

from __future__ import annotations

import click

from greenstalkctl.api import PAGE_SIZE
from greenstalkctl.bulk import watch
from greenstalkctl.errors import NoResult
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.params import JOB_IDS, RATE
from greenstalkctl.selection import require_tube, tube_argument
from greenstalkctl.settings import Command, Settings
from greenstalkctl.text import plural, printable


@click.command(cls=Command, short_help="Move dead letters back (needs --api).")
@tube_argument("The dead-letter tube.")
@click.option("--ids", type=JOB_IDS, metavar="ID[,ID]...", help=f"Move only these jobs, at most {PAGE_SIZE}.")
@click.option("--query", "--search", "query", default="", help="Move only jobs that match this search: 'age:>2h'.")
@click.option("--rate", type=RATE, help="Move at most this many jobs per second. Default: as fast as possible.")
@click.pass_obj
def redrive(settings: Settings, tube: str, ids: tuple[int, ...] | None, query: str, rate: float | None) -> None:
    """Move the dead letters that TUBE has now back to the tubes that they came from.

    Each is ready there as a new job: its attempts and its age restart. A job stays if it is not a dead letter, if a
    client holds it, or if the tube that it came from is full.
    """
    moved = skipped = 0
    message = ""
    with settings.open_api("dead letters") as api, Interrupt() as interrupt:
        require_tube(api, tube)
        started = api.start_redrive(tube, ids, query, rate)
        try:
            with settings.out.progress(f"moving dead letters of {tube}", None) as advance:
                for task in watch(api, started, interrupt):
                    advance(task.changed - moved)
                    moved, skipped, message = task.changed, task.skipped, task.message
        finally:
            lines = [f"moved {plural(moved)} back"] if moved else []
            settings.out.show({"redriven": moved, "skipped": skipped}, *lines)
        interrupt.check("interrupted; the other jobs are unchanged")
    if skipped:
        raise NoResult(f"not all jobs were moved: {printable(message)}")
    if not moved:
        raise NoResult(f"nothing moved: tube {tube} has no dead letter that matches and that no client holds")
