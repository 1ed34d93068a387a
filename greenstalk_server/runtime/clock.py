"""The server's clock: the wall clock read once, plus the monotonic time since then.

It does not jump when the wall clock is set, and its times can be compared with times of an earlier run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Returns nanoseconds since the Unix epoch; never decreases."""


def steady_clock(at: int | None = None) -> Clock:
    """Return a clock that starts at *at*, by default at the wall clock's time, in nanoseconds since the epoch."""
    monotonic = time.monotonic_ns
    offset = (time.time_ns() if at is None else at) - monotonic()

    def now() -> int:
        return monotonic() + offset

    return now
