"""Parse durations with units, such as `50ms` and `1h30m`."""

from __future__ import annotations

import re
from typing import Final

_MILLISECONDS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}

_DURATION: Final = re.compile("".join(rf"(?:([0-9]{{1,12}}){unit})?" for unit in ("d", "h", "m(?!s)", "s", "ms")))
_PLAIN_SECONDS: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?|\.[0-9]{1,9}")


def seconds(text: str) -> float:
    """Parse a number of seconds, or whole numbers with units, the largest unit first; raise ValueError."""
    if _PLAIN_SECONDS.fullmatch(text):
        return float(text)
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{text!r} is not a duration such as 90, 50ms, 30s, 5m, 1h30m or 2d")
    counts = zip(match.groups("0"), _MILLISECONDS.values(), strict=True)
    return sum(int(count) * milliseconds for count, milliseconds in counts) / 1000
