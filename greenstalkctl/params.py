"""Types of arguments: tube names, keys, durations, job ids."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from greenstalkctl import units
from greenstalkctl.api import PAGE_SIZE
from greenstalkctl.errors import CommandError
from greenstalkctl.policy_document import POLICY_NAME
from greenstalkctl.queue import MAX_NUMBER, STATES, TUBE_NAME, TUBE_PATTERN
from greenstalkctl.settings import Parsed, Settings

_COMPLETION_SECONDS: Final = 1.0


def _matching(what: str, pattern: re.Pattern[str], allowed: str) -> Callable[[str], str]:
    """Return a function that returns its argument if it matches *pattern*, and raises ValueError if not."""

    def read(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"{text!r} is not a valid {what}: it has {allowed}")
        return text

    return read


_NAME_CHARACTERS: Final = "1 to 200 letters, digits and -+/;.$_(), and must not start with -"


class TubeName(Parsed[str]):
    """A tube name as the protocol allows; shell completion offers the tubes of the server."""

    def __init__(self, name: str = "tube") -> None:
        super().__init__(name, _matching("tube name", TUBE_NAME, _NAME_CHARACTERS))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        settings = ctx.ensure_object(Settings)
        settings.timeout = _COMPLETION_SECONDS
        try:
            with settings.open_queue() as queue:
                return [CompletionItem(name) for name in queue.tubes() if name.startswith(incomplete)]
        except CommandError:
            return []


class JobOrTube(TubeName):
    """A job id, if it is a number, else a tube name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return JOB_ID(value, param, ctx) if str(value).isdecimal() else super().convert(value, param, ctx)


def _duration(text: str) -> float:
    seconds = units.seconds(text)
    if seconds != round(seconds, 3) or seconds > MAX_NUMBER:
        raise ValueError(f"{text!r} is not a whole number of milliseconds, up to {MAX_NUMBER} seconds")
    return int(seconds) if seconds.is_integer() else seconds


def _whole_duration(text: str) -> int:
    seconds = _duration(text)
    if not isinstance(seconds, int):
        raise ValueError(f"{text!r} is not a whole number of seconds")  # noqa: TRY004  as for all wrong values
    return seconds


def _job_ids(text: str) -> tuple[int, ...]:
    """Return the ids in *text*, which are separated by commas."""
    ids = [int(JOB_ID(word.strip())) for word in text.split(",")]
    if len(ids) > PAGE_SIZE:
        raise ValueError(f"{len(ids)} ids are more than {PAGE_SIZE}")
    return tuple(dict.fromkeys(ids))


class Rate(click.FloatRange):
    """Jobs per second, as the API accepts them."""

    def __init__(self) -> None:
        super().__init__(0.001, 1_000_000)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        rate: float = super().convert(value, param, ctx)
        if rate != rate:  # NaN passes each comparison with the bounds
            self.fail(f"{value!r} is not a number.", param, ctx)
        return rate


TUBE: Final = TubeName()
JOB_OR_TUBE: Final = JobOrTube("job or tube")
PATTERN: Final = Parsed(
    "pattern", _matching("pattern of tube names", TUBE_PATTERN, "1 to 200 letters, digits and -+/;.$_()*")
)
KEY: Final = Parsed("key", _matching("key", TUBE_NAME, _NAME_CHARACTERS))
POLICY: Final = Parsed(
    "name",
    _matching("name of a policy", POLICY_NAME, "1 to 100 letters, digits and -_. and begins with a letter or a digit"),
)
JOB_IDS: Final = Parsed("ids", _job_ids)
RATE: Final = Rate()
DURATION: Final = Parsed("duration", _duration)
"""Seconds with at most three digits after the point, or numbers with units: 90, 0.25, 50ms, 5m, 1h30m, 2d."""

WHOLE_DURATION: Final = Parsed("duration", _whole_duration)
PRI: Final = click.IntRange(0, MAX_NUMBER)
JOB_ID: Final = click.IntRange(1, 2**64 - 1)
COUNT: Final = click.IntRange(1, MAX_NUMBER)
"""A number of jobs. Servers take the bound of `kick` modulo 2**32, so it must be below that."""
STATE: Final = click.Choice(STATES)
