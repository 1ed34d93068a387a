"""Single keys from the terminal, without Enter; from anything else, none."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Any, Self


class Keyboard:
    """While it is entered, the terminal hands over each key at once, and is put back as it was after that."""

    def __init__(self) -> None:
        self._file = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if self._file is not None:
            self._before = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def key(self, seconds: float) -> str:
        """The next key, within *seconds*; empty if there is none."""
        readable, _, _ = select.select([] if self._file is None else [self._file], [], [], max(seconds, 0))
        return os.read(readable[0], 1).decode(errors="replace") if readable else ""
