"""Processes and threads of tests: wait for their end with a limit, so that a failed test does not stop the test run."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from typing import Any, AnyStr, Final

STOP_TIMEOUT: Final = 10.0
"""Seconds that a process may take to end after SIGTERM."""

TIMEOUT: Final = 60.0
"""Seconds that a thread, or a process after SIGKILL, may take to end."""


@contextlib.contextmanager
def ending(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """End *process* when the block ends. Use this instead of `with Popen(...)`, which waits without a limit."""
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """End *process* by SIGTERM, or by SIGKILL after STOP_TIMEOUT; close its pipes."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(TIMEOUT)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # some input was not sent
                pipe.close()


def join(thread: threading.Thread) -> None:
    """Wait for *thread* to end; fail after TIMEOUT. It is a daemon thread, since the interpreter waits for others."""
    assert thread.daemon, f"{thread.name} is not a daemon thread"
    thread.join(TIMEOUT)
    assert not thread.is_alive(), f"{thread.name} has not ended"
