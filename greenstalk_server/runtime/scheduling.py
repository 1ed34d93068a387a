"""Yield to the event loop, and share it fairly between greenlets.

gevent resumes at least fifty greenlets, if as many are ready, before it polls sockets and timers again. A greenlet that
calls `gevent.sleep(0)` is ready at once, so it may resume fifty times before a socket is polled. A positive delay,
however short, is a timer, so the loop polls first. `YIELD_DELAY` is that delay, and all code that works in slices
yields by `yield_to_loop`.

The poller may wait for input outside of the event loop. It does not wait while a greenlet is `yielding`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import gevent
from gevent import get_hub
from gevent.event import Event

from greenstalk_server.runtime.system import YIELD_DELAY

_yielding: Final = [0]  # number of blocks in `yielding`


@contextmanager
def yielding() -> Iterator[None]:
    """Declare that this greenlet can continue in the next iteration of the event loop. The block switches."""
    _yielding[0] += 1
    try:
        yield
    finally:
        _yielding[0] -= 1


def yield_to_loop() -> None:
    """Continue in the next iteration of the event loop. Switches."""
    with yielding():
        gevent.sleep(YIELD_DELAY)


def has_yielding() -> bool:
    """Return whether a greenlet can continue in the next iteration of the event loop."""
    return _yielding[0] > 0


class FairQueue:
    """A FIFO that admits one greenlet per iteration of the event loop.

    Each step of expensive work, such as a TLS handshake or an HTTP request, takes a turn first. Without turns, fifty
    greenlets that are ready together would run fifty steps of a millisecond before the loop polls again.
    """

    def __init__(self) -> None:
        self._loop: Any = get_hub().loop
        self._waiting: deque[Event] = deque()
        self._admitted_in: int = -1  # the iteration of the loop in which a greenlet was admitted last
        self._timer: Any = self._loop.timer(YIELD_DELAY)

    @property
    def iteration(self) -> int:
        """The number of the current iteration of the event loop."""
        return int(self._loop.iteration)

    def take_if_free(self) -> bool:
        """Take the turn of this iteration; return False if it is taken, or if others wait. Does not switch."""
        if self._waiting or self._admitted_in == self._loop.iteration:
            return False
        self._admitted_in = self._loop.iteration
        return True

    def take(self) -> None:
        """Wait until admitted. Switches if others wait, or if a greenlet was already admitted in this iteration."""
        if self.take_if_free():
            return
        turn = Event()
        self._waiting.append(turn)
        if not self._timer.active:
            self._timer.start(self._admit_next)
        try:
            with yielding():
                turn.wait()
        except BaseException:
            with suppress(ValueError):  # already admitted
                self._waiting.remove(turn)
            raise

    def _admit_next(self) -> None:
        """Admit the greenlet that has waited longest. A semaphore would let later arrivals pass it."""
        if self._waiting:
            self._admitted_in = self._loop.iteration
            self._waiting.popleft().set()
        if self._waiting:
            self._timer.start(self._admit_next)
