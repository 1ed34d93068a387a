"""`greenstalk-server` and `python -m greenstalk_server`.

Imports nothing heavy before `main`, so that Ctrl-C during the imports ends the process without a traceback.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run the command; return its exit code. SIGINT before the server handles it ends the process by that signal."""
    is_heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from greenstalk_server import cli  # noqa: PLC0415  takes 0.2 s

    if is_heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return cli.main()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # a shell looks whether the signal ended us
        raise


if __name__ == "__main__":
    sys.exit(main())
