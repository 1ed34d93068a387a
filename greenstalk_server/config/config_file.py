"""The configuration file: TOML with the keys of DEFINITIONS.

Nothing in the file is ignored. With an unknown key, a value of the wrong type or a duplicate key the server does not
start; the message gives the line and the allowed values.
"""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from greenstalk_server.config.definitions import DEFINITIONS, Definition
from greenstalk_server.config.options import UsageError
from greenstalk_server.config.tables.peers import Peer
from greenstalk_server.config.tables.receivers import SLACK, Receiver
from greenstalk_server.config.tables.thresholds import ThresholdSet
from greenstalk_server.config.text import quote, quote_value, without_password
from greenstalk_server.config.types import TableErrors
from greenstalk_server.core.policies.policy import Policy

MAX_SIZE: Final = 2**20
"""Maximum bytes of a configuration file: a wrong path may lead to a large file."""

MAX_STATEMENT: Final = 500
MAX_STATEMENT_SIZE: Final = 65536
"""Maximum lines and characters of one statement. Finding line numbers takes quadratic time, so it stops at a larger
statement. Messages about its keys, and about all later keys, have no line number."""

_BY_KEY: Final = {row.key: row for row in DEFINITIONS if row.key}
_TABLES: Final = frozenset(key.rpartition(".")[0] for key in _BY_KEY) - {""}


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the file: its definition, its value, and its place as FILE:LINE."""

    row: Definition
    value: object
    where: str


def read_config(path: str, source: str, report: Callable[[UsageError], None]) -> tuple[list[Setting], list[str]]:
    """Return the settings in the file *path*, and warnings; raise UsageError if it cannot be read as TOML.

    *source* is the flag or variable that names the file. *report* is called with an error for each invalid key. It may
    raise the error; if it returns, the key is skipped.
    """
    text, mode = _read(path, source)
    try:
        table = tomllib.loads(text + "\n")  # without the newline, an error in the last line is "at end of document"
    except ValueError as error:
        raise UsageError(f"{quote(path)}: {error}") from error
    except RecursionError:
        raise UsageError(f"{quote(path)}: is nested too deeply") from None
    lines = _line_numbers(text)
    settings: list[Setting] = []
    for key, value in _flatten(table):
        try:
            settings.append(_setting(key, value, _place(path, key, lines)))
        except UsageError as error:
            report(error)
        except TableErrors as error:
            for inner, message in error.messages:
                report(UsageError(f"{_place(path, f'{key}.{inner}', lines)}: {message}"))
    secrets = [setting for setting in settings if setting.row.is_secret or _has_secret(setting.value)]
    if secrets and mode & stat.S_IROTH:
        first = secrets[0]
        message = f"every user of this machine can read {first.row.key}; run: chmod o-r {quote(path)}"
        return settings, [f"{first.where}: {message}"]
    return settings, []


@dataclass(frozen=True, slots=True)
class Reloadable:
    """The settings that SIGHUP reads again. The keys are fields of Options."""

    policies: tuple[Policy, ...] = ()
    attention: ThresholdSet = field(default_factory=ThresholdSet)
    alerts: tuple[Receiver, ...] = ()
    servers: tuple[Peer, ...] = ()


def read_reloadable(path: str, source: str) -> Reloadable:
    """Return the settings in the file *path*, which *source* names; raise UsageError for any error in the file."""

    def refuse(error: UsageError) -> None:
        raise error

    settings, _ = read_config(path, source, refuse)
    names = [each.name for each in fields(Reloadable)]
    found: dict[str, Any] = {each.row.field: each.value for each in settings if each.row.field in names}
    return Reloadable(**found)


def _read(path: str, source: str) -> tuple[str, int]:
    """Return the text and the mode of the file *path*; raise UsageError."""
    name = f"{source} {quote(path)}"
    try:
        with Path(path).open("rb") as file:
            data, mode = file.read(MAX_SIZE + 1), os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}; it must be a file of options, in TOML") from error
    if len(data) > MAX_SIZE:
        raise UsageError(f"{name}: must be a file of at most {MAX_SIZE} bytes")
    try:
        return data.decode(), mode
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{quote(path)}:{line}: must be UTF-8, as all TOML is") from error


def _flatten(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield each key of *table* and of the known tables in it, as TABLE.KEY, with its value."""
    for name, value in table.items():
        key = prefix + name
        if key in _TABLES and isinstance(value, dict):
            yield from _flatten(value, f"{key}.")
        else:
            yield key, value


def _setting(key: str, value: object, where: str) -> Setting:
    """Return the setting of *key*; raise UsageError or TableErrors."""
    if key in _TABLES:
        raise UsageError(f"{where}: {key}: must be a table: write [{key}], and its keys below it")
    row = _BY_KEY.get(key)
    if row is None:
        raise UsageError(f"{where}: unknown key {quote_value(key)}: {_hint(key)}")
    if row.type.from_toml is not None:
        try:
            return Setting(row, row.type.from_toml(value), where)
        except TableErrors:
            raise
        except ValueError as error:
            raise UsageError(f"{where}: {key}: {error}", row.exit_code) from None
    try:
        return Setting(row, row.type.read(_text(row, value)), where)
    except ValueError:
        shown = "" if row.is_secret else f" {quote_value(str(value))}"
        raise UsageError(f"{where}: {key}{shown}: must be {row.type.allowed_in_toml}", row.exit_code) from None


def _has_secret(value: object) -> bool:
    """Return whether *value* is a database URL with a password, or contains a chat address, whose path is a secret."""
    if isinstance(value, tuple):
        return any(isinstance(each, Receiver) and each.template == SLACK and each.target.url for each in value)
    return isinstance(value, str) and without_password(value) != value


def _text(row: Definition, value: object) -> str:
    """Return *value* as the text of a flag; raise ValueError if *row* does not allow its type."""
    if type(value) not in row.type.toml_types:
        raise ValueError
    if isinstance(value, list):
        if not all(isinstance(each, str) and each for each in value):
            raise ValueError
        return ",".join(value)
    return str(value)


def _hint(key: str) -> str:
    """Suggest a known key: one of the same name in another table, or the one with the nearest spelling."""
    known = [*_BY_KEY, *_TABLES]
    name = key.rpartition(".")[2]
    same_name = [each for each in known if each.rpartition(".")[2] == name]
    nearest = same_name or difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return f"did you mean {nearest[0]}?"


def _place(path: str, key: str, lines: dict[str, int]) -> str:
    """Return the place of *key*, of the table that it would be in, or of the first table below it."""
    line, above = lines.get(key), key
    while above and line is None:
        above = above.rpartition(".")[0]
        line = lines.get(above)
    if line is None:
        line = next((line for name, line in lines.items() if name.startswith(f"{key}.")), None)
    return f"{quote(path)}:{line}" if line is not None else quote(path)


def _line_numbers(text: str) -> dict[str, int]:
    """Return the line of each key in *text*, which is valid TOML.

    tomllib reports no lines, so each statement is parsed separately.
    """
    lines: dict[str, int] = {}
    prefix, statement, first = "", "", 1
    for number, line in enumerate(text.split("\n"), 1):
        statement += line + "\n"
        try:
            table = tomllib.loads(statement)
        except ValueError:  # the statement continues in the next line
            if number - first > MAX_STATEMENT or len(statement) > MAX_STATEMENT_SIZE:
                return lines
            continue
        if statement.lstrip().startswith("["):
            header = ".".join(_header_names(table))
            lines.setdefault(header, first)
            prefix = f"{header}."
        else:
            for key, _ in _flatten(table, prefix):
                lines.setdefault(key, first)
        statement, first = "", number + 1
    return lines


def _header_names(table: dict[str, Any]) -> Iterator[str]:
    """Yield the names in a header `[a.b]`, which tomllib parses as a table in a table."""
    while table:
        name, inner = next(iter(table.items()))
        yield name
        table = inner if isinstance(inner, dict) else {}
