"""Tables of the configuration file: check their keys, describe each error, and read their values. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from msgspec import convert

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.units import parse_time

T = TypeVar("T")


class WrongPart(ValueError):
    """A part of a value is wrong; str() says which and why."""


NO_HINTS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table.

    read            returns a value as the server uses it; raises ValueError.
    allowed         the allowed values, for "must be ...".
    is_secret       its value may be a secret, so messages do not show it.
    is_required     every table has the key.
    """

    read: Callable[[object], Any]
    allowed: str
    is_secret: bool = False
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Tables(Generic[T]):
    """The tables `[SECTION.NAME]`.

    maximum         maximum number of tables.
    find_errors     returns each error in the table NAME: the key, and a complete message.
    parse           returns a table without errors as the server uses it.
    """

    section: str
    maximum: int
    find_errors: Callable[[str, object], list[tuple[str, str]]]
    parse: Callable[[str, Mapping[str, Any]], T]

    @property
    def allowed(self) -> str:
        """The form of the tables, for "must be ..."."""
        return f"tables, each headed [{self.section}.NAME]"


def tables_of_keys(
    section: str,
    maximum: int,
    names: tuple[re.Pattern[str], str],
    keys: Mapping[str, Key],
    find_contradictions: Callable[[str, Mapping[str, Any]], Iterable[tuple[str, str]]],
    parse: Callable[[str, Mapping[str, Any]], T],
) -> Tables[T]:
    """Return the tables `[SECTION.NAME]` that have *keys*.

    names                   pattern of NAME, and its description for messages.
    find_contradictions     returns the errors in the table NAME, whose keys have valid values: the key, and the end of
                            a message.
    """
    pattern, allowed = names

    def find_errors(name: str, table: object) -> list[tuple[str, str]]:
        place = f"{section}.{name[:60]}"
        if not isinstance(table, dict):
            return [("", f"{place}: must be a table, headed [{place}]")]
        if not pattern.fullmatch(name):
            return [("", f"{section}: {name[:60]!r}: must be a name of {allowed}")]
        errors = find_key_errors(f"{section}.{name}", table, keys)
        return errors or [(key, f"{section}.{name}: {text}") for key, text in find_contradictions(name, table)]

    return Tables(section, maximum, find_errors, parse)


def find_key_errors(
    place: str, table: Mapping[str, object], keys: Mapping[str, Key], hints: Mapping[str, str] = NO_HINTS
) -> list[tuple[str, str]]:
    """Validate *table* against *keys*. Return (key, message) for each error; messages start with *place*.

    *hints* name the right place of keys that are unknown here.
    """
    errors = []
    for name, value in table.items():
        key = keys.get(name)
        if key is None:
            nearest = difflib.get_close_matches(name[:60], keys, n=1, cutoff=0.0)[0]
            errors.append((name, f"{place}: unknown key {name[:60]!r}: {hints.get(name, f'did you mean {nearest}?')}"))
            continue
        try:
            key.read(value)
        except WrongPart as error:
            errors.append((name, f"{place}.{name}: {error}"))
        except ValueError:
            shown = repr(value) if isinstance(value, str | int | float) else type(value).__name__
            shown = "" if key.is_secret else f" {shown[:60]}"
            errors.append((name, f"{place}.{name}{shown}: must be {key.allowed}"))
    required = [name for name, key in keys.items() if key.is_required and name not in table]
    return errors + [(name, f"{place}.{name}: must be {keys[name].allowed}") for name in required]


def one_of(words: Iterable[str]) -> str:
    """Return *words* as a list in prose: `a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}"


def typed(kind: Any) -> Callable[[object], Any]:
    """Return the function that returns a value of the type *kind*, with msgspec's constraints, or raises ValueError."""
    return partial(convert, type=kind)


FLAG: Final = Key(typed(bool), "true or false, without quotes")


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
