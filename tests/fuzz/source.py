"""A fuzzer's bytes, taken piece by piece as whatever is wanted next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Source:
    """Reads *data* from its front; where it has ended there are zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """Whether something is left."""
        return self._at < len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def short(self) -> int:
        """0 to 65535."""
        return self.byte() << 8 | self.byte()

    def take(self, size: int) -> bytes:
        """The next *size* bytes, or as many as there are."""
        self._at += size
        return self._data[self._at - size : self._at]

    def rest(self) -> bytes:
        return self.take(len(self._data))

    def pick(self, choices: Sequence[T]) -> T:
        """One of *choices*, by one byte."""
        return choices[self.byte() % len(choices)]
