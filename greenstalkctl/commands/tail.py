"""The `tail` command: print the last jobs of a tube, and new ones as they are put."""

from __future__ import annotations

import sys
from typing import Final

import click

from greenstalkctl import text
from greenstalkctl.api import Api
from greenstalkctl.errors import InvalidUsage, NoResult
from greenstalkctl.follower import MAX_LOOK_BACK, ApiFollower, ProtocolFollower
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.output import Output
from greenstalkctl.queue import MAX_NUMBER, RESERVED, JobView
from greenstalkctl.selection import require_tube, tube_argument
from greenstalkctl.server import Server
from greenstalkctl.settings import Command, Queue, Settings, seconds_between

INTERVAL: Final = seconds_between(0.05, 60)
NUMBER: Final = click.IntRange(0, MAX_NUMBER)


@click.command(cls=Command, short_help="Print the last jobs of a tube, and follow it.")
@tube_argument("The tube to follow.")
@click.option("-n", "--number", type=NUMBER, default=10, show_default=True, help="Number of jobs to print first.")
@click.option("-f", "--follow", is_flag=True, help="Print new jobs until Ctrl-C.")
@click.option("--interval", type=INTERVAL, default=0.5, help="Time between two polls. Default: 500ms.")
@click.option("--consume", is_flag=True, help="Reserve each ready job, print it, and delete it.")
@click.pass_obj
def tail(settings: Settings, tube: str, number: int, follow: bool, interval: float, consume: bool) -> None:
    """Print the last jobs of TUBE, one line each: id, state and body. No job is reserved.

    Without --api the command puts an empty job into a separate tube and deletes it at once, to find the newest id. A
    job that a worker finishes between two polls is not seen.
    """
    if consume and sys.__stdout__ is None:
        raise InvalidUsage("stdout is closed, so the consumed jobs would be lost")
    if consume and settings.is_quiet:
        raise InvalidUsage("with --quiet the consumed jobs would be lost")
    with settings.connect() if consume else settings.open_queue() as queue, Interrupt() as interrupt:
        if consume and isinstance(queue, Server):
            settings.out.confirm(f"delete the ready jobs of {tube} from {queue.address}, as they are printed")
            _consume(settings.out, queue, tube, follow=follow, interrupt=interrupt)
        else:
            _watch(settings.out, queue, tube, number, interval if follow else None, interrupt)
        interrupt.check("interrupted")


def _watch(out: Output, queue: Queue, tube: str, number: int, interval: float | None, interrupt: Interrupt) -> None:
    if interval is None:
        require_tube(queue, tube)
    follower = ApiFollower(queue, tube, interrupt) if isinstance(queue, Api) else ProtocolFollower(queue, tube)
    last = follower.last(number)
    for view in last:
        _print(out, view)
    if interval is None and number and not last:
        among = "" if isinstance(queue, Api) else f" among the last {MAX_LOOK_BACK} ids"
        raise NoResult(f"tube {tube} has no job{among}")
    while interval is not None and not interrupt.wait(interval):
        for view in follower.new():
            _print(out, view)


def _consume(out: Output, server: Server, tube: str, *, follow: bool, interrupt: Interrupt) -> None:
    """Print each job before it is deleted, so that a job is not lost if printing fails."""
    done = 0
    while not interrupt:
        job = server.reserve(tube, 1 if follow else 0)
        if job is not None:
            stats = server.job(job.id) or {"id": job.id, "state": RESERVED}
            _print(out, JobView(stats | {"bytes": len(job.body)}, job.body))
            server.delete(job.id)
            done += 1
        elif not follow:
            break
    if not done and not follow:
        raise NoResult(f"tube {tube} has no ready job, or is paused")


def _print(out: Output, view: JobView) -> None:
    state = text.printable(view.stats["state"])
    out.show(view.stats | text.fields(view.body), f"{view.id}\t{state}\t{text.line(view.body)}")
