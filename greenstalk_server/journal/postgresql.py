"""The journal in a PostgreSQL database: the same records in the same segments, as rows instead of files.

A row has what one batch adds to one segment. It is inserted by a single statement, which holds only while the
row of the journal bears the epoch of the leader that sends it: whoever takes over raises the epoch first, and so no
leader before can add anything any more, however late its statement comes.

A connection that breaks while a statement is under way leaves open whether that was done. So the epoch is raised on
the next one too, which ends all doubt, and the same rows are inserted again, those that are there already left out.
Whoever waits for a commit therefore waits until the database is back, or until another server leads.

Everything here blocks, and may be called from any thread. Nothing here knows gevent.
"""

from __future__ import annotations

import builtins
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid4

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from greenstalk_server.exits import EXIT_BINLOG, EXIT_USAGE, StartError
from greenstalk_server.job import Job
from greenstalk_server.journal.binlog import Binlog
from greenstalk_server.journal.recovery import Damage, Recovery
from greenstalk_server.journal.segment import name_of, numbers
from greenstalk_server.stats import JournalStats

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

RETRY_EVERY: Final = 0.1
"""Seconds between attempts to reach the database."""

PULSE_EVERY: Final = 1.0
"""Seconds between two signs of life of a server, at most: by them it also hears what is wanted of it."""

STANDBY_GONE: Final = 10.0
"""Seconds after which a standby that nobody has heard of is none."""

COMMIT_PATIENCE: Final = 10.0
READ_PATIENCE: Final = 20.0
"""Seconds until a statement without an answer is taken for one that has lost its connection."""

PLENTY: Final = 2**62
"""Bytes free: what a database's disk has room for it does not tell."""

Row: TypeAlias = tuple[Any, ...]


class Away(OSError):
    """The database cannot be reached, or the connection broke."""


class NotLeader(OSError):
    """Another server leads, or nobody does."""


class Refused(OSError):
    """The database has answered with an error."""


def conninfo_of(url: str, named: str) -> str:
    """What libpq is to be told of *url*, which the option *named* has set; raise StartError if it cannot be read.

    Of several hosts it looks for the one that can be written to. What libpq says of a bad address is not passed on: it
    may have a part of the password in it. So may the host, the port or the database, if that is not encoded.
    """
    try:
        parameters = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):
        parameters = {}
    is_torn = any("@" in str(parameters.get(part, "")) for part in ("host", "dbname"))
    if not parameters or is_torn or not re.fullmatch("[0-9,]*", str(parameters.get("port", ""))):
        form = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with %40 for @ in a password, %2F for /, %25 for %"
        raise StartError(f"{named}: the address cannot be read; it must be {form}", EXIT_USAGE)
    ours = {
        "application_name": "greenstalk-server",
        "connect_timeout": "2",
        "keepalives_idle": "5",
        "keepalives_interval": "2",
        "keepalives_count": "3",
        "target_session_attrs": "read-write",
    }
    return make_conninfo("", **(ours | parameters | {"client_encoding": "utf8"}))


class Link:
    """A connection to the database, made when it is needed, and anew after it broke. One statement at a time.

    patience    seconds; `cut_if_late` breaks a connection whose answer has not come by then.
    """

    def __init__(self, conninfo: str, patience: float) -> None:
        self.patience: float = patience
        self._conninfo: str = conninfo
        self._connection: psycopg.Connection[Row] | None = None
        self._lock: threading.Lock = threading.Lock()
        self._guard: threading.Lock = threading.Lock()
        self._asked_at: float | None = None
        self._is_closed: bool = False

    @property
    def is_connected(self) -> bool:
        """Whether the last statement left a connection."""
        return self._connection is not None

    def run(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Have one statement done, which commits; return its rows; raise Away, Refused or NotLeader."""
        return self.call(lambda connection: _rows(connection.execute(query.encode(), parameters, binary=True)))

    def call(self, function: Callable[[psycopg.Connection[Row]], list[Row]]) -> list[Row]:
        """Return what *function* makes of the connection; raise Away, Refused or NotLeader."""
        with self._lock:
            try:
                is_new = self._connection is None
                connection = self._connected()
                self._asked_at = time.monotonic()
                if is_new:
                    connection.execute(_SESSION)
                return function(connection)
            except errors.NotNullViolation as error:  # see INSERT: the epoch is another one
                raise NotLeader("another server has taken over") from error
            except errors.InsufficientPrivilege as error:
                raise Refused(f"PostgreSQL: {_first_line(error)}; {_RIGHTS}") from error
            except UnicodeError as error:  # of the name of a host
                raise Away(f"PostgreSQL: {error}") from error
            except psycopg.Error as error:
                connection_is_sound = self._connection is not None and not self._connection.broken
                if connection_is_sound and not isinstance(error, _SESSION_ENDED):
                    raise Refused(f"PostgreSQL: {_first_line(error)}") from error
                self._drop()
                raise Away(f"PostgreSQL: {_first_line(error)}") from error
            finally:
                self._asked_at = None

    def cut_if_late(self, at_most: float = inf) -> None:
        """Break the connection if an answer is overdue, or took *at_most* seconds so far. Never waits for long.

        Whoever waits for the answer is told Away.
        """
        asked_at = self._asked_at
        if asked_at is None or time.monotonic() < asked_at + min(self.patience, at_most):
            return
        with self._guard, suppress(OSError, psycopg.Error):
            if self._connection is not None:
                with socket.socket(fileno=os.dup(self._connection.fileno())) as sock:
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the connection up for good; a statement that is under way is cut short."""
        self._is_closed = True
        self.cut_if_late(0.0)
        with self._lock:
            self._drop()

    def _connected(self) -> psycopg.Connection[Row]:
        if self._is_closed:
            raise Away("the server stops")
        if self._connection is None:
            connection = psycopg.connect(self._conninfo, autocommit=True)
            with self._guard:
                self._connection = connection
        return self._connection

    def _drop(self) -> None:
        with self._guard:
            connection, self._connection = self._connection, None
            if connection is not None:
                with suppress(psycopg.Error):
                    connection.close()


_SESSION: Final = b"""
    SET statement_timeout = 0; SET lock_timeout = 0; SET default_transaction_isolation = 'read committed'"""
"""Whatever the role or the database is set to: how long an answer may take is up to `Link.patience`."""

_RIGHTS: Final = "the role needs the right to create tables, or all rights on those that are there (greenstalk_*)"

_SESSION_ENDED: Final = (
    errors.AdminShutdown,
    errors.CannotConnectNow,
    errors.CrashShutdown,
    errors.ReadOnlySqlTransaction,
)
"""Errors after which another connection may do better: the server stops, or is no primary any more."""


def _rows(cursor: psycopg.Cursor[Row]) -> list[Row]:
    return cursor.fetchall() if cursor.description is not None else []


def _first_line(error: psycopg.Error) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# Who leads


@dataclass(frozen=True, slots=True)
class Standing:
    """Who leads, by the database.

    epoch       raised with each takeover, and with each connection that a leader makes anew.
    is_mine     it is us.
    is_free     nobody does, or the lease is over.
    leader      how the leader is called, or the one before if nobody leads.
    is_handing_over     it was asked to give its lead to a standby.
    """

    epoch: int
    is_mine: bool
    is_free: bool
    leader: str
    is_handing_over: bool


@dataclass(frozen=True, slots=True)
class Standby:
    """A server that follows.

    behind      seconds since it last had read all there was, as it said at last.
    """

    name: str
    behind: float


class Seat:
    """The lead of one journal: who has it, until when, and how it is taken, kept and given up.

    me      of this process; no other's.
    name    of this server, for people.
    pulse   seconds between two signs of life.
    """

    def __init__(self, conninfo: str, journal_name: str, name: str, lease: float) -> None:
        """*lease* in seconds."""
        self.me: UUID = uuid4()
        self.name: str = name
        self.lease: float = lease
        self.journal_name: str = journal_name
        self.conninfo: str = conninfo
        self.journal: int = 0
        self.pulse: float = min(lease / 3, PULSE_EVERY)
        self.link: Link = Link(conninfo, max(1.0, min(lease / 3, COMMIT_PATIENCE)))

    def open(self) -> int:
        """Make or migrate the schema, and the journal's row if need be; return the database's time, nanoseconds.

        Raise StartError if a later version of the server has made the schema; Away and Refused.
        """
        patience, self.link.patience = self.link.patience, READ_PATIENCE
        try:
            self.link.call(_migrate)
            self.link.run(
                "INSERT INTO greenstalk_journal (name) VALUES (%s) ON CONFLICT DO NOTHING", (self.journal_name,)
            )
            self.find()
            if lacking := self.link.run(_LACKING_RIGHTS):
                raise Refused(f"PostgreSQL: permission denied to {', '.join(lacking[0])}; {_RIGHTS}")
            [(now,)] = self.link.run("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        finally:
            self.link.patience = patience
        return int(now) * 1000

    def find(self) -> bool:
        """Look for the journal, and make nothing; return whether it is there; raise StartError as `open` does."""
        if self.link.run("SELECT to_regclass('greenstalk_schema') IS NULL") == [(True,)]:
            return False
        [(version,)] = self.link.run("SELECT version FROM greenstalk_schema")
        _refuse_later(version)
        found = self.link.run("SELECT id FROM greenstalk_journal WHERE name = %s", (self.journal_name,))
        if found:
            [(self.journal,)] = found
        return bool(found)

    def is_unsafe(self) -> bool:
        """Whether the database acknowledges what is not on its disk."""
        return self.link.run("SELECT current_setting('synchronous_commit')") == [("off",)]

    def look(self) -> Standing:
        """Who leads now."""
        query = """
            SELECT epoch, coalesce(holder = %s, false), holder IS NULL OR lease_until < clock_timestamp(), holder_name,
                   is_handing_over
            FROM greenstalk_journal WHERE id = %s"""
        found = self.link.run(query, (self.me, self.journal))
        if not found:
            raise Refused(f"PostgreSQL: the journal {self.journal_name} was removed")
        return Standing(*found[0])

    def take(self) -> int | None:
        """Lead, if nobody does; return the epoch, None if somebody was faster."""
        query = """
            UPDATE greenstalk_journal SET epoch = epoch + 1, holder = %s, holder_name = %s, is_handing_over = false,
                   lease_until = clock_timestamp() + make_interval(secs => %s)
            WHERE id = %s AND (holder IS NULL OR holder = %s OR lease_until < clock_timestamp()) RETURNING epoch"""
        self.leave()
        taken = self.link.run(query, (self.me, self.name, self.lease, self.journal, self.me))
        return taken[0][0] if taken else None

    def renew(self) -> bool:
        """Lead for another lease; return whether the lead is to be handed over; raise NotLeader."""
        query = """
            UPDATE greenstalk_journal SET lease_until = clock_timestamp() + make_interval(secs => %s)
            WHERE id = %s AND holder = %s RETURNING is_handing_over"""
        kept = self.link.run(query, (self.lease, self.journal, self.me))
        if not kept:
            raise NotLeader(f"{self.look().leader or 'nobody'} leads now")
        return bool(kept[0][0])

    def release(self) -> None:
        """Lead no more, so that the next one may at once."""
        query = "UPDATE greenstalk_journal SET holder = NULL, lease_until = 'epoch' WHERE id = %s AND holder = %s"
        self.link.run(query, (self.journal, self.me))

    def ask_for_handover(self) -> None:
        """Have whoever leads give its lead to a standby."""
        self.link.run("UPDATE greenstalk_journal SET is_handing_over = true WHERE id = %s", (self.journal,))

    def follow(self, behind: float) -> None:
        """Note that this server follows, and was *behind* by so many seconds."""
        query = """
            INSERT INTO greenstalk_standby VALUES (%s, %s, %s, clock_timestamp(), %s)
            ON CONFLICT (id) DO UPDATE SET seen = clock_timestamp(), behind = excluded.behind"""
        self.link.run(query, (self.me, self.journal, self.name, behind))

    def standbys(self) -> list[Standby]:
        """Who follows, those forgotten that have not been heard of for STANDBY_GONE."""
        query = """
            WITH gone AS (DELETE FROM greenstalk_standby
                          WHERE journal = %s AND seen < clock_timestamp() - make_interval(secs => %s) RETURNING id)
            SELECT name, behind + extract(epoch FROM clock_timestamp() - seen)::float8 FROM greenstalk_standby
            WHERE journal = %s AND id NOT IN (SELECT id FROM gone) ORDER BY name"""
        return [Standby(*row) for row in self.link.run(query, (self.journal, STANDBY_GONE, self.journal))]

    def leave(self) -> None:
        """Follow no more."""
        self.link.run("DELETE FROM greenstalk_standby WHERE id = %s", (self.me,))


def _refuse_later(version: int) -> None:
    """Raise StartError if the schema is of a later *version*."""
    if version > len(SCHEMA):
        message = f"a later version of the server has made the tables (version {version}); start that one"
        raise StartError(f"--journal: {message}", EXIT_BINLOG)


_LACKING_RIGHTS: Final = """
    SELECT what || ' in ' || name
    FROM unnest(ARRAY['greenstalk_journal', 'greenstalk_batch', 'greenstalk_standby']) AS name,
         unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS what
    WHERE NOT has_table_privilege(name, what)"""


def _migrate(connection: psycopg.Connection[Row]) -> list[Row]:
    """Bring the schema to the version of this server; raise StartError if it is of a later one."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        if connection.execute("SELECT to_regclass('greenstalk_schema')").fetchone() == (None,):
            connection.execute("CREATE TABLE greenstalk_schema (version integer NOT NULL)")
            connection.execute("INSERT INTO greenstalk_schema VALUES (0)")
        row = connection.execute("SELECT version FROM greenstalk_schema").fetchone()
        version: int = row[0] if row is not None else 0
        _refuse_later(version)
        for script in SCHEMA[version:]:
            connection.execute(script.encode())
        if version < len(SCHEMA):
            connection.execute("UPDATE greenstalk_schema SET version = %s", (len(SCHEMA),))
    return []


# Writing


_INSERT: Final = """
    INSERT INTO greenstalk_batch (journal, segment, at, has_more, data)
    VALUES (%s, %s, %s, %s, %b) ON CONFLICT DO NOTHING"""

_INSERT_AS_LEADER: Final = """
    INSERT INTO greenstalk_batch (journal, segment, at, has_more, data)
    VALUES ((SELECT id FROM greenstalk_journal WHERE id = %s AND epoch = %s FOR SHARE), %s, %s, %s, %b)
    ON CONFLICT DO NOTHING"""
"""With another epoch there is no journal to insert into, which is an error: the whole transaction is undone."""

_DELETE_AS_LEADER: Final = """
    DELETE FROM greenstalk_batch WHERE segment = %s
    AND journal = (SELECT id FROM greenstalk_journal WHERE id = %s AND holder = %s FOR SHARE)"""


class Rows:
    """The segments of a journal as a Files of rows; for the one server that leads.

    What was written is in the database after `sync`, which returns only then, however long the database is away. A
    file exists from its first sync on, and room for it is the database's matter.
    """

    def __init__(self, seat: Seat) -> None:
        self.links: tuple[Link, Link] = (Link(seat.conninfo, COMMIT_PATIENCE), Link(seat.conninfo, READ_PATIENCE))
        self._append_link, self._upkeep_link = self.links
        self._seat: Seat = seat
        self._epoch: int = 0
        self._is_fresh: bool = True
        self._is_closed: bool = False
        self._segments: dict[int, int] = {}
        self._next_handle: int = 1
        self._unwritten: builtins.list[tuple[int, int, bool, bytes]] = []

    def begin(self, epoch: int) -> None:
        """Write from now on, in *epoch*, which `Seat.take` has given."""
        self._epoch = epoch

    def list(self) -> builtins.list[str]:
        found = self._upkeep_link.run(_SEGMENTS, (self._seat.journal, self._seat.journal))
        return [name_of(number) for (number,) in found]

    def read(self, name: str, size: int = -1) -> bytes:
        query = "SELECT data FROM greenstalk_batch WHERE journal = %s AND segment = %s ORDER BY at"
        rows = self._upkeep_link.run(query, (self._seat.journal, _number(name)))
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

    def write(self, handle: int, offset: int, data: bytes) -> None:
        segment = self._segments[handle]
        for at in range(0, len(data), PIECE):
            has_more = at + PIECE < len(data)
            self._unwritten.append((segment, offset + at, has_more, data[at : at + PIECE]))

    def truncate(self, handle: int, size: int) -> None:
        pass

    def sync(self, handle: int) -> None:
        rows, self._unwritten = self._unwritten, []
        if rows:
            self._insist(lambda: self._append(rows))

    def close(self, handle: int) -> None:
        del self._segments[handle]

    def remove(self, name: str) -> None:
        parameters = (_number(name), self._seat.journal, self._seat.me)
        self._insist(lambda: self._upkeep_link.run(_DELETE_AS_LEADER, parameters))

    def move(self, name: str, directory: str) -> None:
        raise NotImplementedError("there are no subdirectories, and no files of others")

    def sync_directory(self) -> None:
        pass

    def shut(self) -> None:
        """Wait for the database no more: whatever is under way fails."""
        self._is_closed = True
        for link in self.links:
            link.close()

    def _append(self, rows: Sequence[tuple[int, int, bool, bytes]]) -> None:
        if not (self._is_fresh or self._append_link.is_connected):
            self._raise_epoch()
        self._is_fresh = False
        if len(rows) == 1:
            self._append_link.run(_INSERT_AS_LEADER, (self._seat.journal, self._epoch, *rows[0]))
        else:
            self._append_link.call(lambda connection: self._append_all(connection, rows))

    def _append_all(
        self, connection: psycopg.Connection[Row], rows: Sequence[tuple[int, int, bool, bytes]]
    ) -> builtins.list[Row]:
        """Insert *rows* in one transaction. The last one locks the journal's row, so that is never locked for long."""
        with connection.pipeline():
            for row in rows[:-1]:
                connection.execute(_INSERT, (self._seat.journal, *row))
            connection.execute(_INSERT_AS_LEADER, (self._seat.journal, self._epoch, *rows[-1]))
        return []

    def _raise_epoch(self) -> None:
        """On a connection made anew: from now on nothing that an earlier one has sent can be done any more."""
        query = "UPDATE greenstalk_journal SET epoch = epoch + 1 WHERE id = %s AND holder = %s RETURNING epoch"
        raised = self._append_link.run(query, (self._seat.journal, self._seat.me))
        if not raised:
            raise NotLeader("another server has taken over")
        self._epoch = raised[0][0]

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
        self.link: Link = Link(seat.conninfo, READ_PATIENCE)
        self._seat: Seat = seat
        self._at: tuple[int, int] = (0, -1)
        self._parts: list[bytes] = []

    def fetch(self) -> list[Row]:
        """The next rows, none if all is read; raise Away."""
        journal = self._seat.journal
        return self.link.run(_ROWS, (journal, journal, *self._at, FETCH_ROWS, FETCH_BYTES))

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

    def finish(self) -> None:
        """Forget what was removed; to be called when all is read, and nobody else can add; raise LostTrack."""
        rows = self.link.run(_SEGMENTS, (self._seat.journal, self._seat.journal))
        there = {number for (number,) in rows}
        recovery = self.recovery
        recovery.segments[:] = [segment for segment in recovery.segments if segment.header.number in there]
        if not all(job.segment in there for job in recovery.jobs.values()):
            raise LostTrack
