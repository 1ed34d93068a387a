"""Command lines made from the table of verbs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from greenstalk_server.protocol.verb import Verb

_ARGUMENT: Final = re.compile(r"(\[?)<?([a-z|-]+)>?( \.\.\.)?")

VALUES: Final = {"id": b"9", "tube": b"nowhere", "pri": b"0", "timeout": b"0", "bytes": b"0"}
"""Values of arguments that change nothing in a queue without job 9."""


class Argument(NamedTuple):
    """An argument of a verb, by its name in the documentation, or its possible values, separated by `|`."""

    name: str
    is_optional: bool
    is_repeated: bool


def arguments(verb: Verb) -> list[Argument]:
    return [Argument(name, bool(bracket), bool(dots)) for bracket, name, dots in _ARGUMENT.findall(verb.arguments)]


def line(verb: Verb, value: Callable[[str], bytes]) -> bytes:
    """Return a line with *verb* and a value of each required argument, which *value* returns for its name."""
    return b" ".join([verb.name, *(value(each.name) for each in arguments(verb) if not each.is_optional)])


def example(verb: Verb) -> bytes:
    """Return a well-formed line with *verb* and, of a put, an empty body."""
    found = line(verb, lambda name: name.partition("|")[0].encode() if "|" in name else VALUES.get(name, b"1"))
    return found + b"\r\n\r\n" if verb.handle is None else found + b"\r\n"
