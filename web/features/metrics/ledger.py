"""The counters of tubes for the metrics, by label. Invariant: the counters of a label never decrease.

A tube's counters are deleted with the tube, and a new tube of the same name counts from zero. A monitoring system would
take each decrease for a restart of the server. So each label has an account, which outlives its tube for a while and
continues its counters. At most MAX_LABELS tubes have a label of their own. The events of all other tubes are counted
under OTHER. The counters of a new label start at zero, and OTHER keeps the tube's earlier events.

A tube keeps its label while it exists. If there are more tubes than labels, free labels go to the tubes with the most
jobs and activity, and each scrape takes at most MAX_SWAPS labels from tubes with far less activity.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappush, heappushpop, nsmallest
from operator import add, sub
from typing import Final, NamedTuple

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.history.rings import Counts
from greenstalk_server.web.features.history.tube_counters import NO_ACTIONS, PROTOCOL_COUNTERS, all_counters, each_tube

MAX_LABELS: Final = 1000

OTHER: Final = b"__other__"
"""The label of all tubes without one, and of a tube of that name."""

MAX_SWAPS: Final = 10
SWAP_RATIO: Final = 2
"""A tube must weigh more than this many times as much as another to take its label."""

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


class Row(NamedTuple):
    """One label; *counts* in the order of `all_counters`."""

    label: str
    gauges: Gauges
    counts: Counts


class Totals:
    """Durations of waits and runs, summed over tubes."""

    __slots__ = ("run_time", "runs", "wait_time", "waits")

    def __init__(self) -> None:
        self.waits: DurationCounts = {}
        self.runs: DurationCounts = {}
        self.wait_time: int = 0
        self.run_time: int = 0

    def add(self, other: Totals) -> None:
        """Add the durations of *other*."""
        self._add(other.waits, other.runs, other.wait_time, other.run_time)

    def add_tube(self, tube: Tube) -> None:
        """Add the durations of *tube*."""
        self._add(tube.wait_counts(), tube.run_counts(), tube.wait_time, tube.run_time)

    def _add(self, waits: DurationCounts, runs: DurationCounts, wait_time: int, run_time: int) -> None:
        for mine, others in ((self.waits, waits), (self.runs, runs)):
            for bits, count in others.items():
                mine[bits] = mine.get(bits, 0) + count
        self.wait_time += wait_time
        self.run_time += run_time


class _Account:
    """One label.

    carried         offset added to the tube's counters: counts of earlier tubes of this name, minus counts in OTHER.
    shown           the counters at the last scrape.
    weight          recent weight of the tube. Invariant: a scrape reduces it by half at most.
    """

    __slots__ = ("carried", "shown", "weight")

    def __init__(self, carried: Counts, weight: int) -> None:
        self.carried: Counts = carried
        self.shown: Counts = NO_COUNTS
        self.weight: int = weight

    def value(self, tube: Tube | None) -> Counts:
        """Return the counters; *tube* is the tube of the label, or None if it does not exist."""
        return self.carried if tube is None else tuple(map(add, self.carried, all_counters(tube)))


class Ledger(BrokerListener):
    """The accounts of one broker's tubes."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._accounts: dict[bytes, _Account] = {}
        self._gone: OrderedDict[bytes, int] = OrderedDict()  # labels without a tube, and since when
        self._other: Counts = NO_COUNTS
        self._in_other: dict[bytes, Counts] = {}  # for each existing tube: its counts that OTHER includes
        self._gone_totals: Totals = Totals()
        self._late_totals: Totals = Totals()  # of tubes dropped after the current scrape has read them
        self._read: set[bytes] = set()
        broker.subscribe(self)

    def scrape(self) -> tuple[list[Row], Totals]:
        """Return every label, OTHER last, and the totals of the server. May switch.

        Only one scrape may run at a time. Each tube is read in one step, but different tubes at different times.
        """
        self._give_labels()
        other, totals = NOTHING, Totals()
        rows: dict[bytes, Row] = {}
        try:
            for tube in each_tube(self._broker, TUBE_BATCH):
                name = tube.name
                self._read.add(name)
                totals.add_tube(tube)
                gauges = _gauges(tube, self._broker, self._clock())
                if name in self._accounts:
                    rows[name] = Row(name.decode(), gauges, self._read_account(name, tube, gauges))
                else:
                    self._read_other(name, tube)
                    other = _sum_gauges(other, gauges)
            totals.add(self._gone_totals)
        finally:
            self._read.clear()
            self._gone_totals.add(self._late_totals)
            self._late_totals = Totals()
        for name in self._gone.keys() - rows.keys():
            rows[name] = Row(name.decode(), NOTHING, self._read_gone(name))
        return [*rows.values(), Row(OTHER.decode(), other, self._other)], totals

    # Reading

    def _read_account(self, name: bytes, tube: Tube, gauges: Gauges) -> Counts:
        account = self._accounts[name]
        value = account.value(tube)
        account.weight = max(_weight(gauges, value, account.shown), account.weight // 2)
        account.shown = value
        return value

    def _read_other(self, name: bytes, tube: Tube) -> None:
        counts = all_counters(tube)
        self._other = _add_growth(self._other, counts, self._in_other.get(name, NO_COUNTS))
        self._in_other[name] = counts

    def _read_gone(self, name: bytes) -> Counts:
        """Return the counters of a label without a tube. A tube created during the scrape counts at the next one."""
        account = self._accounts[name]
        account.weight //= 2
        account.shown = account.carried
        return account.carried

    def on_tube_dropped(self, tube: Tube) -> None:
        """Keep the counts of *tube*. The broker calls this before it drops *tube*. Does not switch."""
        counts, account = all_counters(tube), self._accounts.get(tube.name)
        if account is not None:
            account.carried = account.value(tube)
            self._gone[tube.name] = self._clock()
            self._gone.move_to_end(tube.name)
        elif counts != (before := self._in_other.pop(tube.name, NO_COUNTS)):
            self._other = _add_growth(self._other, counts, before)
        (self._late_totals if tube.name in self._read else self._gone_totals).add_tube(tube)

    # Labels

    def _give_labels(self) -> None:
        """Give free labels to the heaviest tubes, and swap a few labels of light tubes. May switch."""
        self._remove_old_labels()
        waiting = self._without_label()
        free = MAX_LABELS - len(self._accounts)
        while free < len(waiting) and self._gone:
            self._remove_label(next(iter(self._gone)))
            free += 1
        for weight, name in waiting[:free]:
            self._add_label(name, weight)
        self._swap(waiting[free : free + MAX_SWAPS])

    def _without_label(self) -> list[tuple[int, bytes]]:
        """Return the weights and names of the tubes without a label, the heaviest first. May switch.

        Only as many are returned as could get a label.
        """
        heaviest: list[tuple[int, bytes]] = []
        limit = MAX_LABELS - len(self._accounts) + len(self._gone) + MAX_SWAPS
        for tube in each_tube(self._broker, TUBE_BATCH):
            name = tube.name
            if name not in self._accounts and name != OTHER:
                before = self._in_other.get(name, NO_COUNTS)
                entry = (_weight(_gauges(tube, self._broker, 0), all_counters(tube), before), name)
                if len(heaviest) < limit:
                    heappush(heaviest, entry)
                else:
                    heappushpop(heaviest, entry)
        return sorted(heaviest, reverse=True)

    def _swap(self, waiting: list[tuple[int, bytes]]) -> None:
        """Give the labels of far lighter tubes to the tubes in *waiting*, heaviest first."""
        light = nsmallest(len(waiting), ((account.weight, name) for name, account in self._accounts.items()))
        for (weight, name), (light_weight, light_name) in zip(waiting, light, strict=False):
            if weight <= SWAP_RATIO * light_weight:
                return
            self._remove_label(light_name)
            self._add_label(name, weight)

    def _add_label(self, name: bytes, weight: int) -> None:
        """Give a label to the tube *name*, if the tube still exists."""
        tube = self._broker.tubes.get(name)
        if tube is not None:
            in_other = self._in_other.pop(name, NO_COUNTS)
            self._accounts[name] = _Account(tuple(map(sub, NO_COUNTS, in_other)), weight)

    def _remove_label(self, name: bytes) -> None:
        """Remove the label of *name*. Its events since the last scrape, and later ones, are counted under OTHER."""
        account, tube = self._accounts.pop(name), self._broker.tubes.get(name)
        self._gone.pop(name, None)
        self._other = _add_growth(self._other, account.value(tube), account.shown)
        if tube is not None:
            self._in_other[name] = all_counters(tube)

    def _remove_old_labels(self) -> None:
        for name in [name for name in self._gone if name in self._broker.tubes]:
            del self._gone[name]
        since = self._clock() - LABEL_RETENTION
        for name in [name for name, at in self._gone.items() if at < since]:
            self._remove_label(name)


def _gauges(tube: Tube, broker: Broker, now: int) -> Gauges:
    oldest = tube.oldest_ready()
    held_by = tube.hold_reason(now) if tube.rules is not None else ""
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
        int(tube.rules is not None),
        int(held_by == "rate"),
        int(held_by == "max_reserved"),
        int(is_dead_letter),
        tube.job_count if is_dead_letter else 0,
        pause_left,
        max(0, now - oldest.ready_since) if oldest is not None else 0,
    )


def _sum_gauges(one: Gauges, other: Gauges) -> Gauges:
    """Return the sum of two Gauges; for `pause_left` and `oldest_age`, the maximum."""
    return Gauges(*map(add, one[:-2], other[:-2]), *map(max, one[-2:], other[-2:]))


def _weight(gauges: Gauges, counts: Counts, before: Counts) -> int:
    """Return the weight of a tube: its jobs, plus its events since its counters were at *before*."""
    return gauges.ready + gauges.reserved + gauges.delayed + gauges.buried + sum(counts) - sum(before)


def _add_growth(total: Counts, counts: Counts, before: Counts) -> Counts:
    """Return *total* plus the increase of a tube's counters from *before* to *counts*."""
    return tuple(map(add, total, map(sub, counts, before)))
