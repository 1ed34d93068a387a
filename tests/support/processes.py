"""Processes and threads of tests, which end even if the test fails."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import AnyStr, Final

from tests.support.daemon import TIMEOUT

STOP_TIMEOUT: Final = 10.0
"""Seconds that a process may take to end after SIGTERM."""


@contextlib.contextmanager
def ending(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """End *process* when the block ends. Use this instead of `with Popen(...)`, which waits without a limit."""
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[AnyStr]) -> None:
    """End *process* by SIGTERM, or by SIGKILL after STOP_TIMEOUT; close its pipes."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(TIMEOUT)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
