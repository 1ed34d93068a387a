"""The history in the logs of the previous run: its current blocks are continued, or closed if they have ended.

Invariant: the result has only points of intact frames. A frame whose number is not above the previous one is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from greenstalk_server.core.tube_names import is_tube_name
from greenstalk_server.web.features.history.archive import HOURS, MINUTES, SERVER, Archive, Tier
from greenstalk_server.web.features.history.points import (
    Entry,
    add_to_chunk,
    decode_frame,
    decode_point,
    encode_entry,
    encode_frame,
    encode_point,
    frame_number,
)
from greenstalk_server.web.features.history.rings import NO_DEPTHS, RATES, Counts
from greenstalk_server.web.features.history.tube_series import Interval, Series
from greenstalk_server.web.framework.cooperative import Pace

log = logging.getLogger(__name__)

Growing = dict[bytes, bytearray]
"""The chunks of one block."""


class _Hour:
    """The minutes of one hour, for the hour's own point."""

    def __init__(self) -> None:
        self.seconds: int = 0
        self.intervals: dict[bytes, Interval] = {}
        self.depths: dict[bytes, Counts] = {}

    def add(self, entry: Entry) -> None:
        """Add one minute of one tube; raise ValueError."""
        point = decode_point(entry.point)
        if entry.name == SERVER:
            self.seconds += point.seconds
            self.depths.clear()
        interval = self.intervals.setdefault(entry.name, Interval(begins=False))
        interval.begins = interval.begins or point.begins
        interval.add_counts(point.values[: len(RATES)])
        interval.add_times(entry.waits, entry.runs)
        self.depths[entry.name] = point.values[len(RATES) :]


class Restored:
    """The restored points.

    minutes, hours  the chunks of the current hour and of the current day.
    hour            events and times of the current hour, by name.
    hour_seconds    seconds of the current hour that were counted.
    last_minute, last_hour  numbers of the last points; -1 if there are none.
    """

    def __init__(self, archive: Archive, second: int) -> None:
        """The history of *archive*, at the time *second*."""
        self.minutes: Growing = {}
        self.hours: Growing = {}
        self.hour: dict[bytes, Interval] = {}
        self.hour_seconds: int = 0
        self.last_minute: int = -1
        self.last_hour: int = -1
        self._archive: Archive = archive
        self._second: int = second
        self._pace: Pace = Pace()
        self._days: dict[int, Growing] = {}

    def run(self) -> None:
        """Read the logs. Switches."""
        today = HOURS.block(self._second)
        for block, frames in self._archive.load(HOURS):
            for number, entries in self._frames(HOURS, block, frames):
                self._add(self._days.setdefault(block, {}), HOURS, number, entries)
                if block <= today:
                    self.last_hour = max(self.last_hour, number)
        for block, frames in self._archive.load(MINUTES):
            self._restore_minutes(block, frames)
        self.hours = self._days.pop(today, {})
        for day, chunks in self._days.items():
            self._archive.seal(HOURS, day, {name: bytes(chunk) for name, chunk in chunks.items()})

    def names(self) -> list[bytes]:
        """Return the names of the tubes with activity in the current hour, then of the tubes with activity today."""
        return [name for name in dict.fromkeys((*self.minutes, *self.hours)) if name != SERVER]

    def give(self, name: bytes, series: Series) -> None:
        """Continue the points of the tube *name* in *series*."""
        series.set_chunk(MINUTES, self.minutes.get(name, bytearray()))
        series.set_chunk(HOURS, self.hours.get(name, bytearray()))
        series.minute = Interval(begins=False)
        series.hour = self.hour.get(name) or Interval(begins=False)

    def _restore_minutes(self, block: int, frames: list[bytes]) -> None:
        chunks: Growing = {}
        hour, this_hour = _Hour(), MINUTES.block(self._second)
        for number, entries in self._frames(MINUTES, block, frames):
            self._add(chunks, MINUTES, number, entries)
            for entry in entries:
                self._pace.yield_if_due()
                hour.add(entry)
            if block <= this_hour:
                self.last_minute = max(self.last_minute, number)
        if block == this_hour:
            self.minutes, self.hour, self.hour_seconds = chunks, hour.intervals, hour.seconds
        elif chunks:
            if self.last_hour < block < this_hour:
                self._close_hour(block, hour)
            self._archive.seal(MINUTES, block, {name: bytes(chunk) for name, chunk in chunks.items()})

    def _close_hour(self, number: int, hour: _Hour) -> None:
        """Add the point of an hour that ended while the server did not run."""
        entries = []
        for name, interval in hour.intervals.items():
            self._pace.yield_if_due()
            point = interval.point(hour.seconds, hour.depths.get(name, NO_DEPTHS))
            if name == SERVER or not point.is_blank:
                entries.append(Entry(name, encode_point(point), {}, {}))
        self._add(self._days.setdefault(number // HOURS.length, {}), HOURS, number, entries)
        self._archive.append(HOURS, number, encode_frame(number, map(encode_entry, entries)))
        self.last_hour = number

    def _frames(self, tier: Tier, block: int, frames: list[bytes]) -> Iterator[tuple[int, list[Entry]]]:
        """Yield the number and the entries of each valid frame of a log, in order. May switch."""
        last = -1
        for frame in frames:
            try:
                number, entries = frame_number(frame), list[Entry]()
                for entry in decode_frame(frame):
                    self._pace.yield_if_due()
                    decode_point(entry.point)
                    entries.append(entry)
            except ValueError as error:
                log.warning("history: a frame in %s-%d.log is invalid, and is left out: %s", tier.name, block, error)
                continue
            if number // tier.length == block and number > last and entries and entries[0].name == SERVER:
                last = number
                yield number, [entry for entry in entries if entry.name == SERVER or is_tube_name(entry.name)]

    def _add(self, chunks: Growing, tier: Tier, number: int, entries: list[Entry]) -> None:
        for entry in entries:
            self._pace.yield_if_due()
            add_to_chunk(chunks.setdefault(entry.name, bytearray()), number % tier.length, entry.point)
