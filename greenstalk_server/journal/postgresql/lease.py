"""The leader's lease of a journal in PostgreSQL: the server that has the lease, the end of the lease, and the standbys.

Everything here blocks, and may be called from any thread. Nothing here knows gevent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

from greenstalk_server.core.jobs.id_sequence import ONE_SHARD, IdSequence
from greenstalk_server.journal.postgresql.connection import (
    APPLICATION,
    RIGHTS,
    DatabaseConnection,
    DatabaseRefused,
    Hosts,
    NotLeader,
)
from greenstalk_server.journal.postgresql.schema import LACKING_RIGHTS, MIGRATE, SCHEMA
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, StartError

HEARTBEAT_INTERVAL: Final = 1.0
"""Maximum seconds between two heartbeats of a server. A heartbeat also finds out whether a handover was requested."""

STANDBY_TIMEOUT: Final = 10.0
"""Seconds without a heartbeat after which a standby is forgotten."""

MAINTENANCE_TIMEOUT: Final = 10.0
"""Timeout in seconds of statements that no client waits for, and maximum timeout of all others."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """The leader, as the database knows it.

    epoch       incremented by each takeover, and each time a leader resolves an append that is in doubt.
    is_mine     this server leads.
    is_free     no server leads, or the lease has expired by the database's clock.
    leader      name of the leader, or of the last one if no server leads.
    is_handing_over     the leader was asked to hand its lead to a standby.
    holder      id of the process that leads, or whose lease has expired.
    lease_until end of the lease, microseconds since 1970.
    remaining   seconds until the end of the lease, by the database's clock.
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
    """A server that follows the leader.

    behind      seconds since it had read the whole journal, by its latest report.
    """

    name: str
    behind: float


class LeaderLease:
    """The lease by which one server leads a journal: takes, renews and releases it.

    holder_id   unique id of this process.
    former      `holder_id` of this process before it executed its program again; empty if it did not.
    name        name of this server, for people.
    duration    seconds of a lease.
    heartbeat_interval  seconds between two heartbeats.
    connection  connection that only the lease uses, so that nothing else delays a renewal.
    background  connection for statements that no client waits for.
    others      connections for all other statements; the process watches these connections too.
    ids         the ids that the shard of the journal assigns.
    epoch_limit highest epoch that this process can have set: a higher one was set by another process.
    renews_late     the lease can be renewed after its end as long as no other process has taken it.
    """

    def __init__(self, conninfo: str, journal_name: str, name: str, duration: float, former: str = "") -> None:
        """*duration* in seconds. *former* is `holder_id` of this process before it was replaced by exec, if it was."""
        self.holder_id: UUID = uuid4()
        self.name: str = name
        self.duration: float = duration
        self.journal_name: str = journal_name
        self.journal: int = 0
        self.heartbeat_interval: float = min(duration / 3, HEARTBEAT_INTERVAL)
        self.others: list[DatabaseConnection] = []
        self.epoch_limit: int = 0
        self.renews_late: bool = False
        self.ids: IdSequence = ONE_SHARD
        self._hosts: Hosts = Hosts(conninfo)
        self.former: str = former
        self._former: str = f"{APPLICATION} {former}" if former else ""
        self.connection: DatabaseConnection = self.new_connection("lease", duration / 3)
        self.background: DatabaseConnection = self.new_connection("side", MAINTENANCE_TIMEOUT)

    def new_connection(self, purpose: str, timeout: float) -> DatabaseConnection:
        """Return a connection for *purpose*, which must be the only one for it. *timeout* in seconds."""
        return DatabaseConnection(
            self._hosts, f"{APPLICATION} {self.holder_id} {purpose}", min(timeout, MAINTENANCE_TIMEOUT), self._former
        )

    def open(self) -> int:
        """Create or migrate the schema, and the row of the journal; return the database's time in nanoseconds.

        Raise StartError if a later version of the server has made the schema, DatabaseUnavailable, or DatabaseRefused.
        """
        self.migrate()
        if self.ids == ONE_SHARD:
            self._refuse_shards()
        self.connection.run(
            """INSERT INTO greenstalk_journal (name)
               SELECT %s WHERE NOT EXISTS (SELECT FROM greenstalk_journal WHERE name = %s) ON CONFLICT DO NOTHING""",
            (self.journal_name, self.journal_name),
        )
        self.find()
        if lacking := self.connection.run(LACKING_RIGHTS):
            raise DatabaseRefused(f"PostgreSQL: permission denied to {', '.join(lacking[0])}; {RIGHTS}")
        return self.time()

    def time(self) -> int:
        """Return the database's time in nanoseconds."""
        [(now,)] = self.connection.run("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        return int(now) * 1000

    def migrate(self) -> None:
        """Create or migrate the schema; raise as `open` does."""
        if self._version() < len(SCHEMA):
            self.connection.run(MIGRATE)

    def assign(self, journal_name: str, ids: IdSequence) -> None:
        """Be the lease of another journal from now on, whose shard assigns *ids*. The caller must call `open`."""
        self.journal_name = journal_name
        self.ids = ids

    def _refuse_shards(self) -> None:
        """Raise StartError if the journal is one of a queue of several shards, or has the name of such a queue."""
        if self.connection.run("SELECT to_regclass('greenstalk_queue') IS NULL") == [(True,)]:
            return
        queue, _, _ = self.journal_name.rpartition("/")
        query = "SELECT name, shards FROM greenstalk_queue WHERE shards > 1 AND name = ANY(%s)"
        for name, shards in self.connection.run(query, ([self.journal_name, queue],)):
            if name == self.journal_name or self.journal_name.removeprefix(f"{name}/").isdecimal():
                message = f"the queue {name} has {shards} shards; start its servers with --shards {shards} and --link"
                raise StartError(f"--journal-name {self.journal_name}: {message}", EXIT_JOURNAL)

    def find(self) -> bool:
        """Return whether the journal exists, and create nothing; raise StartError as `open` does."""
        if not self._version():
            return False
        found = self.connection.run("SELECT id FROM greenstalk_journal WHERE name = %s", (self.journal_name,))
        if found:
            [(self.journal,)] = found
        return bool(found)

    def _version(self) -> int:
        """Return the version of the schema, 0 if there is none; raise StartError if this server is older."""
        if self.connection.run("SELECT to_regclass('greenstalk_schema') IS NULL") == [(True,)]:
            return 0
        [(version,)] = self.connection.run("SELECT version FROM greenstalk_schema")
        if version > len(SCHEMA):
            message = f"a later version of the server has made the tables (version {version}); start that one"
            raise StartError(f"--journal: {message}", EXIT_JOURNAL)
        return int(version)

    def risk(self) -> str:
        """Return which setting lets PostgreSQL lose acknowledged commits, and in which event; empty if none does."""
        query = """
            SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names') <> '',
                   current_setting('fsync')"""
        [(commit, has_standbys, fsync)] = self.connection.run(query)
        if fsync == "off":
            return "fsync is off: a crash of its machine may lose acknowledged jobs, or the whole database"
        if commit == "off":
            return "synchronous_commit is off: a crash may lose acknowledged jobs"
        if commit == "local" and has_standbys:
            return "synchronous_commit is local: a failover to its synchronous standby may lose acknowledged jobs"
        return ""

    def read_state(self) -> LeaseState:
        """Return the present leader; raise DatabaseRefused if the journal was removed."""
        query = """
            SELECT epoch, coalesce(holder = %s, false), holder IS NULL OR lease_until < clock_timestamp(), holder_name,
                   is_handing_over, holder, (extract(epoch FROM lease_until) * 1000000)::bigint,
                   extract(epoch FROM lease_until - clock_timestamp())::float8
            FROM greenstalk_journal WHERE id = %s"""
        found = self.connection.run(query, (self.holder_id, self.journal))
        if not found:
            raise DatabaseRefused(f"PostgreSQL: the journal {self.journal_name} was removed")
        return LeaseState(*found[0])

    def acquire(self, seen: LeaseState) -> int | None:
        """Take the lead if nothing has changed since *seen*; return the new epoch, or None if something has.

        The former holder's sessions are terminated first: if its machine lost power during a statement, its session
        would keep locks until PostgreSQL noticed.
        """
        query = """
            UPDATE greenstalk_journal SET epoch = epoch + 1, holder = %s, holder_name = %s, is_handing_over = false,
                   lease_until = clock_timestamp() + make_interval(secs => %s)
            WHERE id = %s AND epoch = %s AND (extract(epoch FROM lease_until) * 1000000)::bigint = %s
            RETURNING epoch"""
        if seen.holder is not None and seen.holder != self.holder_id:
            self.connection.run(
                _TERMINATE_HOLDER, (f"{APPLICATION} {seen.holder} %", self.journal, seen.epoch, seen.holder)
            )
        parameters = (self.holder_id, self.name, self.duration, self.journal, seen.epoch, seen.lease_until)
        taken = self.connection.run(query, parameters)
        if not taken:
            return None
        self.epoch_limit = taken[0][0]
        return self.epoch_limit

    def renew(self) -> bool:
        """Renew the lease; return whether a handover was requested; raise NotLeader.

        A renewal after the end of the lease has no effect, unless `renews_late`.
        """
        query = """
            UPDATE greenstalk_journal SET lease_until = clock_timestamp() + make_interval(secs => %s)
            WHERE id = %s AND holder = %s AND epoch <= %s AND (%s OR lease_until >= clock_timestamp())
            RETURNING is_handing_over"""
        for _ in range(2):  # this process may raise the epoch between the two statements
            parameters = (self.duration, self.journal, self.holder_id, self.epoch_limit, self.renews_late)
            renewed = self.connection.run(query, parameters)
            if renewed:
                return bool(renewed[0][0])
            now = self.read_state()
            if not now.is_mine:
                raise NotLeader(f"{now.leader or 'nobody'} leads now")
            if now.is_free and not self.renews_late:
                raise NotLeader("the lease was over before it could be renewed")
            if now.epoch > self.epoch_limit:
                break
        raise NotLeader(f"the epoch is {now.epoch}, which this server has not set")

    def release(self) -> None:
        """Give up the lead, so that another server can take it immediately."""
        query = "UPDATE greenstalk_journal SET holder = NULL, lease_until = 'epoch' WHERE id = %s AND holder = %s"
        self.connection.run(query, (self.journal, self.holder_id))

    def request_handover(self) -> None:
        """Ask the leader to hand its lead to a standby."""
        self.connection.run("UPDATE greenstalk_journal SET is_handing_over = true WHERE id = %s", (self.journal,))

    def report_standby(self, behind: float) -> None:
        """Report that this server follows, *behind* seconds behind the leader."""
        query = """
            INSERT INTO greenstalk_standby VALUES (%s, %s, %s, clock_timestamp(), %s)
            ON CONFLICT (id) DO UPDATE SET seen = clock_timestamp(), behind = excluded.behind"""
        self.background.run(query, (self.holder_id, self.journal, self.name, behind))

    def standbys(self) -> list[Standby]:
        """Return the standbys, and delete those without a heartbeat for STANDBY_TIMEOUT."""
        query = """
            WITH gone AS (DELETE FROM greenstalk_standby
                          WHERE journal = %s AND seen < clock_timestamp() - make_interval(secs => %s) RETURNING id)
            SELECT name, behind + extract(epoch FROM clock_timestamp() - seen)::float8 FROM greenstalk_standby
            WHERE journal = %s AND id NOT IN (SELECT id FROM gone) ORDER BY name"""
        return [Standby(*row) for row in self.background.run(query, (self.journal, STANDBY_TIMEOUT, self.journal))]

    def remove_standby(self) -> None:
        """Report that this server no longer follows."""
        self.background.run("DELETE FROM greenstalk_standby WHERE id = %s", (self.holder_id,))

    def close(self) -> None:
        """Close both connections for good."""
        self.connection.close()
        self.background.close()


_TERMINATE_HOLDER: Final = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name LIKE %s AND usename = session_user AND pid <> pg_backend_pid()
    AND EXISTS (SELECT FROM greenstalk_journal WHERE id = %s AND epoch = %s AND holder = %s)"""
