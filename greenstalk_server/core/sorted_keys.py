"""A sorted collection of distinct integers. An operation takes about a microsecond, whatever their number. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Final

from greenstalk_server.core.gc_untrack import untrack

MAX_CHUNK: Final = 512
"""Maximum number of keys in a chunk. Removing the first key moves four kilobytes."""

MIN_CHUNK: Final = MAX_CHUNK // 4
"""After a removal, a chunk with fewer keys than this is merged with a neighbour if both together fill at most half a
chunk. Removing the first key of the first chunk merges nothing."""


class SortedKeys:
    """Distinct integers, which are at least 0, smallest first.

    The keys are in a list of sorted chunks. Adding the last key and removing the first one take constant time. Any
    other addition or removal takes two bisections and moves at most a chunk.

    count   number of keys.

    Invariant: the keys of all chunks, one after the other, are sorted; no chunk is empty or has more than MAX_CHUNK.
    Invariant: `_bounds[i]` is above all keys of the chunk i - 1, and not above any key of the chunk i. `_bounds[0]` has
    no meaning.
    Invariant: any two adjacent chunks have at least MIN_CHUNK keys together, except the first two chunks.
    """

    __slots__ = ("_bounds", "_chunks", "count")

    def __init__(self) -> None:
        self._chunks: list[list[int]] = []
        self._bounds: list[int] = []
        self.count: int = 0

    def insert(self, key: int) -> None:
        """Add *key*, which must not be in the collection."""
        self.count += 1
        chunks = self._chunks
        if chunks:
            last = chunks[-1]
            if last[-1] > key:
                self._insert(key)
                return
            if len(last) < MAX_CHUNK:
                last.append(key)
                return
            untrack(last)
        chunks.append([key])
        self._bounds.append(key)

    def discard(self, key: int) -> bool:
        """Remove *key*; return False if it is not in the collection."""
        chunks = self._chunks
        if not chunks:
            return False
        chunk = chunks[0]
        if chunk[0] == key:
            del chunk[0]
            if not chunk:
                del chunks[0], self._bounds[0]
        else:
            at = bisect_right(self._bounds, key, 1) - 1
            chunk = chunks[at]
            place = bisect_left(chunk, key)
            if place == len(chunk) or chunk[place] != key:
                return False
            del chunk[place]
            if len(chunk) < MIN_CHUNK:
                self._merge(at)
        self.count -= 1
        return True

    def smallest(self) -> int:
        """Return the smallest key, or -1 if there is none."""
        chunks = self._chunks
        return chunks[0][0] if chunks else -1

    def _insert(self, key: int) -> None:
        """Insert *key*, which is not the last one, and split its chunk if it is too large."""
        at = bisect_right(self._bounds, key, 1) - 1
        chunk = self._chunks[at]
        insort(chunk, key)
        if len(chunk) > MAX_CHUNK:
            upper = chunk[MAX_CHUNK // 2 :]
            del chunk[MAX_CHUNK // 2 :]
            untrack(chunk)
            untrack(upper)
            self._chunks.insert(at + 1, upper)
            self._bounds.insert(at + 1, upper[0])

    def _merge(self, at: int) -> None:
        """Drop the chunk number *at* if it is empty; merge it with a neighbour if both fill at most half a chunk."""
        chunks, bounds = self._chunks, self._bounds
        if not chunks[at]:
            del chunks[at], bounds[at]
            return
        for right in (at, at + 1):
            if 0 < right < len(chunks) and len(chunks[right - 1]) + len(chunks[right]) <= MAX_CHUNK // 2:
                chunks[right - 1].extend(chunks[right])
                del chunks[right], bounds[right]
                return
