"""The files of the audit log: JSON lines, appended; a full file moves aside, and the oldest goes.

Everything here blocks. What a crash has torn is a last line that is no JSON: readers pass over it, and the next
line begins on a line of its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from greenstalk_server.journal.files import open_regular

NAME: Final = "audit.jsonl"

LARGEST_FILE: Final = 10 * 1024 * 1024
OLD_FILES: Final = 3

BLOCK: Final = 65536
"""Bytes read at once. No line is as long."""


class AuditFiles:
    """The files in *directory*: `audit.jsonl`, and the older the higher its number, `audit.jsonl.1` to `.3`."""

    def __init__(self, directory: str) -> None:
        self._directory: Path = Path(directory)
        self._paths: list[Path] = [self._directory / NAME]
        self._paths += [self._directory / f"{NAME}.{age}" for age in range(1, OLD_FILES + 1)]

    def append(self, lines: bytes) -> None:
        """Add *lines*, each with its end, and wait until they are on disk; all or nothing, or raise OSError."""
        newest = self._paths[0]
        size = newest.stat(follow_symlinks=False).st_size if newest.exists() else 0
        if size and size + len(lines) > LARGEST_FILE:
            self._rotate()
            size = 0
        handle = open_regular(newest, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
        try:
            _write(handle, size, lines)
        finally:
            os.close(handle)
        if not size:
            self._sync_directory()

    def last_number(self) -> int:
        """The number of the last entry, or 0."""
        reader = self.open_before(2**63)
        if reader is None:
            return 0
        with reader:
            while lines := reader.lines_before():
                if numbers := [number for line in lines if (number := _number(line))]:
                    return numbers[-1]
        return 0

    def open_before(self, number: int) -> Reader | None:
        """Open the newest file that has entries with a number below *number*, for those, or return None."""
        for path in self._paths:  # from new to old, as they move: none is passed over
            try:
                reader = Reader(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW))
            except FileNotFoundError:
                continue
            if 0 < reader.first_number() < number:
                reader.go_before(number)
                return reader
            reader.close()
        return None

    def _rotate(self) -> None:
        for path, older in reversed(list(zip(self._paths, self._paths[1:], strict=False))):
            if path.exists():
                path.replace(older)

    def _sync_directory(self) -> None:
        handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Reader:
    """One open file, read from the end to the beginning; close it."""

    def __init__(self, handle: int) -> None:
        self._handle: int = handle
        self._end: int = os.fstat(handle).st_size
        self._rest: bytes = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._handle)

    def first_number(self) -> int:
        """The number of the first entry, or 0."""
        return self._after(0)[1]

    def go_before(self, number: int) -> None:
        """Have the next line be the last below *number*, or one of the few after that."""
        low, high = 0, self._end
        while high - low > BLOCK:
            middle = (low + high) // 2
            at, found = self._after(middle)
            if 0 < found < number:
                low = at
            else:
                high = middle
        line_end = os.pread(self._handle, BLOCK, high).find(b"\n")
        self._end = high + line_end + 1 if line_end >= 0 else self._end

    def lines_before(self) -> list[bytes]:
        """The lines of the block before those read last, in their order; none at the beginning of the file."""
        lines: list[bytes] = []
        while not lines and self._end:
            start = max(0, self._end - BLOCK)
            block = os.pread(self._handle, self._end - start, start) + self._rest
            self._end = start
            self._rest, *lines = block.split(b"\n")
            if not start:
                lines.insert(0, self._rest)
        return lines

    def _after(self, offset: int) -> tuple[int, int]:
        """Where the first entry that begins after *offset* (at it, at 0) does, and its number; or zeros."""
        block = os.pread(self._handle, BLOCK, offset)
        lines = block.split(b"\n")
        at = offset
        for line in lines[:-1]:
            number = _number(line) if at > offset or not offset else 0
            if number:
                return at, number
            at += len(line) + 1
        return 0, 0


def encode(entry: dict[str, Any]) -> bytes:
    """Return the line of *entry*."""
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Return what *line* says; nothing if it is no entry."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _number(line: bytes) -> int:
    number = decode(line).get("n", 0)
    return number if type(number) is int else 0


def _write(handle: int, size: int, lines: bytes) -> None:
    """Append *lines* to the file of *size* bytes, on a line of their own; leave it as it was if that fails."""
    if size and os.pread(handle, 1, size - 1) != b"\n":
        lines = b"\n" + lines
    try:
        written = 0
        while written < len(lines):
            written += os.write(handle, lines[written:])
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise
