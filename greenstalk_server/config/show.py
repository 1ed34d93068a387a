"""`greenstalk-server config`: what is in force, and where each value was set. Secrets are not shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from greenstalk_server.config.options import DEFINITIONS, Definition, Options, quoted

DEFAULT: Final = "default"
HIDDEN: Final = "(set)"
"""Instead of a secret that there is."""


class Row(NamedTuple):
    """One option: its key in the configuration file, its value as JSON may hold it, and where it was set."""

    key: str
    value: object
    origin: str


def rows(options: Options) -> Iterator[Row]:
    """Every option that has a value, in the order of DEFINITIONS."""
    for row in DEFINITIONS:
        if row.key:
            yield Row(row.key, _value(row, options), options.origins.get(row.field, DEFAULT))


def as_table(options: Options) -> str:
    """Return all of it as a table for people."""
    lines = [("key", "value", "set by"), *[(row.key, _text(row.value), row.origin) for row in rows(options)]]
    key_width, value_width = (max(len(line[column]) for line in lines) for column in (0, 1))
    text = "".join([f"{key:{key_width}}  {value:{value_width}}  {origin}\n" for key, value, origin in lines])
    if options.config_file is not None:
        text += f"\nconfiguration file: {quoted(options.config_file)}, by {options.origins['config_file']}\n"
    return text


def as_json(options: Options) -> str:
    """Return all of it as one JSON object for programs."""
    settings = {row.key: {"value": row.value, "origin": row.origin} for row in rows(options)}
    return json.dumps({"config_file": options.config_file, "settings": settings}, indent=2) + "\n"


def _value(row: Definition, options: Options) -> object:
    value = getattr(options, row.field)
    if row.is_secret:
        return None if value is None else HIDDEN
    return row.type.told(value)


def _text(value: object) -> str:
    match value:
        case None | "" | []:
            return "(none)"
        case True | False:
            return "true" if value else "false"
        case [dict(), *_] as rules:
            return f"{len(rules)} (--json shows them)"
        case list(texts):
            return ", ".join(texts)
    return value if value == HIDDEN else quoted(str(value))
