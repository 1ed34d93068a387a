"""`greenstalk-server config`: the options in force and where each was set. Secrets are not shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from greenstalk_server.config.definitions import DEFINITIONS, Definition
from greenstalk_server.config.options import Options
from greenstalk_server.config.text import quote

DEFAULT: Final = "default"
HIDDEN: Final = "(set)"
"""Text shown instead of a secret."""


class ShownOption(NamedTuple):
    """One option: its key in the configuration file, its value as JSON, and where it was set."""

    key: str
    value: object
    origin: str


def shown_options(options: Options) -> Iterator[ShownOption]:
    """Yield every option that has a key, in the order of DEFINITIONS."""
    for row in DEFINITIONS:
        if row.key:
            yield ShownOption(row.key, _value(row, options), options.origins.get(row.field, DEFAULT))


def as_table(options: Options) -> str:
    """Return the options as a table for people."""
    lines = [("key", "value", "set by")]
    lines += [(shown.key, _text(shown.value), shown.origin) for shown in shown_options(options)]
    key_width, value_width = (max(len(line[column]) for line in lines) for column in (0, 1))
    text = "".join([f"{key:{key_width}}  {value:{value_width}}  {origin}\n" for key, value, origin in lines])
    if options.config_file is not None:
        text += f"\nconfiguration file: {quote(options.config_file)} (set by {options.origins['config_file']})\n"
    return text


def as_json(options: Options) -> str:
    """Return the options as one JSON object for programs."""
    settings = {shown.key: {"value": shown.value, "origin": shown.origin} for shown in shown_options(options)}
    return json.dumps({"config_file": options.config_file, "settings": settings}, indent=2) + "\n"


def _value(row: Definition, options: Options) -> object:
    value = options.value_of(row.field)
    if row.is_secret:
        return None if value is None else HIDDEN
    return row.type.to_json(value)


def _text(value: object) -> str:
    match value:
        case None | "" | []:
            return "(none)"
        case True | False:
            return "true" if value else "false"
        case [dict(), *_] | dict() as tables:
            return f"{len(tables)} (--json shows them)" if tables else "(none)"
        case list(texts):
            return ", ".join(texts)
    return value if value == HIDDEN else quote(str(value))
