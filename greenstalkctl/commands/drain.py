"""The commands `drain` and `undrain`, and `drain-to`, which moves all jobs to another server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from greenstalkctl.address import Address
from greenstalkctl.errors import CommandError, InvalidUsage, NoResult, Refused, Unreachable
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.named_servers import NamedServer
from greenstalkctl.output import Advance
from greenstalkctl.queue import BURIED, DELAYED, READY, RESERVED, STATES
from greenstalkctl.selection import job_count, require_tube, tube_argument
from greenstalkctl.server import Server
from greenstalkctl.settings import ADDRESS, Command, Settings
from greenstalkctl.text import plural
from greenstalkctl.transfer import Transfer, TransferCounts

ORDER: Final = (BURIED, DELAYED, READY)
"""States in the order they are moved. Ready jobs are last, as delays end and workers release jobs during the move."""


@click.command(cls=Command, short_help="Make the server refuse puts.")
@click.pass_obj
def drain(settings: Settings) -> None:
    """Make the server refuse puts with DRAINING, for example before a stop; workers continue.

    The server must have the extensions, and an access rule with `administer = true` for this client.
    """
    with settings.connect() as server:
        server.drain()
    settings.out.show({"draining": True}, f"{server.address} refuses puts; undrain ends that")


@click.command(cls=Command, short_help="Make the server accept puts again.")
@click.pass_obj
def undrain(settings: Settings) -> None:
    """Make a server that is draining accept puts again. It needs the same rights as `drain`."""
    with settings.connect() as server:
        server.undrain()
    settings.out.show({"draining": False}, f"{server.address} accepts puts")


@click.command(name="drain-to", cls=Command, short_help="Move all jobs to another server.")
@click.argument("target", type=ADDRESS, metavar="ADDRESS", help="Address or name of the other server, as for --server.")
@tube_argument("Move only these tubes. Default: all.", is_required=False, is_list=True)
@click.pass_obj
def drain_to(settings: Settings, target: Address | NamedServer, tubes: tuple[str, ...]) -> None:
    """Move all jobs of the given TUBEs, or of all tubes, to the server at ADDRESS.

    Stop the producers first: the command runs until the tubes are empty.

    Each job is put on the other server, then deleted on this one. It gets a new id, and its age and counts restart at
    0; its body, pri, ttr and remaining delay are kept. Buried jobs are buried there, which needs reserve-job
    (Greenstalk Server, beanstalkd 1.12 or later). Paused tubes are paused there. Reserved jobs stay: run the command
    again when their workers are done.

    No job is lost. After an interrupt or a crash, run the same command again to move the rest. A crash between the
    two steps leaves one job on both servers.

    --tls applies to both servers, except to an address with plain: in front. Without --tls, write tls: in front of
    the address that needs it.
    """
    with settings.connect(target=target) as here, settings.connect_to(target) as there:
        _refuse_same_server(here, there)
        names = tubes or tuple(here.tubes())
        total = sum(job_count(require_tube(here, name), state) for name in names for state in STATES)
        if total:
            settings.out.confirm(f"move {plural(total)} from {here.address} to {there.address}")
        _drain(settings, here, there, names, total)


def _drain(settings: Settings, here: Server, there: Server, tubes: Sequence[str], total: int) -> None:
    """Move the jobs, report the moved and the remaining ones, and raise an error if any remain."""
    counts, too_big, failure = TransferCounts(), list[str](), None
    with Interrupt() as interrupt:
        try:
            with settings.out.progress(f"to {there.address}", total) as advance:
                for tube in tubes:
                    _copy_pause(here, there, tube)
                    too_big += _drain_tube(Transfer(here, tube, there, tube), counts, interrupt, advance)
        except CommandError as error:
            failure = error
        left = {} if isinstance(failure, Unreachable) else _left(here, tubes)
        lines = [f"{tube} still has {_counts(states)}" for tube, states in left.items()]
        settings.out.show(counts.to_json() | {"left": left}, *counts.summary_lines(str(there.address)), *lines)
        if failure is not None:
            raise failure
        interrupt.check("interrupted; run the same command again to move the rest")
        if too_big:
            raise Refused("JOB_TOO_BIG", "; ".join(too_big))
        _fail_if_left(left, here, there)


def _drain_tube(transfer: Transfer, counts: TransferCounts, interrupt: Interrupt, advance: Advance) -> list[str]:
    """Move the jobs of one tube; return a message for each job that is too big for the target.

    Such a job blocks the jobs behind it in its state.
    """
    messages = []
    for state in ORDER:
        if state == BURIED and not transfer.target.reserves_by_id:
            continue
        try:
            for outcome in transfer.run(state, None, interrupt):
                counts.add(state, outcome)
                advance(1)
        except Refused as error:
            if error.word != "JOB_TOO_BIG":
                raise
            messages.append(str(error))
    return messages


def _refuse_same_server(here: Server, there: Server) -> None:
    """Raise InvalidUsage if both are the same server, because the drain would never end."""
    mine, other = here.stats(), there.stats()
    if all(mine.get(key) == other.get(key) for key in ("id", "pid", "hostname")):
        raise InvalidUsage(f"{here.address} and {there.address} are the same server")


def _copy_pause(here: Server, there: Server, tube: str) -> None:
    """Pause *tube* there for the rest of its pause here, unless its pause there is longer."""
    seconds = require_tube(here, tube)["pause-time-left"]
    if seconds:
        there.use(tube)
        if require_tube(there, tube)["pause-time-left"] < seconds:
            there.pause(tube, seconds)


def _left(here: Server, tubes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the numbers of remaining jobs by tube and state; empty tubes are left out."""
    left = {}
    for tube in tubes:
        stats = here.tube(tube)
        counts = {state: job_count(stats, state) for state in (*STATES, RESERVED)} if stats is not None else {}
        if any(counts.values()):
            left[tube] = counts
    return left


def _counts(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items() if count)


def _fail_if_left(left: dict[str, dict[str, int]], here: Server, there: Server) -> None:
    """Raise NoResult, with the reasons and what to do, if any jobs remain."""
    if not left:
        return
    total = sum(sum(states.values()) for states in left.values())
    reasons = []
    if any(states[RESERVED] for states in left.values()):
        reasons.append("workers hold the reserved ones; run the command again when they are done")
    if any(states[BURIED] for states in left.values()) and not there.reserves_by_id:
        reasons.append(f"{there.address} is too old to bury by id; kick the buried ones to move them as ready")
    reason = "; ".join(reasons) or "they were put during the move; run the command again"
    raise NoResult(f"{plural(total)} left on {here.address}: {reason}")
