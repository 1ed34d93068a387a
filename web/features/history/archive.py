"""Time series of many tubes in blocks: the minutes of a day and the hours of 90 days.

A tier has one point per step. A block of it holds the points of an hour, or of a day. While a block is current, its
points are in memory, and one frame per step is written to the store. When a block ends, the chunk of each tube is
written to the store, and the frames are removed. So a restart loses at most the last step.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from greenstalk_server.web.features.history.points import NO_VALUES, Point, decode_chunk, offsets
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.store.store import Store

log = logging.getLogger(__name__)

MAX_BYTES: Final = 256 * 2**20
MAX_MEMORY: Final = 32 * 2**20
"""Maximum bytes of all blocks in a file or a database, and in memory. Beyond that, the oldest are removed."""

SERVER: Final = b""
"""Name of the series of the whole server. Every known point has an entry of this name."""


class Tier(NamedTuple):
    """A resolution.

    step        seconds per point.
    length      points per block.
    kept        number of kept blocks, without the current one.
    """

    name: str
    step: int
    length: int
    kept: int

    def block(self, second: int) -> int:
        """Return the number of the block of *second*, counted since the epoch."""
        return second // (self.step * self.length)


MINUTES: Final = Tier("minutes", 60, 60, 26)
HOURS: Final = Tier("hours", 3600, 24, 91)
TIERS: Final = (MINUTES, HOURS)

Chunks = Mapping[bytes, bytes]
"""The chunk of each tube that had series during a block."""


class Archive:
    """The blocks of one server, as rows of its store.

    A chunk has the kind `minutes` or `hours`, the number of its block, and the name of its tube. A frame has the kind
    `minutes-log` or `hours-log`, and the number of its points.
    """

    def __init__(self, store: Store) -> None:
        self._store: Store = store
        self._most: int = MAX_BYTES if store.is_kept else MAX_MEMORY
        self._sizes: dict[Tier, dict[int, int]] = {tier: {} for tier in TIERS}

    def load(self, tier: Tier) -> list[tuple[int, list[bytes]]]:
        """Return the logs: the number of the block, and its frames in order; empty if they cannot be read. Switches."""
        frames: dict[int, list[bytes]] = {}
        try:
            self._sizes[tier] = self._store.sizes(tier.name)
            for row in self._store.read(log_kind(tier.name)):
                frames.setdefault(row.number // tier.length, []).append(row.data)
        except OSError as error:
            log.error("history: cannot be read: %s; starting without it", error)  # noqa: TRY400  the message is complete
        return sorted(frames.items())

    def append(self, tier: Tier, number: int, frame: bytes) -> None:
        """Write *frame*, the points *number* of every tube. Does not switch."""
        self._store.put(log_kind(tier.name), number, b"", frame)

    def seal(self, tier: Tier, block: int, chunks: Chunks) -> None:
        """Write the chunks of *block*, which has ended, instead of its frames; remove old blocks. Does not switch."""
        for name, chunk in chunks.items():
            self._store.put(tier.name, block, name, chunk)
        self._store.trim(log_kind(tier.name), (block + 1) * tier.length - 1)
        sizes = self._sizes[tier]
        sizes[block] = sum(map(len, chunks.values()))
        outdated = [old for old in sizes if old < block - tier.kept] + surplus(sizes, self._most // len(TIERS))
        if outdated:
            self._store.trim(tier.name, max(outdated))
            self._sizes[tier] = {number: size for number, size in sizes.items() if number > max(outdated)}

    def read(self, tier: Tier, first: int, last: int, names: Sequence[bytes]) -> dict[tuple[int, bytes], bytes]:
        """Return the chunks of *names* in the blocks *first* to *last*, by block and name. Switches."""
        try:
            return {(row.number, row.name): row.data for row in self._store.read(tier.name, first, last, names)}
        except OSError as error:
            log.error("history: cannot be read: %s", error)  # noqa: TRY400  the message is complete
            return {}


def log_kind(tier: str) -> str:
    """Return the kind of the rows with the frames of the tier named *tier*."""
    return f"{tier}-log"


def surplus(sizes: Mapping[int, int], most: int) -> list[int]:
    """Return the oldest blocks to remove from *sizes*, so that the sum is at most *most*."""
    total, found = sum(sizes.values()), []
    for block in sorted(sizes):
        if total <= most:
            break
        found.append(block)
        total -= sizes[block]
    return found


class Blocks:
    """The chunks of one tube and of the server in several blocks of a tier."""

    def __init__(self, tier: Tier, name: bytes, chunks: Mapping[tuple[int, bytes], bytes | bytearray]) -> None:
        self._tier: Tier = tier
        self._name: bytes = name
        self._chunks: Mapping[tuple[int, bytes], bytes | bytearray] = chunks

    def points(self, first: int, count: int) -> list[Point | None]:
        """Return *count* points from number *first*; None is unknown. May switch.

        A point is known if the server has one. If a known point has no values of the tube, the tube was idle, unless
        its series began later.
        """
        points = dict[int, Point]()
        pace = Pace()
        for block in range(first // self._tier.length, (first + count - 1) // self._tier.length + 1):
            pace.yield_if_due()
            try:
                points |= self._in_block(block)
            except ValueError:
                log.warning("history: %s of block %d are damaged, and are left out", self._tier.name, block)
        return [points.get(number) for number in range(first, first + count)]

    def _in_block(self, block: int) -> dict[int, Point]:
        """Return the known points of *block*; raise ValueError if a chunk is damaged."""
        server, chunk = self._chunks.get((block, SERVER)), self._chunks.get((block, self._name))
        if server is None or chunk is None:
            return {}
        length, begins = self._tier.length, 0
        points = dict(decode_chunk(chunk, length))
        known = points if self._name == SERVER else offsets(server)
        for offset, point in points.items():
            if point.begins:
                begins = offset
        return {block * length + offset: points.get(offset, IDLE) for offset in known if offset >= begins}


IDLE: Final = Point(1, NO_VALUES)
