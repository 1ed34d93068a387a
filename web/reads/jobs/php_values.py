r"""Values in PHP's serialization format, parsed without creating objects of their classes. Pure.

    value  = "N;" / "b:" bool ";" / "i:" int ";" / "d:" float ";" / "r:" int ";" / "R:" int ";"
           / "s:" length ':"' bytes '";' / "E:" length ':"' class ":" case '";'
           / "a:" count ":{" *( key value ) "}"
           / "O:" length ':"' class '":' count ":{" *( key value ) "}"
           / "C:" length ':"' class '":' length ":{" bytes "}"
    key    = a value with "i" or "s"

The key of a property begins with NUL "*" NUL if the property is protected, and with NUL class NUL if it is private.

Source: php_var_unserialize_internal in ext/standard/var_unserializer.re of php/php-src. Its `S` and `o`, which
serialize() does not write, are malformed here. A reference (`r`, `R`) is not followed, since a few of them could
describe a value of any size.
"""

from __future__ import annotations

import re
from typing import Final

MAX_VALUES: Final = 2000
"""Maximum values that are parsed, which takes about 2 ms; the rest is left out."""

MAX_DEPTH: Final = 32
"""Maximum nesting of arrays and objects. The text from the first value that is nested deeper is left out."""

REFERENCE: Final = "(reference)"
"""Replaces a reference to a value elsewhere in the same text."""

_SCALAR: Final = re.compile(rb"N;|([bidrR]):([-+.0-9A-Za-z]{1,40});")
_ARRAY: Final = re.compile(rb"a:([0-9]{1,9}):\{")
_STRING: Final = re.compile(rb'([sEOC]):([0-9]{1,9}):"')
_COUNT: Final = re.compile(rb":([0-9]{1,9}):\{")


class PhpFormatError(ValueError):
    """Text that is not in PHP's serialization format."""


class PhpArray(dict[int | str, object]):
    """An array, which may be a list: then its keys count from 0."""

    @property
    def is_list(self) -> bool:
        return all(type(key) is int and key == at for at, key in enumerate(self))


class PhpObject:
    """An object: the name of its class, and its properties by name, or its own text if the class serializes itself."""

    __slots__ = ("class_name", "properties", "text")

    def __init__(self, class_name: str, text: str = "") -> None:
        self.class_name: str = class_name
        self.properties: dict[int | str, object] = {}
        self.text: str = text


def parse_php(source: bytes) -> object:
    """Return the value in *source*: None, a bool, int, float or str, a PhpArray or a PhpObject.

    Raise PhpFormatError if it is malformed. An array or object beyond MAX_VALUES or MAX_DEPTH is incomplete.
    """
    return _Reader(source).value(0)


class _Reader:
    """Reads values from *source*. `_left`: values that may still be read; negative once a limit is exceeded."""

    def __init__(self, source: bytes) -> None:
        self._source: bytes = source
        self._at: int = 0
        self._left: int = MAX_VALUES

    def value(self, depth: int) -> object:
        """Read a value that is inside of *depth* arrays and objects; return None if a limit is exceeded."""
        self._left = self._left - 1 if depth <= MAX_DEPTH else -1
        if self._left < 0:
            return None
        if scalar := _SCALAR.match(self._source, self._at):
            self._at = scalar.end()
            return _scalar(scalar)
        if array := _ARRAY.match(self._source, self._at):
            self._at = array.end()
            items = PhpArray()
            self._read_items(items, int(array[1]), depth)
            return items
        return self._string_or_object(depth)

    def _string_or_object(self, depth: int) -> object:
        head = _STRING.match(self._source, self._at)
        if head is None:
            raise self._malformed()
        self._at = head.end()
        text = self._take(int(head[2]), b'"')
        if head[1] in b"sE":
            self._skip(b";")
            return text if head[1] == b"s" else text.replace(":", "::", 1)
        count = _COUNT.match(self._source, self._at)
        if count is None:
            raise self._malformed()
        self._at = count.end()
        if head[1] == b"C":
            return PhpObject(text, self._take(int(count[1]), b"}"))
        found = PhpObject(text)
        self._read_items(found.properties, int(count[1]), depth, is_object=True)
        return found

    def _read_items(self, items: dict[int | str, object], count: int, depth: int, *, is_object: bool = False) -> None:
        """Read *count* keys and values into *items*, or fewer if a limit is exceeded."""
        for _ in range(count):
            key = self.value(depth)
            if self._left < 0:
                return
            if isinstance(key, bool) or not isinstance(key, int | str):
                raise self._malformed()
            value = self.value(depth + 1)
            if value is not None or self._left >= 0:
                items[key.rpartition("\0")[2] if is_object and isinstance(key, str) else key] = value
            if self._left < 0:
                return
        self._skip(b"}")

    def _take(self, length: int, end: bytes) -> str:
        """Return *length* bytes as text, and skip the *end* after them."""
        begin, self._at = self._at, self._at + length
        self._skip(end)
        return self._source[begin : begin + length].decode(errors="replace")

    def _skip(self, expected: bytes) -> None:
        if not self._source.startswith(expected, self._at):
            raise self._malformed()
        self._at += len(expected)

    def _malformed(self) -> PhpFormatError:
        return PhpFormatError(f"no PHP value at byte {self._at}")


def _scalar(found: re.Match[bytes]) -> object:
    kind, given = found[1], found[2]
    if kind is None:
        return None
    if kind in b"rR":
        return REFERENCE
    try:
        if kind == b"d":
            return float(given) if given[-1:].isdigit() else given.decode()  # JSON has no INF, -INF and NAN
        return bool(int(given)) if kind == b"b" else int(given)
    except ValueError as error:
        raise PhpFormatError(str(error)) from error
