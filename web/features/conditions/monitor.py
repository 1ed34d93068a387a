"""Evaluates the conditions every few seconds, in slices.

The server is evaluated once a second, the free disk space and the machine's memory every 5 seconds. A round over all
tubes begins 5 seconds after the last one has ended, or a millisecond per tube if that is longer. It yields to the
event loop every few tubes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Final

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.config.tables.thresholds import ThresholdSet
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.policies.policy import Overflow
from greenstalk_server.core.policies.tube_policy_state import buried_at
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.memory import MemoryUse, memory_use
from greenstalk_server.runtime.supervisor import Service
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.features.conditions.measures import (
    ActiveCondition,
    LongestReservation,
    Rank,
    ServerSample,
    TubeSample,
    TubeTrend,
    rank,
    rank_in_tube,
    server_measures,
    tube_measures,
)
from greenstalk_server.web.features.conditions.other_shards import MAX_FAILURES, OtherShards, ShardConditions
from greenstalk_server.web.features.conditions.tracker import Tracker
from greenstalk_server.web.features.conditions.trends import Growth, Trend
from greenstalk_server.web.framework.cooperative import in_batches, repeated
from greenstalk_server.web.framework.shards import ALONE, Shards
from greenstalk_server.web.reads.jobs.moving import moves_of
from greenstalk_server.web.reads.policies import DeadLetterTubes
from greenstalk_server.web.reads.tubes import each_tube

INTERVAL: Final = 1.0
"""Seconds between two evaluations of the server."""

TUBES_INTERVAL: Final = 5 * SECOND
"""Nanoseconds between the end of a round over all tubes and the next one."""

TUBE_INTERVAL: Final = SECOND // 1000
"""Nanoseconds per tube, instead of TUBES_INTERVAL if their sum is longer: ten seconds for 10,000 tubes."""

DISK_INTERVAL: Final = 5 * SECOND
"""Nanoseconds between two readings of the free disk space."""

MEMORY_INTERVAL: Final = 5 * SECOND
"""Nanoseconds between two readings of the machine's memory."""

HOUR: Final = 3600 * SECOND
"""Nanoseconds over which the growth of the free disk space and of the number of burials is measured."""

BATCH_SIZE: Final = 8
"""Tubes or clients between two checks of the time slice: about 0.1 ms."""

MAX_CONDITIONS: Final = 1000
"""Conditions that are listed, the worst of all; the others are counted."""

RANKED_BATCH: Final = 256
"""Conditions sorted at once: about 0.3 ms."""

REFUSING: Final = (
    "access", "connections", "connections_per_address", "files", "jobs", "bytes", "tube_jobs", "tube_bytes", "tubes",
    "watched",
)  # fmt: skip
"""Limits whose hits are refused requests, by their names in limits.LIMIT_DESCRIPTIONS. Hits of other limits delay a
request or clean up."""


KindCount = tuple[str, str]
"""Name of a kind, and a severity."""

_Ranked = tuple[Rank, ActiveCondition]
_RankedInTube = tuple[tuple[int, int], ActiveCondition]


class ConditionMonitor:
    """The conditions of one broker.

    evaluated_at    when the last round over all tubes ended, nanoseconds; 0 before the first one.
    conditions      the active conditions, the worst first, at most MAX_CONDITIONS. Never changed in place.
    counts          the number of active conditions by name of the kind and severity. Never changed in place.
    """

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        *,
        thresholds: Callable[[], ThresholdSet] = ThresholdSet,
        limits: Limits | None = None,
        role: Callable[[], ClusterStatus] | None = None,
        directory: str | None = None,
        on_failure: Callable[[bytes, int], None] = lambda tube, failed_at: None,
        shards: Shards = ALONE,
    ) -> None:
        """Observe *broker*.

        thresholds  returns the thresholds in force.
        limits      the limits of the server.
        role        returns the status of a server that shares its journal; None if it does not.
        directory   directory of the journal; None without a journal.
        on_failure  is called in each round for each tube with failed jobs, with the time of the last failure in
                    nanoseconds.
        shards      the shards of the queue; the home process has the conditions of all.
        """
        self._others: OtherShards = OtherShards(clock, shards, on_failure)
        self._others.answer(self._for_home)
        self._failures: dict[str, int] = {}
        self.evaluated_at: int = 0
        self.conditions: tuple[ActiveCondition, ...] = ()
        self.counts: Counter[KindCount] = Counter()
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._thresholds: Callable[[], ThresholdSet] = thresholds
        self._limits: Limits = limits if limits is not None else Limits()
        self._role: Callable[[], ClusterStatus] | None = role
        self._directory: str | None = directory
        self._on_failure: Callable[[bytes, int], None] = on_failure
        self._received: dict[bytes, int] = {}
        self._evaluator: Service = Service("attention", repeated(self.tick))
        self._dead_letter_tubes: DeadLetterTubes = DeadLetterTubes(broker)
        self._server: Tracker = Tracker()
        self._tubes: Tracker = Tracker()
        self._trends: dict[bytes, Trend] = {}
        self._burials: dict[bytes, Trend] = {}  # of the tubes with buried jobs
        self._server_trends: dict[str, Trend] = {}
        self._worst: dict[bytes, _RankedInTube] = {}
        self._ranked_server: list[_Ranked] = []
        self._ranked_tubes: list[_Ranked] = []
        self._tube_counts: Counter[KindCount] = Counter()
        self._disk_free: int | None = None
        self._disk_read_at: int = 0
        self._machine_memory: MemoryUse | None = None
        self._memory_read_at: int = 0
        self._round_began_at: int = 0

    def start(self) -> None:
        """Start a greenlet that evaluates for as long as this object is referenced. Does not switch."""
        self._evaluator.start()
        self._others.start()

    def stop(self) -> None:
        """Stop evaluating. Switches."""
        self._evaluator.stop()
        self._others.stop()

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever the conditions of tubes may have changed."""
        return self.evaluated_at, self._others.version

    def _for_home(self) -> ShardConditions:
        """Return the conditions of this shard, for the home process."""
        counts = [(kind, severity, count) for (kind, severity), count in self.counts.items()]
        return ShardConditions(list(self.conditions), counts, dict(islice(self._failures.items(), MAX_FAILURES)))

    def worst_of(self, tube: bytes) -> ActiveCondition | None:
        """Return the worst condition of *tube*, or None."""
        ranked = self._worst.get(tube)
        return ranked[1] if ranked is not None else None

    def visible_to(self, sees: Callable[[bytes], bool]) -> tuple[tuple[ActiveCondition, ...], Counter[KindCount]]:
        """Return `conditions` and `counts` of the server and of the tubes that *sees* selects. May switch."""
        active = self._active_tubes()
        ranked = [(rank(condition), condition) for condition in active if sees(condition.measure.tube)]
        ranked += self._ranked_server
        conditions = [condition for _, condition in sorted(ranked, key=itemgetter(0))]
        return tuple(conditions[:MAX_CONDITIONS]), Counter(map(_kind, conditions))

    @property
    def server_conditions(self) -> list[ActiveCondition]:
        """The active conditions of the server, in no particular order."""
        return [condition for _, condition in self._ranked_server]

    def each_of_tubes(self, sees: Callable[[bytes], bool]) -> Iterator[ActiveCondition]:
        """Yield the active conditions of the tubes that *sees* selects, in no particular order. May switch."""
        for condition in self._active_tubes():
            if sees(condition.measure.tube):
                yield condition

    def each_active(self) -> Iterator[ActiveCondition]:
        """Yield the active conditions, also those beyond MAX_CONDITIONS, in no particular order. May switch."""
        yield from self._server.active(partial(in_batches, batch_size=BATCH_SIZE))
        yield from self._others.of_servers
        yield from self._active_tubes()

    def _active_tubes(self) -> Iterator[ActiveCondition]:
        """Yield the active conditions of the tubes of all shards, in no particular order. May switch."""
        yield from self._tubes.active(partial(in_batches, batch_size=BATCH_SIZE))
        yield from in_batches(self._others.of_tubes, BATCH_SIZE)

    def tick(self) -> float:
        """Evaluate the server and, if a round is due, the tubes; return INTERVAL.

        Only one greenlet may call this. May switch.
        """
        now = self._clock()
        self._evaluate_server(now)
        interval = max(TUBES_INTERVAL, TUBE_INTERVAL * len(self._broker.tubes))
        if not self.evaluated_at or now - self.evaluated_at >= interval:
            self._evaluate_tubes()
            self._rank_tubes()
            self.evaluated_at = self._clock()
        others = [(rank(condition), condition) for condition in self._others.of_tubes]
        ranked = sorted([*self._ranked_server, *self._ranked_tubes, *others], key=itemgetter(0))[:MAX_CONDITIONS]
        self.conditions = tuple([condition for _, condition in ranked])
        listed = [condition for _, condition in [*self._ranked_server, *others]]
        self.counts = self._tube_counts + Counter(map(_kind, listed)) + self._others.more
        return INTERVAL

    def _rank_tubes(self) -> None:
        """Find the worst conditions of all tubes, and the worst one of each tube. May switch."""
        batched, worst, seen = partial(in_batches, batch_size=BATCH_SIZE), self._worst, set[bytes]()
        counts, best, batch = Counter[KindCount](), list[_Ranked](), list[_Ranked]()
        for condition in self._tubes.active(batched):
            counts[_kind(condition)] += 1
            ranked = rank(condition), condition
            tube = condition.measure.tube
            in_tube = rank_in_tube(condition), condition
            if tube not in seen or in_tube[0] < worst[tube][0]:
                seen.add(tube)
                worst[tube] = in_tube
            batch.append(ranked)
            if len(batch) == RANKED_BATCH:
                best, batch = sorted([*best, *batch], key=itemgetter(0))[:MAX_CONDITIONS], []
        self._ranked_tubes = sorted([*best, *batch], key=itemgetter(0))[:MAX_CONDITIONS]
        self._tube_counts = counts
        for tube in batched(list(worst)):
            if tube not in seen:
                del worst[tube]

    # The server

    def _evaluate_server(self, now: int) -> None:
        """Evaluate the server; may switch to read the free disk space."""
        broker, journal = self._broker, self._broker.journal
        stats = journal.stats()
        if self._directory is not None and (stats.is_full or now - self._disk_read_at >= DISK_INTERVAL):
            self._disk_read_at, self._disk_free = now, free_bytes(self._directory)
        if not self._memory_read_at or now - self._memory_read_at >= MEMORY_INTERVAL:
            self._memory_read_at, self._machine_memory = now, memory_use()
        bodies = broker.bodies
        sample = ServerSample(
            journal_error=journal.write_error or "",
            is_disk_full=stats.is_full or self._disk_free == 0,
            disk_free=self._disk_free,
            disk_growth=self._growth("disk", now, self._disk_free or 0, HOUR),
            memory=(bodies.taken, bodies.limit) if bodies is not None and bodies.limit else None,
            memory_growth=self._growth("memory", now, bodies.taken if bodies is not None else 0),
            machine_memory=self._machine_memory,
            is_memory_full=bodies is not None and not bodies.has_room(0),
            limits=tuple(
                [
                    (option, unit, used, self._growth(option, now, used), most)
                    for option, unit, used, most in self._server_limits()
                ]
            ),
            refused=self._refused(now),
            silent_shards=self._others.silent,
            moves=moves_of(broker, now),
            standby=self._standby_lag(),
        )
        self._server.observe(server_measures(sample, self._thresholds().server), now)
        self._server.end_round(now, exists=broker.tubes.__contains__)
        active = [*self._server.active(), *self._others.of_servers]
        self._ranked_server = [(rank(condition), condition) for condition in active]

    def _server_limits(self) -> list[tuple[str, str, int, int]]:
        """Return the option, the unit, the amount used and the maximum of each limit of the server."""
        broker, limits = self._broker, self._limits
        used_bytes = broker.quotas.body_bytes if broker.quotas is not None else 0
        connections = sum(not client.is_http for client in broker.clients) if limits.connections else 0
        rows = (
            ("--max-jobs", "job", len(broker.jobs), limits.jobs),
            ("--max-bytes", "byte", used_bytes, limits.bytes),
            ("--max-tubes", "tube", len(broker.tubes), limits.tubes),
            ("--max-connections", "connection", connections, limits.connections),
        )
        return [row for row in rows if row[-1]]

    def _refused(self, now: int) -> Mapping[str, int]:
        counts = self._broker.limit_counters.counts()
        return {name: self._growth(f"refused {name}", now, counts[name]).values[0] for name in REFUSING}

    def _standby_lag(self) -> int | None:
        if self._role is None or not (role := self._role()).is_active:
            return None
        return min([int(behind * SECOND) for _, behind in role.standbys], default=-1)

    def _growth(self, name: str, now: int, value: int, window: int = 0) -> Growth:
        trend = self._server_trends.get(name)
        if trend is None:
            trend = self._server_trends[name] = Trend(now, (value,), window) if window else Trend(now, (value,))
        return trend.note(now, (value,))

    # Tubes

    def _evaluate_tubes(self) -> None:
        """Evaluate every tube. May switch."""
        broker, tracker, thresholds = self._broker, self._tubes, self._thresholds()
        is_first, began_at = not self.evaluated_at, self._round_began_at
        failures: dict[str, int] = {}
        self._round_began_at = self._clock()
        held = self._longest_held(thresholds)
        for tube in each_tube(broker, BATCH_SIZE):
            trend = self._trends.get(tube.name)
            if trend is None and not tube.job_count and not tube.total_jobs:
                continue
            now, values = self._clock(), _trend_values(tube)
            if trend is None or _has_restarted(trend, values):
                before = values if is_first else TubeTrend()  # a new tube has counted from zero
                trend = self._trends[tube.name] = Trend(now if is_first else began_at, before)
            growth = trend.note(now, values)
            if not (tube.job_count or any(growth.values)):
                continue
            sample = self._sample(tube, values, growth, held.get(tube.name), now)
            if failed_at := self._failed_at(tube, now):
                self._on_failure(tube.name, failed_at)
                failures[tube.name.decode()] = failed_at
            tracker.observe(tube_measures(sample, thresholds.of_tube(tube.name)), now)
        self._failures = failures
        batched = partial(in_batches, batch_size=BATCH_SIZE)
        tracker.end_round(self._clock(), broker.tubes.__contains__, batched)
        for by_tube in (self._trends, self._burials, self._received):
            for name in in_batches(list(by_tube), BATCH_SIZE):
                if name not in broker.tubes:
                    by_tube.pop(name, None)

    def _sample(
        self, tube: Tube, values: TubeTrend, growth: Growth, held: LongestReservation | None, now: int
    ) -> TubeSample:
        oldest, policy_state, buried = tube.oldest_ready(), tube.policy_state, tube.first_buried()
        hold = tube.throttle_reason(now)
        is_paused = hold == "pause"
        return TubeSample(
            name=tube.name,
            now=values,
            growth=growth,
            watching=tube.watching,
            oldest=max(0, now - oldest.ready_since) if oldest is not None else 0,
            paused=max(1, now - (tube.paused_until - tube.pause)) if is_paused else 0,
            pause_left=tube.paused_until - now if is_paused else 0,
            held_back="" if is_paused else hold,
            limits=self._tube_limits(tube),
            dead_letter=policy_state.dead_letter if policy_state is not None else b"",
            held=held,
            reserved=tube.reserved_count,
            is_dead_letter_tube=self._dead_letter_tubes.has(tube),
            oldest_buried=max(1, now - buried_at(buried)) if buried is not None else 0,
            buries=self._new_burials(tube.name, values, growth, now) if buried is not None else None,
        )

    def _failed_at(self, tube: Tube, now: int) -> int:
        """Return when the last of the failed jobs of *tube* failed, nanoseconds; 0 without failed jobs.

        A dead letter does not record when it arrived, so a dead letter that arrived since the last round counts as
        failed now.
        """
        received = tube.policy_counts.received if tube.policy_counts is not None else 0
        if received > self._received.setdefault(tube.name, received):
            self._received[tube.name] = received
            return now
        last = next(reversed(tube.buried.values()), None)
        return buried_at(last) if last is not None else 0

    def _new_burials(self, name: bytes, values: TubeTrend, growth: Growth, now: int) -> Growth:
        """Return the growth of the number of burials in the tube *name*; *growth* is the growth of its *values*."""
        trend = self._burials.get(name)
        if trend is None or values.buries < trend.last[0]:
            before = values.buries - TubeTrend(*growth.values).buries
            trend = self._burials[name] = Trend(now - growth.time, (before,), HOUR)
        return trend.note(now, (values.buries,))

    def _tube_limits(self, tube: Tube) -> tuple[tuple[str, int, int], ...]:
        """Return the limits that refuse puts into *tube*: the name, the amount used, and the maximum."""
        limits, policy_state, jobs = self._limits, tube.policy_state, tube.job_count
        rows = [("--max-tube-jobs", jobs, limits.tube_jobs), ("--max-tube-bytes", tube.body_bytes, limits.tube_bytes)]
        if policy_state is not None and policy_state.policy.overflow == Overflow.REFUSE:
            rows += [
                ("max_jobs", jobs, policy_state.policy.max_jobs),
                ("max_bytes", tube.body_bytes, policy_state.policy.max_bytes),
            ]
        return tuple([row for row in rows if row[-1]])

    def _longest_held(self, thresholds: ThresholdSet) -> dict[bytes, LongestReservation]:
        """Return, by tube, the job that a worker has held for longest, among the first job of each worker. May switch.

        A worker's jobs are in the order of reservation.
        """
        longest: dict[bytes, LongestReservation] = {}
        now = self._clock()
        for client in in_batches(list(self._broker.clients), BATCH_SIZE):
            job = next(iter(client.reserved.values()), None)
            if job is None:
                continue
            name, time = job.tube.name, now - job.reserved_at
            before = longest.get(name)
            workers = (before.workers if before is not None else 0) + (time >= thresholds.of_tube(name).held_job)
            if before is None or time > before.time:
                longest[name] = LongestReservation(job.id, time, client.number, workers)
            else:
                longest[name] = before._replace(workers=workers)
        return longest


def _kind(condition: ActiveCondition) -> KindCount:
    return condition.measure.kind.name, condition.measure.severity


def free_bytes(directory: str) -> int | None:
    """Return the bytes that the server's user can still write to the disk of *directory*; None if unknown. Switches."""
    try:
        disk = run_in_thread(os.statvfs, directory)
    except OSError:  # readyz and the log report a missing directory
        return None
    return disk.f_bavail * disk.f_frsize


def _trend_values(tube: Tube) -> TubeTrend:
    actions = tube.policy_counts
    return TubeTrend(
        tube.ready.count,
        tube.job_count,
        tube.body_bytes,
        len(tube.buried),
        tube.total_timeouts,
        tube.total_reserves,
        actions.dead_lettered if actions is not None else 0,
        tube.total_buries,
        tube.total_releases,
        tube.cmd_delete,
    )


def _has_restarted(trend: Trend, values: TubeTrend) -> bool:
    """Whether the counters are lower than at the last checkpoint: the tube was dropped and created again."""
    last = TubeTrend(*trend.last)
    return values.reserves < last.reserves or values.timeouts < last.timeouts or values.dead_letters < last.dead_letters
