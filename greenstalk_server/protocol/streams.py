"""Replies that are sent in pieces: the body of a large job, and long lists of names.

A stream makes the next piece of its reply when the client has read the one before. So a reply holds the event loop for
one piece at a time, and the unsent rest takes little memory: the body belongs to the job, and the names to a list that
all replies with the same names share. Pure.
"""

from __future__ import annotations

from typing import Final, Protocol

from greenstalk_server.core.name_list import NAME_OVERHEAD, NameList

PIECE: Final = 65536
"""Bytes of a piece. A piece of a list is larger by at most one name."""


class Stream(Protocol):
    """The rest of a reply."""

    def next(self) -> bytes:
        """Return the next piece, which is empty at the end."""

    def close(self) -> None:
        """Free the resources of the stream. Call it exactly once, last."""


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
        names, start = self._list.names, self._position
        if start < 0:
            self._position = 0
            return b"---\n"
        if start > len(names):
            return b""
        size, end = 0, start
        while end < len(names) and size < PIECE:
            size += len(names[end]) + NAME_OVERHEAD
            end += 1
        if end < len(names):
            self._position = end
            return b"- " + b"\n- ".join(names[start:end]) + b"\n"
        self._position = len(names) + 1
        return (b"- " + b"\n- ".join(names[start:end]) + b"\n\r\n") if start < end else b"\r\n"

    def close(self) -> None:
        """Release the list."""
        self._list.release()
