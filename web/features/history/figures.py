"""The figures and the history of the whole server, as the principal may see them: the sums over all shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from math import isnan, nan
from typing import Any, Final, NamedTuple

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.journal import JournalStats
from greenstalk_server.protocol.stats import ServerStats
from greenstalk_server.web.features.history.history import Columns, History, Rates
from greenstalk_server.web.features.history.rings import SPANS, TIMES, Span
from greenstalk_server.web.features.history.visible import visible_stats
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.shards import Shards
from greenstalk_server.web.reads.fronts import FrontFigures, Fronts, limited_with, with_fronts
from greenstalk_server.web.reads.policies import DeadLetterTubes

SUMMED: Final = ("cmd_", "current_", "total_", "job_timeouts", "rusage_", "binlog_records_")
"""Beginnings of the names of the stats that add up. The other stats are those of the own process."""

JOURNAL_SUMMED: Final = ("files", "bytes_on_disk", "bytes_recorded", "bytes_live")

TRENDS: Final = ("put", "reserve", "delete", "release", "bury", "kick", "timeout")
"""Series of which the figures have the last ten minutes."""

QUESTION: Final = "figures"
COLUMNS: Final = "history"
"""Questions to the other shards."""


class BodyFigures(NamedTuple):
    """Bodies in memory and on disk, if memory is limited: see core.jobs.body_cache.Bodies."""

    is_full: bool
    limit: int
    taken: int
    in_memory: int
    on_disk: int
    jobs: int
    resident: int


class Figures(NamedTuple):
    """The figures of one shard, or of all together.

    trouble         why the journal cannot be written; None if it can.
    memory          bytes of the process, and the private part; None if unknown.
    bodies          None if memory is not limited.
    limited         how often each limit was hit.
    dead_letters    jobs in dead-letter tubes.
    sparks          points of TRENDS; empty lists if the principal does not see all tubes.
    """

    stats: ServerStats
    rates: Rates
    journal: JournalStats
    trouble: str | None
    memory: tuple[int, int] | None
    bodies: BodyFigures | None
    limited: dict[str, int]
    dead_letters: int
    sparks: dict[str, list[float]]


class WholeFigures:
    """The figures and the history of all shards."""

    def __init__(
        self, broker: Broker, clock: Callable[[], int], history: History, shards: Shards, fronts: Fronts
    ) -> None:
        self._fronts: Fronts = fronts
        self._broker: Broker = broker
        self._clock: Callable[[], int] = clock
        self._history: History = history
        self._shards: Shards = shards
        self._dead_letter_tubes: DeadLetterTubes = DeadLetterTubes(broker)
        shards.answer(QUESTION, lambda: _plain(self._own(self._clock())))
        shards.answer(COLUMNS, lambda span, ago: self._summable(SPANS[span], ago))

    def read(self, now: int) -> Figures:
        """Return the figures that the principal may see, of the processes that can be reached. May switch."""
        figures = self._own(now)
        if self._shards.others:
            answers = self._shards.ask_others(QUESTION)
            parts = [figures, *[_parsed(answer) for answer in answers.values()]]
            figures = _merged(parts, [self._shards.own, *answers])
        return _with_fronts(figures, self._fronts.standbys())

    def columns(self, span: Span, ago: int = 0) -> Columns:
        """Return all series of the whole server, as History.columns does, of the shards that can be reached. Switches.

        With several shards, TIMES are unknown: the quantiles of all do not follow from those of each.
        """
        if not self._shards.others:
            return self._history.columns(None, span, ago)
        own = self._summable(span, ago)
        pace = Pace()
        for step, end, series in self._shards.ask_others(COLUMNS, span=span.name, ago=ago).values():
            for key, values in pace.each(series.items()):
                own.series[key] = added(own.series[key], shifted(points_of(values), (own.end - end) // step))
        return own._replace(series=own.series | {key: [nan] * span.points for key in TIMES})

    def _summable(self, span: Span, ago: int) -> Columns:
        """Return the series of the own shard that add up. Switches."""
        columns = self._history.columns(None, span, ago)
        return columns._replace(series={key: values for key, values in columns.series.items() if key not in TIMES})

    def _own(self, now: int) -> Figures:
        broker, who = self._broker, principal()
        stats, rates = visible_stats(broker, self._history, now)
        bodies = broker.bodies
        figures = Figures(
            stats=stats,
            rates=rates,
            journal=broker.journal.stats(),
            trouble=broker.journal.write_error,
            memory=broker.facts.memory(),
            bodies=None
            if bodies is None
            else BodyFigures(
                not bodies.has_room(0),
                bodies.limit,
                bodies.taken,
                bodies.in_memory,
                bodies.on_disk,
                bodies.jobs,
                bodies.resident,
            ),
            limited=dict(broker.limit_counters.counts()),
            dead_letters=self._dead_letter_tubes.count_jobs(who.sees),
            sparks={name: self._history.spark(None, name) if who.sees_all else [] for name in TRENDS},
        )
        return _with_fronts(figures, self._fronts.own())


def _with_fronts(figures: Figures, fronts: Sequence[FrontFigures]) -> Figures:
    """Return *figures* with those of *fronts* added."""
    if not fronts:
        return figures
    return figures._replace(stats=with_fronts(figures.stats, fronts), limited=limited_with(figures.limited, fronts))


def added(some: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the sums of the points of two series that end at the same time; NaN if both are unknown.

    One series may begin before the other.
    """
    longer, shorter = (some, others) if len(some) >= len(others) else (others, some)
    missing = len(longer) - len(shorter)
    return [
        *longer[:missing],
        *[
            nan if isnan(one) and isnan(other) else (0 if isnan(one) else one) + (0 if isnan(other) else other)
            for one, other in zip(longer[missing:], shorter, strict=True)
        ],
    ]


def shifted(points: list[float], late: int) -> list[float]:
    """Return as many points as *points*, that end *late* points later; negative: earlier. NaN is unknown."""
    unknown = [nan] * min(abs(late), len(points))
    return [*points[late:], *unknown] if late >= 0 else [*unknown, *points[:late]]


def _merged(parts: Sequence[Figures], numbers: Sequence[int]) -> Figures:
    """Return the sums of *parts*, the own ones first, whose shards have *numbers*."""
    own = parts[0]
    stats = {
        field.name: sum([getattr(part.stats, field.name) for part in parts])
        for field in fields(ServerStats)
        if field.name.startswith(SUMMED)
    }
    if principal().sees_all:
        stats["current_tubes"] -= len(parts) - 1  # each shard has `default`
    journals = [part.journal for part in parts]
    troubles = [f"shard {number}: {part.trouble}" for part, number in zip(parts, numbers, strict=True) if part.trouble]
    memories = [part.memory for part in parts if part.memory is not None]
    bodies = [part.bodies for part in parts if part.bodies is not None]
    limited = Counter[str]()
    sparks = dict(own.sparks)
    for part in parts:
        limited.update(part.limited)
    for part in parts[1:]:
        sparks = {name: added(points, part.sparks[name]) for name, points in sparks.items()}
    return Figures(
        stats=replace(own.stats, draining=any(part.stats.draining for part in parts), **stats),
        rates=Rates(*[sum(values) for values in zip(*[part.rates for part in parts], strict=True)]),
        journal=replace(
            own.journal,
            is_full=any(journal.is_full for journal in journals),
            synced_ago=max([ago for journal in journals if (ago := journal.synced_ago) is not None], default=None),
            **{name: sum([getattr(journal, name) for journal in journals]) for name in JOURNAL_SUMMED},
        ),
        trouble="; ".join(troubles) or None,
        memory=(sum([one for one, _ in memories]), sum([one for _, one in memories])) if memories else None,
        bodies=None
        if not bodies
        else BodyFigures(
            any(one.is_full for one in bodies),
            *[sum(values) for values in zip(*[one[1:] for one in bodies], strict=True)],
        ),
        limited=dict(limited),
        dead_letters=sum([part.dead_letters for part in parts]),
        sparks=sparks,
    )


def _plain(figures: Figures) -> dict[str, Any]:
    return figures._asdict() | {"journal": replace(figures.journal, syncs={}), "rates": list(figures.rates)}


def _parsed(answer: dict[str, Any]) -> Figures:
    """Return the figures in the *answer* of another shard."""
    return Figures(
        stats=ServerStats(**answer["stats"]),
        rates=Rates(*answer["rates"]),
        journal=JournalStats(**answer["journal"]),
        trouble=answer["trouble"],
        memory=tuple(answer["memory"]) if answer["memory"] is not None else None,
        bodies=BodyFigures(*answer["bodies"]) if answer["bodies"] is not None else None,
        limited=answer["limited"],
        dead_letters=answer["dead_letters"],
        sparks={name: points_of(points) for name, points in answer["sparks"].items()},
    )


def points_of(values: Sequence[float | None]) -> list[float]:
    """Return the points of a series as JSON carries them, with null for NaN."""
    return [nan if value is None else value for value in values]
