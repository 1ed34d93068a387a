"""Arguments that select the tube of a command, or its jobs: by id, or by tube, state and number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import click

from greenstalkctl.errors import InvalidUsage, NoResult
from greenstalkctl.params import COUNT, JOB_OR_TUBE, TUBE
from greenstalkctl.queue import Stats
from greenstalkctl.settings import Queue

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Selection:
    """The jobs of a tube: at most *count*, or all if None. Without a tube, the command selects jobs by id."""

    tube: str | None
    count: int | None


def tube_argument(help: str, *, is_required: bool = True, is_list: bool = False) -> Callable[[F], F]:
    """Add TUBE to a command, as an argument or as --tube; its function gets `tube`, or `tubes` if *is_list*."""
    metavar = ("TUBE" if is_required else "[TUBE]") + ("..." if is_list else "")

    def decorate(function: F) -> F:
        @wraps(function)
        def call(*args: Any, words: tuple[str, ...], tube: str | None, **more: Any) -> Any:
            tubes = _named_tubes(words, tube)
            if is_required and not tubes:
                raise InvalidUsage("name the tube, as TUBE or with --tube")
            return function(*args, **more, **{"tubes": tubes} if is_list else {"tube": _only(tubes)})

        option = click.option("--tube", type=TUBE, help="The same as TUBE.")
        argument = click.argument("words", type=TUBE, nargs=-1, metavar=metavar, help=help)
        return cast("F", argument(option(call)))

    return decorate


def selection(states: Sequence[str]) -> Callable[[F], F]:
    """Add the arguments that select jobs to a command; `parse_selection` turns their values into a Selection."""

    def decorate(function: F) -> F:
        @wraps(function)
        def call(*args: Any, words: tuple[int | str, ...], tube: str | None, **more: Any) -> Any:
            ids, tube = parse_words(words, tube)
            return function(*args, ids=ids, tube=tube, **more)

        decorated: Any = call
        for option in (
            click.option("--all", "select_all", is_flag=True, help="Select all jobs that the tube has now."),
            click.option("--count", type=COUNT, help="Select at most this many jobs of the tube."),
            click.option("--state", type=click.Choice(states), help="Select jobs of the tube in this state."),
            click.option("--tube", type=TUBE, help="The same as TUBE, also for a name that is a number."),
            click.argument(
                "words", nargs=-1, type=JOB_OR_TUBE, metavar="ID...|TUBE", help="The ids of the jobs, or their tube."
            ),
        ):
            decorated = option(decorated)
        return cast("F", decorated)

    return decorate


def parse_words(words: Sequence[int | str], tube: str | None) -> tuple[tuple[int, ...], str | None]:
    """Return the ids and the tube that the arguments *words* and the option --tube give."""
    ids = tuple(word for word in words if isinstance(word, int))
    return ids, _only(_named_tubes([word for word in words if isinstance(word, str)], tube))


def _named_tubes(words: Sequence[str], option: str | None) -> tuple[str, ...]:
    """Return the tubes that arguments or --tube name; raise InvalidUsage if the two differ."""
    if option is not None and set(words) - {option}:
        raise InvalidUsage(f"TUBE ({', '.join(words)}) and --tube {option} differ; name the tube once")
    return (option,) if option is not None else tuple(words)


def _only(tubes: tuple[str, ...]) -> str | None:
    """Return the tube in *tubes*, None if there is none; raise InvalidUsage if there are several."""
    if len(tubes) > 1:
        raise InvalidUsage(f"name one tube, not {len(tubes)}: {', '.join(tubes)}")
    return next(iter(tubes), None)


def parse_selection(
    ids: tuple[int, ...], tube: str | None, count: int | None, *, has_state: bool, select_all: bool
) -> Selection:
    """Return the selection in the arguments; raise InvalidUsage if they select nothing, or both ids and a tube."""
    if bool(ids) == bool(tube):
        raise InvalidUsage("select jobs either by their ids or by their tube")
    if ids and (has_state or count or select_all):
        raise InvalidUsage("--state, --count and --all need a tube; they cannot be used with ids")
    if tube and (count is None) != select_all:
        raise InvalidUsage("a tube needs either --count N or --all")
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
