"""What has happened lately in each tube and in the whole server: rates of the last seconds, and series of a day.

A sampler looks at every tube once a second, a slice at a time. A tube counts for itself, and its counters go with it.
So the broker notifies the history of each tube that it drops, which notes what that has counted since the last look.
Nothing is lost between two looks, and a tube that is back under its old name goes on where it was.

Bounds. Of the tubes in which something happens TUBES_AT_MOST have a history, which outlives the tube; `_make_room` says
which. Measured: 2 kB for a tube that is active in one or two points, 29 kB for one that is put into, reserved and
deleted from all the time, 48 kB with all that can happen, so 48 MB at most; 1 kB for a tube that is there without a
history. A look at 10,000 tubes takes 3 ms if nothing happens in them, and 33 ms if something does in each; every ten
seconds 16 and 50 ms more, for the points.

Time is the clock's: where it has run on for more than a moment without a look, as in a stall, the points are unknown,
and what was counted meanwhile is in none.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator
from math import nan
from operator import add
from typing import Final, NamedTuple, TypeVar

import gevent

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import SECOND
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.cooperative import Pace
from greenstalk_server.web.metrics.rings import DAY, HOUR, PER_DAY_POINT, SERIES, Calendar, Rings, Span
from greenstalk_server.web.metrics.tube_series import NO_COUNTS, NO_DEPTHS, WINDOW, Counts, Track, counters

TUBES_AT_MOST: Final = 1000
"""Tubes that have a history."""

LATE_AT_MOST: Final = 3
"""Seconds that a look may be late; more is a gap."""

QUIET_SOON: Final = 20
QUIET_LONG: Final = 3600
"""Seconds without activity after which a history gives way: that of a tube active but once, and any other."""

ITEMS_A_STEP: Final = 64
"""Tubes between two looks at the time: 0.02 ms of work if nothing happens in them, 0.3 ms if something does in each."""

Item = TypeVar("Item")


class Rates(NamedTuple):
    """What happens in a second, as the mean of the last ten."""

    put: float = 0.0
    reserve: float = 0.0
    delete: float = 0.0
    bury: float = 0.0
    timeout: float = 0.0
    release: float = 0.0
    kick: float = 0.0


class Columns(NamedTuple):
    """A span of a history: *end* is when its last point ends, in seconds since the epoch; NaN is unknown."""

    step: int
    end: int
    series: dict[str, list[float]]


class History(BrokerListener):
    """Remembers what happens in *broker*, from now on."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        now = clock()
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._second: int = now // SECOND  # the one under way
        self._since: int = self._second  # since when there is no gap
        self._point_began: int = now
        self._hour: Calendar = Calendar(HOUR, self._second // HOUR.step)
        self._day: Calendar = Calendar(DAY, self._second // DAY.step)
        self._server: Track = Track()
        self._server.rings = Rings(self._hour.begun)
        self._tracks: dict[bytes, Track] = {}
        self._fresh: OrderedDict[bytes, Track] = OrderedDict()
        self._proven: OrderedDict[bytes, Track] = OrderedDict()
        for tube in broker.tubes.values():
            if counters(tube) != NO_COUNTS:
                self._track(tube.name).rebase(tube)
        broker.subscribe(self)

    def start(self) -> None:
        """Look once a second from now on, until nobody has this history any more. Does not switch."""
        gevent.spawn(_sample, weakref.ref(self))

    # What is known

    def rates(self, name: bytes) -> Rates:
        """What happens in the tube *name*: nothing, if there is none."""
        track = self._tracks.get(name)
        return self._rates(track) if track is not None else Rates()

    def total_rates(self) -> Rates:
        """What happens in all tubes."""
        return self._rates(self._server)

    def spark(self, name: bytes | None, series: str, points: int = 60) -> list[float]:
        """The last *points* of ten seconds of a series of rings.SERIES, newest last; NaN where it is unknown.

        *name* None is the whole server. Empty if the tube has no history.
        """
        rings = self._rings(name)
        return rings.read(self._hour, SERIES.index(series), points) if rings is not None else []

    def has(self, name: bytes) -> bool:
        """Whether the tube *name*, which may be gone, has a history."""
        return self._rings(name) is not None

    def columns(self, name: bytes | None, span: Span) -> Columns:
        """Every series of *span*; all unknown if the tube has no history."""
        rings, calendar = self._rings(name), self._hour if span is HOUR else self._day
        series = {
            key: rings.read(calendar, number, span.points) if rings is not None else [nan] * span.points
            for number, key in enumerate(SERIES)
        }
        return Columns(span.step, calendar.begun * span.step, series)

    def _rates(self, track: Track) -> Rates:
        seconds = min(WINDOW, self._second - self._since)
        if track.recent is None or not seconds:
            return Rates()
        return Rates(*[count / seconds for count in track.recent.sums(self._second)])

    def _rings(self, name: bytes | None) -> Rings | None:
        track = self._server if name is None else self._tracks.get(name)
        return track.rings if track is not None else None

    # The sampler

    def tick(self) -> None:
        """Look at every tube, if another second has begun. May switch; only one greenlet may call it."""
        now = self._clock()
        second = now // SECOND
        if second - self._second > LATE_AT_MOST:
            self._skip(now)
        elif second > self._second:
            self._collect()
            self._second = second
            point = second // HOUR.step - 1
            if point >= self._hour.begun:
                self._close(point, max(1.0, (now - self._point_began) / SECOND))
                self._point_began = now

    def seconds_left(self) -> float:
        """Seconds until the next second begins."""
        return 1 - self._clock() % SECOND / SECOND

    def _collect(self) -> None:
        """Note what has happened since the last look, in the second that it began. May switch."""
        total = NO_COUNTS
        for tube in self._each_tube():
            counts, track = counters(tube), self._tracks.get(tube.name)
            if counts != (track.counts if track is not None else NO_COUNTS):
                total = tuple(map(add, total, self._count(tube, counts)))
        if total != NO_COUNTS:
            self._server.note(total, self._second)

    def _count(self, tube: Tube, counts: Counts) -> Counts:
        track = self._track(tube.name)
        delta = track.count(counts, self._second)
        self._see_to_history(tube.name, track)
        return delta

    def on_tube_dropped(self, tube: Tube) -> None:
        """Note what *tube*, which goes, has done since the last look. Called by the broker: does not switch."""
        track, counts = self._tracks.get(tube.name), counters(tube)
        if track is None and counts == NO_COUNTS:
            return
        track = self._track(tube.name)
        if counts != track.counts:
            self._server.note(self._count(tube, counts), self._second)
        self._server.add_lengths(*track.gather(tube))
        track.leave()
        if track.rings is None:
            del self._tracks[tube.name]

    def _skip(self, now: int) -> None:
        """Begin anew after a gap. May switch."""
        for tube in self._each_tube():
            if counters(tube) != NO_COUNTS:
                self._track(tube.name).rebase(tube)
        for track in _in_steps(list(self._tracks.values())):
            track.drop()
        self._server.drop()
        self._second = self._since = now // SECOND
        self._point_began = now
        self._hour.skip_to(self._second // HOUR.step)
        self._day.skip_to(self._second // DAY.step)

    # Points

    def _close(self, point: int, seconds: float) -> None:
        """Close *point* of the hour, which took *seconds*, and that of the day if it ends too. May switch."""
        depths = self._sum_up()
        self._server.close_hour_point(point, seconds, depths)
        for name, track in self._each_history():
            track.close_hour_point(point, seconds, self._depths(name))
            if track.active_points > 1 and self._fresh.pop(name, None) is not None:
                self._proven[name] = track
        self._hour.close(point)
        if (point + 1) % PER_DAY_POINT == 0:
            self._close_day(point // PER_DAY_POINT, depths)

    def _close_day(self, point: int, depths: Counts) -> None:
        known = self._hour.known_between(point * PER_DAY_POINT, PER_DAY_POINT)
        self._server.close_day_point(point, known, depths)
        for name, track in self._each_history():
            track.close_day_point(point, known, self._depths(name))
        self._day.close(point)

    def _sum_up(self) -> Counts:
        """Gather what has ended in each tube for the server; return how many are in which state there. May switch."""
        total = NO_DEPTHS
        for tube in self._each_tube():
            track, depths = self._tracks.get(tube.name), _depths(tube)
            if depths != NO_DEPTHS:
                total = tuple(map(add, total, depths))
                if (track is None or track.rings is None) and self._count_histories() < TUBES_AT_MOST:
                    self._begin(tube.name)
                    self._fresh.move_to_end(tube.name, last=False)  # the first to give way
            if track is not None and track.sums != NO_COUNTS:
                self._server.add_lengths(*track.gather(tube))
                if track.rings is None:
                    track.begin_point()
            if track is not None and self._second - track.active_at > WINDOW:
                track.recent = None
        return (*total[:-1], self._broker.waiting_count)  # a client may wait in many tubes

    def _depths(self, name: bytes) -> Counts:
        tube = self._broker.tubes.get(name)
        return _depths(tube) if tube is not None else NO_DEPTHS

    # Who has a history

    def _track(self, name: bytes) -> Track:
        track = self._tracks.get(name)
        if track is None:
            track = self._tracks[name] = Track()
        return track

    def _see_to_history(self, name: bytes, track: Track) -> None:
        """The tube *name* is active: begin its history if need be and there is room; else it is the last to go."""
        if track.rings is None:
            if self._count_histories() < TUBES_AT_MOST or self._make_room():
                self._begin(name)
        elif name in self._proven:
            self._proven.move_to_end(name)
        else:
            self._fresh.move_to_end(name)

    def _begin(self, name: bytes) -> None:
        track = self._fresh[name] = self._track(name)
        track.rings = Rings(self._second // HOUR.step)
        track.active_points = 0

    def _count_histories(self) -> int:
        return len(self._fresh) + len(self._proven)

    def _make_room(self) -> bool:
        """End the history that matters least; False if each matters.

        A flood of tubes that are used once and never again passes through `_fresh`, and pushes out none of those in
        `_proven`, which were active in two points: they stay for an hour after their last activity.
        """
        for histories, quiet in ((self._fresh, QUIET_SOON), (self._proven, QUIET_LONG)):
            name, track = next(iter(histories.items()), (b"", None))
            if track is None:
                continue
            is_gone = name not in self._broker.tubes
            if self._second - track.active_at > quiet or (is_gone and histories is self._fresh):
                self._end(name, track, is_gone)
                return True
        return False

    def _end(self, name: bytes, track: Track, is_gone: bool) -> None:
        self._fresh.pop(name, None)
        self._proven.pop(name, None)
        track.rings = None
        if is_gone:
            del self._tracks[name]

    # A slice at a time

    def _each_tube(self) -> Iterator[Tube]:
        """Every tube that is still there when its turn comes. Switches in between."""
        tubes = self._broker.tubes
        for name in _in_steps(list(tubes)):
            tube = tubes.get(name)
            if tube is not None:
                yield tube

    def _each_history(self) -> Iterator[tuple[bytes, Track]]:
        """Every tube that still has a history when its turn comes. Switches in between."""
        for name in _in_steps([*self._fresh, *self._proven]):
            track = self._tracks.get(name)
            if track is not None and track.rings is not None:
                yield name, track


def _in_steps(items: list[Item]) -> Iterator[Item]:
    """The *items*, resting between some. Switches."""
    pace = Pace()
    for start in range(0, len(items), ITEMS_A_STEP):
        pace.yield_if_due()
        yield from items[start : start + ITEMS_A_STEP]


def _depths(tube: Tube) -> Counts:
    """The values of rings.DEPTHS."""
    return tube.ready.count, tube.reserved_count, tube.delayed.count, len(tube.buried), tube.waiting_count


def _sample(found: weakref.ref[History]) -> None:
    """Have the history tick at the beginning of each second, for as long as there is one. Switches."""
    while (history := found()) is not None:
        history.tick()
        wait = history.seconds_left()
        del history
        gevent.sleep(wait)
