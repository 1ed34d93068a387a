"""Select the jobs of a command: by ids, or a number of jobs of a tube in one state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from greenstalkctl.errors import InvalidUsage, NoResult
from greenstalkctl.params import COUNT, JOB_ID, TUBE
from greenstalkctl.queue import Queue, Stats

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Selection:
    """The jobs of a tube: at most *count*, or all if None. Without a tube, the command selects jobs by id."""

    tube: str | None
    count: int | None


def selection(states: Sequence[str]) -> Callable[[F], F]:
    """Add the arguments that select jobs to a command; `parse_selection` turns their values into a Selection."""

    def decorate(function: F) -> F:
        for option in (
            click.option("--all", "select_all", is_flag=True, help="Select all jobs that the tube has now."),
            click.option("--count", type=COUNT, help="Select at most this many jobs of the tube."),
            click.option("--state", type=click.Choice(states), help="Select jobs of the tube in this state."),
            click.option("--tube", type=TUBE, help="Select jobs of this tube instead of by id."),
            click.argument("ids", nargs=-1, type=JOB_ID, metavar="[ID]...", help="The ids of the jobs."),
        ):
            function = option(function)
        return function

    return decorate


def parse_selection(
    ids: tuple[int, ...], tube: str | None, count: int | None, *, has_state: bool, select_all: bool
) -> Selection:
    """Return the selection in the arguments; raise InvalidUsage if they select nothing, or both ids and a tube."""
    if bool(ids) == bool(tube):
        raise InvalidUsage("select jobs either by their ids or with --tube NAME")
    if ids and (has_state or count or select_all):
        raise InvalidUsage("--state, --count and --all need --tube; they cannot be used with ids")
    if tube and (count is None) != select_all:
        raise InvalidUsage("--tube needs either --count N or --all")
    return Selection(tube, count)


def require_tube(queue: Queue, tube: str) -> Stats:
    """Return the statistics of *tube*; raise NoResult if it does not exist."""
    stats = queue.tube(tube)
    if stats is None:
        raise tube_not_found(queue, tube)
    return stats


def tube_not_found(queue: Queue, tube: str) -> NoResult:
    """Return the error for a tube that does not exist."""
    return NoResult(f"there is no tube {tube} on {queue.address}; `greenstalkctl tubes` lists the tubes")


def job_count(stats: Stats, state: str) -> int:
    """Return the number of jobs in *state* from the statistics of a tube."""
    return int(stats[f"current-jobs-{state}"])
