"""Run the server and record its longest loop iteration: python -m tools.hostile.loop_clock FILE [OPTION...].

FILE holds one integer of eight bytes: the CPU time of the longest iteration in nanoseconds. A program that maps the
file too may set it to 0 at any time. An iteration is everything that the main thread does between two calls of the
loop's `prepare` watchers: it polls, serves sockets and timers, and resumes greenlets. The time that it waits does not
count.
"""

import mmap
import sys
import time
from pathlib import Path
from typing import Final

from gevent import get_hub

from greenstalk_server import cli

CELL: Final = 8
"""Bytes of FILE."""


def main() -> int:
    """Record the iterations of this process, which is the server with the other arguments."""
    with Path(sys.argv[1]).open("r+b") as file:
        longest = memoryview(mmap.mmap(file.fileno(), CELL)).cast("q")
    began = time.thread_time_ns()

    def note_iteration() -> None:
        nonlocal began
        now = time.thread_time_ns()
        longest[0] = max(longest[0], now - began)
        began = now

    watcher = get_hub().loop.prepare(ref=False)
    watcher.start(note_iteration)
    return cli.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
