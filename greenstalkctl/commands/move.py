"""Jobs from one tube to another of the same server."""

from __future__ import annotations

from typing import Final

import click

from greenstalkctl.exits import Misuse, Nothing, Refused
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.output import Output
from greenstalkctl.params import COUNT, STATE, TUBE
from greenstalkctl.selection import existing, jobs_in
from greenstalkctl.server import BURIED, STATES
from greenstalkctl.settings import Settings, Verb
from greenstalkctl.transfer import Tally, Transfer

MANY: Final = 2**64


@click.command(cls=Verb, short_help="Move jobs to another tube.")
@click.argument("source", type=TUBE, metavar="FROM")
@click.argument("target", type=TUBE, metavar="TO")
@click.option("--state", "states", type=STATE, multiple=True, help="Only jobs in this state; may be repeated.")
@click.option("--count", type=COUNT, help="At most so many; needs one --state.")
@click.pass_obj
def move(settings: Settings, source: str, target: str, states: tuple[str, ...], count: int | None) -> None:
    """Move the jobs that tube FROM has now to tube TO; those that workers hold stay.

    The protocol has no word for it: each job is put into TO, then deleted from FROM. So it gets a new id, and its age
    and counts begin anew; body, pri, ttr and what is left of its delay are kept, and a buried job stays buried. Nothing
    is ever lost; a crash between the two steps leaves one job in both tubes.
    """
    if source == target:
        raise Misuse("FROM and TO are the same tube")
    if count is not None and len(states) != 1:
        raise Misuse("--count needs to know the state: add one --state")
    with settings.connect() as here, settings.connect() as there, Interrupt() as interrupt:
        stats = existing(here, source)
        limits = {state: min(jobs_in(stats, state), count or MANY) for state in states or STATES}
        if limits.get(BURIED) and not there.abilities.reserves_by_id:
            advice = "kick the buried jobs, or leave them out with --state ready --state delayed"
            raise Refused("UNKNOWN_COMMAND", f"{there.address} is too old to bury by id; {advice}")
        _move(settings.out, Transfer(here, source, there, target), limits, interrupt)


def _move(out: Output, transfer: Transfer, limits: dict[str, int], interrupt: Interrupt) -> None:
    """Move so many of each state, and say how many there were, whatever happens."""
    tally = Tally()
    try:
        with out.progress(f"moving to {transfer.target_tube}", sum(limits.values())) as advance:
            for state, limit in limits.items():
                for outcome in transfer.run(state, limit, interrupt):
                    tally.note(state, outcome)
                    advance()
    finally:
        out.show(tally.data(), *tally.lines(f"tube {transfer.target_tube}"))
    interrupt.check("interrupted; the rest of the jobs stay where they are, and the same command goes on with them")
    if not tally.total:
        raise Nothing(f"tube {transfer.source_tube} has no such job that could be moved")
