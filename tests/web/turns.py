"""Others, beside something long: they count the turns that are left to them, and no clock is asked.

Long work rests when a step of time is over (`cooperative`), so how much is done between two turns depends on how
fast the machine is. A test that counts turns has each rest be one (the fixture `short_steps`): then it depends on
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

import gevent
from gevent import socket

from tests.support.daemon import PATIENCE


class Turns:
    """A greenlet whose socket always has something to read: it has a turn whenever the loop looks at its sockets.

    count    how many it has had.
    longest  how much *progress* went on between two at most.
    """

    def __init__(self, progress: Callable[[], int] = lambda: 0) -> None:
        self.count = 0
        self.longest = 0
        self._progress = progress
        self._ours, self._peer = socket.socketpair()

    def __enter__(self) -> Self:
        self._peer.sendall(b"x")
        self._greenlet = gevent.spawn(self._take)
        while not self.count:
            gevent.sleep(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._greenlet.kill()
        self._ours.close()
        self._peer.close()

    def _take(self) -> None:
        before = self._progress()
        while True:
            socket.wait_read(self._ours.fileno())
            now = self._progress()
            self.count, self.longest, before = self.count + 1, max(self.longest, now - before), now


def until(is_so: Callable[[], object]) -> None:
    """Let all others run, and return as soon as *is_so*; fail if it does not come about."""
    with gevent.Timeout(PATIENCE):
        while not is_so():
            gevent.sleep(0.001)
