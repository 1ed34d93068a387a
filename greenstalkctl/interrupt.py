"""Handle Ctrl-C and SIGTERM between two jobs instead of in the middle of one.

Inside the `with` block of an Interrupt the first signal only sets a flag, which long-running work checks between two
jobs. A second Ctrl-C ends the command immediately. Use it in the main thread only, as signal handlers require.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Self

from greenstalkctl.errors import Interrupted


class Interrupt:
    """True once Ctrl-C or SIGTERM has asked the command to end."""

    def __init__(self) -> None:
        self._is_set = False
        # An Event would deadlock if the signal arrived while `wait` holds the lock of the event.
        self._signals: SimpleQueue[int] = SimpleQueue()
        self._saved_handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def __enter__(self) -> Self:
        for number in self._saved_handlers:
            signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._saved_handlers.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Sleep for *seconds*; return True immediately when a signal arrives."""
        if not self._is_set:
            with suppress(Empty):
                self._signals.get(timeout=max(0.0, seconds))
        return self._is_set

    def check(self, message: str) -> None:
        """Raise Interrupted with *message* if a signal has arrived."""
        if self:
            raise Interrupted(message)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._is_set and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._is_set = True
        self._signals.put(number)
