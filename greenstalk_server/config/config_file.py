"""The configuration file: TOML whose keys DEFINITIONS has, read whole or refused.

Nothing in it is passed over: an unknown key, a value of another type and a key that is there twice end the start
with a message that says in which line, and what is allowed.
"""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from greenstalk_server.config.options import DEFINITIONS, Definition, UsageError, quoted, shown, without_password

LONGEST: Final = 65536
"""Bytes of a file; so that no wrong one is read for long."""

LONGEST_STATEMENT: Final = 500
"""Lines of one statement, after which no line numbers are told: each line of it costs as much as all before."""

_BY_KEY: Final = {row.key: row for row in DEFINITIONS if row.key}
_TABLES: Final = frozenset(key.rpartition(".")[0] for key in _BY_KEY) - {""}


@dataclass(frozen=True, slots=True)
class Setting:
    """One key: its definition, the value that it gives, and where it stands, as FILE:LINE."""

    row: Definition
    value: object
    where: str


def read_config(path: str, named: str, refuse: Callable[[UsageError], None]) -> tuple[list[Setting], list[str]]:
    """Return what the file *path* sets, and warnings; raise UsageError naming the file and the line.

    *named* is the flag or variable that names the file. *refuse* is called for each key that is wrong: it raises the
    error, or keeps it, and the key is left out.
    """
    text, mode = _read(path, named)
    try:
        table = tomllib.loads(text + "\n")  # else what is wrong with a last line is "at end of document"
    except ValueError as error:
        raise UsageError(f"{quoted(path)}: {error}") from error
    except RecursionError:
        raise UsageError(f"{quoted(path)}: must not be nested so deeply") from None
    lines = _lines(text)
    settings: list[Setting] = []
    for key, value in _flat(table):
        try:
            settings.append(_setting(key, value, _where(path, key, lines)))
        except UsageError as error:
            refuse(error)
    secrets = [setting for setting in settings if setting.row.is_secret or _has_password(setting.value)]
    if secrets and mode & stat.S_IROTH:
        first = secrets[0]
        advice = f"take the right from them: chmod o-r {quoted(path)}"
        return settings, [f"{first.where}: everybody on this machine can read {first.row.key}; {advice}"]
    return settings, []


def _read(path: str, named: str) -> tuple[str, int]:
    """Return the text of *path*, and its mode; raise UsageError."""
    name = f"{named} {quoted(path)}"
    try:
        with Path(path).open("rb") as file:
            data, mode = file.read(LONGEST + 1), os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}; it must be a file of options, in TOML") from error
    if len(data) > LONGEST:
        raise UsageError(f"{name}: must be a file of at most {LONGEST} bytes")
    try:
        return data.decode(), mode
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{quoted(path)}:{line}: must be UTF-8, as all TOML is") from error


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Each key of *table* and of the tables that are known, with a dot between the two."""
    for name, value in table.items():
        key = prefix + name
        if key in _TABLES and isinstance(value, dict):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _setting(key: str, value: object, where: str) -> Setting:
    """Return what *key* sets, or raise UsageError."""
    if key in _TABLES:
        raise UsageError(f"{where}: {key}: must be a table: [{key}], and its keys below")
    row = _BY_KEY.get(key)
    if row is None:
        raise UsageError(f"{where}: unknown key {shown(key)}: {_hint(key)}")
    if row.type.from_toml is not None:
        try:
            return Setting(row, row.type.from_toml(value), where)
        except ValueError as allowed:
            raise UsageError(f"{where}: {key}: {allowed}", row.exit_code) from None
    try:
        return Setting(row, row.type.read(_text(row, value)), where)
    except ValueError:
        of = "" if row.is_secret else f" {shown(str(value))}"
        raise UsageError(f"{where}: {key}{of}: must be {row.type.allowed}", row.exit_code) from None


def _has_password(value: object) -> bool:
    """Whether *value* is the address of a database with a password in it."""
    return isinstance(value, str) and without_password(value) != value


def _text(row: Definition, value: object) -> str:
    """Return *value* as a flag would have it; raise ValueError if it is of a type that *row* does not take."""
    if type(value) not in row.type.in_toml:
        raise ValueError
    if isinstance(value, list):
        if not all(isinstance(each, str) and each for each in value):
            raise ValueError
        return ",".join(value)
    return str(value)


def _hint(key: str) -> str:
    """Say which known key is the nearest to *key*: of the same name in another table, or spelt alike."""
    known = [*_BY_KEY, *_TABLES]
    name = key.rpartition(".")[2]
    namesakes = [each for each in known if each.rpartition(".")[2] == name]
    nearest = namesakes or difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return f"did you mean {nearest[0]}?"


def _where(path: str, key: str, lines: dict[str, int]) -> str:
    line = lines.get(key)
    return f"{quoted(path)}:{line}" if line is not None else quoted(path)


def _lines(text: str) -> dict[str, int]:
    """The line of each key in *text*, which is sound. tomllib does not tell; so each statement is parsed by itself."""
    found: dict[str, int] = {}
    prefix, statement, begun = "", "", 1
    for number, line in enumerate(text.split("\n"), 1):
        statement += line + "\n"
        try:
            table = tomllib.loads(statement)
        except ValueError:  # it goes on in the next line
            if number - begun > LONGEST_STATEMENT:
                return found
            continue
        if statement.lstrip().startswith("["):
            header = ".".join(_path(table))
            found.setdefault(header, begun)
            prefix = f"{header}."
        else:
            for key, _ in _flat(table, prefix):
                found.setdefault(key, begun)
        statement, begun = "", number + 1
    return found


def _path(table: dict[str, Any]) -> Iterator[str]:
    """The names in a header `[a.b]`, which parses as a table in a table."""
    while table:
        name, inner = next(iter(table.items()))
        yield name
        table = inner if isinstance(inner, dict) else {}
