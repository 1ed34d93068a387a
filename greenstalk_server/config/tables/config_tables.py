"""Check the keys of a table of the configuration file, and describe each mistake. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.units import parse_time


class WrongPart(ValueError):
    """A part of a value is wrong; str() says which and why."""


NO_HINTS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table.

    read            returns a value as the server uses it; raises ValueError.
    allowed         the allowed values, for "must be ...".
    is_secret       its value may be a secret, so messages do not show it.
    """

    read: Callable[[object], Any]
    allowed: str
    is_secret: bool = False


def find_key_mistakes(
    place: str, table: Mapping[str, object], keys: Mapping[str, Key], hints: Mapping[str, str] = NO_HINTS
) -> list[tuple[str, str]]:
    """Return each mistake in *table*, which is at *place* and may have *keys*: the key, and a complete message.

    *hints* name the right place of keys that are unknown here.
    """
    mistakes = []
    for name, value in table.items():
        key = keys.get(name)
        if key is None:
            nearest = difflib.get_close_matches(name[:60], keys, n=1, cutoff=0.0)[0]
            mistakes.append(
                (name, f"{place}: unknown key {name[:60]!r}: {hints.get(name, f'did you mean {nearest}?')}")
            )
            continue
        try:
            key.read(value)
        except WrongPart as error:
            mistakes.append((name, f"{place}.{name}: {error}"))
        except ValueError:
            shown = repr(value) if isinstance(value, str | int | float) else type(value).__name__
            shown = "" if key.is_secret else f" {shown[:60]}"
            mistakes.append((name, f"{place}.{name}{shown}: must be {key.allowed}"))
    return mistakes


def find_name_mistakes(
    section: str, name: str, table: object, pattern: re.Pattern[str], allowed: str
) -> list[tuple[str, str]]:
    """Return the mistake in *name*, which must match *pattern*, or in the type of *table*, `[SECTION.NAME]`."""
    place = f"{section}.{name[:60]}"
    if not isinstance(table, dict):
        return [("", f"{place}: must be a table, headed [{place}]")]
    return [] if pattern.fullmatch(name) else [("", f"{section}: {name[:60]!r}: must be a name of {allowed}")]


def one_of(words: tuple[str, ...]) -> str:
    """Return *words* as a list in prose: `a, b or c`."""
    return f"{', '.join(words[:-1])} or {words[-1]}"


def read_flag(value: object) -> bool:
    """Return *value*; raise ValueError if it is not a boolean."""
    if not isinstance(value, bool):
        raise ValueError  # noqa: TRY004  as for all wrong values
    return value


FLAG: Final = Key(read_flag, "true or false, without quotes")


def read_time(value: object, most: int) -> int:
    """Return *value*, seconds or text with units, in nanoseconds; raise ValueError if it is not from 0 to *most*."""
    if isinstance(value, str):
        time = parse_time(value, SECOND)
    elif type(value) is int:
        time = value * SECOND
    else:
        raise ValueError
    if not 0 <= time <= most:
        raise ValueError
    return time
