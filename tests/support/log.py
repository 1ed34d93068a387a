"""The log of a server that runs in a subprocess."""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from tests.support.daemon import TIMEOUT


class Log:
    """The stderr of a server, line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._stream = process.stderr
        self._until = time.monotonic() + TIMEOUT

    def __iter__(self) -> Iterator[str]:
        while True:
            ready, _, _ = select.select([self._stream], [], [], max(0, self._until - time.monotonic()))
            assert ready, "no more lines in the log"
            line = self._stream.readline()
            if not line:
                return
            yield line.decode()

    def find(self, text: str) -> str:
        """Return the next line that contains *text*."""
        return next(line for line in self if text in line)

    def event(self, message: str) -> dict[str, Any]:
        """Return the next JSON event with *message*."""
        return next(event for event in map(json.loads, self) if event["message"] == message)
