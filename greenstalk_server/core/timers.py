"""Timers: the times at which the broker next has to look at a client or a tube.

A target holds one time, and is returned at most once per arming. Arming it for a later time than it is armed for has no
effect, since the broker examines a due target and arms it again for its next deadline. So a worker that reserves and
deletes continuously arms once per ttr, not once per job. Pure.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Protocol

SWEEP_SLACK: Final = 64
"""A heap is swept when it has more than 2 * n + SWEEP_SLACK entries, where n is the number of armed targets in
`Timers`, and of keys in a `TubeSet`."""

NEVER: Final = 2**62 - 1
"""A time that is never reached, nanoseconds. It is the largest integer that compiled code does not allocate."""


class Target(Protocol):
    """Something with `timer_at`: the time it is armed for, nanoseconds, or 0."""

    timer_at: int


class Timers:
    """Armed targets, soonest first.

    An entry holds the id() of its target, not a reference, so it does not keep the target alive. Arming a target
    again for an earlier time, or disarming it, leaves a dead entry: its target is armed for another time, or not at
    all. If a new target gets the same id() and the same time, the dead entry duplicates a live one, which is harmless.

    `disarm`, and `arm` for a target that is armed already, sweep the dead entries when there are more than
    2 * len(_armed) + SWEEP_SLACK entries.
    """

    __slots__ = ("_armed", "_entries", "_serial")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, int]] = []
        self._armed: dict[int, Target] = {}
        self._serial: int = 0

    def arm(self, target: Target, when: int) -> bool:
        """Arm *target* for *when*, unless it is armed for an earlier time; return whether it is now the soonest."""
        at = target.timer_at
        if at and at <= when:
            return False
        if not at:
            self._armed[id(target)] = target
        elif len(self._entries) > 2 * len(self._armed) + SWEEP_SLACK:
            self._sweep()
        target.timer_at = when
        self._serial += 1
        heappush(self._entries, (when, self._serial, id(target)))
        return self._entries[0][1] == self._serial

    def disarm(self, target: Target) -> None:
        """Disarm *target*, if it is armed."""
        if target.timer_at:
            target.timer_at = 0
            del self._armed[id(target)]
            if len(self._entries) > 2 * len(self._armed) + SWEEP_SLACK:
                self._sweep()

    def pop_due(self, now: int) -> Target | None:
        """Disarm and return the soonest target if it is due at *now*, else return None."""
        when = self.soonest()
        if when is None or when > now:
            return None
        target = self._armed.pop(heappop(self._entries)[2])
        target.timer_at = 0
        return target

    def soonest(self) -> int | None:
        """Return the time of the soonest target, or None."""
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
