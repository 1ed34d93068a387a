"""What is remembered of one tube, or of the whole server: points of its series in rings of fixed size.

A ring is an `array` of float32, made when its series is first something else than nothing. All rings of a span turn
together: a point has the same place in each, and which points are known at all is noted once, in a Calendar. While
fewer than `MAX_ROWS` points have a value, they are kept as rows instead: a tube that is used once takes 2 KB.

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

MAX_ROWS: Final = 12
"""Points kept as rows, which take less memory than rings; 2.5 KB."""

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


class Points:
    """The points of every series of one tube in one span."""

    __slots__ = ("_rings", "_rows", "_span")

    def __init__(self, span: Span) -> None:
        self._span: Span = span
        self._rows: dict[int, array[float]] | None = {}  # values in the order of SERIES, by place; None once too many
        self._rings: list[array[float] | None] = []  # in the order of SERIES, once there are no rows

    def write(self, point: int, values: Sequence[float]) -> None:
        """Note *values*, in the order of SERIES."""
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
        """The ring of the series number *series*, not to be changed; None if it was blank all along."""
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
    """The series of one tube: those of the last hour and those of the last day."""

    __slots__ = ("_day", "_hour", "since")

    def __init__(self, since: int) -> None:
        """*since* is the first point of the hour that is known."""
        self.since: int = since
        self._hour: Points = Points(HOUR)
        self._day: Points = Points(DAY)

    def write_hour(self, point: int, values: Sequence[float]) -> None:
        """Note *values*, in the order of SERIES."""
        self._hour.write(point, values)

    def write_day(self, point: int, known: bytearray, rest: Sequence[float]) -> None:
        """Note a point of the day: rates are means of the *known* points of the hour, and *rest* the others' values."""
        self._day.write(point, [*self._mean_rates(point, known), *rest])

    def _mean_rates(self, point: int, known: bytearray) -> list[float]:
        at, count = point * PER_DAY_POINT % HOUR.points, max(1, sum(known))
        rings = map(self._hour.ring, range(len(RATES)))
        return [0.0 if ring is None else sum(compress(ring[at : at + PER_DAY_POINT], known)) / count for ring in rings]

    def read(self, calendar: Calendar, series: int, points: int) -> list[float]:
        """The last *points* of the series number *series*, oldest first; NaN where it is unknown."""
        if calendar.span is HOUR:
            ring, since = self._hour.ring(series), self.since
        else:
            ring, since = self._day.ring(series), self.since // PER_DAY_POINT
        return calendar.read(ring, since, _BLANKS[series], points)


def _is_blank(value: float, blank: float) -> bool:
    return value == blank or isnan(value)


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
