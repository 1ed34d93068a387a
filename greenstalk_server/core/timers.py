"""Timers: the times at which the broker next has to look at a client or a tube.

A target holds one time, and is returned at most once per arming. Arming it for a later time than it is armed for has no
effect, since the broker examines a due target and arms it again for its next deadline. So a worker that reserves and
deletes continuously arms once per ttr, not once per job. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from greenstalk_server.core.sorted_keys import SortedKeys

NEVER: Final = 2**62 - 1
"""A time that is never reached, nanoseconds. It is the largest integer that compiled code does not allocate."""

AT_ONCE: Final = 1
"""A time before all others, nanoseconds."""

SERIAL_BITS: Final = 64
MAX_SERIAL: Final = 2**SERIAL_BITS - 1


class Target(Protocol):
    """An object with `timer_at`: the time it is armed for, nanoseconds, or 0."""

    timer_at: int


class Timers:
    """Armed targets, soonest first; targets with equal times are in the order in which they were first armed.

    The key of a target is the integer time << 64 | serial number. An armed target keeps its serial number. A key is
    removed when its target is armed for an earlier time, so no operation has to remove many of them.
    """

    def __init__(self) -> None:
        self._keys: SortedKeys = SortedKeys()
        self._targets: dict[int, Target] = {}  # by serial number
        self._serials: dict[int, int] = {}  # by id() of the target
        self._last: int = 0

    def arm(self, target: Target, when: int) -> bool:
        """Arm *target* for *when*, unless it is armed for an earlier time; return whether it is now the soonest."""
        at = target.timer_at
        if at and at <= when:
            return False
        if at:
            serial = self._serials[id(target)]
            self._keys.discard(at << SERIAL_BITS | serial)
        else:
            self._last = serial = self._last + 1
            self._targets[serial] = target
            self._serials[id(target)] = serial
        target.timer_at = when
        key = when << SERIAL_BITS | serial
        self._keys.insert(key)
        return self._keys.smallest() == key

    def disarm(self, target: Target) -> None:
        """Disarm *target*, if it is armed."""
        if target.timer_at:
            serial = self._serials.pop(id(target))
            del self._targets[serial]
            self._keys.discard(target.timer_at << SERIAL_BITS | serial)
            target.timer_at = 0

    def pop_due(self, now: int) -> Target | None:
        """Disarm and return the soonest target if it is due at *now*, else return None."""
        key = self._keys.smallest()
        if key < 0 or key >> SERIAL_BITS > now:
            return None
        target = self._targets[key & MAX_SERIAL]
        self.disarm(target)
        return target

    def soonest(self) -> int | None:
        """Return the time of the soonest target, or None."""
        key = self._keys.smallest()
        return None if key < 0 else key >> SERIAL_BITS


class Dependents:
    """Targets whose jobs the last operations may have made ready or runnable: groups, concurrency keys and tubes.

    targets     in the order in which they were added.
    timer_at    time for which the broker's timers are armed, 0 for none.

    Invariant: while there are targets, a tick is due, so none is forgotten (see transitions.dependents).
    """

    def __init__(self, arm: Callable[[Target, int], None]) -> None:
        """*arm* is the broker's method."""
        self.targets: dict[Target, None] = {}
        self.timer_at: int = 0
        self._arm: Callable[[Target, int], None] = arm

    def add(self, target: Target) -> None:
        """Add *target*, unless it is there already."""
        if not self.targets:
            self._arm(self, AT_ONCE)
        self.targets[target] = None

    def take(self) -> list[Target]:
        """Remove and return all targets."""
        targets = list(self.targets)
        self.targets.clear()
        return targets
