"""Cuts a stream of replies into single replies. Pure."""

from __future__ import annotations

from typing import Final

from greenstalk_server.protocol.link_frames import LinkError

INCOMPLETE: Final = -1

MAX_DIGITS: Final = 10
"""Digits of the size of a body, or of a number of jobs."""

WITH_BODY: Final = (b"RESERVED", b"FOUND ", b"OK ")
"""Beginnings of the replies that have a body."""


class ReplyReader:
    """The replies that another server sends to commands, in pieces of any size."""

    __slots__ = ("_parts", "_size", "_wanted")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size: int = 0
        self._wanted: int = 0  # bytes from which on the next reply may be complete

    def feed(self, data: bytes) -> list[bytes]:
        """Return the replies that *data* completes, each with its body; raise LinkError if a size is malformed."""
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < self._wanted:
                return []
            data, self._parts = b"".join(self._parts), []
        elif 0 < data.find(b"\r\n") == len(data) - 2 and not data.startswith(WITH_BODY):
            return [data]  # the most frequent case
        found: list[bytes] = []
        start = 0
        while start < len(data):
            end = self._end_of_reply(data, start)
            if end == INCOMPLETE:
                self._parts = [data[start:]]
                self._size = len(data) - start
                self._wanted -= start
                break
            found.append(data[start:end])
            start = end
        return found

    def _end_of_reply(self, data: bytes, start: int) -> int:
        """Return the end of the reply at *start*; or INCOMPLETE, with `_wanted` set to the least end it can have."""
        if not data.startswith(b"RESERVED_BATCH ", start):
            return self._end_of_body(data, start)
        end = data.find(b"\r\n", start)
        if end < 0:
            self._wanted = len(data) + 1
            return INCOMPLETE
        jobs = _number(data[start + 15 : end])
        end += 2
        for _ in range(jobs):
            end = self._end_of_body(data, end)
            if end == INCOMPLETE:
                break
        return end

    def _end_of_body(self, data: bytes, start: int) -> int:
        """Return the end of the line at *start* and of the body that it announces, or INCOMPLETE."""
        line_end = data.find(b"\r\n", start)
        if line_end < 0:
            self._wanted = len(data) + 1
            return INCOMPLETE
        size = _announced(data[start:line_end])
        end = line_end + 2 if size < 0 else line_end + 2 + size + 2
        if end > len(data):
            self._wanted = end
            return INCOMPLETE
        return end


def _announced(line: bytes) -> int:
    """Return the size of the body that follows *line*, or -1 if there is none."""
    if line.startswith((b"RESERVED ", b"FOUND ")):
        words = line.split(b" ", 3)
        return _number(words[2] if len(words) > 2 else b"")
    return _number(line[3:]) if line.startswith(b"OK ") else -1


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > MAX_DIGITS:
        raise LinkError("malformed reply")
    return int(text)
