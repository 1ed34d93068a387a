"""What tubes have counted, under labels whose counters never go back.

A tube's counters go with it when nobody needs it any more, and a name that comes back counts from zero; who reads
counters from outside takes each step back for a restart. So each label has an account, which outlives its tube for a
while and goes on where it was. LABELS_AT_MOST tubes have a label of their own, and what all others count is under
OTHER: a tube that gets a label starts at zero there, and what OTHER has of it, OTHER keeps.

A tube keeps its label while it exists. If there are more tubes than labels, those that are free go to the tubes with
the most jobs and activity, and each look takes at most SWAPS from tubes in which far less goes on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappush, heappushpop, nsmallest
from operator import add, sub
from typing import Final, NamedTuple

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import SECOND
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.cooperative import Pace
from greenstalk_server.web.metrics.tube_series import NO_COUNTS, Counts, counters

LABELS_AT_MOST: Final = 1000

OTHER: Final = b"__other__"
"""The label of all tubes that have none, and of one that is called so."""

SWAPS: Final = 10
FAR_LESS: Final = 2
"""A label is taken for a tube that weighs more than so many times as much."""

KEPT_FOR: Final = 3600 * SECOND
"""How long a label outlives its tube, if no other tube needs it."""

TUBES_A_STEP: Final = 32

Lengths = dict[int, int]
"""How many, by bit length of nanoseconds."""


class Gauges(NamedTuple):
    """What is in a tube at a moment; ages and pauses in nanoseconds."""

    ready: int = 0
    reserved: int = 0
    delayed: int = 0
    buried: int = 0
    urgent: int = 0
    bytes: int = 0
    waiting: int = 0
    watching: int = 0
    paused: int = 0
    pause_left: int = 0
    oldest_age: int = 0


NOTHING: Final = Gauges()


class Row(NamedTuple):
    """One label; *counts* in the order of `track.counters`."""

    label: str
    gauges: Gauges
    counts: Counts


class Totals:
    """How long jobs waited and ran, of many tubes."""

    __slots__ = ("run_time", "runs", "wait_time", "waits")

    def __init__(self) -> None:
        self.waits: Lengths = {}
        self.runs: Lengths = {}
        self.wait_time: int = 0
        self.run_time: int = 0

    def add(self, other: Tube | Totals) -> None:
        """Add what *other* has."""
        for mine, others in ((self.waits, other.waits), (self.runs, other.runs)):
            for length, count in others.items():
                mine[length] = mine.get(length, 0) + count
        self.wait_time += other.wait_time
        self.run_time += other.run_time


class _Account:
    """One label.

    carried         what is added to its tube's counters: what earlier tubes of the name have counted, less what OTHER
                    has of them.
    shown           its counters at the last look.
    weight          its tube's of late: it halves at most from one look to the next.
    """

    __slots__ = ("carried", "shown", "weight")

    def __init__(self, carried: Counts, weight: int) -> None:
        self.carried: Counts = carried
        self.shown: Counts = NO_COUNTS
        self.weight: int = weight

    def value(self, tube: Tube | None) -> Counts:
        """Its counters, with *tube* there."""
        return self.carried if tube is None else tuple(map(add, self.carried, counters(tube)))


class Ledger(BrokerListener):
    """The accounts of one broker's tubes. It listens for tubes that the broker drops."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._accounts: dict[bytes, _Account] = {}
        self._gone: OrderedDict[bytes, int] = OrderedDict()  # labels without a tube, and since when
        self._other: Counts = NO_COUNTS
        self._in_other: dict[bytes, Counts] = {}  # what OTHER has of each tube that exists
        self._gone_totals: Totals = Totals()
        self._late_totals: Totals = Totals()  # of tubes that were read in the look under way before they went
        self._read: set[bytes] = set()
        broker.subscribe(self)

    def look(self) -> tuple[list[Row], Totals]:
        """Every label, OTHER last, and the totals of the whole server. May switch; one at a time.

        A tube is read in one go, though not all in the same moment; no counter is lower than at the last look.
        """
        self._give_labels()
        other, totals = NOTHING, Totals()
        rows: dict[bytes, Row] = {}
        try:
            for name, tube in self._each_tube():
                self._read.add(name)
                totals.add(tube)
                gauges = _gauges(tube, self._clock())
                if name in self._accounts:
                    rows[name] = Row(name.decode(), gauges, self._read_account(name, tube, gauges))
                else:
                    self._read_other(name, tube)
                    other = _together(other, gauges)
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
        counts = counters(tube)
        self._other = _grown(self._other, counts, self._in_other.get(name, NO_COUNTS))
        self._in_other[name] = counts

    def _read_gone(self, name: bytes) -> Counts:
        """The counters of a label without a tube; one that has come meanwhile counts at the next look."""
        account = self._accounts[name]
        account.weight //= 2
        account.shown = account.carried
        return account.carried

    def on_tube_dropped(self, tube: Tube) -> None:
        """Keep what *tube*, which goes, has counted. Called by the broker: does not switch."""
        counts, account = counters(tube), self._accounts.get(tube.name)
        if account is not None:
            account.carried = account.value(tube)
            self._gone[tube.name] = self._clock()
            self._gone.move_to_end(tube.name)
        elif counts != (before := self._in_other.pop(tube.name, NO_COUNTS)):
            self._other = _grown(self._other, counts, before)
        if tube.waits or tube.runs:
            (self._late_totals if tube.name in self._read else self._gone_totals).add(tube)

    # Who has a label

    def _give_labels(self) -> None:
        """Give free labels to the tubes that weigh most, and some that are not worth it to others. May switch."""
        self._end_old()
        waiting = self._without_label()
        free = LABELS_AT_MOST - len(self._accounts)
        while free < len(waiting) and self._gone:
            self._end(next(iter(self._gone)))
            free += 1
        for weight, name in waiting[:free]:
            self._begin(name, weight)
        self._swap(waiting[free : free + SWAPS])

    def _without_label(self) -> list[tuple[int, bytes]]:
        """What those tubes weigh that have no label, heaviest first, as many as may get one. May switch."""
        heaviest: list[tuple[int, bytes]] = []
        at_most = LABELS_AT_MOST - len(self._accounts) + len(self._gone) + SWAPS
        for name, tube in self._each_tube():
            if name not in self._accounts and name != OTHER:
                before = self._in_other.get(name, NO_COUNTS)
                entry = (_weight(_gauges(tube, 0), counters(tube), before), name)
                if len(heaviest) < at_most:
                    heappush(heaviest, entry)
                else:
                    heappushpop(heaviest, entry)
        return sorted(heaviest, reverse=True)

    def _swap(self, waiting: list[tuple[int, bytes]]) -> None:
        """Give tubes of *waiting*, heaviest first, the labels of tubes that weigh far less."""
        light = nsmallest(len(waiting), ((account.weight, name) for name, account in self._accounts.items()))
        for (weight, name), (least, loser) in zip(waiting, light, strict=False):
            if weight <= FAR_LESS * least:
                return
            self._end(loser)
            self._begin(name, weight)

    def _begin(self, name: bytes, weight: int) -> None:
        """Give a label to the tube *name*, if it is still there."""
        tube = self._broker.tubes.get(name)
        if tube is not None:
            in_other = self._in_other.pop(name, NO_COUNTS)
            self._accounts[name] = _Account(tuple(map(sub, NO_COUNTS, in_other)), weight)

    def _end(self, name: bytes) -> None:
        """Take its label from *name*: what it has counted since the last look, and from now on, OTHER counts."""
        account, tube = self._accounts.pop(name), self._broker.tubes.get(name)
        self._gone.pop(name, None)
        self._other = _grown(self._other, account.value(tube), account.shown)
        if tube is not None:
            self._in_other[name] = counters(tube)

    def _end_old(self) -> None:
        for name in [name for name in self._gone if name in self._broker.tubes]:
            del self._gone[name]
        since = self._clock() - KEPT_FOR
        for name in [name for name, at in self._gone.items() if at < since]:
            self._end(name)

    def _each_tube(self) -> Iterator[tuple[bytes, Tube]]:
        """Every tube that is still there when its turn comes. Switches in between."""
        pace, tubes = Pace(), self._broker.tubes
        names = list(tubes)
        for start in range(0, len(names), TUBES_A_STEP):
            pace.rest()
            for name in names[start : start + TUBES_A_STEP]:
                tube = tubes.get(name)
                if tube is not None:
                    yield name, tube


def _gauges(tube: Tube, now: int) -> Gauges:
    oldest = tube.oldest_ready()
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
        pause_left,
        max(0, now - oldest.ready_since) if oldest is not None else 0,
    )


def _together(one: Gauges, other: Gauges) -> Gauges:
    """Sums, but of the longest age and pause."""
    return Gauges(*map(add, one[:-2], other[:-2]), *map(max, one[-2:], other[-2:]))


def _weight(gauges: Gauges, counts: Counts, before: Counts) -> int:
    """How much goes on in a tube: its jobs, and what it has counted since it had counted *before*."""
    return gauges.ready + gauges.reserved + gauges.delayed + gauges.buried + sum(counts) - sum(before)


def _grown(total: Counts, counts: Counts, before: Counts) -> Counts:
    """The *total*, to which a tube that has counted *counts* adds what it has counted since *before*."""
    return tuple(map(add, total, map(sub, counts, before)))
