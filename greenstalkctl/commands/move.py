"""Jobs from one tube to another of the same server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

import click

from greenstalkctl.api import Api, Change
from greenstalkctl.exits import Misuse, Nothing, Refused
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.output import Output
from greenstalkctl.params import COUNT, STATE, TUBE
from greenstalkctl.queue import BURIED, STATES, Stats
from greenstalkctl.selection import existing, jobs_in
from greenstalkctl.server import Server
from greenstalkctl.settings import Settings, Verb
from greenstalkctl.task import carry_out
from greenstalkctl.transfer import Outcome, Tally, Transfer

MANY: Final = 2**64
Step: TypeAlias = tuple[str, Outcome, int]
"""Jobs of a state, what became of them, and how many they are."""


@click.command(cls=Verb, short_help="Move jobs to another tube.")
@click.argument("source", type=TUBE, metavar="FROM", help="The tube that has the jobs.")
@click.argument("target", type=TUBE, metavar="TO", help="The tube that gets them.")
@click.option("--state", "states", type=STATE, multiple=True, help="Only jobs in this state; may be repeated.")
@click.option("--count", type=COUNT, help="At most so many; needs one --state.")
@click.pass_obj
def move(settings: Settings, source: str, target: str, states: tuple[str, ...], count: int | None) -> None:
    """Move the jobs that tube FROM has now to tube TO; those that workers hold stay.

    With --api the server does it, and each job keeps its id, age and counts.

    The protocol has no word for it: there each job is put into TO, then deleted from FROM. So it gets a new id, and its
    age and counts begin anew; body, pri, ttr and what is left of its delay are kept, and a buried job stays buried.
    Nothing is ever lost; a crash between the two steps leaves one job in both tubes.
    """
    if source == target:
        raise Misuse("FROM and TO are the same tube")
    if count is not None and len(states) != 1:
        raise Misuse("--count needs to know the state: add one --state")
    with settings.reach() as queue, Interrupt() as interrupt:
        limits = _limits(existing(queue, source), states, count)
        if isinstance(queue, Api):
            done = _moved(settings.out, target, limits, _by_tasks(queue, source, target, limits, count, interrupt))
        else:
            with settings.connect() as there:
                _refuse_too_old(there, limits)
                steps = _one_by_one(Transfer(queue, source, there, target), limits, interrupt)
                done = _moved(settings.out, target, limits, steps)
        interrupt.check("interrupted; the rest of the jobs stay where they are, and the same command goes on with them")
    if not done:
        raise Nothing(f"tube {source} has no such job that could be moved")


def _limits(stats: Stats, states: tuple[str, ...], count: int | None) -> dict[str, int]:
    """How many jobs to move, by the state that they are in."""
    return {state: min(jobs_in(stats, state), count or MANY) for state in states or STATES}


def _refuse_too_old(there: Server, limits: dict[str, int]) -> None:
    if limits.get(BURIED) and not there.abilities.reserves_by_id:
        advice = "kick the buried jobs, or leave them out with --state ready --state delayed"
        raise Refused("UNKNOWN_COMMAND", f"{there.address} is too old to bury by id; {advice}")


def _moved(out: Output, target: str, limits: dict[str, int], steps: Iterator[Step]) -> int:
    """Take the *steps*, say how many jobs have moved, whatever happens, and return that."""
    tally = Tally()
    try:
        with out.progress(f"moving to {target}", sum(limits.values())) as advance:
            for state, outcome, count in steps:
                tally.note(state, outcome, count)
                advance(count)
    finally:
        out.show(tally.data(), *tally.lines(f"tube {target}"))
    return tally.total


def _one_by_one(transfer: Transfer, limits: dict[str, int], interrupt: Interrupt) -> Iterator[Step]:
    for state, limit in limits.items():
        for outcome in transfer.run(state, limit, interrupt):
            yield state, outcome, 1


def _by_tasks(
    api: Api, source: str, target: str, limits: dict[str, int], count: int | None, interrupt: Interrupt
) -> Iterator[Step]:
    """One task a state, the ready ones last: meanwhile delays end, and others kick."""
    for state in reversed(limits):
        if limits[state]:
            for moved in carry_out(api, Change("move", source, state, target), count, interrupt):
                yield state, Outcome.MOVED, moved
