"""The dashboard's history as rows of the database, beside a shared journal, so that a takeover keeps it.

The table is created by the first leader that needs it, outside the migrations of the journal: an earlier version of the
server can then still read the journal. Only the leader writes: each statement has the condition that this process holds
the lead. The rows have the same frames, chunks and marks as the files in docs/history-format.md, each with its own
checksum.

All functions block, and may be called from any thread. This module does not use gevent.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from greenstalk_server.journal.postgresql.connection import DatabaseConnection, NotLeader
from greenstalk_server.journal.postgresql.lease import LeaderLease

TIMEOUT: Final = 10.0
"""Timeout of a statement, seconds."""

MAX_BATCH: Final = 2**20
"""Maximum bytes of chunks in a statement."""

MARKS: Final = -1
"""`tier` of the row with the marks."""

CHUNK: Final = 0
FRAME: Final = 1
"""Values of `kind`."""

_CRC: Final = 4
"""Bytes of the checksum before the data of each row."""

CREATE: Final = """
    CREATE TABLE IF NOT EXISTS greenstalk_history (
        journal integer NOT NULL,
        tier smallint NOT NULL,
        kind smallint NOT NULL,
        block bigint NOT NULL,
        part bytea NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (journal, tier, kind, block, part))"""

_SAVE: Final = """
    INSERT INTO greenstalk_history (journal, tier, kind, block, part, data)
    SELECT greenstalk_journal.id, %s, %s, %s, part, data
    FROM greenstalk_journal, unnest(%s::bytea[], %s::bytea[]) AS rows (part, data)
    WHERE greenstalk_journal.id = %s AND holder = %s
    ON CONFLICT (journal, tier, kind, block, part) DO UPDATE SET data = excluded.data
    RETURNING 1"""

_REMOVE: Final = """
    DELETE FROM greenstalk_history
    WHERE journal = (SELECT id FROM greenstalk_journal WHERE id = %s AND holder = %s)
    AND tier = %s AND kind = %s AND block <= %s"""

_READ: Final = """
    SELECT block, part, data FROM greenstalk_history
    WHERE journal = %s AND tier = %s AND kind = %s AND block BETWEEN %s AND %s AND part = ANY(%s::bytea[])"""

_LOAD: Final = """
    SELECT block, data FROM greenstalk_history WHERE journal = %s AND tier = %s AND kind = %s ORDER BY block, part"""


class Tier(Protocol):
    """A resolution of the history; see the dashboard's archive."""

    @property
    def number(self) -> int: ...

    @property
    def kept(self) -> int: ...


class HistoryRows:
    """The history of one journal. Implements the dashboard's Store.

    connection      for these statements alone.
    """

    is_blocking: bool = True

    def __init__(self, lease: LeaderLease) -> None:
        self.connection: DatabaseConnection = lease.new_connection("history", TIMEOUT)
        lease.others.append(self.connection)
        self._lease: LeaderLease = lease
        self._is_there: bool = False

    def load(self, tier: Tier) -> list[tuple[int, list[bytes]]]:
        self._create()
        frames: dict[int, list[bytes]] = {}
        for block, data in self.connection.run(_LOAD, (self._lease.journal, tier.number, FRAME)):
            if (frame := _checked(data)) is not None:
                frames.setdefault(block, []).append(frame)
        return sorted(frames.items())

    def append(self, tier: Tier, block: int, number: int, frame: bytes) -> None:
        self._save(tier.number, FRAME, block, {number.to_bytes(8, "big"): frame})

    def seal(self, tier: Tier, block: int, chunks: Mapping[bytes, bytes]) -> None:
        batch: dict[bytes, bytes] = {}
        size = 0
        for name, chunk in chunks.items():
            batch[name] = chunk
            size += len(chunk)
            if size > MAX_BATCH:
                self._save(tier.number, CHUNK, block, batch)
                batch, size = {}, 0
        if batch:
            self._save(tier.number, CHUNK, block, batch)
        leader = (self._lease.journal, self._lease.holder_id)
        self.connection.run(_REMOVE, (*leader, tier.number, FRAME, block))
        self.connection.run(_REMOVE, (*leader, tier.number, CHUNK, block - tier.kept - 1))

    def read(self, tier: Tier, first: int, last: int, names: Sequence[bytes]) -> list[tuple[int, bytes, bytes]]:
        self._create()
        parameters = (self._lease.journal, tier.number, CHUNK, first, last, list(names))
        rows = self.connection.run(_READ, parameters)
        return [(block, bytes(part), chunk) for block, part, data in rows if (chunk := _checked(data)) is not None]

    def load_marks(self) -> bytes:
        self._create()
        for _, _, data in self.connection.run(_READ, (self._lease.journal, MARKS, CHUNK, 0, 0, [b""])):
            return _checked(data) or b""
        return b""

    def save_marks(self, data: bytes) -> None:
        self._save(MARKS, CHUNK, 0, {b"": data})

    def _save(self, tier: int, kind: int, block: int, parts: Mapping[bytes, bytes]) -> None:
        """Insert or replace *parts*; raise NotLeader if this server does not lead."""
        self._create()
        data = [zlib.crc32(each).to_bytes(_CRC, "big") + each for each in parts.values()]
        size = sum(map(len, data))
        leader = (self._lease.journal, self._lease.holder_id)
        if not self.connection.run(_SAVE, (tier, kind, block, list(parts), data, *leader), size):
            raise NotLeader("another server has taken over")

    def _create(self) -> None:
        """Create the table if it is missing."""
        if not self._is_there:
            if self.connection.run("SELECT to_regclass('greenstalk_history') IS NULL") == [(True,)]:
                self.connection.run(CREATE)
            self._is_there = True


def _checked(data: bytes) -> bytes | None:
    """Return *data* without its checksum; None if it is damaged."""
    content = bytes(data[_CRC:])
    return content if zlib.crc32(content) == int.from_bytes(data[:_CRC], "big") else None
