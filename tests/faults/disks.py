"""Disks that run full or fail, made of tmpfs and a loop device. They need root, and the right to mount."""

from __future__ import annotations

import mmap
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

FRONT_SIZE: Final = 16 << 20
BACK_SIZE: Final = 6 << 20
"""Bytes that FailingDisk has of the FRONT_SIZE that it shows: more than its tests write."""


@contextmanager
def mounted(path: Path, *arguments: str) -> Iterator[Path]:
    """Mount something at *path*, a new directory, for as long as the block lasts."""
    path.mkdir()
    _mount(path, *arguments)
    try:
        yield path
    finally:
        _unmount(path)


@contextmanager
def tmpfs(path: Path, size: int, *options: str) -> Iterator[Path]:
    """A disk of *size* bytes at *path*."""
    with mounted(path, "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "tmpfs") as disk:
        yield disk


@contextmanager
def ext4(path: Path, size: int) -> Iterator[Path]:
    """An ext4 disk at *path*, made of *size* bytes."""
    image = path.with_name(f"{path.name}.image")
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", "-N", "256", str(image))
    with mounted(path, "-o", "loop", str(image)) as disk:
        yield disk


def fill(path: Path) -> None:
    """Write to the file *path* until its disk is full."""
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


class FailingDisk:
    """An ext4 disk at `path` whose writes fail when they are synced, from `break_down` to `mend`.

    Its image is a sparse file on a tmpfs that is smaller than the image. When the tmpfs is full, the kernel cannot
    write to parts of the image that are not allocated. Only the next fdatasync reports this error, and the kernel
    then treats the pages as written.

    A loop device reports success if the first page of a write is allocated but others are not. So a free block of
    the disk must not be in an allocated page: blocks have the size of pages, and `break_down` trims the free ones.
    """

    def __init__(self, directory: Path) -> None:
        """*directory* is where the tmpfs and the disk are mounted."""
        self.path: Path = directory / "front"
        self._back: Path = directory / "back"
        self._image: Path = self._back / "image"

    @contextmanager
    def in_use(self) -> Iterator[FailingDisk]:
        """Mount the disk for as long as the block lasts."""
        self.path.mkdir()
        with tmpfs(self._back, BACK_SIZE):
            with self._image.open("wb") as image:
                image.truncate(FRONT_SIZE)
            flags = ("-q", "-b", str(mmap.PAGESIZE), "-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard")
            _run("mkfs.ext4", *flags, str(self._image))
            self._attach()
            try:
                yield self
            finally:
                _unmount(self.path)

    def break_down(self) -> None:
        """Let writes fail from now on."""
        _run("fstrim", str(self.path))
        fill(self._back / "filler")

    def mend(self) -> None:
        """Let writes succeed again."""
        (self._back / "filler").unlink()

    def forget(self) -> None:
        """Lose all data that is only in memory: later reads return the data in the image."""
        _run("umount", str(self.path))
        self._attach()

    def _attach(self) -> None:
        _mount(self.path, "-o", "loop,errors=continue", str(self._image))


def _mount(path: Path, *arguments: str) -> None:
    try:
        _run("mount", *arguments, str(path))
    except AssertionError as error:
        pytest.fail(
            f"this test mounts a disk of its own: it must run as root, where mounting is permitted (in a container:"
            f" CAP_SYS_ADMIN and, for a failing disk, /dev/loop-control). {error}"
        )


def _unmount(path: Path) -> None:
    """Unmount *path*. The kernel waits for the end of a process that a failed test left and that still uses *path*."""
    _run("umount", "--lazy", str(path))


def _run(program: str, *arguments: str) -> None:
    """Run a system program; raise AssertionError with its output if it fails, or if it is missing."""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        pytest.fail(f"{program} is needed: apt-get install mount e2fsprogs")
    assert done.returncode == 0, f"{program} {' '.join(arguments)}: {done.stderr.strip()}"
