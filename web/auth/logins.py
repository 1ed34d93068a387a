"""Limits on password guessing: an address with too many failed sign-ins is refused for a while."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.net.admission import quota_key
from greenstalk_server.runtime.clock import Clock

MAX_FAILURES: Final = 10
"""Failed sign-ins within FAILURE_WINDOW that lock an address out."""

FAILURE_WINDOW: Final = 60 * SECOND
"""Nanoseconds over which failed sign-ins are counted."""

LOCK_TIME: Final = 60 * SECOND
"""Nanoseconds for which an address is locked out."""

MAX_ADDRESSES: Final = 10_000
"""Maximum number of addresses remembered; this many take a few megabytes.

The address whose last failure is oldest is evicted first.
"""


@dataclass(slots=True)
class _Failures:
    """The failed sign-ins of one address: the times of the latest ones, and the end of the lock."""

    times: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_FAILURES))
    locked_until: int = 0


class FailedLogins:
    """The recent failed sign-ins with one kind of credential, by address."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def seconds_locked(self, address: str) -> int:
        """Return the seconds until the lock of *address* ends, rounded up; 0 if it is not locked out."""
        failures = self._failures.get(quota_key(address))
        left = failures.locked_until - self._clock() if failures is not None else 0
        return -(-left // SECOND) if left > 0 else 0

    def fail(self, address: str) -> bool:
        """Record a failed sign-in from *address*; return whether it locks the address out."""
        key, now = quota_key(address), self._clock()
        failures = self._failures.setdefault(key, _Failures())
        self._failures.move_to_end(key)
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        failures.times.append(now)
        if len(failures.times) < MAX_FAILURES or now - failures.times[0] >= FAILURE_WINDOW:
            return False
        failures.times.clear()
        failures.locked_until = now + LOCK_TIME
        return True
