"""The values of the metrics of one shard, and their sums over all shards.

A tube belongs to one shard, so its values come from there; only those of `default` and of OTHER are sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import add
from typing import Final

import msgspec
from gevent.lock import BoundedSemaphore
from msgspec import Struct

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.counters import COUNTERS
from greenstalk_server.runtime import supervisor
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.conditions.monitor import free_bytes
from greenstalk_server.web.features.metrics.ledger import OTHER, CounterAccounts, Totals, TubeCounters, sum_gauges
from greenstalk_server.web.framework.shards import Shards
from greenstalk_server.web.reads.fronts import FrontFigures, Fronts, limited_with
from greenstalk_server.web.reads.jobs.moving import moves_of

QUESTION: Final = "metrics"

COMMANDS: Final = {name: name.removeprefix("cmd_").replace("_", "-") for name in COUNTERS if name.startswith("cmd_")}
"""The protocol's command for each counter of "stats"."""

DurationValues = tuple[dict[int, int], int]
"""Durations: numbers by the bit length of their nanoseconds, and their sum."""


class BodyValues(Struct):
    """Bodies in memory and on disk, if memory is limited."""

    in_memory: int
    on_disk: int
    resident: int
    evicted: int
    limit: int
    taken: int
    is_full: bool


class ShardMetrics(Struct):
    """The values of one shard, or their sums.

    times           of jobs: ready until reserved, and reserved until finished.
    moves           jobs that are moving to other shards: their number, and for how long the first, nanoseconds.
    disk_free       None without a journal.
    bodies          None without a memory limit.
    """

    tubes: list[TubeCounters]
    times: tuple[DurationValues, DurationValues]
    commands: dict[str, int]
    restarts: dict[str, int]
    connections: dict[str, int]
    total_connections: int
    limited: dict[str, int]
    moves: tuple[int, int]
    journal_bytes: int
    disk_free: int | None
    is_in_trouble: bool
    syncs: DurationValues
    bodies: BodyValues | None


class MetricsReader:
    """Reads the values of all shards."""

    def __init__(self, broker: Broker, clock: Clock, directory: str | None, shards: Shards, fronts: Fronts) -> None:
        """*directory* is the directory of the journal; None without one."""
        self._fronts: Fronts = fronts
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._directory: str | None = directory
        self._shards: Shards = shards
        self._ledger: CounterAccounts = CounterAccounts(broker, clock)
        self._scraping: BoundedSemaphore = BoundedSemaphore(1)
        shards.answer(QUESTION, self._own)

    def read(self) -> ShardMetrics:
        """Return the values of the processes that can be reached. Switches."""
        values = self._own()
        if self._shards.others:
            answers = self._shards.ask_others(QUESTION).values()
            values = _sum([values, *[msgspec.convert(answer, ShardMetrics, str_keys=True) for answer in answers]])
        return _with_fronts(values, self._fronts.standbys())

    def _own(self) -> ShardMetrics:
        broker = self._broker
        with self._scraping:
            rows, totals = self._ledger.scrape()
        journal, bodies, counters = broker.journal.stats(), broker.bodies, broker.counters
        values = ShardMetrics(
            tubes=rows,
            times=_times(totals),
            commands={command: getattr(counters, name) for name, command in COMMANDS.items()},
            restarts=dict(supervisor.restarts),
            connections={
                "any": len(broker.clients) - broker.remote_count,
                "producer": broker.producer_count,
                "worker": broker.worker_count,
                "waiting": broker.waiting_count,
            },
            total_connections=counters.total_connections,
            limited=dict(broker.limit_counters.counts()),
            moves=_summed_moves([(jobs, age) for _, jobs, age in moves_of(broker, self._clock())]),
            journal_bytes=journal.bytes_on_disk,
            disk_free=free_bytes(self._directory) if self._directory is not None else None,
            is_in_trouble=broker.journal.write_error is not None,
            syncs=(dict(journal.syncs), journal.sync_time),
            bodies=None
            if bodies is None
            else BodyValues(
                in_memory=bodies.in_memory,
                on_disk=bodies.on_disk,
                resident=bodies.resident,
                evicted=bodies.jobs - bodies.resident,
                limit=bodies.limit,
                taken=bodies.taken,
                is_full=not bodies.has_room(0),
            ),
        )
        return _with_fronts(values, self._fronts.own())


def _with_fronts(values: ShardMetrics, fronts: Sequence[FrontFigures]) -> ShardMetrics:
    """Return *values* with those of *fronts* added."""
    for front in fronts:
        stats = front.stats
        commands = {command: stats[name] for name, command in COMMANDS.items()}
        roles = {
            "any": stats["current_connections"],
            "producer": stats["current_producers"],
            "worker": stats["current_workers"],
            "waiting": stats["current_waiting"],
        }
        values.commands = _sum_counts([values.commands, commands])
        values.connections = _sum_counts([values.connections, roles])
        values.total_connections += stats["total_connections"]
    values.limited = limited_with(values.limited, fronts)
    return values


def _times(totals: Totals) -> tuple[DurationValues, DurationValues]:
    queued, processed = totals.queue_times, totals.processing_times
    return (queued.counts, queued.total), (processed.counts, processed.total)


def _sum(parts: Sequence[ShardMetrics]) -> ShardMetrics:
    """Return the sums of *parts*. Where shards use one disk, the free space of the least is that of all."""
    free = [part.disk_free for part in parts if part.disk_free is not None]
    bodies = [part.bodies for part in parts if part.bodies is not None]
    return ShardMetrics(
        tubes=_sum_tubes(parts),
        times=(_sum_durations([part.times[0] for part in parts]), _sum_durations([part.times[1] for part in parts])),
        commands=_sum_counts([part.commands for part in parts]),
        restarts=_sum_counts([part.restarts for part in parts]),
        connections=_sum_counts([part.connections for part in parts]),
        total_connections=sum([part.total_connections for part in parts]),
        limited=_sum_counts([part.limited for part in parts]),
        moves=_summed_moves([part.moves for part in parts]),
        journal_bytes=sum([part.journal_bytes for part in parts]),
        disk_free=min(free, default=None),
        is_in_trouble=any(part.is_in_trouble for part in parts),
        syncs=_sum_durations([part.syncs for part in parts]),
        bodies=BodyValues(
            in_memory=sum([one.in_memory for one in bodies]),
            on_disk=sum([one.on_disk for one in bodies]),
            resident=sum([one.resident for one in bodies]),
            evicted=sum([one.evicted for one in bodies]),
            limit=sum([one.limit for one in bodies]),
            taken=sum([one.taken for one in bodies]),
            is_full=any(one.is_full for one in bodies),
        )
        if bodies
        else None,
    )


def _summed_moves(parts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the number of all jobs, and the longest time."""
    return sum([jobs for jobs, _ in parts]), max([age for _, age in parts], default=0)


def _sum_tubes(parts: Sequence[ShardMetrics]) -> list[TubeCounters]:
    """Return a row for each label, OTHER last."""
    rows: dict[str, TubeCounters] = {}
    for part in parts:
        for row in part.tubes:
            known = rows.get(row.label)
            rows[row.label] = row if known is None else _sum_rows(known, row)
    other = rows.pop(OTHER.decode())
    return [*rows.values(), other]


def _sum_rows(one: TubeCounters, other: TubeCounters) -> TubeCounters:
    counts = tuple(map(add, one.counts, other.counts))
    return TubeCounters(one.label, sum_gauges(one.gauges, other.gauges), counts)


def _sum_counts(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    found = Counter[str]()
    for part in parts:
        found.update(part)
    return dict(found)


def _sum_durations(parts: Sequence[DurationValues]) -> DurationValues:
    counts = Counter[int]()
    for part, _ in parts:
        counts.update(part)
    return dict(counts), sum([total for _, total in parts])
