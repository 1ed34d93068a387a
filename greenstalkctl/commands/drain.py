"""All jobs of a server to another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from greenstalkctl.address import Address
from greenstalkctl.exits import Failure, Misuse, Nothing, Refused, Unreachable
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.output import Advance
from greenstalkctl.params import ADDRESS, TUBE
from greenstalkctl.queue import BURIED, DELAYED, READY, RESERVED, STATES
from greenstalkctl.selection import existing, jobs_in
from greenstalkctl.server import Server
from greenstalkctl.settings import Settings, Verb
from greenstalkctl.text import plural
from greenstalkctl.transfer import Tally, Transfer

ORDER: Final = (BURIED, DELAYED, READY)
"""Ready ones last: meanwhile, delays end and workers release."""


@click.command(name="drain-to", cls=Verb, short_help="Move all jobs to another server.")
@click.argument("target", type=ADDRESS, metavar="ADDRESS", help="The other server: [tls:]HOST:PORT or unix:PATH.")
@click.argument("tubes", type=TUBE, nargs=-1, metavar="[TUBE]...", help="Only these tubes; without them, all.")
@click.pass_obj
def drain_to(settings: Settings, target: Address, tubes: tuple[str, ...]) -> None:
    """Move all jobs to the server at ADDRESS: those of the TUBEs named, or of all.

    With --tls both servers are reached by TLS, but one with plain: before its address is not. Without --tls, one with
    tls: before its address is.

    Each job is put there, then deleted here. It gets a new id, and its age and counts begin anew; body, pri, ttr and
    what is left of its delay are kept. Buried jobs are buried there, which needs reserve-job (ours has it, and
    beanstalkd from 1.12 on), and paused tubes are paused. Jobs that workers hold stay: run it again when they are done.

    Nothing is ever lost. Interrupted, or after a crash, the same command goes on with what is still here; a crash
    between the two steps leaves one job on both servers. Stop the producers first: it goes on until the tubes are
    empty.
    """
    with settings.connect(target=target) as here, settings.connect_to(target) as there:
        _refuse_itself(here, there)
        names = tubes or tuple(here.tubes())
        total = sum(jobs_in(existing(here, name), state) for name in names for state in STATES)
        if total:
            settings.out.confirm(f"move {plural(total)} from {here.address} to {there.address}")
        _drain(settings, here, there, names, total)


def _drain(settings: Settings, here: Server, there: Server, tubes: Sequence[str], total: int) -> None:
    """Move, say what was moved and what is left, and fail if that is anything."""
    tally, too_big, failure = Tally(), list[str](), None
    with Interrupt() as interrupt:
        try:
            with settings.out.progress(f"to {there.address}", total) as advance:
                for tube in tubes:
                    _carry_pause(here, there, tube)
                    too_big += _drain_tube(Transfer(here, tube, there, tube), tally, interrupt, advance)
        except Failure as error:
            failure = error
        left = {} if isinstance(failure, Unreachable) else _left(here, tubes)
        lines = [f"{tube} has left: {_counts(states)}" for tube, states in left.items()]
        settings.out.show(tally.data() | {"left": left}, *tally.lines(str(there.address)), *lines)
        if failure is not None:
            raise failure
        interrupt.check("interrupted; the same command goes on with the rest")
        if too_big:
            raise Refused("JOB_TOO_BIG", "; ".join(too_big))
        _complain_of(left, here, there)


def _drain_tube(transfer: Transfer, tally: Tally, interrupt: Interrupt, advance: Advance) -> list[str]:
    """Move all of one tube; return complaints of jobs too big for the other side, which hold up those behind them."""
    complaints = []
    for state in ORDER:
        if state == BURIED and not transfer.target.abilities.reserves_by_id:
            continue
        try:
            for outcome in transfer.run(state, None, interrupt):
                tally.note(state, outcome)
                advance(1)
        except Refused as error:
            if error.word != "JOB_TOO_BIG":
                raise
            complaints.append(str(error))
    return complaints


def _refuse_itself(here: Server, there: Server) -> None:
    """Raise Misuse if both are one server: it would be drained for ever."""
    mine, other = here.stats(), there.stats()
    if all(mine.get(key) == other.get(key) for key in ("id", "pid", "hostname")):
        raise Misuse(f"{here.address} and {there.address} are the same server")


def _carry_pause(here: Server, there: Server, tube: str) -> None:
    """Pause *tube* there for as long as it is paused here, unless it is paused for longer."""
    seconds = existing(here, tube)["pause-time-left"]
    if seconds:
        there.use(tube)
        if existing(there, tube)["pause-time-left"] < seconds:
            there.pause(tube, seconds)


def _left(here: Server, tubes: Sequence[str]) -> dict[str, dict[str, int]]:
    """How many jobs each tube still has, by state; those without any are left out."""
    left = {}
    for tube in tubes:
        stats = here.tube(tube)
        counts = {state: jobs_in(stats, state) for state in (*STATES, RESERVED)} if stats is not None else {}
        if any(counts.values()):
            left[tube] = counts
    return left


def _counts(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items() if count)


def _complain_of(left: dict[str, dict[str, int]], here: Server, there: Server) -> None:
    """Raise Nothing, which says why and what to do, if anything is left."""
    if not left:
        return
    total = sum(sum(states.values()) for states in left.values())
    reasons = []
    if any(states[RESERVED] for states in left.values()):
        reasons.append("workers hold the reserved ones; run it again when they are done")
    if any(states[BURIED] for states in left.values()) and not there.abilities.reserves_by_id:
        reasons.append(f"{there.address} is too old to bury by id; kick the buried ones, to move them as ready")
    reason = "; ".join(reasons) or "they came meanwhile; run it again"
    raise Nothing(f"{plural(total)} left on {here.address}: {reason}")
