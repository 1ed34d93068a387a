"""Growth of counters and of gauges over a sliding window. Pure.

A Trend keeps a row per checkpoint in which a value has changed, so an idle tube takes one row.
"""

from __future__ import annotations

from array import array
from operator import sub
from typing import Final, NamedTuple

from greenstalk_server.core.jobs.job import SECOND

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

    A row is a time and the values at that time. All rows are in one array, which needs no garbage collection.

    Invariant: the first row is the latest one that is at least as old as the window, if there is one.
    """

    __slots__ = ("_checked_at", "_rows", "_width", "_window")

    def __init__(self, at: int, values: Values, window: int = WINDOW) -> None:
        """*values*, from -2**63 to 2**63 - 1, were measured at the time *at*."""
        self._window: int = window
        self._width: int = len(values) + 1
        self._rows: array[int] = array("q", (at, *values))
        self._checked_at: int = at

    @property
    def last(self) -> Values:
        """The values at the last checkpoint at which a value had changed."""
        return tuple(self._rows[1 - self._width :])

    def note(self, now: int, values: Values) -> Growth:
        """Record *values* if a checkpoint is due; return the growth since the beginning of the window."""
        rows, width = self._rows, self._width
        if now - self._checked_at >= self._window // CHECKPOINTS:
            self._checked_at = now
            while len(rows) > width and rows[width] <= now - self._window:
                del rows[:width]
            if self.last != values:
                rows.extend((now, *values))
        return Growth(min(now - rows[0], self._window), tuple(map(sub, values, rows[1:width])))


def time_until(room: int, grown: int, time: int) -> int | None:
    """Return the nanoseconds until *room* is used up at the rate of *grown* per *time* nanoseconds; None for never.

    Return None also while *time* is too short for a rate.
    """
    if grown <= 0 or time < WINDOW // CHECKPOINTS * 2:
        return None
    return max(0, room) * time // grown
