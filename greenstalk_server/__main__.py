"""The entry point of `greenstalk-server` and `python -m greenstalk_server`.

Imports nothing slow before `main`, so that Ctrl-C during the imports ends the process without a traceback.
"""

from __future__ import annotations

import os
import signal
import sys

from greenstalk_server import BUILD


def main() -> int:
    """Run the command; return its exit code. Until the server handles SIGINT, the signal ends the process."""
    if error := BUILD.error or wrong_system():
        from greenstalk_server.runtime.exit_codes import EXIT_BUILD  # noqa: PLC0415  as below

        print(f"greenstalk-server: {error}", file=sys.stderr)
        return EXIT_BUILD
    handles_sigint = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles_sigint:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from greenstalk_server import cli  # noqa: PLC0415  takes 0.2 s

    if handles_sigint:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return cli.main()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # shells check whether a signal ended the process
        raise


def wrong_system() -> str:
    """Return why the server cannot run on this system, and what to do; empty on Linux and macOS."""
    name = sys.platform
    if name in {"linux", "darwin"}:
        return ""
    return f"the server needs Linux or macOS, and this system is {name}; run it in a container"


if __name__ == "__main__":
    sys.exit(main())
