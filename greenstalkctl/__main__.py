"""Entry point of `greenstalkctl` and `python -m greenstalkctl`.

This module imports almost nothing, so that Ctrl-C is handled during the other imports, which take 0.25 s.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from greenstalkctl.errors import EXIT_INTERRUPTED


def run() -> int:
    """Run the command with the arguments of this process; return its exit code."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell may have set SIGINT to ignored
    if is_default:
        signal.signal(signal.SIGINT, _exit_on_interrupt)
    from greenstalkctl.cli import main  # noqa: PLC0415  see above

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()


def _exit_on_interrupt(_number: int, _frame: FrameType | None) -> None:
    """Exit immediately: an exception raised in the middle of an import could be swallowed by that import."""
    os.write(2, b"greenstalkctl: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(run())
