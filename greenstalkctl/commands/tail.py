"""Watching the jobs of a tube come."""

from __future__ import annotations

import sys
from typing import Final

import click

from greenstalkctl import text
from greenstalkctl.api import Api
from greenstalkctl.exits import Misuse, Nothing
from greenstalkctl.follower import LOOK_BACK, Follower, Lister
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.output import Output
from greenstalkctl.params import TUBE
from greenstalkctl.queue import MAX_NUMBER, RESERVED, Seen
from greenstalkctl.selection import existing
from greenstalkctl.server import Server
from greenstalkctl.settings import Seconds, Settings, Verb

INTERVAL: Final = Seconds(0.05, 60)
NUMBER: Final = click.IntRange(0, MAX_NUMBER)


@click.command(cls=Verb, short_help="Print the last jobs of a tube, and follow it.")
@click.argument("tube", type=TUBE, help="The tube to look at.")
@click.option("-n", "--number", type=NUMBER, default=10, show_default=True, help="How many to begin with.")
@click.option("-f", "--follow", is_flag=True, help="Go on, with jobs as they come, until Ctrl-C.")
@click.option("--interval", type=INTERVAL, default=0.5, help="Time between two looks; 500ms without it.")
@click.option("--consume", is_flag=True, help="Take the ready jobs: reserve each, print it, delete it.")
@click.pass_obj
def tail(settings: Settings, tube: str, number: int, follow: bool, interval: float, consume: bool) -> None:
    """Print the last jobs of TUBE, a line each: id, state and body. No job is taken.

    Without --api it puts an empty job into a tube of its own and deletes it at once, to learn the newest id. A job that
    a worker finishes between two looks is not seen.
    """
    if consume and sys.__stdout__ is None:
        raise Misuse("stdout is closed, and jobs that are printed nowhere would be lost")
    with settings.connect() if consume else settings.reach() as queue, Interrupt() as interrupt:
        if consume and isinstance(queue, Server):
            settings.out.confirm(f"delete the ready jobs of {tube} from {queue.address}, as they are printed")
            _consume(settings.out, queue, tube, follow=follow, interrupt=interrupt)
        else:
            _watch(settings.out, queue, tube, number, interval if follow else None, interrupt)
        interrupt.check("interrupted")


def _watch(
    out: Output, queue: Server | Api, tube: str, number: int, interval: float | None, interrupt: Interrupt
) -> None:
    if interval is None:
        existing(queue, tube)
    follower = Lister(queue, tube, interrupt) if isinstance(queue, Api) else Follower(queue, tube)
    last = follower.last(number)
    for seen in last:
        _print(out, seen)
    if interval is None and number and not last:
        among = "" if isinstance(queue, Api) else f" among the last {LOOK_BACK} ids"
        raise Nothing(f"tube {tube} has no job{among}")
    while interval is not None and not interrupt.wait(interval):
        for seen in follower.new():
            _print(out, seen)


def _consume(out: Output, server: Server, tube: str, *, follow: bool, interrupt: Interrupt) -> None:
    """Print each job before it is deleted: one that could not be written is not lost."""
    done = 0
    while not interrupt:
        job = server.reserve(tube, 1 if follow else 0)
        if job is not None:
            stats = server.job(job.id) or {"id": job.id, "state": RESERVED}
            _print(out, Seen(stats | {"bytes": len(job.body)}, job.body))
            server.delete(job.id)
            done += 1
        elif not follow:
            break
    if not done and not follow:
        raise Nothing(f"tube {tube} has no ready job, or is paused")


def _print(out: Output, seen: Seen) -> None:
    state = text.printable(seen.stats["state"])
    out.show(seen.stats | text.fields(seen.body), f"{seen.id}\t{state}\t{text.line(seen.body)}")
