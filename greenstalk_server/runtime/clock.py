"""The time the server lives by: the wall clock read once, plus the monotonic time since.

So it never jumps when somebody sets the clock, and times of an earlier run still compare with those of now.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Gives the time in nanoseconds since the Unix epoch; never goes back."""


def steady_clock(at: int | None = None) -> Clock:
    """A clock that starts at *at*, or at the wall clock's time."""
    monotonic = time.monotonic_ns
    offset = (time.time_ns() if at is None else at) - monotonic()

    def now() -> int:
        return monotonic() + offset

    return now
