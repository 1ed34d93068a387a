"""Types of arguments: tube names, durations, sizes, addresses."""

from __future__ import annotations

from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from greenstalkctl import address, units
from greenstalkctl.api import PAGE_SIZE
from greenstalkctl.errors import CommandError
from greenstalkctl.policy_document import POLICY_NAME
from greenstalkctl.queue import MAX_NUMBER, STATES, TUBE_NAME, TUBE_PATTERN
from greenstalkctl.settings import Settings

_COMPLETION_SECONDS: Final = 1.0


class TubeName(click.ParamType[str]):
    """A tube name as the protocol allows; shell completion offers the tubes of the server."""

    name = "tube"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not TUBE_NAME.fullmatch(value):
            allowed = "1 to 200 letters, digits and -+/;.$_(), and must not start with -"
            self.fail(f"{value!r} is not a valid tube name: it has {allowed}.", param, ctx)
        return value

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

    name = "job or tube"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return JOB_ID(value, param, ctx) if str(value).isdecimal() else super().convert(value, param, ctx)


class TubePattern(click.ParamType[str]):
    """A pattern of tube names, in which `*` matches any characters."""

    name = "pattern"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not TUBE_PATTERN.fullmatch(value):
            allowed = "1 to 200 letters, digits and -+/;.$_()*"
            self.fail(f"{value!r} is not a valid pattern of tube names: it has {allowed}.", param, ctx)
        return value


class Key(click.ParamType[str]):
    """The key of a tag, which has the syntax of a tube name."""

    name = "key"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not TUBE_NAME.fullmatch(value):
            allowed = "1 to 200 letters, digits and -+/;.$_(), and must not start with -"
            self.fail(f"{value!r} is not a valid key: it has {allowed}.", param, ctx)
        return value


class Duration(click.ParamType[float]):
    """Seconds with at most three digits after the point, or numbers with units: 90, 0.25, 50ms, 5m, 1h30m, 2d."""

    name = "duration"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not isinstance(value, str):
            return value
        try:
            seconds = units.seconds(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        if seconds != round(seconds, 3) or seconds > MAX_NUMBER:
            self.fail(f"{value!r} is not a whole number of milliseconds, up to {MAX_NUMBER} seconds.", param, ctx)
        return int(seconds) if seconds.is_integer() else seconds


class WholeDuration(Duration):
    """Like Duration, but whole seconds only."""

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> int:
        seconds = super().convert(value, param, ctx)
        if not isinstance(seconds, int):
            self.fail(f"{value!r} is not a whole number of seconds.", param, ctx)
        return seconds


class Size(click.ParamType[int]):
    """A size in bytes, or with a unit: 65535, 64K, 10MB, 1GiB; at most *max_bytes*."""

    name = "size"

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            size = units.size(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        if size > self._max_bytes:
            self.fail(f"{value!r} is more than {self._max_bytes} bytes.", param, ctx)
        return size


class ServerAddress(click.ParamType[address.Address]):
    """HOST:PORT, tls:HOST:PORT or unix:PATH."""

    name = "address"

    def convert(
        self, value: str | address.Address, param: click.Parameter | None, ctx: click.Context | None
    ) -> address.Address:
        if isinstance(value, address.Address):
            return value
        try:
            return address.parse(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class PolicyName(click.ParamType[str]):
    """The name of a policy."""

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not POLICY_NAME.fullmatch(value):
            allowed = "1 to 100 letters, digits and -_. and begins with a letter or a digit"
            self.fail(f"{value!r} is not a valid name of a policy: it has {allowed}.", param, ctx)
        return value


class JobIds(click.ParamType[tuple[int, ...]]):
    """Job ids separated by commas, at most PAGE_SIZE."""

    name = "ids"

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        ids = [int(JOB_ID(word.strip(), param, ctx)) for word in value.split(",")]
        if len(ids) > PAGE_SIZE:
            self.fail(f"{len(ids)} ids are more than {PAGE_SIZE}.", param, ctx)
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
JOB_OR_TUBE: Final = JobOrTube()
PATTERN: Final = TubePattern()
KEY: Final = Key()
POLICY: Final = PolicyName()
JOB_IDS: Final = JobIds()
RATE: Final = Rate()
DURATION: Final = Duration()
WHOLE_DURATION: Final = WholeDuration()
ADDRESS: Final = ServerAddress()
PRI: Final = click.IntRange(0, MAX_NUMBER)
JOB_ID: Final = click.IntRange(1, 2**64 - 1)
COUNT: Final = click.IntRange(1, MAX_NUMBER)
"""A number of jobs. Servers take the bound of `kick` modulo 2**32, so it must be below that."""
STATE: Final = click.Choice(STATES)
