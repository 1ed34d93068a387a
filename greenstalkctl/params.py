"""What arguments may be: tube names, durations, addresses."""

from __future__ import annotations

import re
from typing import Final

import click
from click.shell_completion import CompletionItem

from greenstalkctl import address
from greenstalkctl.exits import Failure
from greenstalkctl.queue import MAX_NUMBER, STATES, TUBE_NAME
from greenstalkctl.settings import Settings

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_COMPLETION_SECONDS: Final = 1.0


class TubeName(click.ParamType[str]):
    """A tube's name, by the protocol's rule; the shell completes it with those that the server has."""

    name = "tube"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not TUBE_NAME.fullmatch(value):
            allowed = "1 to 200 letters, digits and -+/;.$_(), the first of them no -"
            self.fail(f"{value!r} is not the name of a tube: {allowed}.", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        settings = ctx.ensure_object(Settings)
        settings.timeout = _COMPLETION_SECONDS
        try:
            with settings.reach() as queue:
                return [CompletionItem(name) for name in queue.tubes() if name.startswith(incomplete)]
        except Failure:
            return []


class Duration(click.ParamType[int]):
    """Whole seconds, or a number with a unit: 90, 90s, 5m, 2h, 1d."""

    name = "duration"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]{1,10})([smhd]?)", value)
        seconds = int(match[1]) * _UNITS[match[2]] if match else -1
        if not 0 <= seconds <= MAX_NUMBER:
            self.fail(f"{value!r} is not a time such as 90, 90s, 5m, 2h or 1d, of at most {MAX_NUMBER} s.", param, ctx)
        return seconds


class ServerAddress(click.ParamType[address.Address]):
    """HOST:PORT or unix:PATH."""

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


TUBE: Final = TubeName()
DURATION: Final = Duration()
ADDRESS: Final = ServerAddress()
PRI: Final = click.IntRange(0, MAX_NUMBER)
JOB_ID: Final = click.IntRange(1, 2**64 - 1)
COUNT: Final = click.IntRange(1, MAX_NUMBER)
"""Of jobs; servers take the bound of `kick` modulo 2**32."""
STATE: Final = click.Choice(STATES)
