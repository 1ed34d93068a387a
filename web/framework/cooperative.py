"""Long work in short slices, so that workers are not delayed.

All long work together runs one slice per iteration of the event loop: the slices of fifty greenlets that end their
pauses at the same time run in fifty iterations.

Work in a request goes first: the slices of a page make work outside of requests pause, such as tasks and the monitor.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Final, TypeVar

import gevent
from flask import has_request_context

from greenstalk_server.runtime.scheduling import FairQueue, yielding

SLICE: Final = 0.0001
"""Seconds of work between two yields to the event loop."""

PAUSE: Final = 0.003
"""Minimum seconds left to others after each slice, while they have work."""

PAUSE_RATIO: Final = 30
"""CPU time left to others while they have work, as a multiple of the slice's own: some items take milliseconds."""

CROWD: Final = 10
"""Greenlets that may pause at the same time before their pauses become longer: all long work together gets at most a
quarter of the time, however many principals cause it.
"""

MAX_PAUSE: Final = 0.1
"""Maximum seconds of a pause, unless CROWD is exceeded."""

MAX_IDLE_CPU: Final = 0.0001
"""Maximum CPU seconds that others use during a yield while they have no work. Elapsed time would include the time of
other processes. Long work would then pause on a loaded machine although nobody waits for this process.
"""

MAX_COUNTED_SLICE: Final = 2 * SLICE
"""CPU seconds of a slice that do not count as work of others. A slice that takes longer may have switched greenlets."""

BUSY_PERIOD: Final = 0.01
"""Seconds that others are assumed to stay busy after a yield during which they were busy."""

T = TypeVar("T")


class Pace:
    """Limits long work to slices of about SLICE seconds.

    The work takes its items from `each`, or calls `yield_if_due` every few items. It gets a
    thirtieth of the time while others are busy, and most of it while they are not. “Others” are all greenlets that do
    not work in slices. Greenlets that work in slices share the time with each other, but work outside of requests
    counts work in requests as others.
    """

    def __init__(self, first: int = 1) -> None:
        """Begin with a slice as long as *first* slices."""
        self._busy_until: float = 0.0
        self._begin_slice()
        self._until += (first - 1) * SLICE

    def yield_if_due(self) -> None:
        """Let others run if the slice is used up. May switch."""
        if time.perf_counter() >= self._until:
            self.yield_now()

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield *items*; after each, let others run if the slice is used up. May switch."""
        for item in items:
            yield item
            self.yield_if_due()

    def yield_now(self) -> None:
        """Let others run. Switches."""
        now, ended = time.perf_counter(), time.thread_time()
        took = ended - self._began
        _sliced[0] += min(took, MAX_COUNTED_SLICE)
        is_outside = not has_request_context()
        if is_outside:
            _sliced[1] += min(took, MAX_COUNTED_SLICE)
        if now < self._busy_until:
            _pause(min(max(PAUSE, PAUSE_RATIO * took), MAX_PAUSE))
            _turns().take()
            self._begin_slice()
            return
        sliced = _sliced[is_outside]
        with yielding(), gevent.Timeout(PAUSE, False):
            gevent.idle()  # not sleep(0): the loop runs up to fifty sleeps before it checks a socket
        _turns().take()
        self._begin_slice()
        if self._began - ended - (_sliced[is_outside] - sliced) > MAX_IDLE_CPU:
            self._busy_until = now + BUSY_PERIOD

    def _begin_slice(self) -> None:
        self._began: float = time.thread_time()
        self._until: float = time.perf_counter() + SLICE


def in_batches(items: Sequence[T], batch_size: int, pace: Pace | None = None) -> Iterator[T]:
    """Yield *items*. May switch between two batches, if the slice of *pace* is used up; by default of a new Pace."""
    pace = pace or Pace()
    for begin in range(0, len(items), batch_size):
        pace.yield_if_due()
        yield from items[begin : begin + batch_size]


def repeated(tick: Callable[[], float]) -> Callable[[], None]:
    """Return a function that calls the method *tick*, sleeps for the seconds that it returns, and so on.

    The function returns when the object of *tick* has been garbage-collected: it holds no reference to the object.
    """
    method = weakref.WeakMethod(tick)

    def run() -> None:
        while (call := method()) is not None:
            seconds = call()
            del call
            gevent.sleep(seconds)

    return run


def _pause(seconds: float) -> None:
    """Sleep *seconds*, or longer if many greenlets pause. Switches."""
    _pausing[0] += 1
    try:
        gevent.sleep(seconds * max(1.0, _pausing[0] / CROWD))
    finally:
        _pausing[0] -= 1


_pausing: Final = [0]  # number of greenlets in `_pause`
_sliced: Final = [0.0, 0.0]  # CPU seconds of all slices, each up to MAX_COUNTED_SLICE; and of those outside of requests


@cache
def _turns() -> FairQueue:
    """Return the queue that admits one slice per iteration of the event loop, created when it is first needed."""
    return FairQueue()
