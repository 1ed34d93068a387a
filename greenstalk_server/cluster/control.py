"""A child's socket to its parent: reports in both directions, and the end of the parent."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from gevent import get_hub

_READ: Final = 1

_MAX_REPORT: Final = 65536
"""Bytes of a report of the parent, which has some 20 for each of up to 1,024 processes."""


class ControlSocket:
    """The child's end of the socket pair."""

    def __init__(self, fd: int) -> None:
        self._socket: socket.socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._watcher: Any = None

    def report(self, state: bytes) -> None:
        """Tell the parent that this process is in *state*. Does not switch."""
        with suppress(OSError):  # the parent has ended, or is stopping and reads no more
            self._socket.send(state)

    def listen(self, on_report: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        """Call *on_report* in the event loop with each report of the parent, and *on_end* when the parent has ended."""
        self._watcher = get_hub().loop.io(self._socket.fileno(), _READ)

        def receive() -> None:
            try:
                report = self._socket.recv(_MAX_REPORT)
            except BlockingIOError:
                return
            except OSError:
                report = b""
            if report:
                on_report(report)
            else:
                self._watcher.stop()
                on_end()

        self._watcher.start(receive)
