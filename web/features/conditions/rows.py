"""The rows of the list of conditions: one for each tube with conditions, and one for each condition of the server.

The overview, the page of all rows and the badges show them. Acknowledged conditions are in separate rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple

from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.conditions.acknowledgements import Acknowledgement, Acknowledgements
from greenstalk_server.web.features.conditions.measures import (
    WARNING,
    ActiveCondition,
    ConditionKey,
    Rank,
    rank,
    rank_in_tube,
)
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.per_rights import PerRights

MAX_ROWS: Final = 1000
"""Maximum rows that are listed, the worst of all. The others are counted."""

SORTED_BATCH: Final = 256
"""Rows sorted at once: about 0.3 ms."""


class Row(NamedTuple):
    """The conditions of one tube, the worst first, or one condition of the server.

    acknowledgement     of the worst condition; None if the conditions are not acknowledged.
    """

    conditions: tuple[ActiveCondition, ...]
    acknowledgement: Acknowledgement | None = None

    @property
    def worst(self) -> ActiveCondition:
        return self.conditions[0]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows, the worst first, at most MAX_ROWS; and the numbers of all rows by the severity of the worst condition."""

    rows: tuple[Row, ...]
    severities: Counter[str]

    @property
    def failures(self) -> int:
        """Number of rows that are critical or failures."""
        return self.severities.total() - self.warnings

    @property
    def warnings(self) -> int:
        return self.severities[WARNING]


@dataclass(frozen=True, slots=True)
class Attention:
    """The rows that need attention, and those that are acknowledged."""

    active: Rows
    acknowledged: Rows


Covers = Callable[[ActiveCondition], Acknowledgement | None]


class AttentionModel:
    """The rows of one server, as each principal may see them."""

    def __init__(self, monitor: ConditionMonitor, acknowledgements: Acknowledgements, clock: Clock) -> None:
        self.monitor: ConditionMonitor = monitor
        self._acknowledgements: Acknowledgements = acknowledgements
        self._clock: Clock = clock
        self._of_tubes: PerRights[Attention] = PerRights()

    def visible(self) -> Attention:
        """Return the rows that the principal may see. May switch.

        The rows of tubes are grouped once for each set of rights and each round of the monitor.
        """
        of_tubes = self._of_tubes.get((self.monitor.version, self._acknowledgements.version), self._grouped)
        if not (conditions := self.monitor.server_conditions):
            return of_tubes
        of_server = grouped(conditions, self.covering, Pace())
        return Attention(
            _merged(of_tubes.active, of_server.active), _merged(of_tubes.acknowledged, of_server.acknowledged)
        )

    def covering(self, condition: ActiveCondition) -> Acknowledgement | None:
        """Return the acknowledgement of *condition*, or None."""
        kind, tube, now = condition.measure.kind.name, condition.measure.tube, self._clock()
        if not self._acknowledgements.has(kind, tube, now):
            return None
        return self._acknowledgements.covers(kind, tube, now)

    def _grouped(self) -> Attention:
        return grouped(self.monitor.each_of_tubes(principal().sees), self.covering, Pace())


def grouped(conditions: Iterable[ActiveCondition], covering: Covers, pace: Pace) -> Attention:
    """Return the rows of *conditions*. May switch."""
    active: dict[bytes | ConditionKey, list[ActiveCondition]] = {}
    acknowledged: dict[bytes | ConditionKey, list[ActiveCondition]] = {}
    for condition in conditions:
        group = acknowledged if covering(condition) is not None else active
        group.setdefault(condition.measure.tube or condition.measure.key, []).append(condition)
    return Attention(_rows(active, covering, pace), _rows(acknowledged, covering, pace))


def _rows(groups: dict[bytes | ConditionKey, list[ActiveCondition]], covering: Covers, pace: Pace) -> Rows:
    severities, best, batch = Counter[str](), list[tuple[Rank, Row]](), list[tuple[Rank, Row]]()
    for conditions in pace.each(groups.values()):
        conditions.sort(key=rank_in_tube)
        row = Row(tuple(conditions), covering(conditions[0]))
        severities[row.worst.measure.severity] += 1
        batch.append((rank(row.worst), row))
        if len(batch) == SORTED_BATCH:
            best, batch = sorted([*best, *batch], key=itemgetter(0))[:MAX_ROWS], []
    best = sorted([*best, *batch], key=itemgetter(0))[:MAX_ROWS]
    return Rows(tuple([row for _, row in best]), severities)


def _merged(some: Rows, others: Rows) -> Rows:
    if not others.rows:
        return some
    rows = sorted([*some.rows, *others.rows], key=lambda row: rank(row.worst))[:MAX_ROWS]
    return Rows(tuple(rows), some.severities + others.severities)
