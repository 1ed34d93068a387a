"""A counter of event-loop iterations, which shows that long work lets others run, without a clock.

Long work yields when its time slice is used up (`cooperative`), so the work between two iterations depends on the
machine's speed. With the fixture `short_steps` the work yields whenever it can, so the count is the same on every
machine.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

import gevent
from gevent import socket

from tests.support.daemon import TIMEOUT


class LoopIterations:
    """A greenlet whose socket is always readable: it runs whenever the event loop checks its sockets.

    count           iterations so far.
    max_progress    largest growth of *progress* between two iterations.
    """

    def __init__(self, progress: Callable[[], int] = lambda: 0) -> None:
        self.count = 0
        self.max_progress = 0
        self._progress = progress
        self._ours, self._peer = socket.socketpair()

    def __enter__(self) -> Self:
        self._peer.sendall(b"x")
        self._greenlet = gevent.spawn(self._run)
        while not self.count:
            gevent.sleep(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._greenlet.kill()
        self._ours.close()
        self._peer.close()

    def _run(self) -> None:
        before = self._progress()
        while True:
            socket.wait_read(self._ours.fileno())
            now = self._progress()
            self.count, self.max_progress, before = self.count + 1, max(self.max_progress, now - before), now


def until(condition: Callable[[], object]) -> None:
    """Let others run until *condition* returns a true value; fail after TIMEOUT seconds."""
    with gevent.Timeout(TIMEOUT):
        while not condition():
            gevent.sleep(0.001)
