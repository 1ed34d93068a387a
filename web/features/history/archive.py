"""Time series of many tubes in blocks: the minutes of a day and the hours of 90 days.

A tier has one point per step. A block of it holds the points of an hour, or of a day. While a block is current, its
points are in memory, and the store gets one frame per step, which it appends to a log. When a block ends, the store
gets the chunk of each tube, which replaces the log. So a restart loses at most the last step.

One greenlet writes in the order of the calls, through a native thread. While the store fails,
frames and chunks stay in memory, at most MAX_PENDING bytes, and queries find the chunks there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, ParamSpec, Protocol, TypeVar

from gevent.event import Event

from greenstalk_server.runtime.supervisor import Service
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.features.history.points import NO_VALUES, Point, decode_chunk, offsets
from greenstalk_server.web.framework.cooperative import Pace

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_INTERVAL: Final = 10.0
"""Seconds between attempts to write while the store fails."""

MAX_PENDING: Final = 16 * 2**20
"""Maximum bytes that wait while the store fails. Beyond that, the oldest are dropped."""

FLUSH_TIMEOUT: Final = 2.0
"""Maximum seconds that `flush` waits for the store."""

SERVER: Final = b""
"""Name of the series of the whole server. Every known point has an entry of this name."""


class Tier(NamedTuple):
    """A resolution.

    number      identifies the tier in a store.
    step        seconds per point.
    length      points per block.
    kept        number of kept blocks, without the current one.
    """

    number: int
    name: str
    step: int
    length: int
    kept: int

    def block(self, second: int) -> int:
        """Return the number of the block of *second*, counted since the epoch."""
        return second // (self.step * self.length)


MINUTES: Final = Tier(0, "minutes", 60, 60, 26)
HOURS: Final = Tier(1, "hours", 3600, 24, 91)
TIERS: Final = (MINUTES, HOURS)

Chunks = Mapping[bytes, bytes]
"""The chunk of each tube that had series during a block."""


class Store(Protocol):
    """Storage of blocks and marks. Every method may block, and may raise OSError. The caller makes one write at a time.

    is_blocking     whether its methods must be called in a native thread.
    """

    is_blocking: bool

    def load(self, tier: Tier) -> list[tuple[int, list[bytes]]]:
        """Return the logs: the number of the block, and its intact frames in order."""

    def append(self, tier: Tier, block: int, number: int, frame: bytes) -> None:
        """Append *frame*, the points *number*, to the log of *block*."""

    def seal(self, tier: Tier, block: int, chunks: Chunks) -> None:
        """Replace the log of *block* by *chunks*, and remove blocks that are too old."""

    def read(self, tier: Tier, first: int, last: int, names: Sequence[bytes]) -> list[tuple[int, bytes, bytes]]:
        """Return the block, the name and the chunk of each of *names* in the blocks *first* to *last*."""

    def load_marks(self) -> bytes:
        """Return the data of the last `save_marks`; empty if there is none."""

    def save_marks(self, data: bytes) -> None:
        """Save *data* atomically."""


MAX_MEMORY: Final = 32 * 2**20
"""Maximum bytes of chunks in a MemoryStore."""


class MemoryStore:
    """A store in memory, without a directory. Does not block."""

    is_blocking: bool = False

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], dict[bytes, bytes]] = {}
        self._marks: bytes = b""

    def load(self, tier: Tier) -> list[tuple[int, list[bytes]]]:
        return []

    def append(self, tier: Tier, block: int, number: int, frame: bytes) -> None:
        """Keep nothing: the points of the current block are in memory anyway."""

    def seal(self, tier: Tier, block: int, chunks: Chunks) -> None:
        self._blocks[tier.number, block] = dict(chunks)
        for number, old in list(self._blocks):
            if number == tier.number and old < block - tier.kept:
                del self._blocks[number, old]
        sizes = {key: sum(map(len, chunks.values())) for key, chunks in self._blocks.items()}
        for key in surplus({key: size for key, size in sizes.items() if key[0] == tier.number}, MAX_MEMORY // 2):
            del self._blocks[key]

    def read(self, tier: Tier, first: int, last: int, names: Sequence[bytes]) -> list[tuple[int, bytes, bytes]]:
        return [
            (block, name, chunks[name])
            for (number, block), chunks in self._blocks.items()
            if number == tier.number and first <= block <= last
            for name in names
            if name in chunks
        ]

    def load_marks(self) -> bytes:
        return self._marks

    def save_marks(self, data: bytes) -> None:
        self._marks = data


def surplus(sizes: Mapping[tuple[int, int], int], most: int) -> list[tuple[int, int]]:
    """Return the keys of the oldest blocks to remove from *sizes*, so that the sum is at most *most*."""
    total, found = sum(sizes.values()), []
    for key in sorted(sizes, key=lambda key: key[1]):
        if total <= most:
            break
        found.append(key)
        total -= sizes[key]
    return found


class _Frame(NamedTuple):
    tier: Tier
    block: int
    number: int
    frame: bytes

    @property
    def size(self) -> int:
        return len(self.frame)

    def write(self, store: Store) -> None:
        store.append(self.tier, self.block, self.number, self.frame)


class _Seal(NamedTuple):
    tier: Tier
    block: int
    chunks: Chunks
    size: int

    def write(self, store: Store) -> None:
        store.seal(self.tier, self.block, self.chunks)


class _Marks(NamedTuple):
    encode: Callable[[], bytes]
    size: int = 0

    def write(self, store: Store) -> None:
        store.save_marks(self.encode())


class Archive:
    """The blocks and marks of one server.

    trouble         why the last attempt to write failed; empty if it did not.
    """

    def __init__(self, store: Store) -> None:
        self.trouble: str = ""
        self._store: Store = store
        self._pending: deque[_Frame | _Seal | _Marks] = deque()
        self._size: int = 0
        self._writer: Service = Service("history-writer", self._write)
        self._retry: Event = Event()

    def load(self, tier: Tier) -> list[tuple[int, list[bytes]]]:
        """Return the logs of *tier*, as Store.load does; empty if they cannot be read. Switches."""
        try:
            return self._call(self._store.load, tier)
        except OSError as error:
            self._report(f"cannot be read: {error}; starting without it")
            return []

    def append(self, tier: Tier, number: int, frame: bytes) -> None:
        """Write *frame*, the points *number* of every tube. Does not switch."""
        self._add(_Frame(tier, number // tier.length, number, frame))

    def seal(self, tier: Tier, block: int, chunks: Chunks) -> None:
        """Write the chunks of *block*, which has ended, instead of its frames. Does not switch."""
        frames = [
            each for each in self._pending if isinstance(each, _Frame) and (each.tier, each.block) == (tier, block)
        ]
        for frame in frames:
            self._pending.remove(frame)
            self._size -= frame.size
        self._add(_Seal(tier, block, chunks, sum(map(len, chunks.values()))))

    def load_marks(self) -> bytes:
        """Return the document of the last `save_marks`; empty if there is none, or on error. Switches."""
        try:
            return self._call(self._store.load_marks)
        except OSError as error:
            self._report(f"cannot be read: {error}; the marks are lost")
            return b""

    def save_marks(self, encode: Callable[[], bytes]) -> None:
        """Save the document that *encode* returns. A native thread calls *encode* later. Does not switch."""
        if self._store.is_blocking and not any(isinstance(each, _Marks) for each in list(self._pending)[1:]):
            self._add(_Marks(encode))

    def read(self, tier: Tier, first: int, last: int, names: Sequence[bytes]) -> dict[tuple[int, bytes], bytes]:
        """Return the chunks of *names* in the blocks *first* to *last*, by block and name. Switches."""
        pending = [each for each in self._pending if isinstance(each, _Seal) and each.tier is tier]
        found: dict[tuple[int, bytes], bytes] = {}
        try:
            for block, name, chunk in self._call(self._store.read, tier, first, last, names):
                found[block, name] = chunk
        except OSError as error:
            self._report(f"cannot be read: {error}")
        for seal in pending:
            if first <= seal.block <= last:
                found |= {(seal.block, name): seal.chunks[name] for name in names if name in seal.chunks}
        return found

    def flush(self) -> None:
        """Write what is pending; give up after FLUSH_TIMEOUT. Switches."""
        self._retry.set()
        self._writer.join(FLUSH_TIMEOUT)
        self._writer.stop()

    def _add(self, operation: _Frame | _Seal | _Marks) -> None:
        if not self._store.is_blocking:
            operation.write(self._store)
            return
        self._pending.append(operation)
        self._size += operation.size
        while self._size > MAX_PENDING and len(self._pending) > 1:
            self._size -= self._pending.popleft().size
        self._writer.start()

    def _write(self) -> None:
        """Write until nothing is pending. Switches."""
        while self._pending:
            operation = self._pending[0]
            try:
                run_in_thread(operation.write, self._store)
            except OSError as error:
                self._report(f"cannot be written: {error}; it stays in memory, and is written later")
                self._retry.wait(RETRY_INTERVAL)
                if self._retry.is_set():
                    return
                continue
            if self._pending and self._pending[0] is operation:
                self._pending.popleft()
                self._size -= operation.size
            if self.trouble:
                log.info("history: writing succeeds again")
            self.trouble = ""

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return run_in_thread(function, *args, **kwargs) if self._store.is_blocking else function(*args, **kwargs)

    def _report(self, trouble: str) -> None:
        """Set *trouble*, and log it if it is the first one."""
        if not self.trouble:
            log.error("history: %s", trouble)
        self.trouble = trouble


class Blocks:
    """The chunks of one tube and of the server in several blocks of a tier."""

    def __init__(self, tier: Tier, name: bytes, chunks: Mapping[tuple[int, bytes], bytes | bytearray]) -> None:
        self._tier: Tier = tier
        self._name: bytes = name
        self._chunks: Mapping[tuple[int, bytes], bytes | bytearray] = chunks

    def points(self, first: int, count: int) -> list[Point | None]:
        """Return *count* points from number *first*; None is unknown. May switch.

        A point is known if the server has one. A tube without a known point was idle, unless its series began later.
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
