"""The real command, which writes the longest iteration of its event loop to a file when it ends.

Run with the path of that file, then the command's own arguments. An iteration is measured in CPU time of the thread of
the loop, since other programs may stop that thread for any time on a busy machine.
"""

from __future__ import annotations

import atexit
import sys
import time
from pathlib import Path

from gevent import get_hub

from greenstalk_server.__main__ import main
from greenstalk_server.net.server import Server


class Longest:
    """The longest iteration of the loop since the server began to serve, in nanoseconds of CPU time."""

    def __init__(self) -> None:
        self.longest = 0
        self._before = 0

    def start(self) -> None:
        loop = get_hub().loop
        self._watcher = loop.check(ref=False, priority=loop.MAXPRI)
        self._watcher.start(self._note)

    def _note(self) -> None:
        now = time.thread_time_ns()
        if self._before:
            self.longest = max(self.longest, now - self._before)
        self._before = now


if __name__ == "__main__":
    path = Path(sys.argv.pop(1))
    measured = Longest()
    start = Server.start

    def start_measured(self: Server) -> None:
        start(self)
        measured.start()

    Server.start = start_measured  # type: ignore[method-assign]
    atexit.register(lambda: path.write_text(str(measured.longest)))
    main()
