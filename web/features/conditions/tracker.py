"""Active conditions. A condition begins after a delay and ends with hysteresis, so that it does not flicker. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.features.conditions.measures import ActiveCondition, ConditionKey, Measure

CLEAR_TIME: Final = 15 * SECOND
"""Nanoseconds without a measure after which an active condition ends; a value below LEAST_RATIO gives no measure."""


class _Entry:
    """A condition that is pending, active or about to end.

    since       when the condition began, by the age in the measure; without an age, when its value reached the
                threshold.
    low_since   when its value fell below LEAST_RATIO; 0 while it is not below.
    round       number of the last round that measured it.
    """

    __slots__ = ("is_active", "low_since", "measure", "round", "since")

    def __init__(self, measure: Measure, now: int) -> None:
        self.measure: Measure = measure
        self.since: int = now
        self.is_active: bool = False
        self.low_since: int = 0
        self.round: int = 0


class Tracker:
    """The conditions of the tubes, or of the server.

    A round calls `observe` for each tube, which may take several slices, and then `end_round`.
    """

    def __init__(self) -> None:
        self._entries: dict[ConditionKey, _Entry] = {}
        self._round: int = 1

    def observe(self, measures: Iterable[Measure], now: int) -> None:
        """Take in *measures* of this round, each of which has a ratio of at least LEAST_RATIO."""
        for measure in measures:
            key = measure.key
            entry = self._entries.get(key)
            if entry is None or not entry.is_active:
                if measure.ratio < 1:
                    continue
                if entry is None:
                    entry = self._entries[key] = _Entry(measure, now)
                entry.is_active = now - entry.since >= measure.delay
            if measure.age:
                entry.since = now - measure.age
            entry.measure, entry.low_since, entry.round = measure, 0, self._round

    def end_round(
        self,
        now: int,
        exists: Callable[[bytes], bool],
        batched: Callable[[list[ConditionKey]], Iterable[ConditionKey]] = iter,
    ) -> None:
        """End the conditions that no measure has continued; *exists* returns whether a tube exists.

        *batched* iterates over a list and may pause in between.
        """
        for key in batched(list(self._entries)):
            entry = self._entries[key]
            if entry.round == self._round:
                continue
            entry.low_since = entry.low_since or now
            is_gone = bool(entry.measure.tube) and not exists(entry.measure.tube)
            is_over = entry.measure.kind.ends_at_once or now - entry.low_since >= CLEAR_TIME
            if is_gone or is_over or not entry.is_active:
                del self._entries[key]
        self._round += 1

    def active(
        self, batched: Callable[[list[ConditionKey]], Iterable[ConditionKey]] = iter
    ) -> Iterator[ActiveCondition]:
        """Yield the active conditions, in no particular order. *batched* is as in `end_round`."""
        for key in batched(list(self._entries)):
            entry = self._entries.get(key)  # a round may have ended the condition since the list was made
            if entry is not None and entry.is_active:
                yield ActiveCondition(entry.measure, entry.since)
