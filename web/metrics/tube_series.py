"""What the history keeps by a tube's name: what has come since the last look, the last seconds, and the rings.

A track stays while its tube comes and goes, and the whole server has one. Pure: no clock, no broker.
"""

from __future__ import annotations

from array import array
from operator import add, attrgetter, sub
from typing import Final

from greenstalk_server.core.tube import Tube
from greenstalk_server.web.metrics.rings import DEPTHS, RATES, Lengths, Rings, quantile

WINDOW: Final = 10
"""Seconds that Recent looks back."""

Counts = tuple[int, ...]

NO_COUNTS: Final[Counts] = (0,) * len(RATES)
NO_DEPTHS: Final[Counts] = (0,) * len(DEPTHS)
NO_LENGTHS: Final[Lengths] = {}

counters: Final = attrgetter(
    "total_jobs",
    "total_reserves",
    "cmd_delete",
    "total_buries",
    "total_timeouts",
    "total_releases",
    "total_kicks",
)
"""What a tube has counted, in the order of RATES."""

_WIDTH: Final = len(RATES)
_NO_SECOND: Final = array("f", NO_COUNTS)


class Recent:
    """How much happened in each of the last seconds."""

    __slots__ = ("_counts", "_second")

    def __init__(self, second: int) -> None:
        self._counts: array[float] = _NO_SECOND * WINDOW
        self._second: int = second

    def note(self, second: int, counts: tuple[float, ...]) -> None:
        """Note *counts* in *second*, which is none before the last noted."""
        ring, at = self._counts, second % WINDOW * _WIDTH
        if second == self._second:
            counts = tuple(map(add, ring[at : at + _WIDTH], counts))
        for quiet in range(max(self._second, second - WINDOW) + 1, second):
            ring[quiet % WINDOW * _WIDTH : (quiet % WINDOW + 1) * _WIDTH] = _NO_SECOND
        ring[at : at + _WIDTH] = array("f", counts)
        self._second = second

    def sums(self, before: int) -> list[float]:
        """How much happened in the WINDOW seconds before the second *before*, which is later than the last noted."""
        seconds = range(before - WINDOW, self._second + 1)
        return [sum(self._counts[second % WINDOW * _WIDTH + kind] for second in seconds) for kind in range(_WIDTH)]


class Track:
    """What is kept by a tube's name, or for the whole server.

    counts, waits, runs     the tube's, as of the last look; nothing once it has gone.
    sums, waited, ran       what has come in the point of the hour that is under way.
    day_waited, day_ran     what has come in the point of the day, up to the last point of the hour.
    recent                  None if nothing has happened lately.
    rings                   its history, or None if it has none.
    active_at               the second of the last activity.
    active_points           points of the hour in which it was active, since it has a history.
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
        self.waits: Lengths = NO_LENGTHS
        self.runs: Lengths = NO_LENGTHS
        self.sums: Counts = NO_COUNTS
        self.waited: Lengths = NO_LENGTHS
        self.ran: Lengths = NO_LENGTHS
        self.day_waited: Lengths = NO_LENGTHS
        self.day_ran: Lengths = NO_LENGTHS

    # Its tube

    def leave(self) -> None:
        """Its tube has gone; one that comes back counts from zero."""
        self.counts, self.waits, self.runs = NO_COUNTS, NO_LENGTHS, NO_LENGTHS

    def rebase(self, tube: Tube) -> None:
        """Take what *tube* has counted so far as noted."""
        self.counts, self.waits, self.runs = counters(tube), dict(tube.waits), dict(tube.runs)

    def count(self, counts: Counts, second: int) -> Counts:
        """Note in *second* what has come since the last look, with *counts* now; return it."""
        delta = tuple(map(sub, counts, self.counts))
        self.counts = counts
        self.note(delta, second)
        return delta

    def gather(self, tube: Tube) -> tuple[Lengths, Lengths]:
        """Note the waits and runs that have ended in *tube* since this was last asked; return them."""
        waited, ran = _gained(tube.waits, self.waits), _gained(tube.runs, self.runs)
        self.waits, self.runs = dict(tube.waits), dict(tube.runs)
        self.add_lengths(waited, ran)
        return waited, ran

    # What has come

    def note(self, delta: Counts, second: int) -> None:
        """Note that *delta* has come in *second*."""
        if self.recent is None:
            self.recent = Recent(second)
        self.recent.note(second, delta)
        self.sums = tuple(map(add, self.sums, delta))
        self.active_at = second

    def add_lengths(self, waited: Lengths, ran: Lengths) -> None:
        """Note waits and runs that have ended."""
        self.waited, self.ran = _merged(self.waited, waited), _merged(self.ran, ran)

    def begin_point(self) -> None:
        """Nothing has come in the point of the hour yet."""
        self.sums, self.waited, self.ran = NO_COUNTS, NO_LENGTHS, NO_LENGTHS

    def drop(self) -> None:
        """Forget what has come in the points that are under way."""
        self.recent = None
        self.begin_point()
        self.day_waited = self.day_ran = NO_LENGTHS

    # Its history

    def close_hour_point(self, point: int, seconds: float, depths: Counts) -> None:
        """Have *point* of the hour, which took *seconds* and ended with *depths*, in the rings; begin the next."""
        if self.rings is not None:
            rates = [count / seconds for count in self.sums]
            self.rings.write_hour(point, [*rates, *depths, *_times(self.waited, self.ran)])
            self.active_points += self.sums != NO_COUNTS
            self.day_waited, self.day_ran = _merged(self.day_waited, self.waited), _merged(self.day_ran, self.ran)
        self.begin_point()

    def close_day_point(self, point: int, known: bytearray, depths: Counts) -> None:
        """Have *point* of the day in the rings, of whose points of the hour those *known* count; begin the next."""
        if self.rings is not None:
            self.rings.write_day(point, known, [*depths, *_times(self.day_waited, self.day_ran)])
        self.day_waited = self.day_ran = NO_LENGTHS


def _times(waited: Lengths, ran: Lengths) -> list[float]:
    """The values of rings.TIMES."""
    return [quantile(lengths, part) for lengths in (waited, ran) for part in (0.5, 0.95)]


def _gained(now: Lengths, before: Lengths) -> Lengths:
    """How much *now* has more than *before*, which was the same earlier."""
    return {length: count - before.get(length, 0) for length, count in now.items() if count != before.get(length, 0)}


def _merged(one: Lengths, other: Lengths) -> Lengths:
    if not one or not other:
        return one or other
    merged = dict(one)
    for length, count in other.items():
        merged[length] = merged.get(length, 0) + count
    return merged
