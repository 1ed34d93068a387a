"""Long work in short slices, so that workers are not delayed."""

from __future__ import annotations

import time
from typing import Final

import gevent

from greenstalk_server.runtime.scheduling import yielding

SLICE: Final = 0.0001
"""Seconds of work between two yields to the event loop."""

PAUSE: Final = 0.003
"""Seconds left to others after each slice, while they have work."""

IDLE_ROUND_TRIP: Final = 0.0001
"""Seconds that an iteration of the event loop takes at most when nobody else has work."""

BUSY_PERIOD: Final = 0.01
"""Seconds that others are assumed to be busy after an iteration in which they were."""


class Pace:
    """Limits long work to slices of about SLICE seconds; the work calls `yield_if_due` every few items.

    The work gets a thirtieth of the time while others are busy, and most of it while they are not.
    """

    def __init__(self) -> None:
        self._until: float = time.perf_counter() + SLICE
        self._busy_until: float = 0.0

    def yield_if_due(self) -> None:
        """Let others run if the slice is used up. May switch."""
        now = time.perf_counter()
        if now < self._until:
            return
        if now < self._busy_until:
            gevent.sleep(PAUSE)
        else:
            with yielding(), gevent.Timeout(PAUSE, False):
                gevent.idle()  # not sleep(0): up to fifty of those run before the loop checks a socket
            if time.perf_counter() - now > IDLE_ROUND_TRIP:
                self._busy_until = now + BUSY_PERIOD
        self._until = time.perf_counter() + SLICE
