"""The error of a failed job: its text in a JSON body, and the same text normalised, by which jobs are grouped. Pure.

A body is parsed as json_fields describes. The error is the first of these fields of the outermost object that is not
empty: `error`, `exception`, `error_class`, `class`. If it is a single word, the field `error_message` or `message` is
appended: `TimeoutError: no answer`. If all four are empty, `error_message` or `message` is the error. A principal may
name another field.

The message of a job framework (see frameworks) has its class and arguments in these fields, but no error: the error is
its last exception, if it has one, or else the first of `error`, `exception` and `error_class`.

If a field is an object, its class (`class`, `type` or `name`) and its message (`message`, `msg` or `detail`) are
joined. If it is an array, its first element is used. Of several lines, the first one is used, or the last one of a
Python traceback.

Normalisation replaces the parts that differ from job to job: numbers, times, UUIDs, hexadecimal and other long ids by
`#`, and the contents of quotes by an ellipsis. `job 17 of 'mail' timed out` becomes `job # of '…' timed out`. Status
codes are kept: a number from 100 to 599 after a word such as HTTP, status, code or error, before the reason phrase of
an HTTP status, or alone. So a retry of `HTTP 503 from upstream` does not repeat the jobs with `HTTP 404 from upstream`.

All regular expressions take linear time: their repetitions are possessive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from greenstalk_server.web.reads.jobs.frameworks import decode_root
from greenstalk_server.web.reads.jobs.json_fields import Path, Root, find_values, parse_body, shortened, value_text

MAX_RAW: Final = 1000
"""Maximum characters of an error's text."""

MAX_ERROR: Final = 200
"""Maximum characters of a normalised error."""

ERROR_FIELDS: Final = ("error", "exception", "error_class", "class")
MESSAGE_ERROR_FIELDS: Final = ERROR_FIELDS[:-1]
"""ERROR_FIELDS for the message of a framework, without `class`, which is the class of the job there."""

EXPLAINED_BY: Final = ("error_message", "message")
"""Fields of the outermost object that hold the error, or explain it if it is a single word."""

CLASS_FIELDS: Final = ("class", "type", "name")
MESSAGE_FIELDS: Final = ("message", "msg", "detail")
"""Fields of an error that is an object."""

TRACEBACK: Final = "Traceback (most recent call last)"

_PHRASES: Final = "|".join(
    re.escape(phrase).replace(r"\ ", "[ ]")
    for phrase in ("Client Error", "Server Error", *(status.phrase for status in HTTPStatus if status >= 400))
)
"""Phrases that follow a status code, with spaces escaped for a verbose regular expression."""

_VARIABLE: Final = re.compile(
    rf"""
      (?=[0-9A-Za-z])                               # the lookaheads only save time
      (?: (?P<status>                               # a status code:
          (?=[CEHScehs]) (?: HTTP(?:/[0-9.]++)? | http | [Ss]tatus | STATUS | (?<![a-z])code | Code | CODE
            | [Ee]rror | ERROR | [Ee]xception )
          [\ :=_(\[-]{{0,3}}+ (?: (?:is|was|of)[ ] )?+ [1-5][0-9]{{2}} (?! [0-9A-Za-z] | [-.,:/][0-9] )
        | (?=[1-5]) (?<![0-9A-Za-z]) (?<![0-9][-.,:/]) [1-5][0-9]{{2}} (?= [ :(-]{{1,2}}+ (?i:{_PHRASES}) (?![A-Za-z]) )
        | \A [1-5][0-9]{{2}} \Z
      )
    | (?<![0-9A-Za-z])                              # the whole of a word:
      (?: [0-9A-Fa-f]{{8}}(?:-[0-9A-Fa-f]{{4}}){{3}}-[0-9A-Fa-f]{{12}}          # a UUID,
        | 0[xX][0-9A-Fa-f]++                                            # a hexadecimal number,
        | (?=[A-Fa-f]*+[0-9])[0-9A-Fa-f]{{8,}}+                         # hexadecimal digits with a decimal one,
        | (?=[A-Za-z]*+[0-9][A-Za-z]*+[0-9])[0-9A-Za-z]{{16,}}+         # a long id with two digits,
      ) (?![0-9A-Za-z])
    | [0-9]++(?:[-.,:/T][0-9]++)*+                  # or digits anywhere, with separators: a number, a time, an address
      )
    """,
    re.VERBOSE,
)
_QUOTED: Final = re.compile(
    r"""
      " [^"]*+ " | ` [^`]*+ ` | “ [^”]*+ ” | « [^»]*+ »
    | (?<!\w) ' [^'"`“«]*+ ' (?![\w…])              # an apostrophe inside a word is not a quote
    """,
    re.VERBOSE,
)

_STATUS: Final = re.compile(rf"[1-5][0-9]{{2}} [ ] (?i:{_PHRASES})", re.VERBOSE)
"""A quoted status, which is kept, as in: resulted in a `503 Service Unavailable` response."""


def error_text(body: bytes, path: Path = ()) -> str:
    """Return the error in *body* on one line, at most MAX_RAW characters; empty if there is none.

    If *path* is not empty, it names the field with the error.
    """
    root = parse_body(body)
    if root is None:
        return ""
    return shortened(_headline(_found(root, path)), MAX_RAW)


def error_of(body: bytes, path: Path = ()) -> str:
    """Return the normalised error in *body*; empty if there is none."""
    return normalized(error_text(body, path))


@lru_cache(maxsize=512)
def normalized(error: str) -> str:
    """Return *error* without the parts that differ from job to job, on one line of at most MAX_ERROR characters.

    Normalising the result again does not change it, so a query may quote the result, or any error that has this result.
    """
    line = _replaced(shortened(error, MAX_RAW))
    return line if len(line) <= MAX_ERROR else _replaced(shortened(line, MAX_ERROR))  # may split a variable part


def normalized_pattern(pattern: str) -> str:
    """Return *pattern* with the texts between its asterisks normalised, so `*404*` keeps its status code."""
    return "*".join(map(_replaced, " ".join(pattern.split()).split("*")))


def _replaced(line: str) -> str:
    """Return *line* with its variable parts replaced."""
    return _QUOTED.sub(_emptied, _VARIABLE.sub(lambda found: found["status"] or "#", line))


def _emptied(quoted: re.Match[str]) -> str:
    found = quoted[0]
    return found if len(found) <= 2 or _STATUS.fullmatch(found, 1, len(found) - 1) else f"{found[0]}…{found[-1]}"


def _found(root: Root, path: Path) -> str:
    if path:
        return _described(next(iter(find_values(root, path).values), None))
    if not isinstance(root, dict):
        return ""
    message = decode_root(root)
    if message is not None and message.exception:
        return message.exception
    names = ERROR_FIELDS if message is None else MESSAGE_ERROR_FIELDS
    error = _first(_described(root.get(name)) for name in names)
    if len(error.split(maxsplit=1)) > 1:
        return error
    return _joined(error, _first(_word(root.get(name)) for name in EXPLAINED_BY))


def _described(value: object) -> str:
    """Return the error *value* as text; empty if it is null, a boolean, or an object without a message."""
    if isinstance(value, list):
        value = value[0] if value else None
    if isinstance(value, dict):
        kind = _first(_word(value.get(name)) for name in CLASS_FIELDS)
        message = _first(_word(value.get(name)) for name in MESSAGE_FIELDS)
        return _joined(kind, message)
    return _word(value)


def _joined(kind: str, message: str) -> str:
    return f"{kind}: {message}" if kind and message else kind or message


def _word(value: object) -> str:
    return "" if value is None or isinstance(value, bool | list | dict) else value_text(value).strip()


def _first(texts: Iterable[str]) -> str:
    return next(filter(None, texts), "")


def _headline(error: str) -> str:
    """Return the line of *error* that names the error."""
    first, _, rest = error.partition("\n")
    return rest.rpartition("\n")[2] if rest and first.startswith(TRACEBACK) else first
