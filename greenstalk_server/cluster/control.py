"""A child's socket to its parent: reports to the parent, and the end of the parent."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from gevent import get_hub

_READ: Final = 1


class ControlSocket:
    """The child's end of the socket pair. The parent sends nothing, so the socket is readable at its end."""

    def __init__(self, fd: int) -> None:
        self._socket: socket.socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._watcher: Any = None

    def report(self, state: bytes) -> None:
        """Tell the parent that this process is in *state*. Does not switch."""
        with suppress(OSError):  # the parent has ended, or is stopping and reads no more
            self._socket.send(state)

    def call_at_end(self, callback: Callable[[], None]) -> None:
        """Call *callback* in the event loop when the parent has ended."""
        self._watcher = get_hub().loop.io(self._socket.fileno(), _READ)

        def end() -> None:
            self._watcher.stop()
            callback()

        self._watcher.start(end)
