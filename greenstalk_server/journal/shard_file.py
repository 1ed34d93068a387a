"""The file shard.json, which says to which queue and shard a journal directory belongs.

docs/journal-format.md describes it. A directory without the file is a queue of one shard with base 0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from greenstalk_server.core.jobs.id_sequence import ONE_SHARD, IdSequence
from greenstalk_server.journal.files import Directory
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, StartError

SHARD_FILE: Final = "shard.json"
MAX_SIZE: Final = 4096
"""Maximum bytes of the file."""

QUEUE_ID_DIGITS: Final = 32
_PART: Final = f"{SHARD_FILE}.part"
_NUMBERS: Final = ("shards", "shard", "base")
_RESTORE: Final = f"restore {SHARD_FILE} from a backup"


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """The shard of a directory: the random id of its queue, 32 hexadecimal digits, and the ids that it assigns."""

    queue: str
    ids: IdSequence = field(default=ONE_SHARD)

    def encode(self) -> bytes:
        ids = self.ids
        fields = {"queue": self.queue, "shards": ids.shards, "shard": ids.shard, "base": ids.base}
        return json.dumps(fields).encode() + b"\n"


def decode(data: bytes) -> ShardIdentity:
    """Return the identity in *data*; raise ValueError with a reason."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("not valid JSON") from None
    if not isinstance(fields, dict) or fields.keys() != {"queue", *_NUMBERS}:
        raise ValueError("must be an object with the fields queue, shards, shard and base")
    queue, numbers = fields["queue"], [fields[name] for name in _NUMBERS]
    if not isinstance(queue, str) or len(queue) != QUEUE_ID_DIGITS or not set(queue) <= set("0123456789abcdef"):
        raise ValueError(f"queue: must be {QUEUE_ID_DIGITS} hexadecimal digits")
    if any(type(number) is not int for number in numbers):
        raise ValueError("shards, shard and base: must be whole numbers")
    shards, shard, base = numbers
    ids = IdSequence(base, shards, shard)
    if problem := ids.find_problem():
        raise ValueError(problem)
    return ShardIdentity(queue, ids)


def read_identity(directory: str) -> ShardIdentity | None:
    """Return the identity of *directory*, or None if it has no file; raise OSError, or StartError if it is invalid."""
    try:
        return decode(Directory(directory).read(SHARD_FILE, MAX_SIZE))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StartError(f"-b {directory}: {SHARD_FILE}: {error}; {_RESTORE}", EXIT_JOURNAL) from error


def write_identity(directory: str, identity: ShardIdentity) -> None:
    """Write the identity of *directory*, or replace it; it is on disk when this returns. Blocks; raises OSError."""
    if problem := identity.ids.find_problem():
        raise ValueError(problem)
    files, data = Directory(directory), identity.encode()
    Path(directory, _PART).unlink(missing_ok=True)  # left by a process that was killed
    handle = files.create(_PART, len(data))
    try:
        files.write(handle, 0, [data])
        files.sync(handle)
    finally:
        files.close(handle)
    Path(directory, _PART).replace(Path(directory, SHARD_FILE))
    files.sync_directory()


def ids_of(directory: str) -> IdSequence:
    """Return the ids that the shard of *directory* assigns; raise OSError or StartError."""
    found = read_identity(directory)
    return found.ids if found is not None else ONE_SHARD


def require_identity(directory: str, expected: ShardIdentity | None) -> IdSequence:
    """Return the ids of *directory*; raise StartError unless it is the *expected* shard.

    A server that runs alone expects None: a directory of a queue of one shard, with or without the file.
    """
    try:
        found = read_identity(directory)
    except OSError as error:
        raise StartError(f"-b {directory}: {SHARD_FILE}: {error.strerror}", EXIT_JOURNAL) from error
    problem = _difference(found, expected)
    if problem:
        raise StartError(f"-b {directory}: {problem}", EXIT_JOURNAL)
    return found.ids if found is not None else ONE_SHARD


def _difference(found: ShardIdentity | None, expected: ShardIdentity | None) -> str:
    """Return how *found* differs from *expected* and what to do, or ""."""
    has = found.ids if found is not None else ONE_SHARD
    if expected is None:
        if has.shards == 1:
            return ""
        return f"it is shard {has.shard} of {has.shards} shards of a queue; start all shards of the queue together"
    wants = expected.ids
    if has.shards != wants.shards:
        change = "to change the number, run `greenstalk-server journal reshard`"
        return f"its queue has {has.shards} shards, not {wants.shards}; start it with {has.shards}; {change}"
    if found is not None and found.queue != expected.queue:
        return f"it belongs to the queue {found.queue}, not to {expected.queue}; use a directory of the right queue"
    if has.shard != wants.shard:
        return f"it is shard {has.shard}, not shard {wants.shard}; give each shard its own directory back"
    if has.base != wants.base:
        return f"the base of its ids is {has.base}, not {wants.base} as in the other shards; {_RESTORE}"
    return ""
