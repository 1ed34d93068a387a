"""The history in files, in the format of docs/history-format.md. Every function here blocks, and raises OSError.

Frames are appended to a log at a stored offset, so the next write overwrites the rest of a failed one. A block is
written under a temporary name, and renamed when it is on disk.
"""

from __future__ import annotations

import logging
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Final

from greenstalk_server.journal.files import open_regular, sync_directory
from greenstalk_server.web.features.history.archive import TIERS, Chunks, Tier, surplus

log = logging.getLogger(__name__)

DIRECTORY: Final = "history"
MARKS: Final = "marks.json"

LOG_MAGIC: Final = b"GSHLOG1\n"
BLOCK_MAGIC: Final = b"GSHBLK1\n"
MARKS_MAGIC: Final = b"GSHMRK1\n"

HEAD: Final = Struct("<II")
"""Length and CRC-32 of the following payload: a frame, an index or the marks."""

MAX_BYTES: Final = 256 * 2**20
"""Maximum bytes of all blocks. Beyond that, the oldest are removed."""

MAX_LOG: Final = 64 * 2**20
"""Maximum bytes of a log. Frames that do not fit are refused."""

MAX_INDEX: Final = 2**20
MAX_MARKS: Final = 2**20

MAX_SEARCHES: Final = 8
"""Maximum names for which an index is searched name by name, instead of parsed completely."""

FIRST_READ: Final = 64 * 1024
"""Bytes of the first read of a block: its head, and usually its whole index."""

_NAME: Final = re.compile(rf"({'|'.join(tier.name for tier in TIERS)})-([0-9]{{1,12}})(\.log|)")


class HistoryFiles:
    """The history in the directory `history` of *directory*, which the first write creates.

    That directory should not be a symbolic link, which is reported.
    """

    is_blocking: bool = True

    def __init__(self, directory: str) -> None:
        self._directory: Path = Path(directory, DIRECTORY)
        if self._directory.is_symlink():
            log.warning(
                "history: %s is a symbolic link; users who can write to its target can change the history. Replace the"
                " link by a directory, or mount the other disk there",
                self._directory,
            )
        self._ends: dict[Path, int] = {}  # the end of the last intact frame of each log
        self._damaged: set[Path] = set()

    # Logs

    def load(self, tier: Tier) -> list[tuple[int, list[bytes]]]:
        found = []
        for each, block, is_log in self._list():
            if each is not tier or not is_log:
                continue
            path = self._path(tier, block, ".log")
            if self._path(tier, block).exists():
                path.unlink()  # the block was written, but the log was not removed yet
                continue
            data = _read(path, MAX_LOG)
            frames, end = intact_frames(data)
            if end < len(data):
                log.warning(
                    "history: %s is damaged after %d frames, %d bytes are ignored", path, len(frames), len(data) - end
                )
            self._ends[path] = end
            found.append((block, frames))
        return sorted(found)

    def append(self, tier: Tier, block: int, number: int, frame: bytes) -> None:
        path = self._path(tier, block, ".log")
        self._directory.mkdir(mode=0o700, exist_ok=True)
        end = self._ends.get(path, 0)
        data = HEAD.pack(len(frame), zlib.crc32(frame)) + frame
        if end + len(data) > MAX_LOG:
            raise OSError(f"{path} would exceed {MAX_LOG:,} bytes")
        handle = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)
        try:
            if not end:
                os.ftruncate(handle, 0)
                data = LOG_MAGIC + data
            _write(handle, end, data)
            os.fdatasync(handle)
        finally:
            os.close(handle)
        if not end:
            sync_directory(self._directory)
        self._ends[path] = end + len(data)

    # Blocks

    def seal(self, tier: Tier, block: int, chunks: Chunks) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._replace(self._path(tier, block), block_pieces(chunks))
        ended = self._path(tier, block, ".log")
        ended.unlink(missing_ok=True)
        self._ends.pop(ended, None)
        self._remove_old(tier, block)

    def read(self, tier: Tier, first: int, last: int, names: Sequence[bytes]) -> list[tuple[int, bytes, bytes]]:
        found: list[tuple[int, bytes, bytes]] = []
        for block in range(first, last + 1):
            path = self._path(tier, block)
            try:
                with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                    chunks = read_chunks(file.fileno(), names)
            except FileNotFoundError:
                continue
            except ValueError as error:
                self._report(path, error)
                continue
            found += [(block, name, chunk) for name, chunk in chunks.items()]
        return found

    def _report(self, path: Path, error: ValueError) -> None:
        """Log once that *path* is damaged."""
        if path not in self._damaged:
            self._damaged.add(path)
            log.warning("history: %s is damaged, and its points are left out: %s", path, error)

    def _remove_old(self, tier: Tier, block: int) -> None:
        sizes = {}
        for each, number, is_log in self._list():
            path = self._path(each, number, ".log" if is_log else "")
            if each is tier and number < block - tier.kept:
                path.unlink(missing_ok=True)
            elif not is_log:
                sizes[each.number, number] = path.stat().st_size
        for each in TIERS:
            mine = {key: size for key, size in sizes.items() if key[0] == each.number}
            for _, number in surplus(mine, MAX_BYTES // len(TIERS)):
                self._path(each, number).unlink(missing_ok=True)

    def _list(self) -> list[tuple[Tier, int, bool]]:
        """Return the tier and the block of each file, and whether it is a log."""
        try:
            names = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:
            return []
        found = []
        for name in names:
            if match := _NAME.fullmatch(name):
                [tier] = [tier for tier in TIERS if tier.name == match[1]]
                found.append((tier, int(match[2]), bool(match[3])))
        return found

    def _path(self, tier: Tier, block: int, suffix: str = "") -> Path:
        return self._directory / f"{tier.name}-{block}{suffix}"

    # Marks

    def load_marks(self) -> bytes:
        path = self._directory / MARKS
        try:
            data = _read(path, MAX_MARKS + len(MARKS_MAGIC) + HEAD.size)
        except FileNotFoundError:
            return b""
        body = data[len(MARKS_MAGIC) + HEAD.size :]
        if data[: -len(body) or None] != MARKS_MAGIC + HEAD.pack(len(body), zlib.crc32(body)):
            aside = path.with_suffix(".damaged")
            log.error("history: %s is damaged: renaming it to %s; the marks are lost", path, aside)
            path.replace(aside)
            return b""
        return body

    def save_marks(self, data: bytes) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._replace(self._directory / MARKS, [MARKS_MAGIC, HEAD.pack(len(data), zlib.crc32(data)), data])

    def _replace(self, path: Path, pieces: Sequence[bytes]) -> None:
        """Atomically replace the content of *path* by *pieces*, and sync."""
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)  # may be left over from a crash
        try:
            with os.fdopen(open_regular(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def intact_frames(data: bytes) -> tuple[list[bytes], int]:
    """Return the intact frames of the log *data*, and the end of the last one.

    A damaged frame is skipped if its length leads to another frame.
    """
    if data[: len(LOG_MAGIC)] != LOG_MAGIC:
        return [], 0
    frames, at = list[bytes](), len(LOG_MAGIC)
    end = at
    while at + HEAD.size <= len(data):
        length, crc = HEAD.unpack_from(data, at)
        at += HEAD.size
        frame = data[at : at + length]
        at += length
        if length and len(frame) == length and zlib.crc32(frame) == crc:
            frames.append(frame)
            end = at
    return frames, end


def block_pieces(chunks: Chunks) -> list[bytes]:
    """Return the content of a block: its head, its index and its chunks."""
    lines, offset = [b"\n"], 0
    for name, chunk in chunks.items():
        lines.append(b"%s %d %d %d\n" % (name, offset, len(chunk), zlib.crc32(chunk)))
        offset += len(chunk)
    index = b"".join(lines)
    return [BLOCK_MAGIC, HEAD.pack(len(index), zlib.crc32(index)), index, *chunks.values()]


def read_chunks(handle: int, names: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the chunks of *names* in the open block; raise ValueError if the index or one of them is damaged."""
    data, first = os.pread(handle, FIRST_READ, 0), len(BLOCK_MAGIC) + HEAD.size
    if data[: len(BLOCK_MAGIC)] != BLOCK_MAGIC or len(data) < first:
        raise ValueError("it is not a block")
    length, crc = HEAD.unpack_from(data, len(BLOCK_MAGIC))
    if length > MAX_INDEX:
        raise ValueError("its index is too long")
    index = data[first : first + length]
    if len(index) < length:
        index += os.pread(handle, length - len(index), first + len(index))
    if zlib.crc32(index) != crc:
        raise ValueError("its index is damaged")
    found = {}
    for name, line in _lines(index, names):
        offset, size, chunk_crc = map(int, line.split())
        chunk = os.pread(handle, size, first + length + offset)
        if len(chunk) != size or zlib.crc32(chunk) != chunk_crc:
            raise ValueError("a chunk is damaged")
        found[name] = chunk
    return found


def _lines(index: bytes, names: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield each of *names* that *index* has, and the rest of its line."""
    if len(names) > MAX_SEARCHES:
        lines = dict(line.split(b" ", 1) for line in index.split(b"\n") if line)
        yield from ((name, lines[name]) for name in names if name in lines)
        return
    for name in names:
        at = index.find(b"\n" + name + b" ")
        if at >= 0:
            yield name, index[at + len(name) + 2 : index.index(b"\n", at + 1)]


def _read(path: Path, most: int) -> bytes:
    """Return the content of the regular file *path*, at most *most* bytes."""
    with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read(most)


def _write(handle: int, offset: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(handle, data[written:], offset + written)
