"""The operations of a journal on a directory.

The interface is small enough for a test to simulate a disk that loses, tears or refuses writes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from greenstalk_server.runtime.system import allocate, sync_all, sync_data

FILE_MODE: Final = 0o600
"""Permissions of the files that the journal creates: jobs may hold secrets."""

MAX_PIECES: Final = 1024
"""Buffers that one pwritev takes (IOV_MAX)."""

UNLIMITED_FILES: Final = 2**62


class Files(Protocol):
    """The files of one directory, by name. Every method may block for a long time, except `list` and `read`.

    All methods raise OSError. Written bytes are on disk after `sync` of the file; creations, renames
    and removals of files are on disk after `sync_directory`.
    """

    def list(self) -> list[str]:
        """Return the names of all files."""

    def read(self, name: str, size: int = -1) -> bytes:
        """Return the content of the file *name*, or its first *size* bytes."""

    def read_at(self, name: str, offset: int, size: int) -> bytes:
        """Return *size* bytes of the file *name* from *offset* on, or fewer at its end."""

    def create(self, name: str, size: int) -> int:
        """Create the file *name* with *size* bytes of zeros, allocated on disk; return its descriptor.

        After an error a blank file of that name may remain; the caller must remove it.
        """

    def free(self) -> int:
        """Return the free bytes of the disk."""

    def free_files(self) -> int:
        """Return how many files the free inodes allow to be created; UNLIMITED_FILES if inodes set no limit."""

    def grow(self, handle: int, size: int) -> None:
        """Extend the file to *size* bytes, allocated on disk."""

    def open(self, name: str) -> int:
        """Open the file *name* for writing; return its descriptor."""

    def write(self, handle: int, offset: int, pieces: Sequence[bytes]) -> None:
        """Write *pieces*, one after another, at *offset*."""

    def truncate(self, handle: int, size: int) -> None:
        """Truncate the file to *size* bytes."""

    def sync(self, handle: int) -> None:
        """Wait until the bytes and the size of the file are on disk."""

    def close(self, handle: int) -> None:
        """Close the file."""

    def remove(self, name: str) -> None:
        """Remove the file *name*."""

    def move(self, name: str, directory: str) -> None:
        """Move the file *name* durably into the subdirectory *directory*; create that if it is missing."""

    def sync_directory(self) -> None:
        """Wait until creations and removals are on disk."""


class Directory:
    """The `Files` of a directory in a file system."""

    def __init__(self, path: str) -> None:
        self.path: str = path

    def list(self) -> list[str]:
        return [path.name for path in Path(self.path).iterdir()]

    def read(self, name: str, size: int = -1) -> bytes:
        with open(Path(self.path, name), "rb", opener=open_regular) as file:
            return file.read(size)

    def read_at(self, name: str, offset: int, size: int) -> bytes:
        with Path(self.path, name).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), size, offset)

    def create(self, name: str, size: int) -> int:
        path = Path(self.path, name)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            allocate(handle, size)
        except OSError as error:
            os.close(handle)
            with suppress(OSError):
                path.unlink()
            raise OSError(error.errno, error.strerror, str(path)) from error
        return handle

    def free(self) -> int:
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def free_files(self) -> int:
        disk = os.statvfs(self.path)
        return disk.f_favail if disk.f_files else UNLIMITED_FILES

    def grow(self, handle: int, size: int) -> None:
        allocate(handle, size)

    def open(self, name: str) -> int:
        return os.open(Path(self.path, name), os.O_RDWR | os.O_CLOEXEC)

    def write(self, handle: int, offset: int, pieces: Sequence[bytes]) -> None:
        if len(pieces) == 1 and os.pwrite(handle, pieces[0], offset) == len(pieces[0]):
            return
        for first in range(0, len(pieces), MAX_PIECES):
            together = pieces[first : first + MAX_PIECES]
            size = sum(map(len, together))
            written = os.pwritev(handle, together, offset)
            if written < size:
                self._write_rest(handle, offset, together, written)
            offset += size

    def _write_rest(self, handle: int, offset: int, pieces: Sequence[bytes], written: int) -> None:
        """Write the rest of *pieces* at *offset*: the first *written* bytes are already written."""
        for piece in pieces:
            skipped = min(written, len(piece))
            written -= skipped
            while skipped < len(piece):
                skipped += os.pwrite(handle, memoryview(piece)[skipped:], offset + skipped)
            offset += len(piece)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        sync_data(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def remove(self, name: str) -> None:
        Path(self.path, name).unlink()

    def move(self, name: str, directory: str) -> None:
        target = Path(self.path, directory)
        target.mkdir(mode=0o700, exist_ok=True)
        Path(self.path, name).rename(target / name)
        sync_directory(target)
        self.sync_directory()

    def sync_directory(self) -> None:
        sync_directory(Path(self.path))


def open_regular(path: str | Path, flags: int) -> int:
    """Open *path*; raise OSError unless it is a regular file. Opening a FIFO would wait for its other end."""
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def sync_directory(path: Path) -> None:
    """Wait until the entries of the directory *path* are on disk. Blocks; raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_all(handle)
    finally:
        os.close(handle)
