"""The activity of one tube, or of the server: events since the last sample, events of the last seconds, and series.

The series of a tube continue if the tube is dropped and created again. Pure: no clock, no broker.
"""

from __future__ import annotations

from array import array
from operator import add, sub
from typing import Final

from greenstalk_server.core.tubes.durations import Sketch, add_sketch
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.features.history.archive import MINUTES, Tier
from greenstalk_server.web.features.history.points import Point, encode_point, quantiles, times
from greenstalk_server.web.features.history.rings import NO_COUNTS, RATES, Counts, Rings
from greenstalk_server.web.features.history.tube_counters import tube_counters

WINDOW: Final = 10
"""Seconds that Recent looks back."""

_WIDTH: Final = len(RATES)
_NO_SECOND: Final = array("f", NO_COUNTS)


class Recent:
    """The numbers of events in each of the last WINDOW seconds."""

    __slots__ = ("_counts", "_second")

    def __init__(self, second: int) -> None:
        self._counts: array[float] = _NO_SECOND * WINDOW
        self._second: int = second

    def note(self, second: int, counts: tuple[float, ...]) -> None:
        """Add *counts* to *second*, which must not be before the last one."""
        ring, at = self._counts, second % WINDOW * _WIDTH
        if second == self._second:
            counts = tuple(map(add, ring[at : at + _WIDTH], counts))
        for quiet in range(max(self._second, second - WINDOW) + 1, second):
            ring[quiet % WINDOW * _WIDTH : (quiet % WINDOW + 1) * _WIDTH] = _NO_SECOND
        ring[at : at + _WIDTH] = array("f", counts)
        self._second = second

    def sums(self, before: int) -> list[float]:
        """Return the sums over the last WINDOW seconds, without the current one.

        *before* is the current second, which must be after the last noted one.
        """
        seconds = range(before - WINDOW, self._second + 1)
        return [sum(self._counts[second % WINDOW * _WIDTH + kind] for second in seconds) for kind in range(_WIDTH)]


class Interval:
    """The events and times of a minute or an hour that has not ended.

    begins      the series begins in this interval.
    """

    __slots__ = ("begins", "counts", "runs", "waits")

    def __init__(self, *, begins: bool) -> None:
        self.begins: bool = begins
        self.counts: Counts = NO_COUNTS
        self.waits: Sketch = {}
        self.runs: Sketch = {}

    def add_counts(self, counts: Counts) -> None:
        """Add numbers of events."""
        self.counts = tuple(map(add, self.counts, counts)) if self.counts is not NO_COUNTS else counts

    def add_times(self, waits: Sketch, runs: Sketch) -> None:
        """Add times that have ended."""
        if waits:
            add_sketch(self.waits, waits)
        if runs:
            add_sketch(self.runs, runs)

    def point(self, seconds: int, depths: Counts) -> Point:
        """Return the interval as a point that ends with *depths*, and during which *seconds* were counted."""
        return Point(seconds, (*self.counts, *depths), quantiles(self.waits), quantiles(self.runs), self.begins)


class Series:
    """The series of one tube, or of the server.

    rings           the seconds of the last ten minutes.
    minute, hour    the current minute and hour. The hour excludes the current minute.
    previous        the number of the hour before the current one, and its minutes; None if they are not known.
    last_hour       the number of a minute, and the 60 points before it; None if they have not been requested.
    active_minutes  minutes with activity, since the series began.
    """

    __slots__ = (
        "_hours",
        "_minutes",
        "_runs",
        "_waits",
        "active_minutes",
        "hour",
        "last_hour",
        "minute",
        "previous",
        "rings",
    )

    def __init__(self, second: int) -> None:
        self.rings: Rings = Rings(second)
        self.minute: Interval = Interval(begins=True)
        self.hour: Interval = Interval(begins=True)
        self._minutes: bytearray = bytearray()  # of the current hour
        self._hours: bytearray = bytearray()  # of the current day
        self.previous: tuple[int, bytes] | None = None
        self.last_hour: tuple[int, list[Point | None]] | None = None
        self.active_minutes: int = 0
        self._waits: Sketch = {}  # times of the current ten seconds
        self._runs: Sketch = {}

    def add_times(self, waits: Sketch, runs: Sketch) -> None:
        """Record waits and runs that have ended."""
        add_sketch(self._waits, waits)
        add_sketch(self._runs, runs)

    def close_ten(self, ten: int) -> None:
        """End the ten seconds number *ten*."""
        waits, runs = self._waits, self._runs
        if waits or runs:
            self._waits, self._runs = {}, {}
            self.minute.add_times(waits, runs)
            self.rings.set_times(ten, [*times(quantiles(waits)), *times(quantiles(runs))])

    def close(self, tier: Tier, seconds: int, *, is_always_stored: bool = False) -> tuple[Interval, bytes]:
        """End the minute or the hour, during which *seconds* were counted; return it, and its point as bytes.

        The bytes are empty if the point is blank, unless *is_always_stored*.
        """
        if tier is MINUTES:
            ended, self.minute = self.minute, Interval(begins=False)
            self.hour.add_counts(ended.counts)
            self.hour.add_times(ended.waits, ended.runs)
            self.active_minutes += ended.counts != NO_COUNTS
        else:
            ended, self.hour = self.hour, Interval(begins=False)
        point = ended.point(seconds, self.rings.depths)
        return ended, b"" if point.is_blank and not is_always_stored else encode_point(point)

    def chunk(self, tier: Tier) -> bytearray:
        """Return the points of the current block."""
        return self._minutes if tier is MINUTES else self._hours

    def set_chunk(self, tier: Tier, chunk: bytearray) -> None:
        """Replace the points of the current block."""
        if tier is MINUTES:
            self._minutes = chunk
        else:
            self._hours = chunk

    def take_chunk(self, tier: Tier) -> bytes:
        """Return the points of the current block, and begin the next one."""
        chunk = bytes(self.chunk(tier))
        self.set_chunk(tier, bytearray())
        return chunk


class TubeSeries:
    """The activity of one tube name, or of the whole server.

    counts                  the tube's counters at the last sample; zero after the tube was dropped.
    recent                  events in the last WINDOW seconds; None if the tube was idle for longer.
    series                  None if it has none.
    active_at               second of the last activity.
    """

    __slots__ = ("active_at", "counts", "recent", "series")

    def __init__(self) -> None:
        self.active_at: int = 0
        self.recent: Recent | None = None
        self.series: Series | None = None
        self.counts: Counts = NO_COUNTS

    def forget_tube(self) -> None:
        """Record that the tube was dropped. A new one counts from zero."""
        self.counts = NO_COUNTS

    def rebase(self, tube: Tube) -> None:
        """Ignore what *tube* has counted so far."""
        self.counts = tube_counters(tube)
        tube.queue_times.take_recent()
        tube.processing_times.take_recent()

    def count(self, counts: Counts, second: int) -> Counts:
        """Record the events since the last sample as events of *second*; return their numbers.

        *counts* are the tube's counters now.
        """
        delta = tuple(map(sub, counts, self.counts))
        self.counts = counts
        self.note(delta, second)
        return delta

    def note(self, delta: Counts, second: int) -> None:
        """Record the events *delta* in *second*."""
        if self.recent is None:
            self.recent = Recent(second)
        self.recent.note(second, delta)
        self.active_at = second
        if self.series is not None:
            self.series.rings.add_counts(second, delta)
            self.series.minute.add_counts(delta)

    def drop_unfinished(self) -> None:
        """Remove the events of the last seconds, because of a gap."""
        self.recent = None
