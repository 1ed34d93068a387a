"""Fixed-size storage of time series: the points of one tube, or of the server, in ring buffers.

A ring is an `array` of float32, allocated for the first value that is not blank. The blank value is that of an idle
tube: 0 for rates and depths, NaN for times. All rings of a span advance together: a point has the same index in each.
So one Calendar, shared by all rings, records which points are known. Up to MAX_ROWS points are stored as rows instead,
so that a tube that is used once takes 2 kB.

Pure: no clock, no broker.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress
from math import isnan, nan
from typing import Final, NamedTuple, TypeVar

RATES: Final = ("put", "reserve", "delete", "bury", "timeout", "release", "kick", "dead_letter", "expire")
"""Events per second, averaged over the interval of the point."""

DEPTHS: Final = ("ready", "reserved", "delayed", "buried", "waiting")
"""Jobs by state, and waiting clients, at the end of the interval."""

TIMES: Final = ("wait_p50", "wait_p95", "run_p50", "run_p95")
"""Quantiles in seconds: the wait is from ready to reserved, the run from reserved to deleted, released or buried."""

SERIES: Final = RATES + DEPTHS + TIMES

_BLANKS: Final = (0.0,) * (len(RATES) + len(DEPTHS)) + (nan,) * len(TIMES)

Ring = TypeVar("Ring", bytearray, "array[float]")


class Span(NamedTuple):
    """A time span: *points* points of *step* seconds each."""

    name: str
    step: int
    points: int


HOUR: Final = Span("hour", 10, 360)
DAY: Final = Span("day", 300, 288)
SPANS: Final = {span.name: span for span in (HOUR, DAY)}

MAX_ROWS: Final = 12
"""Maximum points stored as rows. They take 2.5 kB, less than rings would."""

PER_DAY_POINT: Final = DAY.step // HOUR.step
"""Points of the hour per point of the day. Invariant: it divides HOUR.points, so they are contiguous in the ring."""


class Calendar:
    """A record of the known points of a span.

    The number of a point is the start of its interval, in seconds since the epoch, divided by the step. The point
    *current* has not ended yet.
    """

    def __init__(self, span: Span, point: int) -> None:
        """*point* is the number of the current point."""
        self.span: Span = span
        self.current: int = point
        self._known: bytearray = bytearray(span.points)

    def close(self, point: int) -> None:
        """Mark *point*, the current one, as known; the next one begins."""
        self._known[point % self.span.points] = 1
        self.current = point + 1

    def skip_to(self, point: int) -> None:
        """Mark all points before *point* as unknown, and make *point* the current one."""
        for skipped in range(max(self.current, point - self.span.points), point):
            self._known[skipped % self.span.points] = 0
        self.current = point

    def read(self, ring: array[float] | None, since: int, blank: float, points: int) -> list[float]:
        """Return the last *points* values of *ring*, with NaN for points that are unknown or before *since*.

        If *ring* is None, all other values are *blank*.
        """
        values = [blank] * points if ring is None else self._in_order(ring)[-points:]
        known = self._in_order(self._known)[-points:]
        hidden = min(points, max(0, since - (self.current - points)))
        known[:hidden] = bytes(hidden)
        return [value if is_known else nan for value, is_known in zip(values, known, strict=True)]

    def _in_order(self, ring: Ring) -> Ring:
        """Return the points of *ring*, oldest first."""
        at = self.current % self.span.points
        return ring[at:] + ring[:at]

    def known_between(self, first: int, count: int) -> bytearray:
        """Return whether each of *count* points from *first* on is known; they must be contiguous in the ring."""
        at = first % self.span.points
        return self._known[at : at + count]


class Points:
    """The points of all series of one tube in one span."""

    __slots__ = ("_rings", "_rows", "_span")

    def __init__(self, span: Span) -> None:
        self._span: Span = span
        self._rows: dict[int, array[float]] | None = {}  # values in the order of SERIES, by index; None once in rings
        self._rings: list[array[float] | None] = []  # in the order of SERIES; empty while there are rows

    def write(self, point: int, values: Sequence[float]) -> None:
        """Store *values*, in the order of SERIES."""
        at = point % self._span.points
        if self._rows is None:
            self._write_rings(at, values)
        elif all(map(_is_blank, values, _BLANKS)):
            self._rows.pop(at, None)
        else:
            self._rows[at] = array("f", values)
            if len(self._rows) > MAX_ROWS:
                self._make_rings(self._rows)

    def ring(self, series: int) -> array[float] | None:
        """Return the ring of series number *series*, which must not be changed; None if all values are blank."""
        if self._rows is None:
            return self._rings[series]
        if not self._rows:
            return None
        ring = array("f", [_BLANKS[series]]) * self._span.points
        for at, row in self._rows.items():
            ring[at] = row[series]
        return ring

    def _make_rings(self, rows: dict[int, array[float]]) -> None:
        self._rows = None
        self._rings = [None] * len(SERIES)
        for at, row in rows.items():
            self._write_rings(at, row)

    def _write_rings(self, at: int, values: Sequence[float]) -> None:
        for series, value in enumerate(values):
            ring = self._rings[series]
            if ring is not None:
                ring[at] = value
            elif not _is_blank(value, _BLANKS[series]):
                ring = self._rings[series] = array("f", [_BLANKS[series]]) * self._span.points
                ring[at] = value


class Rings:
    """The series of one tube, of the last hour and of the last day."""

    __slots__ = ("_day", "_hour", "since")

    def __init__(self, since: int) -> None:
        """*since* is the first known point of the hour."""
        self.since: int = since
        self._hour: Points = Points(HOUR)
        self._day: Points = Points(DAY)

    def write_hour(self, point: int, values: Sequence[float]) -> None:
        """Store *values*, in the order of SERIES."""
        self._hour.write(point, values)

    def write_day(self, point: int, known: bytearray, rest: Sequence[float]) -> None:
        """Store a point of the day: the mean rates of the *known* points of the hour, then the values in *rest*."""
        self._day.write(point, [*self._mean_rates(point, known), *rest])

    def _mean_rates(self, point: int, known: bytearray) -> list[float]:
        at, count = point * PER_DAY_POINT % HOUR.points, max(1, sum(known))
        rings = map(self._hour.ring, range(len(RATES)))
        return [0.0 if ring is None else sum(compress(ring[at : at + PER_DAY_POINT], known)) / count for ring in rings]

    def read(self, calendar: Calendar, series: int, points: int) -> list[float]:
        """Return the last *points* of series number *series*, oldest first; NaN where unknown."""
        if calendar.span is HOUR:
            ring, since = self._hour.ring(series), self.since
        else:
            ring, since = self._day.ring(series), self.since // PER_DAY_POINT
        return calendar.read(ring, since, _BLANKS[series], points)


def _is_blank(value: float, blank: float) -> bool:
    return value == blank or isnan(value)
