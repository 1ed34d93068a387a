"""A simulated disk, which loses unsynced data when power fails, fills up, and returns errors.

Written bytes stay in the page cache until `sync` of their file. Created, renamed and removed names stay in the cache of
the directory until `sync_directory`. `crash` returns the disk as the next start may find it: each unsynced sector, and
each unsynced change of the directory, has survived or is lost, in any combination.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

SECTOR: Final = 512
"""Bytes that a disk writes atomically."""

UNLIMITED: Final = 2**62


class PowerLostError(Exception):
    """The simulated machine has lost power. Not an OSError, so no code of the product handles it."""


class Chance:
    """Decides which unsynced sectors and changes survive a loss of power: each with probability *share*."""

    def __init__(self, random: Random, share: float) -> None:
        """A *share* of 0.0 loses all unsynced changes, 1.0 keeps all."""
        self._random: Random = random
        self._share: float = share

    def survives(self) -> bool:
        return self._random.random() < self._share

    def prefix_of(self, count: int) -> int:
        """Return how many of *count* changes survive, if each survives only together with all earlier ones."""
        return next((index for index in range(count) if not self.survives()), count)


class Inode:
    """One file.

    cached      its content as programs see it.
    stable      its content on disk.
    pending     unsynced writes: offset and bytes.
    sizes       unsynced changes of its size.
    """

    def __init__(self) -> None:
        self.cached: bytearray = bytearray()
        self.stable: bytearray = bytearray()
        self.pending: list[tuple[int, bytes]] = []
        self.sizes: list[int] = []

    def write(self, offset: int, data: bytes) -> None:
        _write(self.cached, offset, data)
        self.pending.append((offset, data))

    def resize(self, size: int) -> None:
        _resize(self.cached, size)
        self.sizes.append(size)

    def sync(self) -> None:
        self.stable = bytearray(self.cached)
        self.discard_pending()

    def discard_pending(self) -> None:
        """Discard the unsynced changes, so that no later sync writes them. A kernel does that after a failed sync."""
        self.pending.clear()
        self.sizes.clear()

    def after_crash(self, chance: Chance) -> bytes:
        """Return the content that the next start may find."""
        found = bytearray(self.stable)
        for size in self.sizes[: chance.prefix_of(len(self.sizes))]:
            _resize(found, size)
        sectors: dict[int, list[tuple[int, bytes]]] = {}
        for offset, data in self.pending:
            for at, piece in _pieces(offset, data):
                sectors.setdefault(at // SECTOR, []).append((at, piece))
        for pieces in sectors.values():
            if chance.survives():
                for at, piece in pieces:
                    _write(found, at, piece)
        return bytes(found)


class Disk:
    """An implementation of journal.files.Files in memory.

    calls       number of calls that change the disk, failed ones included.
    before      called with the name of each such call before it takes effect; may raise the error of the call.
    capacity    maximum bytes of all files together.
    max_files   maximum number of files.
    block       bytes that a file takes at a time.
    """

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        """Create a disk that has *files*, synced: contents by name."""
        self.calls: int = 0
        self.before: Callable[[str], None] = no_fault
        self.capacity: int = UNLIMITED
        self.max_files: int = UNLIMITED
        self.block: int = 1
        self.random: Random = seeded(0)
        self._names: dict[str, Inode] = {}
        self._stable_names: dict[str, Inode] = {}
        self._changes: dict[str, list[Inode | None]] = {}
        self._handles: dict[int, Inode] = {}
        self._next_handle: int = 3
        for name, data in (files or {}).items():
            inode = self._names[name] = self._stable_names[name] = Inode()
            inode.cached, inode.stable = bytearray(data), bytearray(data)

    # journal.files.Files

    def list(self) -> list[str]:
        return [name for name in self._names if "/" not in name]

    def read(self, name: str, size: int = -1) -> bytes:
        cached = self._names[name].cached
        return bytes(cached if size < 0 else cached[:size])

    def read_at(self, name: str, offset: int, size: int) -> bytes:
        return bytes(self._names[name].cached[offset : offset + size])

    def create(self, name: str, size: int) -> int:
        self._change("create")
        if name in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        if self._has_no_room(self._allocated(size)) or self.free_files() <= 0:
            raise os_error(errno.ENOSPC, name)
        inode = Inode()
        inode.resize(size)
        self._set(name, inode)
        return self._open(inode)

    def free(self) -> int:
        return self.capacity - self.used if self.capacity < UNLIMITED else UNLIMITED

    def free_files(self) -> int:
        if self.max_files == UNLIMITED:
            return UNLIMITED
        return self.max_files - len({*self._names.values(), *self._handles.values()})

    def grow(self, handle: int, size: int) -> None:
        self._change("grow")
        inode = self._handles[handle]
        if self._has_no_room(self._allocated(size) - self._allocated(len(inode.cached))):
            raise os_error(errno.ENOSPC, "grow")
        inode.resize(size)

    def open(self, name: str) -> int:
        self._change("open")
        return self._open(self._names[name])

    def write(self, handle: int, offset: int, pieces: Sequence[bytes]) -> None:
        inode, data = self._handles[handle], b"".join(pieces)
        try:
            self._change("write")
        except OSError:
            inode.write(offset, data[: self.random.randrange(len(data) + 1)])
            raise
        if offset + len(data) > len(inode.cached) and self._has_no_room(len(data)):
            raise os_error(errno.ENOSPC, "write")
        inode.write(offset, data)

    def truncate(self, handle: int, size: int) -> None:
        self._change("truncate")
        self._handles[handle].resize(size)

    def sync(self, handle: int) -> None:
        inode = self._handles[handle]
        try:
            self._change("sync")
        except OSError:
            inode.stable = bytearray(inode.after_crash(Chance(self.random, 0.5)))
            inode.discard_pending()
            raise
        inode.sync()

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def remove(self, name: str) -> None:
        self._change("remove")
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        self._set(name, None)

    def move(self, name: str, directory: str) -> None:
        self._change("move")
        inode = self._names[name]
        for changed, target in ((f"{directory}/{name}", inode), (name, None)):
            self._set(changed, target)
            self._settle(changed)

    def sync_directory(self) -> None:
        self._change("sync_directory")
        for name in list(self._changes):
            self._settle(name)

    # Queries of tests

    @property
    def used(self) -> int:
        """Bytes of all files, including removed ones that are still open."""
        block = self.block
        removed = {*self._handles.values()}.difference(self._names.values())
        sizes = [len(inode.cached) for inode in (*self._names.values(), *removed)]
        return sum(sizes) if block == 1 else sum([-(-size // block) * block for size in sizes])

    @property
    def open_files(self) -> int:
        return len(self._handles)

    def contents(self) -> dict[str, bytes]:
        """Return the content of all files by name, including files in subdirectories, as programs see it."""
        return {name: bytes(inode.cached) for name, inode in self._names.items()}

    def cached(self, name: str) -> bytearray:
        """Return the content of the file *name* as programs see it; a test may change it to simulate damage."""
        return self._names[name].cached

    def crash(self, chance: Chance) -> Disk:
        """Return a disk as the next start may find it after a loss of power."""
        names = dict(self._stable_names)
        for name, changes in self._changes.items():
            for inode in changes[: chance.prefix_of(len(changes))]:
                _put(names, name, inode)
        return Disk({name: inode.after_crash(chance) for name, inode in names.items()})

    def _has_no_room(self, size: int) -> bool:
        """Return whether *size* more bytes exceed the capacity. Used bytes are counted only if it is limited."""
        return self.capacity < UNLIMITED and self.used + size > self.capacity

    def _allocated(self, size: int) -> int:
        """Return the bytes that a file of *size* bytes takes."""
        return -(-size // self.block) * self.block

    def _change(self, call: str) -> None:
        self.calls += 1
        self.before(call)

    def _open(self, inode: Inode) -> int:
        self._next_handle += 1
        self._handles[self._next_handle] = inode
        return self._next_handle

    def _set(self, name: str, inode: Inode | None) -> None:
        _put(self._names, name, inode)
        self._changes.setdefault(name, []).append(inode)

    def _settle(self, name: str) -> None:
        for inode in self._changes.pop(name, []):
            _put(self._stable_names, name, inode)


class Fault:
    """A value for `Disk.before` that makes calls fail.

    has_triggered   a call has failed.
    """

    def __init__(self, at: int, code: int, is_lasting: bool, calls: tuple[str, ...] = ()) -> None:
        """Fail the *at*th call from now with errno *code*; if *is_lasting*, fail all later calls too.

        Only the *calls* with these names count and fail; all if empty.
        """
        self.has_triggered: bool = False
        self._left: int = at
        self._code: int = code
        self._is_lasting: bool = is_lasting
        self._calls: tuple[str, ...] = calls

    def __call__(self, call: str) -> None:
        if self._calls and call not in self._calls:
            return
        self._left -= 1
        if self._left == 0 or (self._left < 0 and self._is_lasting):
            self.has_triggered = True
            raise os_error(self._code, call)


def power_lost_at(call: int) -> Callable[[str], None]:
    """Return a value for `Disk.before` that loses power before the *call*th call from now."""
    calls = itertools.count(1)

    def lose_power(_: str) -> None:
        if next(calls) >= call:
            raise PowerLostError

    return lose_power


def no_fault(call: str) -> None:
    """Do nothing: the value of `Disk.before` for a healthy disk."""


def seeded(seed: int) -> Random:
    """Return a random number generator with the same sequence in each run."""
    return Random(seed)  # noqa: S311


def os_error(code: int, what: str) -> OSError:
    """Return the OSError of errno *code* for the file or call *what*."""
    return OSError(code, os.strerror(code), what)


def _put(names: dict[str, Inode], name: str, inode: Inode | None) -> None:
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset + len(data):
        _resize(content, offset + len(data))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _pieces(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    """Split *data* at the ends of sectors; return each piece with its offset."""
    cuts = [offset, *range(offset // SECTOR * SECTOR + SECTOR, offset + len(data), SECTOR), offset + len(data)]
    return [(at, data[at - offset : end - offset]) for at, end in itertools.pairwise(cuts)]
