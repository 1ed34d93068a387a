"""The series of a tube, the spans in which they are shown, and the points of the last ten minutes in ring buffers.

A ring is an `array` of float32, allocated for the first value that is not zero, so that a tube with few kinds of
events has few rings. All rings advance together: a point has the same index in each. So one Calendar, shared by all
rings, records which points are known.

Pure: no clock, no broker.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import nan
from typing import Final, NamedTuple

RATES: Final = ("put", "reserve", "delete", "bury", "timeout", "release", "kick", "dead_letter", "expire")
"""Events per second, averaged over the interval of the point."""

DEPTHS: Final = ("ready", "reserved", "delayed", "buried", "waiting")
"""Jobs by state, and waiting clients, at the end of the interval."""

TIMES: Final = ("wait_p50", "wait_p95", "wait_p99", "run_p50", "run_p95", "run_p99")
"""Quantiles in seconds: the wait is from ready to reserved, the run from reserved to deleted, released or buried."""

SERIES: Final = RATES + DEPTHS + TIMES

Counts = tuple[int, ...]

NO_COUNTS: Final[Counts] = (0,) * len(RATES)
NO_DEPTHS: Final[Counts] = (0,) * len(DEPTHS)


class Span(NamedTuple):
    """A time span: *points* points of *step* seconds each."""

    name: str
    label: str
    step: int
    points: int

    @property
    def seconds(self) -> int:
        """The length of the span."""
        return self.step * self.points


TEN_MINUTES: Final = Span("10min", "10 minutes", 1, 600)
HOUR: Final = Span("hour", "hour", 60, 60)
DAY: Final = Span("day", "day", 60, 1440)
WEEK: Final = Span("week", "week", 3600, 168)
NINETY_DAYS: Final = Span("90days", "90 days", 3600, 2160)
SPANS: Final = {span.name: span for span in (TEN_MINUTES, HOUR, DAY, WEEK, NINETY_DAYS)}

SECONDS: Final = TEN_MINUTES.points

SLOTS: Final = SECONDS + 1
"""Seconds in a ring, including the current one, which is not shown."""

TEN: Final = 10
"""Seconds between two measurements of the times."""


class Calendar:
    """A record of the known seconds of the last ten minutes; the second *current* has not ended yet."""

    def __init__(self, second: int) -> None:
        self.current: int = second
        self._known: bytearray = bytearray(SLOTS)

    def close(self, until: int) -> None:
        """Mark the seconds from *current* up to but not including *until* as known; *until* becomes the current one."""
        for second in range(max(self.current, until - SLOTS), until):
            self._known[second % SLOTS] = 1
        self.current = until

    def skip_to(self, second: int) -> None:
        """Mark all seconds before *second* as unknown, and make *second* the current one."""
        for skipped in range(max(self.current, second - SLOTS), second):
            self._known[skipped % SLOTS] = 0
        self.current = second

    def known(self, since: int) -> bytearray:
        """Return a flag for each second, oldest first: 1 if it is known and not before *since*."""
        at = self.current % SLOTS
        known = (self._known[at:] + self._known[:at])[1:]
        hidden = min(SECONDS, max(0, since - (self.current - SECONDS)))
        known[:hidden] = bytes(hidden)
        return known


class Rings:
    """The seconds of the last ten minutes of one tube, or of the server.

    since       the first known second.
    depths      the current values of DEPTHS.
    """

    __slots__ = ("_counted", "_depths", "_filled", "_rates", "_timed", "_times", "depths", "since")

    def __init__(self, second: int) -> None:
        self.since: int = second
        self.depths: Counts = NO_DEPTHS
        self._rates: list[array[float] | None] = [None] * len(RATES)
        self._depths: list[array[float] | None] = [None] * len(DEPTHS)
        self._times: array[float] | None = None  # one row for each ten seconds
        self._counted: int = second  # the last second in the rings of rates; later ones have no events
        self._filled: int = second  # the first second that is not in the rings of depths: its depths are `depths`
        self._timed: int = second // TEN  # the last row; later ones are blank

    def add_counts(self, second: int, counts: Counts) -> None:
        """Add *counts*, numbers of events in the order of RATES, to *second*, which must not be before the last one."""
        if second > self._counted:
            _fill(self._rates, self._counted + 1, second + 1, NO_COUNTS)
            self._counted = second
        at = second % SLOTS
        for place, count in enumerate(counts):
            if count:
                ring = self._rates[place]
                if ring is None:
                    ring = self._rates[place] = array("f", bytes(4 * SLOTS))
                ring[at] += count

    def set_depths(self, second: int, depths: Counts) -> None:
        """Set the depths from *second* on."""
        _fill(self._depths, self._filled, second, self.depths)
        self._filled, self.depths = max(self._filled, second), depths
        for place, depth in enumerate(depths):
            if depth and self._depths[place] is None:
                self._depths[place] = array("f", bytes(4 * SLOTS))

    def set_times(self, ten: int, times: Sequence[float]) -> None:
        """Set the values of TIMES in the ten seconds number *ten*."""
        rows, width = SECONDS // TEN, len(TIMES)
        if self._times is None:
            self._times = array("f", [nan]) * (rows * width)
        for blank in range(max(self._timed, ten - rows) + 1, ten):
            self._times[blank % rows * width : (blank % rows + 1) * width] = _BLANK_TIMES
        self._times[ten % rows * width : (ten % rows + 1) * width] = array("f", times)
        self._timed = ten

    def read(self, calendar: Calendar, series: int) -> list[float]:
        """Return the values of series number *series* in the last ten minutes, oldest first; NaN where unknown."""
        now, known = calendar.current, calendar.known(self.since)
        values = self._values(series, now)
        return [value if is_known else nan for value, is_known in zip(values, known, strict=True)]

    def by_ten(self, calendar: Calendar, series: int) -> list[float]:
        """Return series number *series* in each ten seconds that have ended, oldest first: at least 59 values.

        A rate is a mean; other values are measured at the end of the ten seconds. NaN is unknown.
        """
        now, counted = calendar.current, calendar.known(0)
        values, first = self._values(series, now), -now % TEN
        known_from = self.since - (now - SECONDS)
        found = []
        for at in range(first, SECONDS - TEN + 1, TEN):
            count = sum(counted[at : at + TEN])
            if not count or at + TEN <= known_from:
                found.append(nan)
            else:
                found.append(sum(values[at : at + TEN]) / count if series < len(RATES) else values[at + TEN - 1])
        return found

    def _values(self, series: int, now: int) -> Sequence[float]:
        """Return the values of a series in the last ten minutes before *now*, oldest first."""
        at = now % SLOTS
        if series < len(RATES):
            ring = self._rates[series]
            if ring is None:
                return _ZEROS[1:]
            values = (ring[at:] + ring[:at])[1:]
            blank, value = min(SECONDS, now - 1 - self._counted), 0.0
        elif series < len(RATES) + len(DEPTHS):
            place = series - len(RATES)
            ring = self._depths[place]
            if ring is None:
                return _ZEROS[1:]
            values = (ring[at:] + ring[:at])[1:]
            blank, value = min(SECONDS, now - self._filled), float(self.depths[place])
        else:
            return self._times_by_second(series - len(RATES) - len(DEPTHS), now)
        if blank > 0:
            values[-blank:] = array("f", [value]) * blank
        return values

    def _times_by_second(self, place: int, now: int) -> list[float]:
        rows, width, values = SECONDS // TEN, len(TIMES), list[float]()
        for second in range(now - SECONDS, now):
            ten = second // TEN
            is_there = self._times is not None and self._timed - rows < ten <= self._timed
            values.append(self._times[ten % rows * width + place] if self._times is not None and is_there else nan)
        return values


_ZEROS: Final = array("f", bytes(4 * SLOTS))
_BLANK_TIMES: Final = array("f", [nan]) * len(TIMES)


def _fill(rings: Sequence[array[float] | None], start: int, end: int, values: Sequence[float]) -> None:
    """Set the seconds from *start* up to but not including *end* of each ring to its value in *values*."""
    start = max(start, end - SLOTS)
    if start >= end:
        return
    first, last = start % SLOTS, (end - 1) % SLOTS
    for ring, value in zip(rings, values, strict=True):
        if ring is None:
            continue
        if start + 1 == end:
            ring[first] = value
        elif first <= last:
            ring[first : last + 1] = array("f", [value]) * (last + 1 - first)
        else:
            ring[first:] = array("f", [value]) * (SLOTS - first)
            ring[: last + 1] = array("f", [value]) * (last + 1)
