"""Replies that are too large to be built in one piece: the body of a large job, and long lists of names.

A stream makes the rest of its reply piece by piece, as the client reads it. So a reply holds the event loop for one
piece at a time, and what the client has not read takes little memory of its own: the body belongs to the job, and the
names to a list that all replies to the same question share.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

PIECE: Final = 65536
"""Bytes of a piece, and of a list at most one name more."""

NAME_OVERHEAD: Final = 3
"""Bytes that a line of a list adds to its name: "- " and the newline."""

MAX_LISTED_NAMES: Final = 4_000_000
"""Maximum number of names in all lists that are being sent; each takes 8 bytes."""


class Stream(Protocol):
    """The rest of a reply."""

    def next(self) -> bytes:
        """Return the next piece, which is empty at the end."""

    def close(self) -> None:
        """Free what the stream has taken; call once, last."""


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
        """Free nothing: the body is the job's."""


class Listings:
    """The lists of names that are being sent.

    names   number of names in all of them.
    limit   maximum of `names`; a list that would exceed it is refused.
    """

    __slots__ = ("limit", "names")

    def __init__(self) -> None:
        self.names: int = 0
        self.limit: int = MAX_LISTED_NAMES


class NameList:
    """Names in the order in which they are listed, shared by all streams that list the same.

    size   bytes of the list.
    """

    __slots__ = ("_listings", "_readers", "names", "size")

    def __init__(self, names: Collection[bytes], listings: Listings) -> None:
        """*listings* is that of the server."""
        self.names: list[bytes] = list(names)
        self.size: int = len("---\n") + sum(map(len, names)) + NAME_OVERHEAD * len(self.names)
        self._listings: Listings = listings
        self._readers: int = 0

    def open(self) -> NameStream | None:
        """Return a stream of the list, or None if too many names are being sent already."""
        if not self._readers:
            if self._listings.names + len(self.names) > self._listings.limit:
                return None
            self._listings.names += len(self.names)
        self._readers += 1
        return NameStream(self)

    def leave(self) -> None:
        """Note that a stream of the list is closed."""
        self._readers -= 1
        if not self._readers:
            self._listings.names -= len(self.names)


class NameStream:
    """A list of names as YAML, and the CRLF that ends the reply."""

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
        self._list.leave()
