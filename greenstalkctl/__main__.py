"""The program, as `greenstalkctl` and as `python -m greenstalkctl`.

This module imports next to nothing, so that Ctrl-C has its meaning before the quarter of a second of imports.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from greenstalkctl.exits import EXIT_INTERRUPTED


def run() -> int:
    """Run the command line of this process; return its exit code."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell may have it ignored
    if is_usual:
        signal.signal(signal.SIGINT, _end)
    from greenstalkctl.cli import main  # noqa: PLC0415  see above

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()


def _end(_number: int, _frame: FrameType | None) -> None:
    """End at once: an exception could come in the middle of an import, which may swallow it."""
    os.write(2, b"greenstalkctl: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(run())
