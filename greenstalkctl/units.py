"""Parse durations and sizes with units, such as `50ms`, `1h30m` and `10MB`."""

from __future__ import annotations

import re
from typing import Final

_MILLISECONDS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_BYTES: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

_DURATION: Final = re.compile("".join(rf"(?:([0-9]{{1,12}}){unit})?" for unit in ("d", "h", "m(?!s)", "s", "ms")))
_PLAIN_SECONDS: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?|\.[0-9]{1,9}")
_SIZE: Final = re.compile(r"([0-9]{1,18})(?:([kmgt])(?:i?b)?)?", re.IGNORECASE)


def seconds(text: str) -> float:
    """Parse a number of seconds, or whole numbers with units, the largest unit first; raise ValueError."""
    if _PLAIN_SECONDS.fullmatch(text):
        return float(text)
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{text!r} is not a duration such as 90, 50ms, 30s, 5m, 1h30m or 2d")
    counts = zip(match.groups("0"), _MILLISECONDS.values(), strict=True)
    return sum(int(count) * milliseconds for count, milliseconds in counts) / 1000


def size(text: str) -> int:
    """Parse a size in bytes; K, KB and KiB all mean 1024 bytes. Raise ValueError if *text* is not a size."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size in bytes such as 65535, 64K, 10MB or 1GiB")
    return int(match[1]) * _BYTES[(match[2] or "").lower()]
