"""The journal in a PostgreSQL database: the same records in the same segments, as rows instead of files.

A row holds what one batch adds to one segment. It is inserted by a single statement, which succeeds only while the
row of the journal bears the epoch and the holder of the leader that sends it. A takeover raises the epoch first, so no
earlier leader can add anything, however late its statement comes.

A connection that breaks while a statement is under way leaves open whether the statement was done. Invariant: while
that is in doubt, nothing is inserted and no segment is removed, until the epoch has been raised. Then the old statement
can no longer be done, and the same rows are inserted again; rows that are there already are left out. So a caller
that waits for a commit waits until the database is back, or until another server leads.

Everything here blocks, and may be called from any thread. Nothing here knows gevent.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import md5
from typing import Final
from uuid import UUID, uuid4

import psycopg

from greenstalk_server.core.job import Job
from greenstalk_server.core.journal import JournalStats
from greenstalk_server.journal.postgresql.link import (
    APPLICATION,
    RETRY_EVERY,
    RIGHTS,
    Away,
    Hosts,
    Link,
    Locked,
    NotLeader,
    Refused,
    Row,
)
from greenstalk_server.journal.recovery import Damage, Recovery
from greenstalk_server.journal.segment import name_of, numbers
from greenstalk_server.journal.writer import Binlog
from greenstalk_server.runtime.exit_codes import EXIT_BINLOG, StartError

SCHEMA: Final = (
    """
    CREATE TABLE greenstalk_journal (
        id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL UNIQUE,
        epoch bigint NOT NULL DEFAULT 0,
        holder uuid,
        holder_name text NOT NULL DEFAULT '',
        lease_until timestamptz NOT NULL DEFAULT 'epoch',
        is_handing_over boolean NOT NULL DEFAULT false
    );
    CREATE TABLE greenstalk_batch (
        journal integer NOT NULL,
        segment bigint NOT NULL,
        at bigint NOT NULL,
        has_more boolean NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (journal, segment, at)
    ) WITH (toast_tuple_target = 8160);
    ALTER TABLE greenstalk_batch ALTER data SET STORAGE EXTERNAL;
    CREATE TABLE greenstalk_standby (
        id uuid PRIMARY KEY,
        journal integer NOT NULL,
        name text NOT NULL,
        seen timestamptz NOT NULL,
        behind double precision NOT NULL
    );
    """,
)
"""What makes each version of the schema of the one before; the version is how many there are."""

SCHEMA_LOCK: Final = 0x677265656E
"""An advisory lock: one server at a time makes tables."""

PIECE: Final = 4 * 2**20
"""Bytes of a row at most; a larger batch takes several, in one transaction."""

FETCH_ROWS: Final = 2000
FETCH_BYTES: Final = 4 * 2**20
"""A standby reads until it has so many rows or bytes, and then goes on."""

PULSE_EVERY: Final = 1.0
"""Seconds between two signs of life of a server, at most: by them it also hears what is wanted of it."""

STANDBY_GONE: Final = 10.0
"""Seconds after which a standby that nobody has heard of is none."""

UPKEEP_PATIENCE: Final = 10.0
"""Seconds without an answer after which a statement that no client waits for has lost its connection; and the most
that any link waits, however long the lease."""

PLENTY: Final = 2**62
"""Bytes free: what a database's disk has room for it does not tell."""

# Who leads


@dataclass(frozen=True, slots=True)
class Standing:
    """Who leads, by the database.

    epoch       raised with each takeover, and each time a leader ends a doubt.
    is_mine     this server leads.
    is_free     no server leads, or the lease is over by the database's clock.
    leader      the name of the leader, or of the one before if nobody leads.
    is_handing_over     the leader was asked to give its lead to a standby.
    holder      the process that leads, or whose lease is over.
    lease_until microseconds since 1970.
    remaining   seconds of the lease that are left, by the database's clock.
    """

    epoch: int
    is_mine: bool
    is_free: bool
    leader: str
    is_handing_over: bool
    holder: UUID | None
    lease_until: int
    remaining: float


@dataclass(frozen=True, slots=True)
class Standby:
    """A server that follows.

    behind      seconds since it last had read all there was, by its latest report.
    """

    name: str
    behind: float


class Seat:
    """The lead of one journal: who has it, until when, and how it is taken, kept and given up.

    me      identifies this process, and no other one.
    name    of this server, for people.
    pulse   seconds between two signs of life.
    link    for the lead alone, so that nothing else delays a renewal.
    side    for all that no client waits for.
    epoch_limit     the highest epoch that this process can have set: a higher one was set by another.
    """

    def __init__(self, conninfo: str, journal_name: str, name: str, lease: float, former: str = "") -> None:
        """*lease* in seconds. *former* is `me` of this process before it was replaced by exec, if it was."""
        self.me: UUID = uuid4()
        self.name: str = name
        self.lease: float = lease
        self.journal_name: str = journal_name
        self.journal: int = 0
        self.pulse: float = min(lease / 3, PULSE_EVERY)
        self.epoch_limit: int = 0
        self._hosts: Hosts = Hosts(conninfo)
        self._former: str = f"{APPLICATION} {former}" if former else ""
        self.link: Link = self.new_link("lease", lease / 3)
        self.side: Link = self.new_link("side", UPKEEP_PATIENCE)

    def new_link(self, purpose: str, patience: float) -> Link:
        """Return a link of this server; there must be one at a time for each *purpose*. *patience* in seconds."""
        return Link(self._hosts, f"{APPLICATION} {self.me} {purpose}", min(patience, UPKEEP_PATIENCE), self._former)

    def open(self) -> int:
        """Make or migrate the schema, and the journal's row if need be; return the database's time, nanoseconds.

        Raise StartError if a later version of the server has made the schema; Away and Refused.
        """
        if self._version() < len(SCHEMA):
            self.link.run(_MIGRATE)
        self.link.run(
            """INSERT INTO greenstalk_journal (name)
               SELECT %s WHERE NOT EXISTS (SELECT FROM greenstalk_journal WHERE name = %s) ON CONFLICT DO NOTHING""",
            (self.journal_name, self.journal_name),
        )
        self.find()
        if lacking := self.link.run(_LACKING_RIGHTS):
            raise Refused(f"PostgreSQL: permission denied to {', '.join(lacking[0])}; {RIGHTS}")
        [(now,)] = self.link.run("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        return int(now) * 1000

    def find(self) -> bool:
        """Look for the journal, and make nothing; return whether it is there; raise StartError as `open` does."""
        if not self._version():
            return False
        found = self.link.run("SELECT id FROM greenstalk_journal WHERE name = %s", (self.journal_name,))
        if found:
            [(self.journal,)] = found
        return bool(found)

    def _version(self) -> int:
        """Return the version of the schema, 0 if there is none; raise StartError if it is a later one."""
        if self.link.run("SELECT to_regclass('greenstalk_schema') IS NULL") == [(True,)]:
            return 0
        [(version,)] = self.link.run("SELECT version FROM greenstalk_schema")
        if version > len(SCHEMA):
            message = f"a later version of the server has made the tables (version {version}); start that one"
            raise StartError(f"--journal: {message}", EXIT_BINLOG)
        return int(version)

    def risk(self) -> str:
        """Return why PostgreSQL may lose what it has acknowledged, by its settings; empty if none of them says so."""
        query = """
            SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names') <> '',
                   current_setting('fsync')"""
        [(commit, has_standbys, fsync)] = self.link.run(query)
        if fsync == "off":
            return "fsync is off: a crash of its machine may lose acknowledged jobs, or the whole database"
        if commit == "off":
            return "synchronous_commit is off: a crash may lose acknowledged jobs"
        if commit == "local" and has_standbys:
            return "synchronous_commit is local: a failover to its synchronous standby may lose acknowledged jobs"
        return ""

    def look(self) -> Standing:
        """Return who leads now."""
        query = """
            SELECT epoch, coalesce(holder = %s, false), holder IS NULL OR lease_until < clock_timestamp(), holder_name,
                   is_handing_over, holder, (extract(epoch FROM lease_until) * 1000000)::bigint,
                   extract(epoch FROM lease_until - clock_timestamp())::float8
            FROM greenstalk_journal WHERE id = %s"""
        found = self.link.run(query, (self.me, self.journal))
        if not found:
            raise Refused(f"PostgreSQL: the journal {self.journal_name} was removed")
        return Standing(*found[0])

    def take(self, seen: Standing) -> int | None:
        """Lead, if nothing has changed since *seen*; return the epoch, None if something has.

        What the former holder has under way at PostgreSQL is terminated first: if its machine lost its power in the
        middle of a statement, that keeps locks until PostgreSQL's machine notices.
        """
        query = """
            UPDATE greenstalk_journal SET epoch = epoch + 1, holder = %s, holder_name = %s, is_handing_over = false,
                   lease_until = clock_timestamp() + make_interval(secs => %s)
            WHERE id = %s AND epoch = %s AND (extract(epoch FROM lease_until) * 1000000)::bigint = %s
            RETURNING epoch"""
        if seen.holder is not None and seen.holder != self.me:
            self.link.run(_TERMINATE_HOLDER, (f"{APPLICATION} {seen.holder} %", self.journal, seen.epoch, seen.holder))
        parameters = (self.me, self.name, self.lease, self.journal, seen.epoch, seen.lease_until)
        taken = self.link.run(query, parameters)
        if not taken:
            return None
        self.epoch_limit = taken[0][0]
        return self.epoch_limit

    def renew(self) -> bool:
        """Lead for another lease; return whether the lead is to be handed over; raise NotLeader.

        A renewal that comes after the end of the lease does nothing.
        """
        query = """
            UPDATE greenstalk_journal SET lease_until = clock_timestamp() + make_interval(secs => %s)
            WHERE id = %s AND holder = %s AND epoch <= %s AND lease_until >= clock_timestamp()
            RETURNING is_handing_over"""
        for _ in range(2):  # the epoch may be raised by this process between the two statements
            kept = self.link.run(query, (self.lease, self.journal, self.me, self.epoch_limit))
            if kept:
                return bool(kept[0][0])
            now = self.look()
            if not now.is_mine:
                raise NotLeader(f"{now.leader or 'nobody'} leads now")
            if now.is_free:
                raise NotLeader("the lease was over before it could be renewed")
            if now.epoch > self.epoch_limit:
                break
        raise NotLeader(f"the epoch is {now.epoch}, which this server has not set")

    def release(self) -> None:
        """Give up the lead, so that the next server can take it at once."""
        query = "UPDATE greenstalk_journal SET holder = NULL, lease_until = 'epoch' WHERE id = %s AND holder = %s"
        self.link.run(query, (self.journal, self.me))

    def ask_for_handover(self) -> None:
        """Ask the leader to give its lead to a standby."""
        self.link.run("UPDATE greenstalk_journal SET is_handing_over = true WHERE id = %s", (self.journal,))

    def follow(self, behind: float) -> None:
        """Note that this server follows, and was *behind* by so many seconds."""
        query = """
            INSERT INTO greenstalk_standby VALUES (%s, %s, %s, clock_timestamp(), %s)
            ON CONFLICT (id) DO UPDATE SET seen = clock_timestamp(), behind = excluded.behind"""
        self.side.run(query, (self.me, self.journal, self.name, behind))

    def standbys(self) -> list[Standby]:
        """Return the servers that follow, and forget those that have not been heard of for STANDBY_GONE."""
        query = """
            WITH gone AS (DELETE FROM greenstalk_standby
                          WHERE journal = %s AND seen < clock_timestamp() - make_interval(secs => %s) RETURNING id)
            SELECT name, behind + extract(epoch FROM clock_timestamp() - seen)::float8 FROM greenstalk_standby
            WHERE journal = %s AND id NOT IN (SELECT id FROM gone) ORDER BY name"""
        return [Standby(*row) for row in self.side.run(query, (self.journal, STANDBY_GONE, self.journal))]

    def leave(self) -> None:
        """Note that this server no longer follows."""
        self.side.run("DELETE FROM greenstalk_standby WHERE id = %s", (self.me,))

    def close(self) -> None:
        """Close both links for good."""
        self.link.close()
        self.side.close()


_TERMINATE_HOLDER: Final = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name LIKE %s AND usename = session_user AND pid <> pg_backend_pid()
    AND EXISTS (SELECT FROM greenstalk_journal WHERE id = %s AND epoch = %s AND holder = %s)"""

_LACKING_RIGHTS: Final = """
    SELECT what || ' in ' || name
    FROM unnest(ARRAY['greenstalk_journal', 'greenstalk_batch', 'greenstalk_standby']) AS name,
         unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS what
    WHERE NOT has_table_privilege(name, what)"""

_MIGRATE: Final = f"""
    DO $migrate$
    DECLARE done integer;
    BEGIN
        PERFORM pg_advisory_xact_lock({SCHEMA_LOCK});
        IF to_regclass('greenstalk_schema') IS NULL THEN
            CREATE TABLE greenstalk_schema (version integer NOT NULL);
            INSERT INTO greenstalk_schema VALUES (0);
        END IF;
        SELECT version INTO done FROM greenstalk_schema;
        {"".join([f"IF done < {version} THEN {script} END IF;" for version, script in enumerate(SCHEMA, 1)])}
        UPDATE greenstalk_schema SET version = {len(SCHEMA)} WHERE version < {len(SCHEMA)};
    END $migrate$"""  # noqa: S608  of constants
"""One statement, so that a client that is gone cannot keep the advisory lock."""


# Writing


_INSERT: Final = b"""
    INSERT INTO greenstalk_batch (journal, segment, at, has_more, data)
    VALUES (%s, %s, %s, %s, %b)"""

_INSERT_AS_LEADER: Final = b"""
    INSERT INTO greenstalk_batch (journal, segment, at, has_more, data)
    VALUES ((SELECT id FROM greenstalk_journal WHERE id = %s AND epoch = %s AND holder = %s FOR SHARE),
            %s, %s, %s, %b)"""
"""With another epoch or holder there is no journal to insert into, which is an error: the transaction is undone."""

_UNLESS_THERE: Final = b" ON CONFLICT DO NOTHING"
"""For rows that were sent before. Of others a conflict shows that somebody else has written, and is an error."""

_DELETE_AS_LEADER: Final = """
    DELETE FROM greenstalk_batch WHERE segment = %s
    AND journal = (SELECT id FROM greenstalk_journal WHERE id = %s AND holder = %s FOR SHARE)"""


class Rows:
    """The segments of a journal as a Files of rows; for the one server that leads.

    What was written is in the database after `sync`, which returns only then, however long the database is away. A
    file exists from its first sync on, and room for it is the database's matter.

    link    for appends alone.
    lost    why an append found that this server does not lead; empty if none did.
    """

    def __init__(self, seat: Seat) -> None:
        self.link: Link = seat.new_link("append", seat.lease / 2)
        self.lost: str = ""
        self._seat: Seat = seat
        self._epoch: int = 0
        self._is_in_doubt: bool = False
        self._was_sent: bool = False
        self._is_closed: bool = False
        self._segments: dict[int, int] = {}
        self._next_handle: int = 1
        self._unwritten: builtins.list[tuple[int, int, bool, bytes]] = []

    def begin(self, epoch: int) -> None:
        """Write from now on, in *epoch*, which `Seat.take` has given."""
        self._epoch = epoch

    def list(self) -> builtins.list[str]:
        found = self._seat.side.run(_SEGMENTS, (self._seat.journal, self._seat.journal))
        return [name_of(number) for (number,) in found]

    def read(self, name: str, size: int = -1) -> bytes:
        query = "SELECT data FROM greenstalk_batch WHERE journal = %s AND segment = %s ORDER BY at"
        rows = self._seat.side.run(query, (self._seat.journal, _number(name)))
        data = b"".join([row[0] for row in rows])
        return data if size < 0 else data[:size]

    def read_at(self, name: str, offset: int, size: int) -> bytes:
        return self.read(name)[offset : offset + size]

    def create(self, name: str, size: int) -> int:
        return self.open(name)

    def free(self) -> int:
        return PLENTY

    def grow(self, handle: int, size: int) -> None:
        pass

    def open(self, name: str) -> int:
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._segments[handle] = _number(name)
        return handle

    def write(self, handle: int, offset: int, pieces: Sequence[bytes]) -> None:
        segment, data = self._segments[handle], b"".join(pieces)
        for at in range(0, len(data), PIECE):
            has_more = at + PIECE < len(data)
            self._unwritten.append((segment, offset + at, has_more, data[at : at + PIECE]))

    def truncate(self, handle: int, size: int) -> None:
        pass

    def sync(self, handle: int) -> None:
        rows, self._unwritten = self._unwritten, []
        if rows:
            self._was_sent = False
            self._insist(lambda: self._append(rows))

    def close(self, handle: int) -> None:
        del self._segments[handle]

    def remove(self, name: str) -> None:
        parameters = (_number(name), self._seat.journal, self._seat.me)
        self._insist(lambda: self._remove(parameters))

    def move(self, name: str, directory: str) -> None:
        raise NotImplementedError("there are no subdirectories, and no files of others")

    def sync_directory(self) -> None:
        pass

    def shut(self) -> None:
        """Stop waiting for the database: an append that is under way fails."""
        self._is_closed = True
        self.link.close()

    def _append(self, rows: Sequence[tuple[int, int, bool, bytes]]) -> None:
        size = sum([len(row[-1]) for row in rows])
        try:
            if self._is_in_doubt:
                self._raise_epoch()
                self._is_in_doubt = False
            self.link.call(lambda connection: self._insert(connection, rows), size)
        except NotLeader as error:
            self.lost = str(error)
            raise
        except Locked:
            raise
        except Away:
            self._is_in_doubt = self._was_sent = True
            raise

    def _insert(
        self, connection: psycopg.Connection[Row], rows: Sequence[tuple[int, int, bool, bytes]]
    ) -> builtins.list[Row]:
        """Insert *rows* in one transaction. The last one locks the journal's row, so that is never locked for long."""
        ending, journal = _UNLESS_THERE if self._was_sent else b"", self._seat.journal
        leader = (journal, self._epoch, self._seat.me)
        with connection.pipeline() if len(rows) > 1 else nullcontext():
            for row in rows[:-1]:
                connection.execute(_INSERT + ending, (journal, *row))
            connection.execute(_INSERT_AS_LEADER + ending, (*leader, *rows[-1]))
        return []

    def _raise_epoch(self) -> None:
        """End the doubt: after this, no statement that was sent under the epoch before can be done any more.

        A late copy of the UPDATE does nothing, since the epoch that it names is gone.
        """
        seat = self._seat
        standing = "SELECT epoch FROM greenstalk_journal WHERE id = %s AND holder = %s"
        query = "UPDATE greenstalk_journal SET epoch = %s WHERE id = %s AND holder = %s AND epoch = %s RETURNING epoch"
        found = self.link.run(standing, (seat.journal, seat.me))
        if not found:
            raise NotLeader("another server has taken over")
        [(before,)] = found
        seat.epoch_limit = before + 1
        if not self.link.run(query, (before + 1, seat.journal, seat.me, before)):
            raise Away("PostgreSQL: the epoch was changed by another statement")
        self._epoch = before + 1

    def _remove(self, parameters: Sequence[object]) -> None:
        if self.lost:
            return
        if self._is_in_doubt:  # an insert that is late could bring back a part of the segment
            raise Away("PostgreSQL: an append is in doubt")
        self._seat.side.run(_DELETE_AS_LEADER, parameters)

    def _insist(self, do: Callable[[], object]) -> None:
        """*do* it as often as it takes, while the database is away."""
        while True:
            try:
                do()
            except Away:
                if self._is_closed:
                    raise
                time.sleep(RETRY_EVERY)
            else:
                return


_SEGMENTS: Final = """
    WITH RECURSIVE found AS (
        SELECT min(segment) AS number FROM greenstalk_batch WHERE journal = %s
        UNION ALL
        SELECT (SELECT min(segment) FROM greenstalk_batch WHERE journal = %s AND segment > number) FROM found
        WHERE number IS NOT NULL)
    SELECT number FROM found WHERE number IS NOT NULL"""
"""The numbers of all segments, each found by one look into the index."""


def _number(name: str) -> int:
    [number] = numbers([name])
    return number


class SharedBinlog(Binlog):
    """The journal of a server that another one may take over from."""

    is_remote: bool = True

    def reserve(self, job: Job) -> None:
        """Record that *job* was reserved. The reply waits: only a leader may hand out jobs, and a commit proves one."""
        super().reserve(job)
        self.promised = self._sequence

    def stats(self) -> JournalStats:
        """Its figures as of now, of what is in the database: nothing has room set aside."""
        found, removed_soon = super().stats(), [segment.used for _, segment in self._condemned]
        size = found.bytes_recorded + sum(removed_soon)
        return replace(found, files=len(self._segments) + len(removed_soon), bytes_on_disk=size)


# Following


_ROWS: Final = """
    SELECT segment, at, has_more, data,
           (SELECT min(segment) FROM greenstalk_batch WHERE journal = %s) AS oldest
    FROM (SELECT *, sum(octet_length(data)) OVER (ORDER BY segment, at) - octet_length(data) AS bytes_before
          FROM (SELECT segment, at, has_more, data FROM greenstalk_batch
                WHERE journal = %s AND (segment, at) > (%s, %s) ORDER BY segment, at LIMIT %s) AS next) AS counted
    WHERE bytes_before < %s ORDER BY segment, at"""


class LostTrack(Exception):
    """Segments were removed before they were read; all has to be read from the start."""


class Follower:
    """Reads what the leader adds, into *recovery*. `fetch` blocks; what it gives is for `replay`, which does not."""

    def __init__(self, seat: Seat, recovery: Recovery) -> None:
        self.recovery: Recovery = recovery
        self.link: Link = seat.new_link("read", seat.lease / 2)
        self._seat: Seat = seat
        self._at: tuple[int, int] = (0, -1)
        self._parts: list[bytes] = []
        self._digest: str = ""
        self._known: psycopg.Connection[Row] | None = None

    def fetch(self) -> list[Row]:
        """Return the next rows, none if all is read; raise Away, and LostTrack as `replay` does.

        LostTrack is raised too if a new connection is to a server that lacks the last row read, such as a standby of
        PostgreSQL's that was promoted without it.
        """
        return self.link.call(self._fetch)

    def _fetch(self, connection: psycopg.Connection[Row]) -> list[Row]:
        journal = self._seat.journal
        if connection is not self._known:
            if self._at[0] and connection.execute(_DIGEST, (journal, *self._at)).fetchone() != (self._digest,):
                raise LostTrack
            self._known = connection
        parameters = (journal, journal, *self._at, FETCH_ROWS, FETCH_BYTES)
        return connection.execute(_ROWS.encode(), parameters, binary=True).fetchall()

    def replay(self, rows: list[Row]) -> None:
        """Take in what `fetch` has given; raise LostTrack."""
        for segment, at, has_more, data, oldest in rows:
            if self._at[0] and oldest > self._at[0]:
                raise LostTrack
            self._at = (segment, at)
            self._parts.append(data)
            if not has_more:
                whole, self._parts = b"".join(self._parts), []
                self._take_in(segment, at + len(data) - len(whole), whole)
        if rows:
            self._digest = md5(rows[-1][3], usedforsecurity=False).hexdigest()
            self._forget_before(rows[-1][-1])

    def _take_in(self, number: int, at: int, data: bytes) -> None:
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
        """Forget the segments that were removed."""
        segments = self.recovery.segments
        while segments and segments[0].header.number < oldest:
            del segments[0]

    def finish(self, epoch: int) -> None:
        """Forget what was removed; to be called when all is read, and no other server can add, after *epoch* was taken.

        Raise LostTrack; raise Away if the rows were not read on the server that has given the lead.
        """
        rows = self.link.call(lambda connection: self._segments(connection, epoch))
        there = {number for (number,) in rows}
        recovery = self.recovery
        recovery.segments[:] = [segment for segment in recovery.segments if segment.header.number in there]
        if not all(job.segment in there for job in recovery.jobs.values()):
            raise LostTrack

    def _segments(self, connection: psycopg.Connection[Row], epoch: int) -> list[Row]:
        journal = self._seat.journal
        leads = connection.execute(_LEADS, (journal, epoch, self._seat.me)).fetchone()
        if connection is not self._known or leads is None:
            raise Away("PostgreSQL: the connection has changed while the journal was read")
        return connection.execute(_SEGMENTS.encode(), (journal, journal)).fetchall()


_DIGEST: Final = b"SELECT md5(data) FROM greenstalk_batch WHERE journal = %s AND segment = %s AND at = %s"

_LEADS: Final = b"SELECT FROM greenstalk_journal WHERE id = %s AND epoch = %s AND holder = %s"
