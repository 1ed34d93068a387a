"""Formats of values for people. Pages and their live updates use the same functions, so that texts agree.

Templates format the values of a model with FILTERS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from markupsafe import Markup, escape

NONE: Final = "–"

NBSP: Final = "\N{NO-BREAK SPACE}"
"""Separates a number from its unit, so that a narrow cell does not break between them."""

LONGEST_UNCUT: Final = 20
"""Maximum length of names that are never cut: they fit in every layout."""

NAME_END: Final = 10
"""Length of the end of a longer name, which is never cut."""

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


_WORDS: Final = re.compile(r"[^./_-]*[./_-]+|[^./_-]+")
"""A word of a tube name with the separators after it."""


_SPELLED: Final = {ord(mark): f"⟨U+{ord(mark):04X}⟩" for mark in "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
                  "\u2066\u2067\u2068\u2069"}  # fmt: skip
"""Unicode's bidirectional control characters, which change the order in which the text around them is shown."""

_SPECIAL: Final = re.compile(f"[&<>'\"{''.join(map(chr, _SPELLED))}]")
"""A character that `html` replaces."""


def number(value: int) -> str:
    """Return *value* with thousands separators: `65,535`."""
    return f"{value:,}"


def duration(seconds: int | timedelta) -> str:
    """Return *seconds* in its two largest units: `3 d 4 h`, `1 min 5 s`, `0 s`. A negative timedelta is 0 s."""
    if isinstance(seconds, timedelta):
        seconds = max(0, seconds // timedelta(seconds=1))
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
    """Return *count* bytes in full: `65,535 bytes`."""
    return f"{number(count)} bytes"


def rough_size(count: int) -> str:
    """Return *count* bytes with about three digits: `12.3 MB`."""
    value, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f}{NBSP}{unit}" if unit == "bytes" or value >= 100 else f"{value:.1f}{NBSP}{unit}"


def rough_number(value: int) -> str:
    """Return *value* in at most five characters below 10 billion: `9,999`, `12k`, `3.4M`."""
    if value < 10_000:
        return number(value)
    size, unit = (1e3, "k") if value < 1_000_000 else (1e6, "M")
    return f"{value / size:.1f}{unit}" if value < 10 * size else f"{value // size:.0f}{unit}"


def rate(value: float) -> str:
    """Return a rate per second: `0`, `0.1`, `12`, `1,234`."""
    if 0 < value < 10:
        return f"{max(value, 0.1):.1f}"
    return f"{value:,.0f}"


def instant(at: int | datetime) -> str:
    """Return a time to the second: `2026-01-31 23:59:59 UTC`. An integer is nanoseconds since the Unix epoch."""
    moment = at if isinstance(at, datetime) else datetime.fromtimestamp(at // 1_000_000_000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def time_tag(at: int | datetime, form: str = "full") -> Markup:
    """Return a time of `instant` as HTML, which static/times.js shows in the principal's zone.

    *form* is `full`, as `instant` returns it, `clock` for the time of day only, or `day` for the date only.
    """
    return tag_instant(instant(at), form)


def tag_instant(at: str, form: str = "full") -> Markup:
    """Return the time *at*, a text of `instant`, in the form of `time_tag`."""
    day, clock, _ = at.split()
    shown = {"full": at, "clock": f"{clock} UTC", "day": day}[form]
    return Markup('<time datetime="{}T{}Z" data-format="{}">{}</time>').format(day, clock, form, shown)


def spelled(value: str) -> str:
    """Return *value* with bidirectional control characters spelled out: `⟨U+202E⟩`.

    Such characters make one text look like another: U+202E before `evil` shows as `live`.
    """
    return value if value.isascii() else value.translate(_SPELLED)


def html(value: object) -> str:
    """Return *value* as a template shows it: HTML, with control characters spelled out. Markup stays unchanged."""
    if isinstance(value, Markup):
        return value
    if not isinstance(value, str):
        return escape(value)
    return escape(spelled(value)) if _SPECIAL.search(value) else value


def is_reordered(value: str) -> bool:
    """Return whether *value* has bidirectional control characters."""
    return spelled(value) != value


def verbatim(value: str) -> Markup:
    """Return *value* as HTML without spelling out characters: for form fields, which must return it unchanged."""
    return escape(value)


def breakable(name: str) -> Markup:
    """Return *name* as HTML that breaks after separators, not inside words."""
    return Markup("<wbr>").join(_WORDS.findall(name))


def middle(name: str) -> Markup:
    """Return *name* as HTML that is cut in its middle if it does not fit; static/live.js does the same.

    The style sheet draws the end of a long name, which is never cut, from its `data-end`. The text of the element is
    the whole name in one block, so that its accessible name has no space at the cut. The title has the name too.
    """
    name = spelled(name)
    if len(name) <= LONGEST_UNCUT:
        return Markup('<span class="cut-name" title="{}">{}</span>').format(name, name)
    start, end = name[:-NAME_END], name[-NAME_END:]
    return Markup('<span class="cut-name long" title="{}" data-end="{}"><span>{}<span>{}</span></span></span>').format(
        name, end, start, end
    )


def boolean(value: bool) -> str:
    """Return `yes` or `no`."""
    return "yes" if value else "no"


def counted(count: int, noun: str) -> str:
    """Return *count* and *noun*, whose plural ends in s: `1 tube`, `2,000 tubes`."""
    return f"{number(count)} {noun}" if count == 1 else f"{number(count)} {noun}s"


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "breakable": breakable,
    "counted": counted,
    "duration": duration,
    "instant": instant,
    "middle": middle,
    "number": number,
    "rate": rate,
    "rough_size": rough_size,
    "time": time_tag,
    "verbatim": verbatim,
}
"""Jinja's filters of these formats."""
