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

    An entry has the id() of its target, and so keeps none that has gone. A target armed for an earlier time, or
    disarmed, leaves a dead entry: one of no armed target, or whose time is not its target's `timer_at`. (If another
    target has come by that id and time, one entry more is live, equal and harmless.) Invariant: at most twice as many
    entries as armed targets, plus SLACK.
    """

    __slots__ = ("_armed", "_entries", "_serial")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, int]] = []
        self._armed: dict[int, Target] = {}
        self._serial: int = 0

    def arm(self, target: Target, when: int) -> bool:
        """Have *target* called on at *when*, if it would not be sooner. Return whether it is now the soonest."""
        at = target.timer_at
        if at and at <= when:
            return False
        if not at:
            self._armed[id(target)] = target
        elif len(self._entries) > 2 * len(self._armed) + SLACK:
            self._sweep()
        target.timer_at = when
        self._serial += 1
        heappush(self._entries, (when, self._serial, id(target)))
        return self._entries[0][1] == self._serial

    def disarm(self, target: Target) -> None:
        """Forget *target*."""
        if target.timer_at:
            target.timer_at = 0
            del self._armed[id(target)]
            if len(self._entries) > 2 * len(self._armed) + SLACK:
                self._sweep()

    def pop_due(self, now: int) -> Target | None:
        """Disarm and return the soonest target if its time has come by *now*, else None."""
        when = self.soonest()
        if when is None or when > now:
            return None
        target = self._armed.pop(heappop(self._entries)[2])
        target.timer_at = 0
        return target

    def soonest(self) -> int | None:
        """The time of the soonest target, or None."""
        entries, armed = self._entries, self._armed
        while entries:
            when, _, number = entries[0]
            target = armed.get(number)
            if target is not None and target.timer_at == when:
                return when
            heappop(entries)
        return None

    def _sweep(self) -> None:
        times = {number: target.timer_at for number, target in self._armed.items()}
        live = {entry[2]: entry for entry in self._entries if times.get(entry[2]) == entry[0]}
        self._entries = list(live.values())
        heapify(self._entries)
