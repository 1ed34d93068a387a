"""Indented JSON as text with parts to fold: each long object and array inside another one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

FOLDED_FROM: Final = 20
"""Minimum lines of content of an object or array that can be folded."""

MAX_FOLDS: Final = 6
"""Maximum nesting of folds; deeper objects and arrays are text."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A long object or array: its first and last line, and the number and the nodes of the lines between them."""

    first: str
    last: str
    lines: int
    nodes: tuple[Node, ...]


Node: TypeAlias = str | Fold
"""Some lines of text, or a fold."""


def fold_json(indented: str) -> tuple[Node, ...]:
    """Return the lines of *indented*, a text of `indent_json`, with long objects and arrays as folds.

    The outermost object or array is never a fold.
    """
    lines = indented.split("\n")
    return _nodes(lines, _last_lines(lines), 0, len(lines), 0)


def _last_lines(lines: list[str]) -> dict[int, int]:
    """Return the index of the last line of each object and array, by the index of its first line."""
    opened, found = list[int](), dict[int, int]()
    for at, line in enumerate(lines):
        if line.endswith(("{", "[")):  # a text ends with a quote
            opened.append(at)
        elif line.lstrip().startswith(("}", "]")) and opened:
            found[opened.pop()] = at
    return found


def _nodes(lines: list[str], last_of: dict[int, int], begin: int, end: int, depth: int) -> tuple[Node, ...]:
    nodes, at, text_from = list[Node](), begin, begin
    while at < end:
        last = last_of.get(at, 0)
        if at > 0 and depth < MAX_FOLDS and last - at > FOLDED_FROM:
            nodes += ["\n".join(lines[text_from:at])] if text_from < at else []
            nodes.append(Fold(lines[at], lines[last], last - at - 1, _nodes(lines, last_of, at + 1, last, depth + 1)))
            at = text_from = last + 1
        else:
            at += 1
    return (*nodes, "\n".join(lines[text_from:end])) if text_from < end else tuple(nodes)
