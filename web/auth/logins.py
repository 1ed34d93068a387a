"""Limits on guessing a password: an address that fails too often is refused for a while, and no other is."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

from greenstalk_server.core.job import SECOND
from greenstalk_server.net.admission import quota_key
from greenstalk_server.runtime.clock import Clock

FAILURES: Final = 10
WITHIN: Final = 60 * SECOND
"""So many failures within so long lock an address out."""

LOCKED_FOR: Final = 60 * SECOND

ADDRESSES_AT_MOST: Final = 10_000
"""Addresses remembered, a few megabytes; those that failed last stay."""


@dataclass(slots=True)
class _Failures:
    """What one address did: the times of its latest failures, and when it may try again."""

    times: deque[int] = field(default_factory=lambda: deque(maxlen=FAILURES))
    locked_until: int = 0


class Logins:
    """The failed logins of late."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def seconds_locked(self, address: str) -> int:
        """For how many more seconds *address* is refused, rounded up; 0 if it is not."""
        failures = self._failures.get(quota_key(address))
        left = failures.locked_until - self._clock() if failures is not None else 0
        return -(-left // SECOND) if left > 0 else 0

    def fail(self, address: str) -> bool:
        """Note that a login from *address* has failed; tell whether that locks it out."""
        key, now = quota_key(address), self._clock()
        failures = self._failures.setdefault(key, _Failures())
        self._failures.move_to_end(key)
        if len(self._failures) > ADDRESSES_AT_MOST:
            self._failures.popitem(last=False)
        failures.times.append(now)
        if len(failures.times) < FAILURES or now - failures.times[0] >= WITHIN:
            return False
        failures.times.clear()
        failures.locked_until = now + LOCKED_FOR
        return True
