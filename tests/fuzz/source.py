"""A source of choices: takes a fuzzer's bytes piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Source:
    """Reads *data* from its front, and zeros after its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """Whether bytes are left."""
        return self._at < len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def short(self) -> int:
        """Return a number from 0 to 65535."""
        return self.byte() << 8 | self.byte()

    def take(self, size: int) -> bytes:
        """Return the next *size* bytes, or as many as are left."""
        self._at += size
        return self._data[self._at - size : self._at]

    def rest(self) -> bytes:
        return self.take(len(self._data))

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of *choices*, selected by one byte."""
        return choices[self.byte() % len(choices)]
