"""The counters of tubes for the metrics, by label. Invariant: the counters of a label never decrease.

A tube's counters are deleted with the tube, and a new tube of the same name counts from zero. A monitoring system would
take each decrease for a restart of the server. So a label outlives its tube for a while and continues its counters. The
first MAX_LABELS tubes have a label of their own. The events of all other tubes are counted under OTHER.
"""

from __future__ import annotations

from operator import add, sub
from typing import Final, NamedTuple

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.history.rings import Counts
from greenstalk_server.web.features.history.tube_counters import NO_ACTIONS, PROTOCOL_COUNTERS, all_counters
from greenstalk_server.web.reads.tubes import each_tube

MAX_LABELS: Final = 1000

OTHER: Final = b"__other__"
"""The label of all tubes that have no label of their own, and of a tube with this name."""

LABEL_RETENTION: Final = 3600 * SECOND
"""Nanoseconds that a label outlives its tube, unless another tube needs the label."""

TUBE_BATCH: Final = 32
"""Tubes between two checks of the time slice."""

NO_COUNTS: Final[Counts] = (0,) * PROTOCOL_COUNTERS + NO_ACTIONS

DurationCounts = dict[int, int]
"""Counts of durations by the bit length of their nanoseconds."""


class Gauges(NamedTuple):
    """The state of a tube at one moment; ages and pauses in nanoseconds.

    governed        1 if a policy matches the tube.
    rate_held, reserved_held    1 if `rate` or `max_reserved` holds its jobs back.
    dead_letter     1 if it is the dead-letter tube of a policy.
    dead_letters    the number of its jobs if it is one, else 0.
    """

    ready: int = 0
    reserved: int = 0
    delayed: int = 0
    buried: int = 0
    urgent: int = 0
    bytes: int = 0
    waiting: int = 0
    watching: int = 0
    paused: int = 0
    governed: int = 0
    rate_held: int = 0
    reserved_held: int = 0
    dead_letter: int = 0
    dead_letters: int = 0
    pause_left: int = 0
    oldest_age: int = 0


NOTHING: Final = Gauges()


class TubeCounters(NamedTuple):
    """The metrics of one label; *counts* are in the order of `all_counters`."""

    label: str
    gauges: Gauges
    counts: Counts


class DurationTotals:
    """Durations of one kind, summed over tubes.

    counts  histogram of the durations.
    total   their sum, nanoseconds.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: DurationCounts = {}
        self.total: int = 0

    def add(self, counts: DurationCounts, total: int) -> None:
        """Add the durations of a histogram, and their sum."""
        for bits, count in counts.items():
            self.counts[bits] = self.counts.get(bits, 0) + count
        self.total += total


class Totals:
    """Queue times and processing times, summed over tubes."""

    __slots__ = ("processing_times", "queue_times")

    def __init__(self) -> None:
        self.queue_times: DurationTotals = DurationTotals()
        self.processing_times: DurationTotals = DurationTotals()

    def add(self, other: Totals) -> None:
        """Add the durations of *other*."""
        self.queue_times.add(other.queue_times.counts, other.queue_times.total)
        self.processing_times.add(other.processing_times.counts, other.processing_times.total)

    def add_tube(self, tube: Tube) -> None:
        """Add the durations of *tube*."""
        self.queue_times.add(tube.queue_times.counts(), tube.queue_times.total)
        self.processing_times.add(tube.processing_times.counts(), tube.processing_times.total)


class CounterAccounts(BrokerListener):
    """The accounts of one broker's tubes."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._carried: dict[bytes, Counts] = {}  # for each label: the counts of earlier tubes of this name
        self._gone: dict[bytes, int] = {}  # for each label without a tube: when a scrape first showed all counts
        self._other: Counts = NO_COUNTS
        self._in_other: dict[bytes, Counts] = {}  # for each existing tube: the part of its counts that OTHER includes
        self._gone_totals: Totals = Totals()
        self._late_totals: Totals = Totals()  # totals of tubes dropped after the current scrape has read them
        self._read: set[bytes] = set()
        broker.subscribe(self)

    def scrape(self) -> tuple[list[TubeCounters], Totals]:
        """Return every label, OTHER last, and the totals of the server. May switch.

        Only one scrape may run at a time. Each tube is read in one step, but different tubes at different times.
        """
        self._remove_old_labels()
        other, totals = NOTHING, Totals()
        rows: dict[bytes, TubeCounters] = {}
        try:
            for tube in each_tube(self._broker, TUBE_BATCH):
                name = tube.name
                self._read.add(name)
                totals.add_tube(tube)
                gauges = _gauges(tube, self._broker, self._clock())
                if self._has_label(name):
                    rows[name] = TubeCounters(
                        name.decode(), gauges, tuple(map(add, self._carried[name], all_counters(tube)))
                    )
                else:
                    self._read_other(tube)
                    other = sum_gauges(other, gauges)
            totals.add(self._gone_totals)
        finally:
            self._read.clear()
            self._gone_totals.add(self._late_totals)
            self._late_totals = Totals()
        for name in self._carried.keys() - rows.keys():
            rows[name] = TubeCounters(name.decode(), NOTHING, self._carried[name])
            self._gone.setdefault(name, self._clock())
        return [*rows.values(), TubeCounters(OTHER.decode(), other, self._other)], totals

    def on_tube_dropped(self, tube: Tube) -> None:
        """Keep the counts of *tube*. The broker calls this before it drops *tube*. Does not switch."""
        name = tube.name
        if name in self._carried:
            self._carried[name] = tuple(map(add, self._carried[name], all_counters(tube)))
            self._gone.pop(name, None)
        else:
            self._read_other(tube)
            del self._in_other[name]
        (self._late_totals if name in self._read else self._gone_totals).add_tube(tube)

    def _read_other(self, tube: Tube) -> None:
        """Add to OTHER the events of *tube* since the last call."""
        counts, before = all_counters(tube), self._in_other.get(tube.name, NO_COUNTS)
        self._other = tuple(map(add, self._other, map(sub, counts, before)))
        self._in_other[tube.name] = counts

    def _has_label(self, name: bytes) -> bool:
        """Whether the tube *name* has a label. A tube that is read for the first time gets one if one is free."""
        if name in self._carried or name in self._in_other or name == OTHER:
            return name in self._carried
        if len(self._carried) >= MAX_LABELS:
            if not self._gone:
                return False
            self._remove_label(next(iter(self._gone)))
        self._carried[name] = NO_COUNTS
        return True

    def _remove_label(self, name: bytes) -> None:
        """Remove the label *name*, whose tube was dropped. An earlier scrape has shown all of its counts."""
        del self._carried[name], self._gone[name]

    def _remove_old_labels(self) -> None:
        for name in [name for name in self._gone if name in self._broker.tubes]:
            del self._gone[name]
        since = self._clock() - LABEL_RETENTION
        for name in [name for name, at in self._gone.items() if at < since]:
            self._remove_label(name)


def _gauges(tube: Tube, broker: Broker, now: int) -> Gauges:
    oldest = tube.oldest_ready()
    held_by = tube.throttle_reason(now) if tube.policy_state is not None else ""
    is_dead_letter = tube.name in broker.policies.dead_letter_tubes
    pause_left = max(0, tube.paused_until - now)
    return Gauges(
        tube.ready.count,
        tube.reserved_count,
        tube.delayed.count,
        len(tube.buried),
        tube.urgent_count,
        tube.body_bytes,
        tube.waiting_count,
        tube.watching,
        int(pause_left > 0),
        int(tube.policy_state is not None),
        int(held_by == "rate"),
        int(held_by == "max_reserved"),
        int(is_dead_letter),
        tube.job_count if is_dead_letter else 0,
        pause_left,
        max(0, now - oldest.ready_since) if oldest is not None else 0,
    )


def sum_gauges(one: Gauges, other: Gauges) -> Gauges:
    """Return the sum of two Gauges; for `pause_left` and `oldest_age`, the maximum."""
    return Gauges(*map(add, one[:-2], other[:-2]), *map(max, one[-2:], other[-2:]))
