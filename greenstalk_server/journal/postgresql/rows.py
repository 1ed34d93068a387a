"""The journal in a PostgreSQL database: the same records in the same segments, as rows instead of files.

A row holds the bytes that one batch adds to one segment. A single statement inserts it, which succeeds only while the
row of the journal has the epoch and the holder of the leader that sends the statement. A takeover raises the epoch
first, so no earlier leader can add anything, however late its statement arrives.

If a connection breaks during a statement, it is unknown whether the statement was executed.
Invariant: while an append is in doubt, nothing is inserted and no segment is removed until the epoch has been raised.
Then the old statement can no longer succeed, and the same rows are inserted again, except those that are there already.
So a caller that waits for a commit waits until the database is back, or until another server leads.

Everything here blocks, and may be called from any thread. Nothing here knows gevent.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Final

import psycopg

from greenstalk_server.journal.postgresql.connection import (
    DATABASE_RETRY_INTERVAL,
    DatabaseConnection,
    DatabaseUnavailable,
    LockTimeout,
    NotLeader,
    Row,
)
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.journal.postgresql.schema import SEGMENTS
from greenstalk_server.journal.segment import name_of, numbers

MAX_ROW_SIZE: Final = 4 * 2**20
"""Maximum bytes of a row; a larger batch takes several rows, in one transaction."""

UNLIMITED: Final = 2**62
"""Value of `Rows.free`: a database does not tell how many bytes its disk has left."""

INSERT: Final = b"""
    INSERT INTO greenstalk_batch (journal, segment, at, has_more, data)
    VALUES (%s, %s, %s, %s, %b)"""

_INSERT_AS_LEADER: Final = b"""
    INSERT INTO greenstalk_batch (journal, segment, at, has_more, data)
    VALUES ((SELECT id FROM greenstalk_journal WHERE id = %s AND epoch = %s AND holder = %s FOR SHARE),
            %s, %s, %s, %b)"""
"""With another epoch or holder, the column `journal` gets NULL: an error that rolls the transaction back."""

_UNLESS_THERE: Final = b" ON CONFLICT DO NOTHING"
"""For rows that were sent before. For new rows a conflict is an error: it shows that another server has written."""

_DELETE_AS_LEADER: Final = """
    DELETE FROM greenstalk_batch WHERE segment = %s
    AND journal = (SELECT id FROM greenstalk_journal WHERE id = %s AND holder = %s FOR SHARE)"""


class Rows:
    """The segments of a journal as `Files`, stored as rows; for the leader only.

    `sync` returns once everything written is in the database, however long the database is unreachable. A file exists
    from its first sync on. The database allocates the space.

    connection  connection that only appends use.
    lost        why an append has found that this server does not lead; empty if none has.
    """

    def __init__(self, lease: LeaderLease) -> None:
        self.connection: DatabaseConnection = lease.new_connection("append", lease.duration / 2)
        self.lost: str = ""
        self._lease: LeaderLease = lease
        self._epoch: int = 0
        self._is_in_doubt: bool = False
        self._was_sent: bool = False
        self._is_closed: bool = False
        self._segments: dict[int, int] = {}
        self._next_handle: int = 1
        self._unwritten: builtins.list[tuple[int, int, bool, bytes]] = []

    def begin(self, epoch: int) -> None:
        """Allow writes in *epoch*, which `LeaderLease.acquire` has returned."""
        self._epoch = epoch

    def list(self) -> builtins.list[str]:
        found = self._lease.background.run(SEGMENTS, (self._lease.journal, self._lease.journal))
        return [name_of(number) for (number,) in found]

    def read(self, name: str, size: int = -1) -> bytes:
        query = "SELECT data FROM greenstalk_batch WHERE journal = %s AND segment = %s ORDER BY at"
        rows = self._lease.background.run(query, (self._lease.journal, _number(name)))
        data = b"".join([row[0] for row in rows])
        return data if size < 0 else data[:size]

    def read_at(self, name: str, offset: int, size: int) -> bytes:
        return self.read(name)[offset : offset + size]

    def create(self, name: str, size: int) -> int:
        return self.open(name)

    def free(self) -> int:
        return UNLIMITED

    def free_files(self) -> int:
        return UNLIMITED

    def grow(self, handle: int, size: int) -> None:
        pass

    def open(self, name: str) -> int:
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._segments[handle] = _number(name)
        return handle

    def write(self, handle: int, offset: int, pieces: Sequence[bytes]) -> None:
        segment, data = self._segments[handle], b"".join(pieces)
        for at in range(0, len(data), MAX_ROW_SIZE):
            has_more = at + MAX_ROW_SIZE < len(data)
            self._unwritten.append((segment, offset + at, has_more, data[at : at + MAX_ROW_SIZE]))

    def truncate(self, handle: int, size: int) -> None:
        pass

    def sync(self, handle: int) -> None:
        rows, self._unwritten = self._unwritten, []
        if rows:
            self._was_sent = False
            self._retry_until_reachable(lambda: self._append(rows))

    def close(self, handle: int) -> None:
        del self._segments[handle]

    def remove(self, name: str) -> None:
        parameters = (_number(name), self._lease.journal, self._lease.holder_id)
        self._retry_until_reachable(lambda: self._remove(parameters))

    def move(self, name: str, directory: str) -> None:
        raise NotImplementedError("there are no subdirectories, and no files of others")

    def sync_directory(self) -> None:
        pass

    def stop(self) -> None:
        """Stop waiting for the database: a pending append fails."""
        self._is_closed = True
        self.connection.close()

    def _append(self, rows: Sequence[tuple[int, int, bool, bytes]]) -> None:
        size = sum([len(row[-1]) for row in rows])
        try:
            if self._is_in_doubt:
                self._raise_epoch()
                self._is_in_doubt = False
            self.connection.call(lambda connection: self._insert(connection, rows), size)
        except NotLeader as error:
            self.lost = str(error)
            raise
        except LockTimeout:
            raise
        except DatabaseUnavailable:
            self._is_in_doubt = self._was_sent = True
            raise

    def _insert(
        self, connection: psycopg.Connection[Row], rows: Sequence[tuple[int, int, bool, bytes]]
    ) -> builtins.list[Row]:
        """Insert *rows* in one transaction. Only the last insert locks the journal's row, so the lock is short."""
        on_conflict, journal = _UNLESS_THERE if self._was_sent else b"", self._lease.journal
        leader = (journal, self._epoch, self._lease.holder_id)
        with connection.pipeline() if len(rows) > 1 else nullcontext():
            for row in rows[:-1]:
                connection.execute(INSERT + on_conflict, (journal, *row))
            connection.execute(_INSERT_AS_LEADER + on_conflict, (*leader, *rows[-1]))
        return []

    def _raise_epoch(self) -> None:
        """Raise the epoch, after which no statement that was sent under the former one can succeed.

        A late copy of the UPDATE has no effect, since the epoch that it names is no longer current.
        """
        lease = self._lease
        select = "SELECT epoch FROM greenstalk_journal WHERE id = %s AND holder = %s"
        update = "UPDATE greenstalk_journal SET epoch = %s WHERE id = %s AND holder = %s AND epoch = %s RETURNING epoch"
        found = self.connection.run(select, (lease.journal, lease.holder_id))
        if not found:
            raise NotLeader("another server has taken over")
        [(before,)] = found
        lease.epoch_limit = before + 1
        if not self.connection.run(update, (before + 1, lease.journal, lease.holder_id, before)):
            raise DatabaseUnavailable("PostgreSQL: the epoch was changed by another statement")
        self._epoch = before + 1

    def _remove(self, parameters: Sequence[object]) -> None:
        if self.lost:
            return
        if self._is_in_doubt:  # a late insert could restore a part of the segment
            raise DatabaseUnavailable("PostgreSQL: an append is in doubt")
        self._lease.background.run(_DELETE_AS_LEADER, parameters)

    def _retry_until_reachable(self, statement: Callable[[], object]) -> None:
        """Call *statement* until the database is reachable."""
        while True:
            try:
                statement()
            except DatabaseUnavailable:
                if self._is_closed:
                    raise
                time.sleep(DATABASE_RETRY_INTERVAL)
            else:
                return


def _number(name: str) -> int:
    [number] = numbers([name])
    return number
