"""The layout of a data directory: one journal, or a journal for each shard of a queue.

With one process, the files of the journal are in the directory. With N processes, they are in its subdirectories
`shard-0` to `shard-(N-1)`, each with a file `shard.json` that says to which queue the shard belongs.

A change of the layout is made by renames, so that a crash leaves the former layout or the new one:

1. The new layout is written to the subdirectory `reshard.part`. Until step 2 it is ignored, and removed.
2. `reshard.part` is renamed to `reshard.done`. From now on the new layout counts.
3. The files of the former layout are removed, and `reshard.done` is renamed to `reshard.move`.
4. The entries of `reshard.move` are moved to the directory, and it is removed.

`finish_change` does steps 3 and 4, or what is left of them. Functions that change the directory need its lock.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.journal import beanstalkd
from greenstalk_server.journal.files import sync_directory
from greenstalk_server.journal.lock import directory_error
from greenstalk_server.journal.segment import numbers
from greenstalk_server.journal.shard_file import (
    QUEUE_ID_DIGITS,
    SHARD_FILE,
    ShardIdentity,
    read_identity,
    require_identity,
    write_identity,
)
from greenstalk_server.runtime.exit_codes import StartError
from greenstalk_server.runtime.system import sync_all

PART: Final = "reshard.part"
DONE: Final = "reshard.done"
MOVE: Final = "reshard.move"

_SHARD: Final = re.compile(r"shard-(0|[1-9][0-9]{0,3})", re.ASCII)
_SEGMENT: Final = re.compile(r"journal\.[1-9][0-9]{0,17}", re.ASCII)
_DASHBOARD: Final = re.compile(r"(dashboard|undo)\.sqlite3(-wal|-shm)?", re.ASCII)

_COPIED: Final = re.compile(r"dashboard\.sqlite3(-wal)?", re.ASCII)
"""Files of the dashboard that a new layout keeps. The data for an undo is of jobs that may be elsewhere now."""

DIRECTORY_MODE: Final = 0o700


def directory_of(directory: str, shard: int) -> str:
    """Return the directory of *shard* below *directory*."""
    return str(Path(directory, f"shard-{shard}"))


def open_shards(directory: str, shards: int) -> tuple[ShardIdentity, ...]:
    """Return the shards in *directory*, which are created if it has no journal; raise StartError if they do not fit."""
    finish_change(directory)
    require_layout(directory, shards)
    if not _shards(_names(directory)):
        change_layout(directory, lambda part: _create_all(part, new_identities(shards)))
    return read_shards(directory)


def refuse_shards(directory: str) -> None:
    """Raise StartError if *directory* has shards, which one process cannot serve."""
    try:
        finish_change(directory)
        require_layout(directory, 1)
    except OSError as error:
        raise directory_error(directory, f"{error.filename or directory}: {error.strerror}") from error


def require_layout(directory: str, shards: int) -> None:
    """Raise StartError if *directory* has a journal for another number of processes than *shards*. Raises OSError.

    Changes nothing, and needs no lock.
    """
    names = _names(directory)
    found = _shards(names)
    if shards == 1 and found:
        raise _wrong_layout(directory, f"has the journals of {len(found)} processes", shards)
    if shards == 1:
        return
    if not found and numbers(names):
        raise _wrong_layout(directory, "has the journal of one process", shards)
    if not found and beanstalkd.find(names):
        raise directory_error(directory, "start one process on it first, so that beanstalkd's files are imported")
    if found and len(read_shards(directory)) != shards:
        raise _wrong_layout(directory, f"has the journals of {len(found)} processes", shards)


def read_shards(directory: str) -> tuple[ShardIdentity, ...]:
    """Return the shards in *directory*; raise StartError if they are not all shards of one queue."""
    found = _shards(_names(directory))
    files = tuple([_read(directory_of(directory, shard)) for shard in found])
    if not files:
        return ()
    expected = new_identities(files[0].ids.shards, files[0].ids.base, files[0].queue)
    for shard, identity in enumerate(expected):
        if shard not in found:
            raise directory_error(directory, f"shard-{shard} is missing: its queue has {len(expected)} shards")
        require_identity(directory_of(directory, shard), identity)
    if len(found) > len(expected):
        raise directory_error(directory, f"shard-{found[-1]} does not belong to its queue of {len(expected)} shards")
    return files


def has_unfinished_change(directory: str) -> bool:
    """Return whether a start would finish a change of the layout first. Raises OSError."""
    return not {DONE, MOVE}.isdisjoint(_names(directory))


def change_layout(directory: str, write: Callable[[Path], None]) -> None:
    """Replace the layout of *directory* by the one that *write* writes to an empty directory. Raises OSError."""
    part = Path(directory, PART)
    if part.exists():
        shutil.rmtree(part)
    part.mkdir(DIRECTORY_MODE)
    write(part)
    _sync_tree(part)
    part.rename(Path(directory, DONE))
    sync_directory(Path(directory))
    finish_change(directory)


def finish_change(directory: str) -> None:
    """Finish a change of the layout that a crash has interrupted. Raises OSError."""
    top = Path(directory)
    names = _names(directory)
    if PART in names:
        shutil.rmtree(top / PART)
    if DONE in names:
        for name in filter(_belongs_to_layout, names):
            shutil.rmtree(top / name) if _SHARD.fullmatch(name) else (top / name).unlink()
        sync_directory(top)
        (top / DONE).rename(top / MOVE)
        sync_directory(top)
    if DONE in names or MOVE in names:
        for entry in sorted((top / MOVE).iterdir()):
            entry.rename(top / entry.name)
        sync_directory(top / MOVE)
        sync_directory(top)
        (top / MOVE).rmdir()
        sync_directory(top)


def new_identities(shards: int, base: int = 0, queue: str = "") -> tuple[ShardIdentity, ...]:
    """Return the identities of the shards of *queue*, by default a new queue with a random id."""
    queue = queue or secrets.token_hex(QUEUE_ID_DIGITS // 2)
    return tuple([ShardIdentity(queue, IdSequence(base, shards, shard)) for shard in range(shards)])


def create_shard(top: Path, identity: ShardIdentity) -> Path:
    """Create the directory of a shard below *top*, without a journal, and return it. Raises OSError."""
    directory = Path(directory_of(str(top), identity.ids.shard))
    directory.mkdir(DIRECTORY_MODE)
    write_identity(str(directory), identity)
    return directory


def copy_dashboard(source: str, target: Path) -> None:
    """Copy the data of the dashboard, if there is any. Raises OSError."""
    for name in filter(_COPIED.fullmatch, _names(source)):
        shutil.copy2(Path(source, name), target / name)


def _create_all(top: Path, identities: Sequence[ShardIdentity]) -> None:
    for identity in identities:
        create_shard(top, identity)


def _names(directory: str) -> list[str]:
    return [path.name for path in Path(directory).iterdir()]


def _read(directory: str) -> ShardIdentity:
    """Return the identity of *directory*; raise StartError if it has none."""
    try:
        identity = read_identity(directory)
    except OSError as error:
        raise directory_error(directory, f"{SHARD_FILE}: {error.strerror}") from error
    if identity is None:
        raise directory_error(directory, f"{SHARD_FILE} is missing; restore it from a backup")
    return identity


def _shards(names: list[str]) -> list[int]:
    return sorted([int(match[1]) for match in map(_SHARD.fullmatch, names) if match is not None])


def _belongs_to_layout(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (_SHARD, _SEGMENT, _DASHBOARD))


def _sync_tree(top: Path) -> None:
    """Wait until everything below *top* is on disk."""
    for directory, _, names in os.walk(top):
        for name in names:
            handle = os.open(Path(directory, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                sync_all(handle)
            finally:
                os.close(handle)
        sync_directory(Path(directory))


def _wrong_layout(directory: str, found: str, shards: int) -> StartError:
    command = f"greenstalk-server journal reshard {directory} --processes {shards}"
    wanted = "1 process was" if shards == 1 else f"{shards} processes were"
    return directory_error(directory, f"{found}, but {wanted} requested; to convert it, run: {command}")
