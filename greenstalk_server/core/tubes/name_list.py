"""Lists of tube names that replies share, and the budget of names in all lists that are being sent. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

NAME_OVERHEAD: Final = 3
"""Bytes that a line of a list adds to its name: "- " and the newline."""

CHUNK_SIZE: Final = 256
"""Maximum number of names in a chunk, which takes at most 52 kB as YAML: less than a piece of a reply, 64 KiB."""

MAX_LISTED_NAMES: Final = 4_000_000
"""Maximum number of names in all lists that are being sent. Each name takes 8 bytes."""


class NameBudget:
    """The number of names in all lists that are being sent, and its maximum.

    names   number of names in all lists.
    limit   maximum of `names`; a list that would exceed it is refused.
    """

    __slots__ = ("limit", "names")

    def __init__(self) -> None:
        self.names: int = 0
        self.limit: int = MAX_LISTED_NAMES


class NameList:
    """Names in the order in which they are listed, shared by all streams that send the same list.

    The names count against the budget while at least one stream holds the list.

    Invariant: neither the list nor its chunks change.

    chunks  the names; each chunk has 1 to CHUNK_SIZE of them.
    count   number of names.
    size    bytes of the list as YAML.
    """

    __slots__ = ("_budget", "_readers", "chunks", "count", "size")

    def __init__(self, chunks: list[Collection[bytes]], count: int, name_bytes: int, budget: NameBudget) -> None:
        """*name_bytes* is the size of all names in bytes; *budget* is the server's."""
        self.chunks: list[Collection[bytes]] = chunks
        self.count: int = count
        self.size: int = len("---\n") + name_bytes + NAME_OVERHEAD * count
        self._budget: NameBudget = budget
        self._readers: int = 0

    def names(self) -> list[bytes]:
        """Return all names."""
        return [name for chunk in self.chunks for name in chunk]

    def acquire(self) -> bool:
        """Add a reader. Return False, without adding it, if too many names are being sent."""
        if not self._readers:
            if self._budget.names + self.count > self._budget.limit:
                return False
            self._budget.names += self.count
        self._readers += 1
        return True

    def release(self) -> None:
        """Remove a reader that `acquire` added."""
        self._readers -= 1
        if not self._readers:
            self._budget.names -= self.count


def list_of(names: Iterable[bytes], budget: NameBudget) -> NameList:
    """Return a list of *names*, which are copied."""
    copied = iter(list(names))
    chunks: list[Collection[bytes]] = []
    count = size = 0
    while chunk := list(islice(copied, CHUNK_SIZE)):
        chunks.append(chunk)
        count += len(chunk)
        size += sum(map(len, chunk))
    return NameList(chunks, count, size, budget)


class NameChunk:
    """A chunk of `TubeNames`: names that were added one after another.

    names     the names in order, as keys of a dict, from which a name is removed in constant time.
    version   number of lists that had been made when `names` was created or copied.
    """

    __slots__ = ("names", "version")

    def __init__(self, version: int) -> None:
        self.names: dict[bytes, None] = {}
        self.version: int = version


class TubeNames:
    """The names of all tubes in the order of creation.

    A new list copies only references to the chunks. With 1,000,000 names this takes 1 ms of CPU; copying and
    measuring the names would take 25 ms. A chunk that a list refers to is copied before it is changed.
    """

    def __init__(self, budget: NameBudget) -> None:
        self._budget: NameBudget = budget
        self._version: int = 0
        self._last: NameChunk = NameChunk(0)
        self._chunks: dict[NameChunk, None] = {self._last: None}
        self._count: int = 0
        self._bytes: int = 0
        self._list: NameList | None = None

    def add(self, name: bytes) -> NameChunk:
        """Add *name*, a new one; return its chunk, which `remove` takes."""
        if len(self._last.names) == CHUNK_SIZE:
            self._last = NameChunk(self._version)
            self._chunks[self._last] = None
        self._change(self._last)[name] = None
        self._count += 1
        self._bytes += len(name)
        return self._last

    def remove(self, name: bytes, chunk: NameChunk) -> None:
        """Remove *name*, which is in *chunk*."""
        names = self._change(chunk)
        del names[name]
        if not names and chunk is not self._last:
            del self._chunks[chunk]
        self._count -= 1
        self._bytes -= len(name)

    def list(self) -> NameList:
        """Return the list of the present names; the same one until a name is added or removed."""
        if self._list is None:
            self._version += 1
            chunks: list[Collection[bytes]] = [chunk.names for chunk in self._chunks if chunk.names]
            self._list = NameList(chunks, self._count, self._bytes, self._budget)
        return self._list

    def _change(self, chunk: NameChunk) -> dict[bytes, None]:
        """Return the names of *chunk* for the caller to change: a dict that no list shares."""
        self._list = None
        if chunk.version != self._version:
            chunk.names = chunk.names.copy()
            chunk.version = self._version
        return chunk.names
