"""Read single key presses from the terminal, without Enter. Input that is not a terminal has no keys."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Any, Self


class Keyboard:
    """A context in which the terminal delivers each key immediately; its settings are restored on exit."""

    def __init__(self) -> None:
        self._file = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._saved_attributes: list[Any] = []

    def __enter__(self) -> Self:
        if self._file is not None:
            self._saved_attributes = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._saved_attributes)

    def read_key(self, seconds: float) -> str:
        """Return the next key, or an empty string after *seconds* without one."""
        readable, _, _ = select.select([] if self._file is None else [self._file], [], [], max(seconds, 0))
        return os.read(readable[0], 1).decode(errors="replace") if readable else ""
