"""Ctrl-C and SIGTERM between two jobs rather than in the middle of one.

While an Interrupt is entered the first signal only sets it, and long work looks at it between two jobs; a second
Ctrl-C ends the command at once. It belongs to the main thread, as signal handlers do.
"""

from __future__ import annotations

import signal
from threading import Event
from types import FrameType, TracebackType
from typing import Self

from greenstalkctl.exits import Interrupted


class Interrupt:
    """Whether somebody wants the command to end; false until then."""

    def __init__(self) -> None:
        self._event = Event()
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def __enter__(self) -> Self:
        for number in self._before:
            signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep; return at once, and True, when the signal comes."""
        return self._event.wait(seconds)

    def check(self, message: str) -> None:
        """Raise Interrupted with *message* if the signal has come."""
        if self:
            raise Interrupted(message)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._event.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._event.set()
