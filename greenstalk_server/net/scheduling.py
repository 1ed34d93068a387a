"""What takes a millisecond and is asked for by many at once: one of it in each round of the loop.

gevent has everybody go on who is ready, before it looks at the sockets again. With fifty who agree on TLS, or have sent
an HTTP request, that would be when all fifty are served, and all others wait meanwhile.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any, Final

from gevent import get_hub
from gevent.event import Event

NEXT_ROUND: Final = 0.000001
"""Seconds. No zero: gevent goes on at once with what waits for no time."""


class Turns:
    """In each round of the loop there is one, for who stands first in line."""

    def __init__(self) -> None:
        self._line: deque[Event] = deque()
        self._is_taken: bool = False
        self._timer: Any = get_hub().loop.timer(NEXT_ROUND)

    def take(self) -> None:
        """Wait for a turn. Switches, unless there is one left in this round."""
        if not self._is_taken:
            self._is_taken = True
            self._timer.start(self._give)
            return
        mine = Event()
        self._line.append(mine)
        try:
            mine.wait()
        except BaseException:
            with suppress(ValueError):  # it was its turn already
                self._line.remove(mine)
            raise

    def _give(self) -> None:
        """Have whoever is first in line go on. No semaphore: it would let those pass who come just then."""
        self._is_taken = bool(self._line)
        if self._line:
            self._line.popleft().set()
            self._timer.start(self._give)
