"""The `move` command: move jobs to another tube of the same server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

import click

from greenstalkctl.api import Api, Change
from greenstalkctl.bulk import apply_change
from greenstalkctl.errors import InvalidUsage, NoResult, Refused
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.output import Output
from greenstalkctl.params import COUNT, STATE, TUBE
from greenstalkctl.queue import BURIED, STATES, Stats
from greenstalkctl.selection import job_count, require_tube
from greenstalkctl.server import Server
from greenstalkctl.settings import Command, Settings
from greenstalkctl.transfer import Outcome, Transfer, TransferCounts

UNLIMITED: Final = 2**64
Step: TypeAlias = tuple[str, Outcome, int]
"""The former state of moved jobs, their outcome, and their number."""


@click.command(cls=Command, short_help="Move jobs to another tube.")
@click.argument("source", type=TUBE, metavar="FROM", help="The tube to take jobs from.")
@click.argument("target", type=TUBE, metavar="TO", help="The tube to move them to.")
@click.option("--state", "states", type=STATE, multiple=True, help="Move only jobs in this state. Can be repeated.")
@click.option("--count", type=COUNT, help="Move at most this many; needs one --state.")
@click.pass_obj
def move(settings: Settings, source: str, target: str, states: tuple[str, ...], count: int | None) -> None:
    """Move the jobs that tube FROM has now to tube TO. Reserved jobs stay.

    With --api the server moves the jobs, and each keeps its id, age and counts.

    The protocol has no command for this: without --api, each job is put into TO, then deleted from FROM. It gets a new
    id, and its age and counts restart at 0; its body, pri, ttr and remaining delay are kept, and a buried job stays
    buried. No job is lost; a crash between the two steps leaves one job in both tubes.
    """
    if source == target:
        raise InvalidUsage("FROM and TO are the same tube")
    if count is not None and len(states) != 1:
        raise InvalidUsage("--count needs exactly one --state")
    with settings.open_queue() as queue, Interrupt() as interrupt:
        limits = _limits(require_tube(queue, source), states, count)
        if isinstance(queue, Api):
            done = _moved(settings.out, target, limits, _by_api_tasks(queue, source, target, limits, count, interrupt))
        else:
            with settings.connect() as there:
                _refuse_too_old(there, limits)
                steps = _one_by_one(Transfer(queue, source, there, target), limits, interrupt)
                done = _moved(settings.out, target, limits, steps)
        interrupt.check("interrupted; run the same command again to move the rest")
    if not done:
        raise NoResult(f"tube {source} has no {' or '.join(limits)} job that can be moved")


def _limits(stats: Stats, states: tuple[str, ...], count: int | None) -> dict[str, int]:
    """Return the numbers of jobs to move, by state."""
    return {state: min(job_count(stats, state), count or UNLIMITED) for state in states or STATES}


def _refuse_too_old(there: Server, limits: dict[str, int]) -> None:
    if limits.get(BURIED) and not there.reserves_by_id:
        advice = "kick the buried jobs, or exclude them with --state ready --state delayed"
        raise Refused("UNKNOWN_COMMAND", f"{there.address} is too old to bury by id; {advice}")


def _moved(out: Output, target: str, limits: dict[str, int], steps: Iterator[Step]) -> int:
    """Run the *steps*; report the number of moved jobs, even after an error, and return it."""
    counts = TransferCounts()
    try:
        with out.progress(f"moving to {target}", sum(limits.values())) as advance:
            for state, outcome, count in steps:
                counts.add(state, outcome, count)
                advance(count)
    finally:
        out.show(counts.to_json(), *counts.summary_lines(f"tube {target}"))
    return counts.total


def _one_by_one(transfer: Transfer, limits: dict[str, int], interrupt: Interrupt) -> Iterator[Step]:
    for state, limit in limits.items():
        for outcome in transfer.run(state, limit, interrupt):
            yield state, outcome, 1


def _by_api_tasks(
    api: Api, source: str, target: str, limits: dict[str, int], count: int | None, interrupt: Interrupt
) -> Iterator[Step]:
    """Move the jobs by one task per state. Ready jobs come last, because delays end and jobs are kicked in between."""
    for state in reversed(limits):
        if limits[state]:
            for moved in apply_change(api, Change("move", source, state, target), count, interrupt):
                yield state, Outcome.MOVED, moved
