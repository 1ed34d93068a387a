"""The activity of one tube, or of the server: events since the last sample, events of the last seconds, and rings.

The series of a tube continue if the tube is dropped and created again. Pure: no clock, no broker.
"""

from __future__ import annotations

from array import array
from operator import add, sub
from typing import Final

from greenstalk_server.core.durations import DurationCounts, quantile
from greenstalk_server.core.tube import Tube
from greenstalk_server.web.metrics.rings import DEPTHS, RATES, Rings
from greenstalk_server.web.metrics.tube_counters import NO_COUNTS, Counts, tube_counters

WINDOW: Final = 10
"""Seconds that Recent looks back."""

NO_DEPTHS: Final[Counts] = (0,) * len(DEPTHS)
NO_DURATIONS: Final[DurationCounts] = {}

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


class TubeSeries:
    """The activity of one tube name, or of the whole server.

    counts                  the tube's counters at the last sample; zero after the tube was dropped.
    waits, runs             the tube's durations at the last `gather`; empty after the tube was dropped.
    sums, waited, ran       events and durations in the current point of the hour.
    day_waited, day_ran     durations in the current point of the day, up to the end of the last point of the hour.
    recent                  events in the last WINDOW seconds; None if the tube was idle for longer.
    rings                   the series; None if it has none.
    active_at               second of the last activity.
    active_points           points of the hour with activity, since the series began.
    """

    __slots__ = (
        "active_at",
        "active_points",
        "counts",
        "day_ran",
        "day_waited",
        "ran",
        "recent",
        "rings",
        "runs",
        "sums",
        "waited",
        "waits",
    )

    def __init__(self) -> None:
        self.active_at: int = 0
        self.active_points: int = 0
        self.recent: Recent | None = None
        self.rings: Rings | None = None
        self.counts: Counts = NO_COUNTS
        self.waits: DurationCounts = NO_DURATIONS
        self.runs: DurationCounts = NO_DURATIONS
        self.sums: Counts = NO_COUNTS
        self.waited: DurationCounts = NO_DURATIONS
        self.ran: DurationCounts = NO_DURATIONS
        self.day_waited: DurationCounts = NO_DURATIONS
        self.day_ran: DurationCounts = NO_DURATIONS

    # The tube

    def forget_tube(self) -> None:
        """Record that the tube was dropped. A new one counts from zero."""
        self.counts, self.waits, self.runs = NO_COUNTS, NO_DURATIONS, NO_DURATIONS

    def rebase(self, tube: Tube) -> None:
        """Ignore what *tube* has counted so far."""
        self.counts, self.waits, self.runs = tube_counters(tube), dict(tube.waits), dict(tube.runs)

    def count(self, counts: Counts, second: int) -> Counts:
        """Record the events since the last sample as events of *second*; return their numbers.

        *counts* are the tube's counters now.
        """
        delta = tuple(map(sub, counts, self.counts))
        self.counts = counts
        self.note(delta, second)
        return delta

    def gather(self, tube: Tube) -> tuple[DurationCounts, DurationCounts]:
        """Record the waits and runs that ended in *tube* since the last call; return them."""
        waited, ran = _gained(tube.waits, self.waits), _gained(tube.runs, self.runs)
        self.waits, self.runs = dict(tube.waits), dict(tube.runs)
        self.add_durations(waited, ran)
        return waited, ran

    # Events

    def note(self, delta: Counts, second: int) -> None:
        """Record the events *delta* in *second*."""
        if self.recent is None:
            self.recent = Recent(second)
        self.recent.note(second, delta)
        self.sums = tuple(map(add, self.sums, delta))
        self.active_at = second

    def add_durations(self, waited: DurationCounts, ran: DurationCounts) -> None:
        """Record waits and runs that have ended."""
        self.waited, self.ran = _merged(self.waited, waited), _merged(self.ran, ran)

    def begin_point(self) -> None:
        """Start a new point of the hour."""
        self.sums, self.waited, self.ran = NO_COUNTS, NO_DURATIONS, NO_DURATIONS

    def drop_unfinished(self) -> None:
        """Discard the current points."""
        self.recent = None
        self.begin_point()
        self.day_waited = self.day_ran = NO_DURATIONS

    # The series

    def close_hour_point(self, point: int, seconds: float, depths: Counts) -> None:
        """Write *point* of the hour, which took *seconds* and ended with *depths*; start the next one."""
        if self.rings is not None:
            rates = [count / seconds for count in self.sums]
            self.rings.write_hour(point, [*rates, *depths, *_times(self.waited, self.ran)])
            self.active_points += self.sums != NO_COUNTS
            self.day_waited, self.day_ran = _merged(self.day_waited, self.waited), _merged(self.day_ran, self.ran)
        self.begin_point()

    def close_day_point(self, point: int, known: bytearray, depths: Counts) -> None:
        """Write *point* of the day; start the next one. *known* says which points of the hour to include."""
        if self.rings is not None:
            self.rings.write_day(point, known, [*depths, *_times(self.day_waited, self.day_ran)])
        self.day_waited = self.day_ran = NO_DURATIONS


def _times(waited: DurationCounts, ran: DurationCounts) -> list[float]:
    """Return the values of rings.TIMES."""
    return [quantile(counts, part) for counts in (waited, ran) for part in (0.5, 0.95)]


def _gained(now: DurationCounts, before: DurationCounts) -> DurationCounts:
    """Return the counts of *now* minus those of *before*, an earlier state."""
    return {bits: count - before.get(bits, 0) for bits, count in now.items() if count != before.get(bits, 0)}


def _merged(one: DurationCounts, other: DurationCounts) -> DurationCounts:
    if not one or not other:
        return one or other
    merged = dict(one)
    for bits, count in other.items():
        merged[bits] = merged.get(bits, 0) + count
    return merged
