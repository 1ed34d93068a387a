"""Limits on password guessing: an address with too many failed logins is refused for a while."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

from greenstalk_server.core.job import SECOND
from greenstalk_server.net.admission import quota_key
from greenstalk_server.runtime.clock import Clock

FAILURES: Final = 10
WITHIN: Final = 60 * SECOND
"""FAILURES failed logins within this time lock an address out."""

LOCKED_FOR: Final = 60 * SECOND

MAX_ADDRESSES: Final = 10_000
"""Addresses remembered, a few megabytes. The addresses with the oldest failures are evicted first."""


@dataclass(slots=True)
class _Failures:
    """The failed logins of one address: the times of the latest ones, and the end of the lock."""

    times: deque[int] = field(default_factory=lambda: deque(maxlen=FAILURES))
    locked_until: int = 0


class Logins:
    """The recent failed logins, by address."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def seconds_locked(self, address: str) -> int:
        """Return for how many seconds *address* is still locked out, rounded up; 0 if it is not."""
        failures = self._failures.get(quota_key(address))
        left = failures.locked_until - self._clock() if failures is not None else 0
        return -(-left // SECOND) if left > 0 else 0

    def fail(self, address: str) -> bool:
        """Record a failed login from *address*; return whether it locks the address out."""
        key, now = quota_key(address), self._clock()
        failures = self._failures.setdefault(key, _Failures())
        self._failures.move_to_end(key)
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        failures.times.append(now)
        if len(failures.times) < FAILURES or now - failures.times[0] >= WITHIN:
            return False
        failures.times.clear()
        failures.locked_until = now + LOCKED_FOR
        return True
