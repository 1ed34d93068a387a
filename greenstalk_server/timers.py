"""When the broker next has to look at a client or a tube.

A target is called on at most once per arming, and holds one time: arming it for later than it is armed
already does nothing, since whoever is called on looks at what it has and arms itself anew. So a worker that
reserves and deletes all day arms once per ttr, not once per job.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Protocol

SLACK: Final = 64


class Target(Protocol):
    """Something with `timer_at`: the time it is armed for, nanoseconds, or 0."""

    timer_at: int


class Timers:
    """Armed targets, soonest first.

    A target armed for an earlier time, or disarmed, leaves a dead entry: one whose time is not its target's
    `timer_at`. Invariant: at most twice as many entries as armed targets, plus SLACK.
    """

    __slots__ = ("_armed", "_entries", "_serial")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Target]] = []
        self._armed: int = 0
        self._serial: int = 0

    def arm(self, target: Target, when: int) -> bool:
        """Have *target* called on at *when*, if it would not be sooner. Return whether it is now the soonest."""
        at = target.timer_at
        if at and at <= when:
            return False
        if not at:
            self._armed += 1
        elif len(self._entries) > 2 * self._armed + SLACK:
            self._sweep()
        target.timer_at = when
        self._serial += 1
        heappush(self._entries, (when, self._serial, target))
        return self._entries[0][2] is target

    def disarm(self, target: Target) -> None:
        """Forget *target*."""
        if target.timer_at:
            target.timer_at = 0
            self._armed -= 1
            if len(self._entries) > 2 * self._armed + SLACK:
                self._sweep()

    def pop_due(self, now: int) -> Target | None:
        """Disarm and return the soonest target if its time has come by *now*, else None."""
        when = self.soonest()
        if when is None or when > now:
            return None
        target = heappop(self._entries)[2]
        target.timer_at = 0
        self._armed -= 1
        return target

    def soonest(self) -> int | None:
        """The time of the soonest target, or None."""
        entries = self._entries
        while entries:
            when, _, target = entries[0]
            if target.timer_at == when:
                return when
            heappop(entries)
        return None

    def _sweep(self) -> None:
        live = {id(target): (when, serial, target) for when, serial, target in self._entries if target.timer_at == when}
        self._entries = list(live.values())
        heapify(self._entries)
