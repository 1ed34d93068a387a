"""The `delete` and `clear` commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import click

from greenstalkctl.api import Api, Change
from greenstalkctl.bulk import count_matching
from greenstalkctl.errors import InvalidUsage
from greenstalkctl.job_action import JobAction, JobSet, act_on_ids, act_on_sets
from greenstalkctl.params import STATE
from greenstalkctl.queue import STATES
from greenstalkctl.selection import job_count, parse_selection, require_tube, selection, tube_argument
from greenstalkctl.settings import Command, Queue, Settings
from greenstalkctl.text import plural

DELETE: Final = JobAction(
    "delete",
    "deleted",
    "deleting",
    "no such job, or reserved: only its worker can delete it",
    lambda queue, job_id: queue.delete(job_id),
)


@click.command(cls=Command, short_help="Delete some jobs.")
@selection(STATES)
@click.pass_obj
def delete(
    settings: Settings, ids: tuple[int, ...], tube: str | None, state: str | None, count: int | None, select_all: bool
) -> None:
    """Delete jobs by id, or jobs of a tube in one state, in the order of that state."""
    selected = parse_selection(ids, tube, count, has_state=state is not None, select_all=select_all)
    if selected.tube is None:
        with settings.open_queue() as queue:
            settings.out.confirm(f"delete {plural(len(ids))} from {queue.address}")
            act_on_ids(settings.out, queue, DELETE, ids)
        return
    if state is None:
        raise InvalidUsage("select the jobs with --state ready, delayed or buried (`clear` deletes all of them)")
    with settings.open_queue() as queue:
        available = job_count(require_tube(queue, selected.tube), state)
        _delete(settings, queue, [JobSet(selected.tube, state, available, selected.count)])


@click.command(cls=Command, short_help="Delete all jobs of a tube.")
@tube_argument("The tubes to clear.", is_list=True)
@click.option("--state", "states", type=STATE, multiple=True, help="Delete only jobs in this state. Can be repeated.")
@click.pass_obj
def clear(settings: Settings, tubes: tuple[str, ...], states: tuple[str, ...]) -> None:
    """Delete all jobs that a tube has now, except reserved ones."""
    with settings.open_queue() as queue:
        all_stats = [(tube, require_tube(queue, tube)) for tube in tubes]
        job_sets = [
            JobSet(tube, state, job_count(stats, state)) for tube, stats in all_stats for state in states or STATES
        ]
        _delete(settings, queue, job_sets)


def _with_dry_run(api: Api, job_set: JobSet) -> JobSet:
    """Return *job_set* counted by a dry run of the server, so that jobs put during the confirmation are not deleted."""
    if job_set.count is not None or not job_set.available:
        return job_set
    task = count_matching(api, Change(DELETE.action, job_set.tube, job_set.state))
    return replace(job_set, available=task.matched, dry_run_id=task.id)


def _delete(settings: Settings, queue: Queue, job_sets: Sequence[JobSet]) -> None:
    """Ask for confirmation unless there are no jobs; then delete at most as many jobs as were confirmed."""
    if isinstance(queue, Api):
        job_sets = [_with_dry_run(queue, job_set) for job_set in job_sets]
    if total := sum(job_set.limit for job_set in job_sets):
        tubes = ", ".join(dict.fromkeys(job_set.tube for job_set in job_sets))
        settings.out.confirm(f"delete {plural(total)} of {tubes} from {queue.address}")
    act_on_sets(settings.out, queue, DELETE, job_sets)
