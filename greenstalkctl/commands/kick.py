"""The `kick` command: make buried or delayed jobs ready."""

from __future__ import annotations

from typing import Final

import click

from greenstalkctl.errors import InvalidUsage
from greenstalkctl.job_action import JobAction, JobSet, act_on_ids, act_on_sets, report
from greenstalkctl.params import PATTERN
from greenstalkctl.queue import BURIED, DELAYED
from greenstalkctl.selection import job_count, parse_selection, require_tube, selection
from greenstalkctl.server import Server
from greenstalkctl.settings import Command, Settings
from greenstalkctl.tube_change import change_tubes

KICK: Final = JobAction(
    "kick", "kicked", "kicking", "neither buried nor delayed", lambda queue, job_id: queue.kick_job(job_id)
)


@click.command(cls=Command, short_help="Make buried or delayed jobs ready.")
@selection((BURIED, DELAYED))
@click.option(
    "--pattern", type=PATTERN, help="Kick all jobs of all tubes that match, such as 'billing.*'; needs --api."
)
@click.pass_obj
def kick(
    settings: Settings,
    ids: tuple[int, ...],
    tube: str | None,
    state: str | None,
    count: int | None,
    select_all: bool,
    pattern: str | None,
) -> None:
    """Make jobs ready, by id, from a tube, or from all tubes that match a pattern, after a confirmation.

    Without --state it works like the protocol's kick: it kicks buried jobs if the tube has any, else delayed jobs. With
    --pattern it then kicks buried jobs only.
    """
    if pattern is not None:
        if ids or tube or count or select_all:
            raise InvalidUsage("--pattern selects all jobs of the tubes; it can be used with --state only")
        change_tubes(settings, "kick", pattern, {"state": state or BURIED}, f"{state or BURIED} job")
        return
    selected = parse_selection(ids, tube, count, has_state=state is not None, select_all=select_all)
    with settings.open_queue() as queue:
        if selected.tube is None:
            act_on_ids(settings.out, queue, KICK, ids)
            return
        stats = require_tube(queue, selected.tube)
        next_state = BURIED if job_count(stats, BURIED) else DELAYED
        available = job_count(stats, state or next_state)
        if state is None and isinstance(queue, Server):
            report(settings.out, KICK.done, queue.kick(selected.tube, selected.count or available) if available else 0)
            return
        # The protocol's `kick` chooses the state itself, so with --state each job is kicked by its id.
        act_on_sets(settings.out, queue, KICK, [JobSet(selected.tube, state or next_state, available, selected.count)])
