"""Replies that are sent in pieces: the body of a large job, and long lists of names.

A stream makes the next piece of its reply when the socket has accepted the one before. So a reply blocks the event loop
for a few pieces at most (connection.STREAM_BATCH). The unsent rest takes little memory: a body belongs to its job, and
all replies with the same names share one list of them. Pure.
"""

from __future__ import annotations

from typing import Final, Protocol

from greenstalk_server.core.tubes.name_list import NAME_OVERHEAD, NameList

PIECE: Final = 65536
"""Maximum bytes of a piece, without the CRLF that ends the reply."""


class Stream(Protocol):
    """The rest of a reply."""

    def next(self) -> bytes:
        """Return the next piece, which is empty at the end."""

    def close(self) -> None:
        """Free the resources of the stream. Call this exactly once, after all other methods."""


class BodyStream:
    """The body of a job, and the CRLF that ends the reply."""

    __slots__ = ("_body", "_position")

    def __init__(self, body: bytes) -> None:
        self._body: bytes = body
        self._position: int = 0

    def next(self) -> bytes:
        """Return the next piece."""
        body, start = self._body, self._position
        self._position = end = start + PIECE
        if end < len(body):
            return body[start:end]
        self._body = b""
        return body[start:] + b"\r\n" if body else b""

    def close(self) -> None:
        """Free nothing: the body belongs to the job."""


class WholeStream:
    """A long reply that is in memory."""

    __slots__ = ("_position", "_reply")

    def __init__(self, reply: bytes) -> None:
        self._reply: bytes = reply
        self._position: int = 0

    def next(self) -> bytes:
        """Return the next piece."""
        start, self._position = self._position, self._position + PIECE
        return self._reply[start : self._position]

    def close(self) -> None:
        """Free nothing but the reply."""
        self._reply = b""


class PartsStream:
    """A long reply in parts that are in memory."""

    __slots__ = ("_parts", "_position")

    def __init__(self, parts: list[memoryview]) -> None:
        self._parts: list[memoryview] = parts[::-1]
        self._position: int = 0

    def next(self) -> bytes:
        """Return the next piece."""
        while self._parts:
            start, self._position = self._position, self._position + PIECE
            piece = bytes(self._parts[-1][start : self._position])
            if piece:
                return piece
            self._parts.pop()
            self._position = 0
        return b""

    def close(self) -> None:
        """Free nothing but the reply."""
        self._parts = []


class NameStream:
    """A list of names as YAML, and the CRLF that ends the reply.

    The caller has acquired the list; the stream releases it.
    """

    __slots__ = ("_list", "_position")

    def __init__(self, names: NameList) -> None:
        self._list: NameList = names
        self._position: int = -1

    def next(self) -> bytes:
        """Return the next piece."""
        chunks, position = self._list.chunks, self._position
        if position < 0:
            self._position = 0
            return b"---\n"
        if position > len(chunks):
            return b""
        names: list[bytes] = []
        size = 0
        while position < len(chunks):
            chunk = chunks[position]
            size += sum(map(len, chunk)) + NAME_OVERHEAD * len(chunk)
            if size > PIECE and names:
                self._position = position
                return _lines(names)
            names += chunk
            position += 1
        self._position = len(chunks) + 1
        return _lines(names) + b"\r\n"

    def close(self) -> None:
        """Release the list."""
        self._list.release()


def _lines(names: list[bytes]) -> bytes:
    return b"- " + b"\n- ".join(names) + b"\n" if names else b""
