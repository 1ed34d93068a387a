"""What is remembered of one tube, or of the whole server: points of its series in rings of fixed size.

A ring is an `array` of float32, made when its series is first something else than nothing. All rings of a span turn
together: a point has the same place in each, and which points are known at all is noted once, in a Calendar.

Pure: no clock, no broker.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import compress
from math import isnan, nan
from typing import Final, NamedTuple, TypeVar

RATES: Final = ("put", "reserve", "delete", "bury", "timeout", "release", "kick")
"""Per second, over the point's interval."""

DEPTHS: Final = ("ready", "reserved", "delayed", "buried", "waiting")
"""Jobs by state, and clients that wait, at the end of the interval."""

TIMES: Final = ("wait_p50", "wait_p95", "run_p50", "run_p95")
"""Quantiles of seconds: from ready to reserved, and from reserved to deleted, released or buried; NaN if none ended."""

SERIES: Final = RATES + DEPTHS + TIMES

_BLANKS: Final = (0.0,) * (len(RATES) + len(DEPTHS)) + (nan,) * len(TIMES)

Lengths = Mapping[int, int]
"""How many durations had which bit length, in nanoseconds. Never changed in place."""

Ring = TypeVar("Ring", bytearray, "array[float]")


class Span(NamedTuple):
    """How far back rings go: *points* of *step* seconds."""

    name: str
    step: int
    points: int


HOUR: Final = Span("hour", 10, 360)
DAY: Final = Span("day", 300, 288)
SPANS: Final = {span.name: span for span in (HOUR, DAY)}

PER_DAY_POINT: Final = DAY.step // HOUR.step
"""Points of the hour that make one of the day. They divide the hour, so they stand in one piece in its ring."""


class Calendar:
    """Which of the last points of a span are known; a point is numbered by its seconds since the epoch // step."""

    def __init__(self, span: Span, point: int) -> None:
        """*point* is the one under way."""
        self.span: Span = span
        self.begun: int = point
        self._known: bytearray = bytearray(span.points)

    def close(self, point: int) -> None:
        """Note that *point*, the one under way, is known; the next begins."""
        self._known[point % self.span.points] = 1
        self.begun = point + 1

    def skip_to(self, point: int) -> None:
        """Note that all up to *point* are unknown, and that it is under way."""
        for skipped in range(max(self.begun, point - self.span.points), point):
            self._known[skipped % self.span.points] = 0
        self.begun = point

    def read(self, ring: array[float] | None, since: int, blank: float, points: int) -> list[float]:
        """The last *points* of *ring*, which is None if it was *blank* all along; NaN if unknown or before *since*."""
        values = [blank] * points if ring is None else self._in_order(ring)[-points:]
        known = self._in_order(self._known)[-points:]
        hidden = min(points, max(0, since - (self.begun - points)))
        known[:hidden] = bytes(hidden)
        return [value if is_known else nan for value, is_known in zip(values, known, strict=True)]

    def _in_order(self, ring: Ring) -> Ring:
        """The points of *ring*, oldest first."""
        at = self.begun % self.span.points
        return ring[at:] + ring[:at]

    def known_between(self, first: int, count: int) -> bytearray:
        """For each of *count* points from *first* on, which stand in one piece, whether it is known."""
        at = first % self.span.points
        return self._known[at : at + count]


class Rings:
    """The series of one tube: those of the last hour and those of the last day."""

    __slots__ = ("_day", "_hour", "since")

    def __init__(self, since: int) -> None:
        """*since* is the first point of the hour that is known."""
        self.since: int = since
        self._hour: list[array[float] | None] = [None] * len(SERIES)
        self._day: list[array[float] | None] = [None] * len(SERIES)

    def write_hour(self, point: int, values: Sequence[float]) -> None:
        """Note *values*, in the order of SERIES."""
        _write(self._hour, HOUR, point, values)

    def write_day(self, point: int, known: bytearray, rest: Sequence[float]) -> None:
        """Note a point of the day: rates are means of the *known* points of the hour, and *rest* the others' values."""
        _write(self._day, DAY, point, [*self._mean_rates(point, known), *rest])

    def _mean_rates(self, point: int, known: bytearray) -> list[float]:
        at, count = point * PER_DAY_POINT % HOUR.points, max(1, sum(known))
        rings = self._hour[: len(RATES)]
        return [0.0 if ring is None else sum(compress(ring[at : at + PER_DAY_POINT], known)) / count for ring in rings]

    def read(self, calendar: Calendar, series: int, points: int) -> list[float]:
        """The last *points* of the series number *series*, oldest first; NaN where it is unknown."""
        rings, since = (self._hour, self.since) if calendar.span is HOUR else (self._day, self.since // PER_DAY_POINT)
        return calendar.read(rings[series], since, _BLANKS[series], points)


def _write(rings: list[array[float] | None], span: Span, point: int, values: Sequence[float]) -> None:
    at = point % span.points
    for series, value in enumerate(values):
        ring = rings[series]
        if ring is not None:
            ring[at] = value
        elif value != _BLANKS[series] and not isnan(value):
            ring = rings[series] = array("f", [_BLANKS[series]]) * span.points
            ring[at] = value


def quantile(lengths: Lengths, part: float) -> float:
    """Seconds that *part* of the durations took at most, as near as their bit lengths tell; NaN if there are none.

    A length says only that a duration lies between one power of two and the next. Between those it is taken to be
    spread evenly, so the answer is never wrong by more than a factor of two.
    """
    rank, passed = part * sum(lengths.values()), 0
    for length, count in sorted(lengths.items()):
        if passed + count >= rank:
            low = 1 << length >> 1
            return low * (1 + (rank - passed) / count) / 1e9
        passed += count
    return nan
