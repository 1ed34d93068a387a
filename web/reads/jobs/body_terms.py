r"""Query terms about JSON bodies: their fields (`body.PATH:`), errors (`error:`, `error.PATH:`) and classes. Pure.

    body.kind:order         text, a number, true, false or null: equal to the field, or to an element of an array
    body.kind:"1..5 *"      quoted: equal to a field that is text
    body.kind:ord*r         with asterisks: each stands for any characters; a single asterisk matches any value
    body.kind:~order        contains this text, ignoring the case of letters
    body.total:>99.5        a comparison with a number: >, >=, <, <= or 1..5; only numbers match

A body is searched in part if it is too large to parse, or if the path passes too many elements of arrays (see
json_fields). Then a term neither matches nor fails, unless a value that was examined decides it.

Numbers are compared exactly, whatever their size. `class:` and `error:` accept the same forms, except comparisons.
`class:` tests the class of a framework's message (see frameworks). `error:` tests the normalised error of a job (see
job_errors), and normalises the given text too.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Final, TypeAlias

from greenstalk_server.web.reads.jobs.frameworks import class_of
from greenstalk_server.web.reads.jobs.job_errors import MAX_ERROR, error_of, normalized, normalized_pattern
from greenstalk_server.web.reads.jobs.json_fields import (
    Path,
    PathError,
    Values,
    find_values,
    is_too_large,
    parse_body,
    parse_path,
    scalars,
    value_text,
)

BODY: Final = "body"
ERROR: Final = "error"
CLASS: Final = "class"

_NUMBER: Final = r"[+-]?[0-9]{1,500}+(?:\.[0-9]{1,500}+)?(?:[eE][+-]?[0-9]{1,4}+)?"
_COMPARED: Final = re.compile(rf"(>=|<=|>|<)({_NUMBER})")
_BETWEEN: Final = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")
_PLAIN: Final = re.compile(_NUMBER)
_SIGNS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}

BodyTest: TypeAlias = Callable[[bytes], bool | None]
"""Returns whether a body matches; None if only a part of the body was examined, and that part does not decide it."""

_ValueTest: TypeAlias = Callable[[object], bool]


@dataclass(frozen=True, slots=True)
class FieldMatch:
    """A comparison with a field or an error.

    is_quoted       the field equals *text*; asterisks and comparison signs are literal.
    is_loose        the field contains *text*, ignoring case.
    """

    text: str
    is_quoted: bool = False
    is_loose: bool = False

    @property
    def asterisks(self) -> int:
        """The number of asterisks that stand for any characters."""
        return 0 if self.is_quoted or self.is_loose else self.text.count("*")


def is_about_json(name: str) -> bool:
    """Return whether this module handles terms with this *name*."""
    return name in (ERROR, CLASS) or name.startswith((f"{BODY}.", f"{ERROR}."))


def read_match(word: str, name: str, given: str, is_quoted: bool, is_loose: bool) -> FieldMatch:
    """Return the comparison *given* in *word*, a term *name*; raise ValueError if it is invalid."""
    head, _, path = name.partition(".")
    if name != head:
        try:
            parse_path(path)
        except PathError as error:
            raise ValueError(str(error)) from error
    if head == ERROR:
        return _read_error(word, given, is_quoted, is_loose)
    if head != CLASS and not is_quoted and not is_loose:
        _refuse_bad_number(word, given)
    return FieldMatch(given, is_quoted and not is_loose, is_loose)


def _read_error(word: str, given: str, is_quoted: bool, is_loose: bool) -> FieldMatch:
    is_pattern = "*" in given and not is_quoted and not is_loose
    if is_pattern and len(given) > MAX_ERROR:
        raise ValueError(f"“{word}”: an error pattern may have at most {MAX_ERROR} characters.")
    found = normalized_pattern(given) if is_pattern else normalized(given)
    if not found:
        raise ValueError(f"“{word}” lacks a value.")
    return FieldMatch(found, is_quoted=not is_pattern and not is_loose, is_loose=is_loose)


def _refuse_bad_number(word: str, given: str) -> None:
    if given[0] in "<>" and _COMPARED.fullmatch(given) is None:
        raise ValueError(f"“{word}” must be a comparison with a number, such as >5, >=5, <5.5, <=5 or 1..5.")
    between = _BETWEEN.fullmatch(given)
    if between is not None and Decimal(between[1]) > Decimal(between[2]):
        raise ValueError(f"“{word}”: the smaller number must come first.")


def body_test(name: str, match: FieldMatch) -> BodyTest:
    """Return a function that tests a body against *match*, the comparison of a term *name*."""
    head, _, given = name.partition(".")
    path = parse_path(given) if given else ()
    if head == ERROR:
        return _error_test(path, match)
    if head == CLASS:
        return _class_test(match)
    if match == FieldMatch("*"):
        return _if_complete(lambda body: _field(body, path), bool)
    read = _texts if _is_about_text(match) else _scalars
    is_match = _value_test(match)
    return _if_complete(lambda body: read(body, path), lambda values: any(map(is_match, values)))


def _if_complete(read: Callable[[bytes], Values], has_match: Callable[[list[object]], bool]) -> BodyTest:
    """Return a test of the values that *read* returns; its result is None if it depends on unread values."""

    def test(body: bytes) -> bool | None:
        values, is_partial = read(body)
        return True if has_match(values) else None if is_partial else False

    return test


def _field(body: bytes, path: Path) -> Values:
    """Return the values at *path* in *body*."""
    return Values([], is_partial=True) if is_too_large(body) else find_values(parse_body(body), path)


@lru_cache(maxsize=8)  # the terms of a query read the same body; each may name another path
def _scalars(body: bytes, path: Path) -> Values:
    """Return the scalars at *path* in *body*, with each number as a Decimal."""
    values, is_partial = scalars(_field(body, path))
    return Values([Decimal(value) if type(value) is int else value for value in values], is_partial)


@lru_cache(maxsize=8)
def _texts(body: bytes, path: Path) -> Values:
    """Return the scalars at *path* in *body* as texts."""
    values, is_partial = _scalars(body, path)
    return Values(list(map(value_text, values)), is_partial)


def _error_test(path: Path, match: FieldMatch) -> BodyTest:
    if match.is_loose:
        lowered = match.text.lower()
        return lambda body: lowered in error_of(body, path).lower()
    if match.is_quoted:
        return lambda body: error_of(body, path) == match.text
    is_like = glob(match.text)
    return lambda body: bool(error := error_of(body, path)) and is_like(error)


def _class_test(match: FieldMatch) -> BodyTest:
    lowered, is_like = match.text.lower(), glob(match.text)

    def test(body: bytes) -> bool | None:
        if is_too_large(body):
            return None
        name = class_of(body)
        if match.is_loose:
            return lowered in name.lower()
        return bool(name) and (name == match.text if match.is_quoted else is_like(name))

    return test


def _is_about_text(match: FieldMatch) -> bool:
    """Return whether *match* compares the text of a value, whatever its type."""
    given = match.text
    is_number = any(form.fullmatch(given) for form in (_COMPARED, _BETWEEN, _PLAIN))
    return not (match.is_loose or match.is_quoted or is_number)


def _value_test(match: FieldMatch) -> _ValueTest:
    """Return a function that tests a value: its text if `_is_about_text`, else a scalar."""
    given = match.text
    if match.is_loose:
        lowered = given.lower()
        return lambda value: isinstance(value, str) and lowered in value.lower()
    if match.is_quoted:
        return lambda value: value == given
    if compared := _COMPARED.fullmatch(given):
        compare, number = _SIGNS[compared[1]], Decimal(compared[2])
        return lambda value: isinstance(value, Decimal) and compare(value, number)
    if between := _BETWEEN.fullmatch(given):
        low, high = Decimal(between[1]), Decimal(between[2])
        return lambda value: isinstance(value, Decimal) and low <= value <= high
    if _PLAIN.fullmatch(given):
        wanted = Decimal(given)
        return lambda value: value == given or (isinstance(value, Decimal) and value == wanted)
    if "*" in given:
        is_like = glob(given)
        return lambda value: isinstance(value, str) and is_like(value)
    return lambda value: value == given


def glob(pattern: str) -> Callable[[str], bool]:
    """Return a function that matches whole texts with *pattern*, in which `*` stands for any characters.

    Its time is linear in the length of the text and in the number of asterisks.
    """
    if "*" not in pattern:
        return lambda given: given == pattern
    first, *middle, last = pattern.split("*")

    def is_like(given: str) -> bool:
        if len(given) < len(first) + len(last) or not (given.startswith(first) and given.endswith(last)):
            return False
        at, end = len(first), len(given) - len(last)
        for part in middle:
            at = given.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True

    return is_like
