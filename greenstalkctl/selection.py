"""Which jobs a command is about: ids, or a number of those of a tube in a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from greenstalkctl.exits import Misuse, Nothing
from greenstalkctl.params import COUNT, JOB_ID, TUBE
from greenstalkctl.queue import Queue, Stats

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Selection:
    """A tube, and how many of its jobs: None is all that there are now. Without a tube it is about ids."""

    tube: str | None
    count: int | None


def selection(states: Sequence[str]) -> Callable[[F], F]:
    """Give a command the arguments that say which jobs; `chosen` makes a Selection of them."""

    def decorate(function: F) -> F:
        for option in (
            click.option("--all", "takes_all", is_flag=True, help="All that the tube has now."),
            click.option("--count", type=COUNT, help="At most so many of the tube."),
            click.option("--state", type=click.Choice(states), help="Those of the tube that are in this state."),
            click.option("--tube", type=TUBE, help="Jobs of this tube, rather than by their ids."),
            click.argument("ids", nargs=-1, type=JOB_ID, metavar="[ID]...", help="The ids of the jobs."),
        ):
            function = option(function)
        return function

    return decorate


def chosen(
    ids: tuple[int, ...], tube: str | None, count: int | None, *, names_state: bool, takes_all: bool
) -> Selection:
    """Return what the arguments select; raise Misuse if that is nothing, or two things at once."""
    if bool(ids) == bool(tube):
        raise Misuse("say which jobs: either their ids, or --tube NAME")
    if ids and (names_state or count or takes_all):
        raise Misuse("--state, --count and --all go with --tube, not with ids")
    if tube and (count is None) != takes_all:
        raise Misuse("say how many of the tube: either --count N, or --all")
    return Selection(tube, count)


def existing(queue: Queue, tube: str) -> Stats:
    """Return the figures of *tube*; raise Nothing if there is none of that name."""
    stats = queue.tube(tube)
    if stats is None:
        raise no_tube(queue, tube)
    return stats


def no_tube(queue: Queue, tube: str) -> Nothing:
    """What to raise if there is no *tube*."""
    return Nothing(f"there is no tube {tube} on {queue.address}; `greenstalkctl tubes` lists those that there are")


def jobs_in(stats: Stats, state: str) -> int:
    """How many jobs of a tube are in *state*, by its figures."""
    return int(stats[f"current-jobs-{state}"])
