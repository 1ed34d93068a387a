"""Growth of counters and of gauges over a sliding window. Pure.

A Trend keeps a row per checkpoint in which a value has changed, so an idle tube takes one row.
"""

from __future__ import annotations

from operator import sub
from typing import Final, NamedTuple

from greenstalk_server.core.job import SECOND

WINDOW: Final = 900 * SECOND
"""Length of the window of tubes and limits, nanoseconds."""

CHECKPOINTS: Final = 15
"""Checkpoints per window."""

Values = tuple[int, ...]


class Growth(NamedTuple):
    """The growth of each value within *time* nanoseconds, which is at most the window."""

    time: int
    values: Values


class Trend:
    """The values at the checkpoints of the last *window* nanoseconds.

    Invariant: the first row is the latest one that is at least as old as the window, if there is one.
    """

    __slots__ = ("_checked_at", "_rows", "_window")

    def __init__(self, at: int, values: Values, window: int = WINDOW) -> None:
        """*values* are those of the time *at*."""
        self._window: int = window
        self._rows: list[tuple[int, Values]] = [(at, tuple(values))]
        self._checked_at: int = at

    @property
    def last(self) -> Values:
        """The values at the last checkpoint at which one had changed."""
        return self._rows[-1][1]

    def note(self, now: int, values: Values) -> Growth:
        """Record *values* if a checkpoint is due; return the growth since the beginning of the window."""
        rows = self._rows
        if now - self._checked_at >= self._window // CHECKPOINTS:
            self._checked_at = now
            while len(rows) > 1 and rows[1][0] <= now - self._window:
                rows.pop(0)
            if rows[-1][1] != values:
                rows.append((now, tuple(values)))  # unlike a NamedTuple, it needs no garbage collection
        since, before = rows[0]
        return Growth(min(now - since, self._window), tuple(map(sub, values, before)))


def time_until(room: int, grown: int, time: int) -> int | None:
    """Return the nanoseconds until *room* is used up at the rate of *grown* per *time* nanoseconds; None for never.

    None also while *time* is too short for a rate.
    """
    if grown <= 0 or time < WINDOW // CHECKPOINTS * 2:
        return None
    return max(0, room) * time // grown
