"""How values are written for people. HTML and JSON show the same text, so it is made here once."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup, escape

NONE: Final = "–"

NBSP: Final = "\N{NO-BREAK SPACE}"
"""Between a number and its unit, so that a narrow cell does not part them."""

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


_WORDS: Final = re.compile(r"[^./_-]*[./_-]+|[^./_-]+")
"""A word of a tube's name, with the separators that follow it."""


_SPELLED: Final = {ord(mark): f"⟨U+{ord(mark):04X}⟩" for mark in "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
                  "\u2066\u2067\u2068\u2069"}  # fmt: skip
"""Unicode's bidirectional control characters, which change the order in which the text around them is shown."""


def number(value: int) -> str:
    """Return *value* with its thousands set apart: `65,535`."""
    return f"{value:,}"


def duration(seconds: int) -> str:
    """Return *seconds* in its two largest units: `3 d 4 h`, `1 min 5 s`, `0 s`."""
    for at, (size, unit) in enumerate(_UNITS):
        if seconds >= size and unit != "s":
            smaller, smaller_unit = _UNITS[at + 1]
            rest = seconds % size // smaller
            return f"{number(seconds // size)}{NBSP}{unit}" + (f" {rest}{NBSP}{smaller_unit}" if rest else "")
    return f"{seconds}{NBSP}s"


def cpu_time(seconds: float) -> str:
    """Return *seconds* of CPU time: `12.34 s`."""
    return f"{seconds:,.2f} s"


def size(count: int) -> str:
    """Return *count* bytes, exactly: `65,535 bytes`."""
    return f"{number(count)} bytes"


def rough_size(count: int) -> str:
    """Return *count* bytes to three digits or so: `12.3 MB`."""
    value, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f}{NBSP}{unit}" if unit == "bytes" or value >= 100 else f"{value:.1f}{NBSP}{unit}"


def rate(value: float) -> str:
    """Return how often something happens in a second: `0`, `0.1`, `12`, `1,234`."""
    if 0 < value < 10:
        return f"{max(value, 0.1):.1f}"
    return f"{value:,.0f}"


def instant(nanoseconds: int) -> str:
    """Return a time since the Unix epoch to the second: `2026-01-31 23:59:59 UTC`."""
    return datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def spelled(value: str) -> str:
    """Return *value* with bidirectional control characters spelled out: `⟨U+202E⟩`.

    A text with such characters can look like another one: U+202E before `evil` shows as `live`.
    """
    return value if value.isascii() else value.translate(_SPELLED)


def finalize(value: object) -> object:
    """Return *value* as a template shows it: a text spelled out, anything else as it is."""
    return spelled(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def is_reordered(value: str) -> bool:
    """Return whether *value* has bidirectional control characters."""
    return spelled(value) != value


def verbatim(value: str) -> Markup:
    """Return *value* as HTML as it is, for the value of a form's field: it comes back, and must not change."""
    return escape(value)


def breakable(name: str) -> Markup:
    """Return *name* as HTML that breaks after a separator rather than inside a word; static/live.js does the same."""
    return Markup("<wbr>").join(_WORDS.findall(name))


def boolean(value: bool) -> str:
    """Return `yes` or `no`."""
    return "yes" if value else "no"


def counted(count: int, noun: str) -> str:
    """Return *count* and *noun*, which takes an s: `1 tube`, `2,000 tubes`."""
    return f"{number(count)} {noun}" if count == 1 else f"{number(count)} {noun}s"
