"""Run the server, and write the duration of the longest iteration of its event loop to a file at its exit.

Usage: python -m tests.net.measured FILE [server's arguments]

The duration is CPU time of the event loop's thread: on a busy machine other programs may delay that thread.
"""

from __future__ import annotations

import atexit
import sys
import time
from pathlib import Path

from gevent import get_hub

from greenstalk_server.__main__ import main
from greenstalk_server.net.server import Server


class IterationTimer:
    """Measures the longest iteration of the loop since the server began to serve, in nanoseconds of CPU time."""

    def __init__(self) -> None:
        self.longest = 0
        self._previous = 0

    def start(self) -> None:
        loop = get_hub().loop
        self._watcher = loop.check(ref=False, priority=loop.MAXPRI)
        self._watcher.start(self._measure)

    def _measure(self) -> None:
        now = time.thread_time_ns()
        if self._previous:
            self.longest = max(self.longest, now - self._previous)
        self._previous = now


if __name__ == "__main__":
    path = Path(sys.argv.pop(1))
    timer = IterationTimer()
    start = Server.start

    def start_measured(self: Server) -> None:
        start(self)
        timer.start()

    Server.start = start_measured  # type: ignore[method-assign]
    atexit.register(lambda: path.write_text(str(timer.longest)))
    main()
