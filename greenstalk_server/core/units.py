"""Parse numbers, sizes and durations that people write, such as 64k and 1h30m. Pure."""

from __future__ import annotations

import re
from typing import Final

from greenstalk_server.core.jobs.job import SECOND

MILLISECOND: Final = 1_000_000
"""Nanoseconds in a millisecond."""

_SIZES: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE_UNIT: Final = re.compile(r"([kmgt]?)(?:(?<=[kmgt])i?b)?\Z", re.IGNORECASE)

_TIMES: Final = (24 * 3600 * SECOND, 3600 * SECOND, 60 * SECOND, SECOND, MILLISECOND)
_TIME: Final = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?(?:([0-9]+)ms)?")


def parse_number(text: str, maximum: int | None = None) -> int:
    """Return the decimal number *text*, which may have a plus sign, as beanstalkd allows; raise ValueError."""
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(text)
    number = int(digits)  # raises ValueError for more digits than Python converts
    if maximum is not None and number > maximum:
        raise ValueError(text)
    return number


def parse_size(text: str, maximum: int | None = None) -> int:
    """Return *text* in bytes: a decimal number, optionally with a unit, a power of 1024; raise ValueError."""
    unit = _SIZE_UNIT.search(text)
    assert unit is not None  # the pattern also matches the empty string at the end
    size = parse_number(text[: unit.start()]) * _SIZES[unit[1].lower()]
    if maximum is not None and size > maximum:
        raise ValueError(text)
    return size


def parse_time(text: str, unit: int) -> int:
    """Return *text* in nanoseconds: a decimal number of *unit* nanoseconds, or one with units, such as 1h30m.

    Raises ValueError.
    """
    if (parts := _TIME.fullmatch(text)) is None or not text:
        return unit * parse_number(text)
    return sum(parse_number(part or "0") * size for part, size in zip(parts.groups(), _TIMES, strict=True))
