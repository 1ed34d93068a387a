"""Names of tubes, patterns of names, in which `*` matches any characters, and an index of many patterns.

Access rules and policies use the same patterns. Pure.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Iterable
from typing import Final

NAME: Final = re.compile(rb"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199}")
"""Valid names of tubes (protocol.txt, "Names")."""

_TUBE_PATTERN: Final = re.compile(r"[-A-Za-z0-9+/;.$_()*]{1,200}")


def is_tube_name(name: bytes) -> bool:
    """Whether *name* is a valid name of a tube."""
    return NAME.fullmatch(name) is not None


def is_tube_pattern(text: str) -> bool:
    """Whether *text* is a valid pattern: 1 to 200 characters of tube names and stars."""
    return _TUBE_PATTERN.fullmatch(text) is not None


def to_regex(pattern: str) -> str:
    """Return a regular expression that never backtracks to an earlier star, as that could take exponential time."""
    first, *rest = map(re.escape, pattern.split("*"))
    if not rest:
        return first
    return first + "".join([f"(?>.*?{part})" for part in rest[:-1]]) + f".*{rest[-1]}"


def any_of(patterns: Iterable[str]) -> re.Pattern[bytes] | None:
    """Return a regular expression that matches every name that any of *patterns* matches; None without patterns."""
    regex = "|".join([to_regex(pattern) for pattern in patterns])
    return re.compile(regex.encode()) if regex else None


class _Indexed:
    """A pattern of a PatternIndex, and its number."""

    __slots__ = ("_longest", "_pattern", "_regex", "number")

    def __init__(self, number: int, pattern: str) -> None:
        """*pattern* is empty if the text at one end of a name decides the match."""
        self.number: int = number
        self._pattern: str = pattern
        self._longest: bytes = max(pattern.split("*"), key=len).encode()
        self._regex: re.Pattern[bytes] | None = None

    def matches(self, tube: bytes) -> bool:
        """Whether the pattern matches *tube*, which is known to have the pattern's text at one end."""
        if not self._pattern:
            return True
        if self._longest not in tube:  # five times as fast as the regular expression
            return False
        if self._regex is None:  # most patterns of a large index are never compiled
            self._regex = re.compile(to_regex(self._pattern).encode())
        return self._regex.fullmatch(tube) is not None


class PatternIndex:
    """An index of numbered patterns. It finds the patterns that match a tube without testing each of them.

    A pattern with a star is indexed by the text before its first star or, if that is empty, after its last star.
    """

    def __init__(self) -> None:
        self._exact: dict[bytes, list[int]] = {}
        self._by_prefix: dict[bytes, list[_Indexed]] = {}
        self._by_suffix: dict[bytes, list[_Indexed]] = {}
        self._prefix_lengths: list[int] = []
        self._suffix_lengths: list[int] = []

    def add(self, pattern: str, number: int) -> None:
        """Add *pattern*, for which `is_tube_pattern` is true."""
        prefix, star, rest = pattern.partition("*")
        if not star:
            self._exact.setdefault(pattern.encode(), []).append(number)
        elif prefix:
            _add(self._by_prefix, self._prefix_lengths, prefix, _Indexed(number, pattern if rest else ""))
        else:
            suffix = rest.rpartition("*")[2]
            found = _Indexed(number, pattern if "*" in rest else "")
            _add(self._by_suffix, self._suffix_lengths, suffix, found)

    def find(self, tube: bytes) -> list[int]:
        """Return the numbers of the patterns that match *tube*, in no particular order."""
        numbers = list(self._exact.get(tube, ()))
        for length in self._prefix_lengths:
            if length > len(tube):
                break
            candidates = self._by_prefix.get(tube[:length], ())
            numbers += [candidate.number for candidate in candidates if candidate.matches(tube)]
        for length in self._suffix_lengths:
            if length > len(tube):
                break
            candidates = self._by_suffix.get(tube[len(tube) - length :], ())
            numbers += [candidate.number for candidate in candidates if candidate.matches(tube)]
        return numbers


def _add(table: dict[bytes, list[_Indexed]], lengths: list[int], text: str, found: _Indexed) -> None:
    """Add *found* to *table* under *text*, and the length of *text* to *lengths*, which stays sorted."""
    table.setdefault(text.encode(), []).append(found)
    if len(text) not in lengths:
        insort(lengths, len(text))
