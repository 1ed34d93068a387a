"""The dashboard's rows in the database, beside a shared journal, so that a takeover keeps them.

The table is created by the first leader that needs it, outside the migrations of the journal: an earlier version of the
server can then still read the journal. Only the leader writes: each statement has the condition that this process holds
the lead.

All functions block, and may be called from any thread. This module does not use gevent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from greenstalk_server.journal.postgresql.connection import DatabaseConnection, DatabaseUnavailable, NotLeader
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.journal.postgresql.schema import creating

TIMEOUT: Final = 10.0
"""Timeout of a statement, seconds."""

REPEAT_WITHIN: Final = 1.0
"""Seconds after which a failed statement is not repeated."""

MAX_BATCH: Final = 2**20
"""Bytes of data after which a statement ends."""

CREATE: Final = creating("""
    CREATE TABLE IF NOT EXISTS greenstalk_dashboard (
        journal integer NOT NULL,
        kind text NOT NULL,
        number bigint NOT NULL,
        name bytea NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (journal, kind, number, name)
    );
""")

_PUT: Final = """
    INSERT INTO greenstalk_dashboard (journal, kind, number, name, data)
    SELECT greenstalk_journal.id, changes.kind, changes.number, changes.name, changes.data
    FROM greenstalk_journal,
        unnest(%s::text[], %s::bigint[], %s::bytea[], %s::bytea[]) AS changes (kind, number, name, data)
    WHERE greenstalk_journal.id = %s AND holder = %s
    ON CONFLICT (journal, kind, number, name) DO UPDATE SET data = excluded.data
    RETURNING 1"""

_REMOVE: Final = """
    DELETE FROM greenstalk_dashboard
    USING unnest(%s::text[], %s::bigint[], %s::bytea[]) AS changes (kind, number, name)
    WHERE journal = (SELECT id FROM greenstalk_journal WHERE id = %s AND holder = %s)
    AND (greenstalk_dashboard.kind, greenstalk_dashboard.number, greenstalk_dashboard.name)
        = (changes.kind, changes.number, changes.name)"""

_TRIM: Final = """
    DELETE FROM greenstalk_dashboard
    WHERE kind = %s AND number <= %s
    AND journal = (SELECT id FROM greenstalk_journal WHERE id = %s AND holder = %s)"""

_OF_KIND: Final = "FROM greenstalk_dashboard WHERE journal = %s AND kind = %s"
_READ: Final = f"SELECT number, name, data {_OF_KIND} AND number BETWEEN %s AND %s"
_NAMED: Final = f"{_READ} AND name = ANY(%s::bytea[])"
_LATEST: Final = f"SELECT number, name, data {_OF_KIND} AND number < %s ORDER BY number DESC LIMIT %s"
_SIZES: Final = f"SELECT number, sum(octet_length(data))::bigint {_OF_KIND} GROUP BY number"

Change = tuple[str, int, bytes, bytes | None]
Row = tuple[int, bytes, bytes]


class DashboardRows:
    """The rows of one journal. Implements the dashboard's Rows.

    connection that only these statements use.
    """

    def __init__(self, lease: LeaderLease) -> None:
        self.connection: DatabaseConnection = lease.new_connection("store", TIMEOUT)
        lease.others.append(self.connection)
        self._lease: LeaderLease = lease
        self._is_there: bool = False

    def close(self) -> None:
        """Close the connection for good."""
        self._lease.others.remove(self.connection)
        self.connection.close()

    def read(self, kind: str, first: int, last: int, names: Sequence[bytes] | None) -> list[Row]:
        if names is None:
            return _rows(self._run(f"{_READ} ORDER BY number, name", (self._lease.journal, kind, first, last)))
        return _rows(self._run(_NAMED, (self._lease.journal, kind, first, last, list(names))))

    def latest(self, kind: str, before: int, limit: int) -> list[Row]:
        return _rows(self._run(_LATEST, (self._lease.journal, kind, before, limit)))

    def sizes(self, kind: str) -> dict[int, int]:
        return dict(self._run(_SIZES, (self._lease.journal, kind)))

    def write(self, changes: Sequence[Change], trims: Mapping[str, int]) -> None:
        """Write in statements of about MAX_BATCH bytes; raise NotLeader if this server does not lead."""
        leader = (self._lease.journal, self._lease.holder_id)
        for batch in _batches([change for change in changes if change[3] is not None]):
            if not self._run(_PUT, (*_columns(batch, 4), *leader), size=sum(map(_size, batch))):
                raise NotLeader("another server has taken over")
        if removed := [change for change in changes if change[3] is None]:
            self._run(_REMOVE, (*_columns(removed, 3), *leader))
        for kind, last in trims.items():
            self._run(_TRIM, (kind, last, *leader))

    def _run(self, query: str, parameters: Sequence[Any], size: int = 0) -> list[Any]:
        """Run a statement; repeat it in a new session if its session breaks. All statements here can be repeated.

        A statement without an answer is not repeated: a server that stops waits for it.
        """
        if not self._is_there:
            self._create()
        began = time.monotonic()
        try:
            return self.connection.run(query, parameters, size)
        except DatabaseUnavailable:
            if time.monotonic() - began > REPEAT_WITHIN:
                raise
            return self.connection.run(query, parameters, size)

    def _create(self) -> None:
        """Create the table if it is missing: even `IF NOT EXISTS` needs the privilege to create tables."""
        [(is_there,)] = self.connection.run("SELECT to_regclass('greenstalk_dashboard') IS NOT NULL")
        if not is_there:
            self.connection.run(CREATE)
        self._is_there = True


def _batches(changes: Sequence[Change]) -> Iterator[list[Change]]:
    batch: list[Change] = []
    size = 0
    for change in changes:
        batch.append(change)
        size += _size(change)
        if size > MAX_BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _columns(changes: Sequence[Change], count: int) -> list[list[Any]]:
    return [[change[column] for change in changes] for column in range(count)]


def _size(change: Change) -> int:
    return len(change[3] or b"")


def _rows(found: list[Any]) -> list[Row]:
    return [(number, bytes(name), bytes(data)) for number, name, data in found]
