"""The files of the audit log: JSON lines in a rotated set of append-only files.

Every function here blocks. A crash can leave a torn last line. Readers skip it, because it is not JSON, and the next
append starts on a new line.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from greenstalk_server.journal.files import open_regular, sync_directory

NAME: Final = "audit.jsonl"

MAX_FILE_SIZE: Final = 10 * 1024 * 1024
"""Bytes of a file before it is rotated."""

MAX_OLD_FILES: Final = 3
"""Rotated files kept."""

BLOCK: Final = 65536
"""Bytes per read. Invariant: every line is shorter."""


class AuditFiles:
    """The files in *directory*: `audit.jsonl`, and the rotated `audit.jsonl.1` (newest) to `.3` (oldest)."""

    def __init__(self, directory: str) -> None:
        self._directory: Path = Path(directory)
        self._paths: list[Path] = [self._directory / NAME]
        self._paths += [self._directory / f"{NAME}.{age}" for age in range(1, MAX_OLD_FILES + 1)]

    def append(self, lines: bytes) -> None:
        """Append *lines*, each with its newline, and sync. On OSError the file is unchanged."""
        newest = self._paths[0]
        size = newest.stat(follow_symlinks=False).st_size if newest.exists() else 0
        if size and size + len(lines) > MAX_FILE_SIZE:
            self._rotate()
            size = 0
        handle = open_regular(newest, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
        try:
            _write(handle, size, lines)
        finally:
            os.close(handle)
        if not size:
            sync_directory(self._directory)

    def last_number(self) -> int:
        """Return the number of the last entry, or 0."""
        reader = self.open_before(2**63)
        if reader is None:
            return 0
        with reader:
            while lines := reader.lines_before():
                if numbers := [number for line in lines if (number := _number(line))]:
                    return numbers[-1]
        return 0

    def open_before(self, number: int) -> Reader | None:
        """Open the newest file with an entry whose number is below *number*, positioned before *number*; or None."""
        for path in self._paths:  # newest first: rotation moves files in the same direction, so none is missed
            try:
                reader = Reader(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW))
            except FileNotFoundError:
                continue
            if 0 < reader.first_number() < number:
                reader.seek_before(number)
                return reader
            reader.close()
        return None

    def _rotate(self) -> None:
        for path, older in reversed(list(zip(self._paths, self._paths[1:], strict=False))):
            if path.exists():
                path.replace(older)


class Reader:
    """An open file, read from its end to its beginning. Close it after use."""

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
        """Return the number of the file's first entry, or 0."""
        return self._first_entry_after(0)[1]

    def seek_before(self, number: int) -> None:
        """Position the reader so that the next block ends at the last entry below *number*, or a few entries later."""
        low, high = 0, self._end
        while high - low > BLOCK:
            middle = (low + high) // 2
            at, found = self._first_entry_after(middle)
            if 0 < found < number:
                low = at
            else:
                high = middle
        line_end = os.pread(self._handle, BLOCK, high).find(b"\n")
        self._end = high + line_end + 1 if line_end >= 0 else self._end

    def lines_before(self) -> list[bytes]:
        """Return the lines of the block that precedes the one read last, in file order; empty at the file's start."""
        lines: list[bytes] = []
        while not lines and self._end:
            start = max(0, self._end - BLOCK)
            block = os.pread(self._handle, self._end - start, start) + self._rest
            self._end = start
            self._rest, *lines = block.split(b"\n")
            if not start:
                lines.insert(0, self._rest)
        return lines

    def _first_entry_after(self, offset: int) -> tuple[int, int]:
        """Return the offset and number of the first entry that starts after *offset*, or zeros if there is none.

        With *offset* 0, an entry at 0 counts too.
        """
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
    """Return *entry* as a JSON line."""
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Return the JSON object in *line*; empty if there is none."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _number(line: bytes) -> int:
    number = decode(line).get("n", 0)
    return number if type(number) is int else 0


def _write(handle: int, size: int, lines: bytes) -> None:
    """Append *lines*, starting on a new line, to the file of *size* bytes, and sync; undo it on OSError."""
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
