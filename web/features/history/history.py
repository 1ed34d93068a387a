"""The history of each tube and of the server: event rates of the last seconds, and time series of up to 90 days.

A sampler reads the counters of every tube once a second, in batches. A tube's counters are deleted with the tube, so
the broker calls `on_tube_dropped` first, which records what the tube has counted since the last sample. Therefore no
event is lost between two samples, and a tube that is created again under the same name continues its series.

There are three resolutions: a second for ten minutes, a minute for a day, and an hour for 90 days. The seconds are in
memory. The minutes and hours are in an Archive, which writes the points of all tubes once a minute and once an hour.

Bounds: at most MAX_TUBES tubes have series; `_make_room` chooses them. Series outlive their tube.

Memory, measured: 10 kB for a tube that is used once, 30 kB for one with a job every ten seconds, 48 kB with a job per
second and 73 kB with twenty. The sketches of the current hour take half of that. On disk a tube with constant jobs
takes 36 kB for a day of minutes and 56 kB for 90 days of hours.

Gaps: if the clock advances by more than MAX_LATENESS seconds without a sample, as in a stall, these seconds are
unknown, and no point counts their events. The rates of a minute or an hour with a gap are averages over its known
seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from math import nan
from operator import add
from typing import Final, NamedTuple

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.tubes.durations import DurationRows, Sketch, add_rows
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.supervisor import Service
from greenstalk_server.web.features.history.archive import HOURS, MINUTES, SERVER, Archive, Blocks, Tier
from greenstalk_server.web.features.history.points import Entry, Point, add_to_chunk, encode_entry, encode_frame
from greenstalk_server.web.features.history.restored import Restored
from greenstalk_server.web.features.history.rings import (
    HOUR,
    NO_COUNTS,
    NO_DEPTHS,
    SERIES,
    TEN,
    TEN_MINUTES,
    Calendar,
    Counts,
    Span,
)
from greenstalk_server.web.features.history.tube_counters import tube_counters
from greenstalk_server.web.features.history.tube_series import WINDOW, Interval, Series, TubeSeries
from greenstalk_server.web.framework.cooperative import Pace, in_batches, repeated
from greenstalk_server.web.reads.tubes import each_tube

MAX_TUBES: Final = 1000
"""Maximum tubes with series."""

MAX_LATENESS: Final = 3
"""Maximum seconds between two samples. A longer time is a gap."""

FRESH_IDLE_TIME: Final = 20
"""Seconds without activity after which the series of a tube that was active in at most one minute may be evicted."""

PROVEN_IDLE_TIME: Final = 3600
"""Seconds without activity after which the series of any other tube may be evicted."""

TUBE_BATCH: Final = 64
"""Tubes between two checks of the time slice: 0.02 ms of work if they are idle, 0.3 ms if all are active."""

CLOSE_BATCH: Final = 8
"""Tubes whose minutes or hours are closed between two checks: up to 0.3 ms."""

POINT_BATCH: Final = 50
"""Points converted to columns between two checks of the time slice: 0.1 ms."""

MAX_FRAME: Final = 512 * 1024
"""Bytes of a frame after which further tubes are stored without sketches. After a crash, the quantiles of the current
hour of these tubes cover only the part of the hour after the crash.
"""

FOLLOWER_INTERVAL: Final = 0.2
"""Seconds between two checks whether this server is the leader."""


class Rates(NamedTuple):
    """Events per second, averaged over the last ten seconds."""

    put: float = 0.0
    reserve: float = 0.0
    delete: float = 0.0
    bury: float = 0.0
    timeout: float = 0.0
    release: float = 0.0
    kick: float = 0.0
    dead_letter: float = 0.0
    expire: float = 0.0


class Columns(NamedTuple):
    """The series of one span. *end* is the end of the last point, in seconds since the epoch; NaN is unknown."""

    step: int
    end: int
    series: dict[str, list[float]]


class History(BrokerListener):
    """Records the activity of *broker* from the start on, and stores it in *archive*.

    is_restored     the archive was read, so samples may be stored.
    """

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        archive: Archive,
        is_leader: Callable[[], bool] = lambda: True,
        on_restored: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the series of the present tubes.

        is_leader       returns whether this server may write to the archive.
        on_restored     called after the archive was read, before the first sample. May switch.
        """
        now = clock()
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._archive: Archive = archive
        self._is_leader: Callable[[], bool] = is_leader
        self._on_restored: Callable[[], None] = on_restored
        self.is_restored: bool = False
        self._sampler: Service = Service("history", repeated(self._run_once))
        self._second: int = now // SECOND  # the current second
        self._since: int = self._second  # the first second after the last gap
        self._minute_seconds: int = 0  # seconds of the current minute that were counted
        self._hour_seconds: int = 0  # seconds of the current hour that were counted, without the current minute
        self._last: dict[Tier, int] = {MINUTES: -1, HOURS: -1}  # the last point of each tier
        self._calendar: Calendar = Calendar(self._second)
        self._server: Series = Series(self._second)
        self._total: TubeSeries = TubeSeries()
        self._total.series = self._server
        self._by_name: dict[bytes, TubeSeries] = {}
        self._fresh: OrderedDict[bytes, TubeSeries] = OrderedDict()
        self._proven: OrderedDict[bytes, TubeSeries] = OrderedDict()
        for tube in broker.tubes.values():
            if tube_counters(tube) != NO_COUNTS:
                self._entry(tube.name).rebase(tube)
        broker.subscribe(self)

    def start(self) -> None:
        """Start a greenlet that samples once a second for as long as this object is referenced. Does not switch."""
        self._sampler.start()

    def stop(self) -> None:
        """Stop sampling. Switches."""
        self._sampler.stop()

    # Queries

    def rates(self, name: bytes) -> Rates:
        """Return the rates of the tube *name*; zeros if it does not exist."""
        entry = self._by_name.get(name)
        return self._rates(entry) if entry is not None else Rates()

    def total_rates(self) -> Rates:
        """Return the rates of all tubes together."""
        return self._rates(self._total)

    def spark(self, name: bytes | None, series: str, points: int = 60) -> list[float]:
        """Return *series* (see rings.SERIES) in the last *points* intervals of 10 s, oldest first; NaN is unknown.

        At most 60 points. *name* None is the whole server. Empty if the tube has no series.
        """
        found = self._series(name)
        return found.rings.by_ten(self._calendar, SERIES.index(series))[-points:] if found is not None else []

    def last_hour(self, name: bytes, series: str) -> list[float]:
        """Return *series* in each of the last 60 minutes, oldest first; NaN is unknown. Does not switch.

        Empty if the tube has no series.
        """
        found, current = self._series(name), MINUTES.block(self._second)
        if found is None:
            return []
        minute = self._second // MINUTES.step
        if found.last_hour is None or found.last_hour[0] != minute:
            chunks: dict[tuple[int, bytes], bytes | bytearray] = {}
            for owner, each in ((SERVER, self._server), (name, found)):
                chunks[current, owner] = each.chunk(MINUTES)
                if each.previous is not None and each.previous[0] == current - 1:
                    chunks[current - 1, owner] = each.previous[1]
            found.last_hour = minute, Blocks(MINUTES, name, chunks).points(minute - HOUR.points, HOUR.points)
        place = SERIES.index(series)
        return [nan if point is None else point.series()[place] for point in found.last_hour[1]]

    def has(self, name: bytes) -> bool:
        """Return whether the tube *name* has current series. The tube may no longer exist."""
        return self._series(name) is not None

    def columns(self, name: bytes | None, span: Span, ago: int = 0) -> Columns:
        """Return all series of *span*, *ago* seconds earlier; unknown values are NaN. May switch.

        *name* None is the whole server. If the points of that time are kept at a lower resolution only, several points
        have the same values.
        """
        end = self._second // span.step * span.step - ago
        if span is TEN_MINUTES and not ago:
            return Columns(1, self._second, self._seconds(name))
        is_recent = self._second - (end - span.seconds) < MINUTES.kept * MINUTES.step * MINUTES.length
        tier = MINUTES if span.step <= MINUTES.step and is_recent else HOURS
        first, last = (end - span.seconds) // tier.step, (end - 1) // tier.step
        points = self._points(SERVER if name is None else name, tier, first, last - first + 1)
        series: dict[str, list[float]] = {key: [] for key in SERIES}
        columns, pace = list(series.values()), Pace()
        for at in range(span.points):
            if at % POINT_BATCH == 0:
                pace.yield_if_due()
            point = points[(end - span.seconds + at * span.step) // tier.step - first]
            values = point.series() if point is not None else _UNKNOWN
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        return Columns(span.step, end, series)

    def _seconds(self, name: bytes | None) -> dict[str, list[float]]:
        found = self._series(name)
        if found is None:
            return {key: [nan] * TEN_MINUTES.points for key in SERIES}
        return {key: found.rings.read(self._calendar, place) for place, key in enumerate(SERIES)}

    def _points(self, name: bytes, tier: Tier, first: int, count: int) -> list[Point | None]:
        """Return *count* points from number *first*; None is unknown. Switches."""
        current = self._second // (tier.step * tier.length)
        chunks: dict[tuple[int, bytes], bytes | bytearray] = dict(
            self._archive.read(tier, first // tier.length, current - 1, (SERVER, name))
        )
        chunks[current, SERVER] = self._server.chunk(tier)
        if name != SERVER and (series := self._series(name)) is not None:
            chunks[current, name] = series.chunk(tier)
        return Blocks(tier, name, chunks).points(first, count)

    def _rates(self, entry: TubeSeries) -> Rates:
        seconds = min(WINDOW, self._second - self._since)
        if entry.recent is None or not seconds:
            return Rates()
        return Rates(*[count / seconds for count in entry.recent.sums(self._second)])

    def _series(self, name: bytes | None) -> Series | None:
        if name is None:
            return self._server
        entry = self._by_name.get(name)
        return entry.series if entry is not None else None

    # Sampling

    def tick(self) -> None:
        """Take a sample if a new second has begun. Only one greenlet may call this. May switch."""
        second = self._clock() // SECOND
        if second - self._second > MAX_LATENESS:
            self._skip(second)
        elif second > self._second:
            self._collect(second)
            self._minute_seconds += second - self._second
            self._calendar.close(second)
            self._advance(second)

    def _run_once(self) -> float:
        """Restore if this server leads now, or take a sample; return the seconds until the next call. May switch."""
        if not self.is_restored:
            if not self._is_leader():
                return FOLLOWER_INTERVAL
            self.restore()
        self.tick()
        return 1 - self._clock() % SECOND / SECOND

    def _collect(self, second: int) -> None:
        """Record the events since the last sample, as events of the second in which that sample began. May switch.

        The depths are measured at the end of the second before *second*.
        """
        total = NO_COUNTS
        for tube in each_tube(self._broker, TUBE_BATCH):
            counts, entry = tube_counters(tube), self._by_name.get(tube.name)
            if counts != (entry.counts if entry is not None else NO_COUNTS):
                total = tuple(map(add, total, self._count(tube, counts)))
                entry = self._by_name.get(tube.name)
            if entry is not None and entry.series is not None:
                depths = _depths(tube)
                if depths != entry.series.rings.depths:
                    entry.series.rings.set_depths(second - 1, depths)
        if total != NO_COUNTS:
            self._total.note(total, self._second)
        if (depths := self._total_depths()) != self._server.rings.depths:
            self._server.rings.set_depths(second - 1, depths)

    def _count(self, tube: Tube, counts: Counts) -> Counts:
        entry = self._entry(tube.name)
        self._note_activity(tube.name, entry)
        return entry.count(counts, self._second)

    def _total_depths(self) -> Counts:
        totals, jobs = self._broker.totals, len(self._broker.jobs)
        ready = jobs - totals.reserved - totals.delayed - totals.buried
        return ready, totals.reserved, totals.delayed, totals.buried, self._broker.waiting_count

    def on_tube_dropped(self, tube: Tube) -> None:
        """Record the events of *tube*, which the broker is about to drop, since the last sample. Does not switch."""
        entry, counts = self._by_name.get(tube.name), tube_counters(tube)
        if entry is None and counts == NO_COUNTS:
            return
        entry = self._entry(tube.name)
        if counts != entry.counts:
            self._total.note(self._count(tube, counts), self._second)
        self._take_times(tube, entry)
        entry.forget_tube()
        if entry.series is None:
            del self._by_name[tube.name]
        else:
            entry.series.rings.set_depths(self._second, NO_DEPTHS)

    def _take_times(self, tube: Tube, entry: TubeSeries | None) -> None:
        """Record the times that ended in *tube* since the last call."""
        if tube.queue_times.recent or tube.processing_times.recent:
            waits, runs = _sketch(tube.queue_times.take_recent()), _sketch(tube.processing_times.take_recent())
            self._server.add_times(waits, runs)
            if entry is not None and entry.series is not None:
                entry.series.add_times(waits, runs)

    def _skip(self, second: int) -> None:
        """Resume after a gap, at *second*. May switch."""
        for tube in each_tube(self._broker, TUBE_BATCH):
            if tube_counters(tube) != NO_COUNTS:
                self._entry(tube.name).rebase(tube)
        for entry in in_batches(list(self._by_name.values()), TUBE_BATCH):
            entry.drop_unfinished()
        self._total.drop_unfinished()
        self._calendar.skip_to(second)
        self._since = second
        self._advance(second)

    def _advance(self, second: int) -> None:
        """Make *second* the current one, and close the intervals that ended before it. May switch."""
        before, self._second = self._second, second
        if second // TEN > before // TEN:
            self._close_ten(before // TEN)
        if second // MINUTES.step > before // MINUTES.step:
            self._close(MINUTES, before // MINUTES.step)
        if second // HOURS.step > before // HOURS.step:
            self._close(HOURS, before // HOURS.step)  # before `_seal` replaces the log, which has the sketches
            self._seal(MINUTES, before)
        if HOURS.block(second) > HOURS.block(before):
            self._seal(HOURS, before)

    # Points

    def _close_ten(self, ten: int) -> None:
        """Close the ten seconds number *ten*. May switch.

        Also start series for tubes that have jobs but no activity, and drop the recent counts of idle tubes.
        """
        for tube in each_tube(self._broker, TUBE_BATCH):
            entry = self._by_name.get(tube.name)
            self._take_times(tube, entry)
            if (entry is None or entry.series is None) and self._series_count() < MAX_TUBES:
                depths = _depths(tube)
                if depths != NO_DEPTHS:
                    self._start_series(tube.name).rings.set_depths(self._second - 1, depths)
                    self._fresh.move_to_end(tube.name, last=False)  # without activity, so the first to evict
            if entry is not None and self._second - entry.active_at > WINDOW:
                entry.recent = None
        self._server.close_ten(ten)
        for _, _, series in self._each_series(TUBE_BATCH):
            series.close_ten(ten)

    def _close(self, tier: Tier, number: int) -> None:
        """Close the minute or the hour *number*, and store the points of all tubes. May switch."""
        seconds = self._minute_seconds if tier is MINUTES else self._hour_seconds
        self._minute_seconds, self._hour_seconds = 0, self._hour_seconds + seconds if tier is MINUTES else 0
        frame = _FrameBuilder(tier, number) if seconds and number > self._last[tier] else None
        interval, point = self._server.close(tier, max(1, seconds), is_always_stored=True)
        if frame is not None:
            frame.add(SERVER, self._server, interval, point)
        for name, entry, series in self._each_series(CLOSE_BATCH):
            interval, point = series.close(tier, max(1, seconds))
            if series.active_minutes > 1 and self._fresh.pop(name, None) is not None:
                self._proven[name] = entry
            if frame is not None and point:
                frame.add(name, series, interval, point)
        if frame is not None:
            self._last[tier] = number
            self._archive.append(tier, number, encode_frame(number, frame.entries))

    def _seal(self, tier: Tier, second: int) -> None:
        """Store the block of *second*, which has ended. Does not switch."""
        chunks: dict[bytes, bytes] = {}
        entries = [*self._fresh.items(), *self._proven.items()]
        for name, entry in ((SERVER, self._total), *entries):
            assert entry.series is not None
            chunks[name] = entry.series.take_chunk(tier)
            if tier is MINUTES:
                entry.series.previous = tier.block(second), chunks[name]
        if chunks[SERVER]:
            self._archive.seal(tier, tier.block(second), chunks)

    # The points of an earlier run

    def restore(self) -> None:
        """Continue the series of the previous run from the archive, before the first sample. Switches."""
        second = self._clock() // SECOND
        if second - self._second > MAX_LATENESS:  # a follower waited until it became the leader
            self._skip(second)
        restored = Restored(self._archive, self._second)
        restored.run()
        self._last = {MINUTES: restored.last_minute, HOURS: restored.last_hour}
        self._hour_seconds = restored.hour_seconds
        names = [SERVER, *restored.names()[:MAX_TUBES]]
        last_hour = MINUTES.block(self._second) - 1
        previous = self._archive.read(MINUTES, last_hour, last_hour, names)
        restored.give(SERVER, self._server)
        pace = Pace()
        for name in names[1:]:
            pace.yield_if_due()
            entry = self._entry(name)
            if entry.series is None:
                self._start_series(name)
            assert entry.series is not None
            restored.give(name, entry.series)
            entry.active_at = self._second
            self._fresh.pop(name, None)
            self._proven[name] = entry
        for (_, name), chunk in previous.items():
            series = self._series(name or None)
            if series is not None:
                series.previous = last_hour, chunk
        self._on_restored()
        self.is_restored = True

    # Eviction

    def _entry(self, name: bytes) -> TubeSeries:
        entry = self._by_name.get(name)
        if entry is None:
            entry = self._by_name[name] = TubeSeries()
        return entry

    def _note_activity(self, name: bytes, entry: TubeSeries) -> None:
        """Start series for the active tube *name* if there is room, or make its series the last to evict."""
        if entry.series is None:
            if self._series_count() < MAX_TUBES or self._make_room():
                self._start_series(name)
        elif name in self._proven:
            self._proven.move_to_end(name)
        else:
            self._fresh.move_to_end(name)

    def _start_series(self, name: bytes) -> Series:
        entry = self._fresh[name] = self._entry(name)
        entry.series = Series(self._second)
        return entry.series

    def _series_count(self) -> int:
        return len(self._fresh) + len(self._proven)

    def _make_room(self) -> bool:
        """Evict the least valuable series; return False if none may be evicted.

        `_fresh` has tubes active in at most one minute, `_proven` all others. A flood of tubes that are used only once
        fills `_fresh`, and evicts series there. Invariant: series in `_proven` stay for PROVEN_IDLE_TIME after the last
        activity of their tube.
        """
        for tier, idle_time in ((self._fresh, FRESH_IDLE_TIME), (self._proven, PROVEN_IDLE_TIME)):
            name, entry = next(iter(tier.items()), (b"", None))
            if entry is None:
                continue
            is_gone = name not in self._broker.tubes
            if self._second - entry.active_at > idle_time or (is_gone and tier is self._fresh):
                self._evict(name, entry, is_gone)
                return True
        return False

    def _evict(self, name: bytes, entry: TubeSeries, is_gone: bool) -> None:
        self._fresh.pop(name, None)
        self._proven.pop(name, None)
        entry.series = None
        if is_gone:
            del self._by_name[name]

    # Iteration

    def _each_series(self, batch_size: int) -> Iterator[tuple[bytes, TubeSeries, Series]]:
        """Yield the name, entry and series of every tube that still has series when it is reached. May switch."""
        for name in in_batches([*self._fresh, *self._proven], batch_size):
            entry = self._by_name.get(name)
            if entry is not None and entry.series is not None:
                yield name, entry, entry.series


class _FrameBuilder:
    """A frame under construction: the points of one minute or hour."""

    def __init__(self, tier: Tier, number: int) -> None:
        self.entries: list[bytes] = []
        self._tier: Tier = tier
        self._offset: int = number % tier.length
        self._size: int = 0

    def add(self, name: bytes, series: Series, interval: Interval, point: bytes) -> None:
        """Add *point* to the frame, and to the current block of *series*."""
        add_to_chunk(series.chunk(self._tier), self._offset, point)
        waits, runs = interval.waits, interval.runs
        if self._tier is HOURS or self._size > MAX_FRAME:
            waits, runs = {}, {}
        self.entries.append(encode_entry(Entry(name, point, waits, runs)))
        self._size += len(self.entries[-1])


_UNKNOWN: Final = [nan] * len(SERIES)


def _sketch(rows: DurationRows) -> Sketch:
    sketch: Sketch = {}
    add_rows(sketch, rows)
    return sketch


def _depths(tube: Tube) -> Counts:
    """Return the values of rings.DEPTHS for *tube*."""
    return tube.ready.count, tube.reserved_count, tube.delayed.count, len(tube.buried), tube.waiting_count
