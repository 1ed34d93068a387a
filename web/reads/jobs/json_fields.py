"""Fields of JSON bodies, addressed by paths such as `customer.id`. Pure.

A path has up to MAX_STEPS steps, separated by dots. A step is the name of a field of an object. In an array, a number
is the index of an element, from 0, and a name stands for that field of every element: `items.0.sku` is one value, and
`items.sku` is a value for each item. Names with a dot, a comma, a colon, a quote, an asterisk or a space cannot be
addressed.

Bodies are untrusted. MAX_PARSED bounds the time to parse one to about 3 ms, and 0.1 ms for 64 KiB of usual JSON.
MAX_VALUES bounds the elements of arrays that one path examines.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import msgspec

MAX_PARSED: Final = 64 * 1024
"""Maximum bytes of a body that is parsed. A larger body has no fields."""

MAX_VALUES: Final = 1000
"""Maximum elements of arrays examined for one path in one body."""

MAX_PATH: Final = 200
"""Maximum characters of a path."""

MAX_STEPS: Final = 16

MAX_COLUMNS: Final = 6
"""Maximum fields shown as columns of a list."""

MAX_SHOWN: Final = 300
"""Maximum characters of a field's text."""

MAX_SUGGESTED: Final = 50
"""Maximum paths suggested to a principal."""

SUGGESTED_STEPS: Final = 4
"""Maximum steps of a suggested path."""

MAX_NAMES_VISITED: Final = 400
"""Fields visited in one body to find paths to suggest; takes about 0.2 ms."""

Root: TypeAlias = Mapping[str, object] | list[object]
Path: TypeAlias = tuple[str, ...]

_STEP: Final = re.compile(r'[^\s.,:"*\x00-\x1f\x7f]+')
_INDEX: Final = re.compile(r"[0-9]{1,6}")
_BEGINNING: Final = re.compile(rb"[ \t\r\n]*+[{\[]")
_DECODER: Final = msgspec.json.Decoder(float_hook=Decimal)
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


class Values(NamedTuple):
    """Values of one body; *is_partial*: arrays had more than MAX_VALUES elements, and the others were not examined."""

    values: list[object]
    is_partial: bool = False


class PathError(ValueError):
    """An invalid path; the message quotes the path and says what is allowed."""


@lru_cache(maxsize=4)  # lists and queries read several fields of the same body, which may contain JSON as text
def parse_body(body: bytes) -> Root | None:
    """Return the JSON object or array in *body*; None if it is neither, or has more than MAX_PARSED bytes.

    Numbers keep their exact values, as integers and decimals. Callers must not change the result.
    """
    if len(body) > MAX_PARSED or _BEGINNING.match(body) is None:
        return None
    try:
        found = _DECODER.decode(body)
    except (ValueError, RecursionError, ArithmeticError):  # malformed, too deep, or an exponent out of range
        return None
    return found if isinstance(found, dict | list) else None


def parse_path(given: str) -> Path:
    """Return the steps of the path *given*; raise PathError if it is invalid."""
    steps = tuple(given.split("."))
    if len(given) > MAX_PATH or len(steps) > MAX_STEPS or not all(map(_STEP.fullmatch, steps)):
        raise PathError(
            f"“{given[:60]}” is not a path of a field: names separated by dots, such as customer.id, without spaces,"
            f" commas, colons, quotes and asterisks, at most {MAX_STEPS} names and {MAX_PATH} characters."
        )
    return steps


def parse_columns(given: str) -> tuple[Path, ...]:
    """Return the paths in *given*, separated by commas and spaces, without duplicates; raise PathError if invalid."""
    paths = dict.fromkeys(parse_path(one) for one in re.split(r"[\s,]+", given[: 4 * MAX_PATH * MAX_COLUMNS]) if one)
    if len(paths) > MAX_COLUMNS:
        raise PathError(f"At most {MAX_COLUMNS} fields can be columns, not {len(paths)}.")
    return tuple(paths)


def columns_text(paths: Iterable[Path]) -> str:
    """Return *paths* as text that `parse_columns` reads."""
    return ",".join(map(".".join, paths))


def is_too_large(body: bytes) -> bool:
    """Return whether *body* may be JSON, but has too many bytes to be parsed."""
    return len(body) > MAX_PARSED and _BEGINNING.match(body) is not None


def find_values(root: Root | None, path: Path) -> Values:
    """Return the values at *path*: more than one if a name stands for the elements of an array."""
    found: list[object] = [root]
    left, is_partial = MAX_VALUES, False
    for step in path:
        is_index = _INDEX.fullmatch(step) is not None
        children = list[object]()
        for value in found:
            if isinstance(value, dict):
                children += (value[step],) if step in value else ()
            elif isinstance(value, list) and is_index:
                children += value[int(step) : int(step) + 1]
            elif isinstance(value, list):
                is_partial |= len(value) > left
                children += [item[step] for item in value[:left] if isinstance(item, dict) and step in item]
                left -= min(left, len(value))
        found = children
    return Values(found, is_partial)


def scalars(found: Values) -> Values:
    """Return the strings, numbers, booleans and nulls among the values *found* and in the arrays among them."""
    elements = list[object]()
    for value in found.values:
        elements += value[: MAX_VALUES + 1] if isinstance(value, list) else (value,)
        if len(elements) > MAX_VALUES:
            break
    is_partial = found.is_partial or len(elements) > MAX_VALUES
    return Values([value for value in elements[:MAX_VALUES] if not isinstance(value, dict | list)], is_partial)


def field_text(root: Root | None, path: Path) -> str | None:
    """Return the values at *path* as text of at most MAX_SHOWN characters; None if there are none."""
    values = find_values(root, path).values
    if not values:
        return None
    parts, size = list[str](), 0
    for value in values:
        parts.append(value_text(value))
        size += len(parts[-1])
        if size > MAX_SHOWN:
            break
    return shortened(", ".join(parts), MAX_SHOWN)


def value_text(value: object) -> str:
    """Return *value* as text: a string as it is, other values as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    return _ENCODER.encode(value).decode()


def shortened(value: str, most: int) -> str:
    """Return *value* on one line of at most *most* characters, with an ellipsis if it was longer."""
    line = " ".join(value[: 8 * most].split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def field_paths(root: Root | None) -> list[str]:
    """Return the paths of the fields of *root* that can be addressed and are not objects, the outermost first."""
    found, left = dict[str, None](), MAX_NAMES_VISITED
    pending: deque[tuple[object, Path]] = deque([(root, ())])
    while pending and left > 0 and len(found) < MAX_SUGGESTED:
        value, path = pending.popleft()
        is_array = isinstance(value, list)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, dict) and len(path) < SUGGESTED_STEPS:
            for name, child in islice(value.items(), left):
                left -= 1
                is_index = is_array and _INDEX.fullmatch(name)  # after an array, a number is an index, not a field
                if len(name) < MAX_PATH // SUGGESTED_STEPS and _STEP.fullmatch(name) and not is_index:
                    pending.append((child, (*path, name)))
        elif path and not isinstance(value, dict):
            found[".".join(path)] = None
    return list(found)
