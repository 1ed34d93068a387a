"""Long work in small steps, so that no worker waits for it."""

from __future__ import annotations

import time
from typing import Final

import gevent

SLICE: Final = 0.0001
"""Seconds of work at a stretch."""

PAUSE: Final = 0.003
"""Seconds that all others have after each, if there is work for them."""

IDLE_ROUND_TRIP: Final = 0.0001
"""Seconds in which the loop comes round when nobody else has work."""

BUSY_PERIOD: Final = 0.01
"""Seconds that others are taken to be at work after a turn in which they were."""


class Pace:
    """Sees to it that work which calls `rest` every few items holds the loop for about STEP at a time.

    It takes a thirtieth of the time while others are at work, and most of it while nobody is.
    """

    def __init__(self) -> None:
        self._until: float = time.perf_counter() + SLICE
        self._busy_until: float = 0.0

    def yield_if_due(self) -> None:
        """Let others run if it is time to. May switch."""
        now = time.perf_counter()
        if now < self._until:
            return
        if now < self._busy_until:
            gevent.sleep(PAUSE)
        else:
            with gevent.Timeout(PAUSE, False):
                gevent.idle()  # not sleep(0): fifty of those may come before the loop looks at a socket
            if time.perf_counter() - now > IDLE_ROUND_TRIP:
                self._busy_until = now + BUSY_PERIOD
        self._until = time.perf_counter() + SLICE
