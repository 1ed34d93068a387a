"""The reader of a standby, which follows what the leader appends to the journal.

`Follower.fetch` and `Follower.finish` block, and may be called from any thread. Nothing here knows gevent.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import md5
from typing import Final

import psycopg

from greenstalk_server.journal.postgresql.connection import DatabaseConnection, DatabaseUnavailable, Row
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.journal.postgresql.schema import SEGMENTS
from greenstalk_server.journal.record import GROUP, GROUP_FIELDS, HEADER, HEADER_SIZE, SEGMENT_HEADER_SIZE
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.replayed_segment import Damage
from greenstalk_server.journal.segment import name_of

MAX_FETCH_ROWS: Final = 2000
MAX_FETCH_BYTES: Final = 4 * 2**20
"""Maximum rows and bytes that a standby reads at a time."""

_ROWS: Final = """
    SELECT segment, at, has_more, data,
           (SELECT min(segment) FROM greenstalk_batch WHERE journal = %s) AS oldest
    FROM (SELECT *, sum(octet_length(data)) OVER (ORDER BY segment, at) - octet_length(data) AS bytes_before
          FROM (SELECT segment, at, has_more, data FROM greenstalk_batch
                WHERE journal = %s AND (segment, at) > (%s, %s) ORDER BY segment, at LIMIT %s) AS next) AS counted
    WHERE bytes_before < %s ORDER BY segment, at"""

SLICE_BYTES: Final = 2**16
"""Bytes of records that a standby replays before the event loop serves others: a few milliseconds."""


class PositionLost(Exception):
    """Segments were removed before they were read; the journal must be read again from its start."""


class Follower:
    """Reads what the leader appends. `fetch` blocks; `replay` adds the fetched rows to `recovery`, without blocking."""

    def __init__(self, lease: LeaderLease, recovery: Recovery) -> None:
        self.recovery: Recovery = recovery
        self.connection: DatabaseConnection = lease.new_connection("read", lease.duration / 2)
        self._lease: LeaderLease = lease
        self._at: tuple[int, int] = (0, -1)
        self._parts: list[bytes] = []
        self._digest: str = ""
        self._known: psycopg.Connection[Row] | None = None

    def fetch(self) -> list[Row]:
        """Return the next rows, none if all were read; raise DatabaseUnavailable or PositionLost.

        PositionLost is also raised if a new connection leads to a PostgreSQL server that lacks the last row read, such
        as a standby that was promoted without it.
        """
        return self.connection.call(self._fetch)

    def _fetch(self, connection: psycopg.Connection[Row]) -> list[Row]:
        journal = self._lease.journal
        if connection is not self._known:
            if self._at[0] and connection.execute(_DIGEST, (journal, *self._at)).fetchone() != (self._digest,):
                raise PositionLost
            self._known = connection
        parameters = (journal, journal, *self._at, MAX_FETCH_ROWS, MAX_FETCH_BYTES)
        return connection.execute(_ROWS.encode(), parameters, binary=True).fetchall()

    def replay(self, rows: list[Row]) -> None:
        """Add *rows*, which `fetch` has returned, to `recovery`; raise PositionLost."""
        for _ in self.replay_slices(rows):
            pass

    def replay_slices(self, rows: list[Row]) -> Iterator[None]:
        """Do what `replay` does, and yield after each slice of about SLICE_BYTES."""
        size = 0
        for segment, at, has_more, data, oldest in rows:
            if self._at[0] and oldest > self._at[0]:
                raise PositionLost
            self._at = (segment, at)
            self._parts.append(data)
            if not has_more:
                whole, self._parts = b"".join(self._parts), []
                begin = at + len(data) - len(whole)
                for piece in slices(whole, 0 if begin else SEGMENT_HEADER_SIZE):
                    self._replay_batch(segment, begin, piece)
                    begin += len(piece)
                    size += len(piece)
                    if size > SLICE_BYTES:
                        size = 0
                        yield
        if rows:
            self._digest = md5(rows[-1][3], usedforsecurity=False).hexdigest()
            self._forget_before(rows[-1][-1])

    def _replay_batch(self, number: int, at: int, data: bytes) -> None:
        recovery, file = self.recovery, name_of(number)
        newest = recovery.segments[-1] if recovery.segments else None
        if newest is None or newest.file != file:
            recovery.replay(file, number, data, is_newest=True)
        elif newest.end == at:
            recovery.extend(data)
        else:
            recovery.damage.append(Damage(file, newest.end, at - newest.end, "rows are missing"))
            newest.end = at
            recovery.extend(data)

    def _forget_before(self, oldest: int) -> None:
        """Forget the segments below *oldest*, which were removed."""
        segments = self.recovery.segments
        while segments and segments[0].header.number < oldest:
            self.recovery.forget_segment(segments[0])

    def finish(self, epoch: int) -> None:
        """Forget the segments that were removed. Call after all rows were read, and this server has taken *epoch*.

        Raise PositionLost; raise DatabaseUnavailable if the rows were not read from the PostgreSQL server that granted
        the lead.
        """
        rows = self.connection.call(lambda connection: self._segments(connection, epoch))
        there = {number for (number,) in rows}
        recovery = self.recovery
        for segment in [segment for segment in recovery.segments if segment.header.number not in there]:
            recovery.forget_segment(segment)
        if not all(job.segment in there for job in recovery.jobs.values()):
            raise PositionLost

    def _segments(self, connection: psycopg.Connection[Row], epoch: int) -> list[Row]:
        journal = self._lease.journal
        leads = connection.execute(_LEADS, (journal, epoch, self._lease.holder_id)).fetchone()
        if connection is not self._known or leads is None:
            raise DatabaseUnavailable("PostgreSQL: the connection has changed while the journal was read")
        return connection.execute(SEGMENTS.encode(), (journal, journal)).fetchall()


def slices(data: bytes, at: int) -> Iterator[bytes]:
    """Yield *data*, whose records begin at the offset *at*, in pieces of at least SLICE_BYTES and whole groups.

    From a damaged record on, the rest is one piece.
    """
    begin, header, end = 0, HEADER.unpack_from, len(data)
    if end > SLICE_BYTES and at + HEADER_SIZE <= end:
        salt, left = header(data, at)[0], 0
        while at + HEADER_SIZE <= end:
            marker, _, length, _, kind = header(data, at)
            stop = at + HEADER_SIZE + length
            if marker != salt or stop > end:
                break
            if kind == GROUP and length >= GROUP_FIELDS.size:
                left = GROUP_FIELDS.unpack_from(data, at + HEADER_SIZE)[0] + 1
            at, left = stop, max(left - 1, 0)
            if at - begin >= SLICE_BYTES and not left:
                yield data[begin:at]
                begin = at
    if begin < end:
        yield data[begin:]


_DIGEST: Final = b"SELECT md5(data) FROM greenstalk_batch WHERE journal = %s AND segment = %s AND at = %s"

_LEADS: Final = b"SELECT FROM greenstalk_journal WHERE id = %s AND epoch = %s AND holder = %s"
