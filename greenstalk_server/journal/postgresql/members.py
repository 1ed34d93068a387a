"""The tables of a queue that several processes serve: its shards, and its processes.

`greenstalk_queue` has a row for each queue, with its number of shards. Each shard has a journal with a lease of its
own (see `lease`). `greenstalk_process` has a row for each process of a queue, with the address of its links. A process
updates its row as a heartbeat.

The tables are created by the first process that needs them, outside the migrations of the journal: an earlier version
of the server can then still read a journal of one shard.

All functions block, and may be called from any thread. Nothing here knows gevent.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.tube_shards import Pin
from greenstalk_server.journal.postgresql.connection import DatabaseConnection, DatabaseUnavailable, Row
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.journal.postgresql.schema import creating
from greenstalk_server.journal.shard_file import QUEUE_ID_DIGITS
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, StartError

TIMEOUT: Final = 5.0
"""Timeout of a statement, seconds."""

PROCESS_TIMEOUT: Final = 10.0
"""Seconds without a heartbeat after which a process counts as dead."""

SECRET_BYTES: Final = 32

NO_RELAYS: Final[Mapping[str, str]] = MappingProxyType({})

_EXISTS: Final = "SELECT to_regclass('greenstalk_queue') IS NOT NULL AND to_regclass('greenstalk_process') IS NOT NULL"

_IS_CURRENT: Final = """
    SELECT to_regclass('greenstalk_queue') IS NOT NULL AND EXISTS (
        SELECT FROM pg_attribute WHERE attrelid = to_regclass('greenstalk_process') AND attname = 'relays')"""

_CREATE: Final = creating("""
    CREATE TABLE IF NOT EXISTS greenstalk_queue (
        name text PRIMARY KEY,
        id text NOT NULL,
        shards integer NOT NULL,
        base bigint NOT NULL,
        pins text NOT NULL,
        secret text NOT NULL
    );
    CREATE TABLE IF NOT EXISTS greenstalk_process (
        id uuid PRIMARY KEY,
        queue text NOT NULL,
        name text NOT NULL,
        machine text NOT NULL,
        address text NOT NULL,
        version text NOT NULL,
        shard integer,
        wanted integer,
        seen timestamptz NOT NULL
    );
    ALTER TABLE greenstalk_process ADD COLUMN IF NOT EXISTS relays text NOT NULL DEFAULT '';
""")

_REPORT: Final = """
    INSERT INTO greenstalk_process VALUES (%s, %s, %s, %s, %s, %s, %s, NULL, clock_timestamp(), %s)
    ON CONFLICT (id) DO UPDATE SET seen = clock_timestamp(), shard = excluded.shard, relays = excluded.relays,
        wanted = nullif(greenstalk_process.wanted, %s)"""

_RENEW: Final = """
    UPDATE greenstalk_process SET seen = clock_timestamp(), shard = %s, relays = %s, wanted = nullif(wanted, %s)
    WHERE id = %s RETURNING id"""

_FORGET: Final = """
    DELETE FROM greenstalk_process WHERE queue = %s AND id = ANY(%s::uuid[])
    AND seen < clock_timestamp() - make_interval(secs => %s)"""

_NAMESAKES: Final = """
    SELECT id, seen FROM greenstalk_process WHERE queue = %s AND name = %s AND machine = %s AND id <> %s
    AND id IS DISTINCT FROM %s::uuid AND seen > clock_timestamp() - make_interval(secs => %s)"""

_FORGET_FORMER: Final = """
    DELETE FROM greenstalk_process WHERE queue = %s AND (name = %s AND machine = %s AND id <> %s OR id = %s::uuid)"""

_READ: Final = """
    SELECT (SELECT json_agg(json_build_array(
                coalesce(replace(holder::text, '-', ''), ''), holder_name,
                holder IS NULL OR lease_until < clock_timestamp(), epoch
            ) ORDER BY array_position(%s, name))
            FROM greenstalk_journal WHERE name = ANY(%s)),
           (SELECT json_agg(json_build_array(
                replace(process.id::text, '-', ''), process.name, process.machine, process.address, process.version,
                process.shard, process.wanted, process.seen > clock_timestamp() - make_interval(secs => %s),
                standby.behind + extract(epoch FROM clock_timestamp() - standby.seen)::float8,
                coalesce(to_jsonb(process)->>'relays', '')  -- before a server of this version has added the column
            ) ORDER BY process.name, process.id)
            FROM greenstalk_process AS process LEFT JOIN greenstalk_standby AS standby ON standby.id = process.id
            WHERE process.queue = %s)"""
"""One statement for both lists, since a server reads them several times a second."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue, as its row describes it.

    name    name of the queue, which is that of its journal if it has one shard.
    id      random id.
    shards  number of shards.
    base    ids of jobs below it belong to shard 0.
    pins    pins of tubes to shards, as text.
    secret  value that proves to a process that its peer belongs to the queue, in hexadecimal.
    """

    name: str
    id: str
    shards: int
    base: int
    pins: str
    secret: str = field(repr=False)

    @property
    def journals(self) -> list[str]:
        """The name of the journal of each shard."""
        return [journal_name(self.name, self.shards, shard) for shard in range(self.shards)]


def journal_name(queue: str, shards: int, shard: int) -> str:
    """Return the name of the journal of *shard*: that of the queue if it has one shard, else with the number."""
    return queue if shards == 1 else f"{queue}/{shard}"


@dataclass(frozen=True, slots=True)
class ShardState:
    """The owner of a shard, as the database knows it.

    holder      id of the process that leads, or whose lease has ended; empty if none does.
    is_free     no process leads, or the lease has ended by the database's clock.
    """

    holder: str
    holder_name: str
    is_free: bool
    epoch: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the queue.

    id          random id of this start of the process.
    machine     name of its machine.
    address     address of its links.
    shard       shard that it leads or follows; None if it does neither.
    wanted      shard that an operator wants it to lead; None for none.
    is_alive    whether its last heartbeat was less than PROCESS_TIMEOUT ago.
    behind      seconds since it had read the whole journal of the shard that it follows; None if it does not follow.
    relays      ids of the processes that it reaches over another one, with those of the relays: PEER:RELAY,...
    """

    id: str
    name: str
    machine: str
    address: str
    version: str
    shard: int | None
    wanted: int | None
    is_alive: bool
    behind: float | None
    relays: str = ""


class RelayedLink(NamedTuple):
    """The names of two servers, and of the third one that relays their link."""

    server: str
    peer: str
    relay: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The shards, in their order, and the processes of a queue."""

    shards: tuple[ShardState, ...]
    processes: tuple[Process, ...]

    def followers(self, shard: int) -> list[Process]:
        """Return the living processes that follow *shard*."""
        holder = self.shards[shard].holder
        return [each for each in self.processes if each.is_alive and each.shard == shard and each.id != holder]

    def relayed_links(self) -> list[RelayedLink]:
        """Return the links of living processes that are relayed, each once."""
        living = {each.id: each for each in self.processes if each.is_alive}
        found: dict[frozenset[str], RelayedLink] = {}
        for each in living.values():
            for pair in each.relays.split(",") if each.relays else ():
                peer, relay = [living.get(id) for id in pair.split(":")]
                if peer is not None and relay is not None:
                    server, other = sorted((each.name, peer.name))
                    found[frozenset((each.id, peer.id))] = RelayedLink(server, other, relay.name)
        return list(found.values())


class Members:
    """The rows of a queue, and the row of this process among them.

    connection  connection that only these statements use.
    """

    def __init__(
        self,
        lease: LeaderLease,
        queue: str,
        shards: int,
        pins: Sequence[Pin] = (),
        machine: str = "",
        address: str = "",
        version: str = "",
    ) -> None:
        """*queue* is the name of the queue; *machine*, *address* and *version* are those of this process."""
        self.connection: DatabaseConnection = lease.new_connection("members", TIMEOUT)
        lease.others.append(self.connection)
        self._lease: LeaderLease = lease
        self._name: str = queue
        self._shards: int = shards
        self._pins: str = ",".join(map(str, pins))
        self._journals: list[str] = []
        self._facts: tuple[str, str, str] = machine, address, version
        self._has_row: bool = False

    def open(self) -> Queue:
        """Create the tables, and the queue with its journals, if they are missing; return the queue.

        Raise StartError if the queue was made with other options, DatabaseUnavailable, or DatabaseRefused.
        """
        self._lease.migrate()
        if self.connection.run(_IS_CURRENT) != [(True,)]:
            self.connection.run(_CREATE)
        if not self.connection.run("SELECT FROM greenstalk_queue WHERE name = %s", (self._name,)):
            self._create()
        queue = find_queue(self.connection, self._name)
        if queue is None:
            raise DatabaseUnavailable(f"PostgreSQL: the queue {self._name} was removed")
        self._refuse_other(queue)
        self._journals, self._shards = queue.journals, queue.shards
        self.connection.run(
            "INSERT INTO greenstalk_journal (name) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING", (self._journals,)
        )
        return queue

    def _refuse_other(self, queue: Queue) -> None:
        """Raise StartError if *queue* was made with another number of shards, or other pins."""
        if queue.shards != self._shards:
            message = (
                f"--shards {self._shards}: the queue {queue.name} has {queue.shards} shards; start it with --shards"
                f" {queue.shards}, or change the number with `journal reshard`"
            )
            raise StartError(message, EXIT_JOURNAL)
        if queue.pins != self._pins:
            message = f"the pins of the queue {queue.name} are {queue.pins or 'none'}, not {self._pins or 'none'}"
            raise StartError(f"--pin: {message}; change them with `journal reshard`", EXIT_JOURNAL)

    def find(self) -> Queue | None:
        """Return the queue, whatever its number of shards is; None if there is none. Create nothing."""
        queue = find_queue(self.connection, self._name)
        if queue is not None:
            self._journals, self._shards = queue.journals, queue.shards
        return queue

    def _create(self) -> None:
        """Create the row of the queue, unless another process has done so."""
        if self._shards > 1 and self.connection.run("SELECT FROM greenstalk_journal WHERE name = %s", (self._name,)):
            message = (
                f"--shards {self._shards}: the journal {self._name} is that of a queue of one shard; divide it with"
                " `journal reshard`, or choose another --journal-name"
            )
            raise StartError(message, EXIT_JOURNAL)
        id, secret = secrets.token_hex(QUEUE_ID_DIGITS // 2), secrets.token_hex(SECRET_BYTES)
        values = (self._name, id, self._shards, 0, self._pins, secret)
        self.connection.run(
            "INSERT INTO greenstalk_queue VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING", values
        )

    def assign(self, queue: Queue, shard: int) -> None:
        """Make *shard* the one that the lease of this process is about."""
        self._lease.assign(queue.journals[shard], IdSequence(queue.base, queue.shards, shard))

    def report(self, shard: int | None, leads: bool = False, relays: Mapping[str, str] = NO_RELAYS) -> bool:
        """Report that this process lives, and *leads* or follows *shard*. If it leads, clear a request for this move.

        *relays*: ids of the processes that relay the links of this one, by the ids of the peers. Return False if
        another process has counted this one as dead, and has deleted its row.
        """
        led, relayed = shard if leads else None, ",".join([f"{peer}:{relay}" for peer, relay in relays.items()])
        if self._has_row:
            return bool(self.connection.run(_RENEW, (shard, relayed, led, self._lease.holder_id)))
        facts = (self._lease.holder_id, self._name, self._lease.name, *self._facts)
        self.connection.run(_REPORT, (*facts, shard, relayed, led))
        self._has_row = True
        return True

    def read(self) -> Snapshot:
        """Return the shards and processes of the queue."""
        [(shards, processes)] = self.connection.run(
            _READ, (self._journals, self._journals, PROCESS_TIMEOUT, self._name)
        )
        if len(shards or ()) != self._shards:
            raise DatabaseUnavailable(f"PostgreSQL: journals of the queue {self._name} were removed")
        return Snapshot(tuple([ShardState(*row) for row in shards]), tuple([Process(*row) for row in processes or ()]))

    def time(self) -> int:
        """Return the database's time in nanoseconds."""
        return self._lease.time()

    def forget(self, processes: Sequence[str]) -> None:
        """Delete the rows of *processes* that are without a heartbeat for PROCESS_TIMEOUT: their leases as fronts."""
        self.connection.run(_FORGET, (self._name, list(processes), PROCESS_TIMEOUT))

    def namesakes(self) -> frozenset[Row]:
        """Return the other processes with the name and the machine of this one that may live: id, and last heartbeat.

        They may be former starts of this process that were killed.
        """
        lease = self._lease
        values = (self._name, lease.name, self._facts[0], lease.holder_id, lease.former or None, PROCESS_TIMEOUT)
        return frozenset(self.connection.run(_NAMESAKES, values))

    @property
    def namesake_problem(self) -> str:
        """The message for an operator if there is another server with the name of this one."""
        return (
            f"another server of the queue {self._name} has the name {self._lease.name} on a machine with the host name"
            f" {self._facts[0]}: give the machines different host names, or the servers different addresses (-l, -p)"
        )

    def forget_former(self) -> None:
        """Delete the row of the former start of this process, which had its name, or has executed its program again."""
        lease = self._lease
        former = lease.former or None
        self.connection.run(_FORGET_FORMER, (self._name, lease.name, self._facts[0], lease.holder_id, former))

    def remove(self) -> None:
        """Report that this process ends."""
        self.connection.run("DELETE FROM greenstalk_process WHERE id = %s", (self._lease.holder_id,))

    def request_move(self, shard: int, process: str) -> None:
        """Request that *process* leads *shard*, and withdraw such a request to another one."""
        self.connection.run(
            "UPDATE greenstalk_process SET wanted = CASE WHEN id = %s::uuid THEN %s ELSE NULL END"
            " WHERE queue = %s AND (id = %s::uuid OR wanted = %s)",
            (process, shard, self._name, process, shard),
        )

    def request_handover(self, shard: int) -> None:
        """Ask the owner of *shard* to hand it over to a follower."""
        self.connection.run(
            "UPDATE greenstalk_journal SET is_handing_over = true WHERE name = %s", (self._journals[shard],)
        )


def find_queue(connection: DatabaseConnection, name: str) -> Queue | None:
    """Return the queue *name*; None if there is none."""
    if connection.run(_EXISTS) != [(True,)]:
        return None
    found = connection.run("SELECT name, id, shards, base, pins, secret FROM greenstalk_queue WHERE name = %s", (name,))
    return Queue(*found[0]) if found else None
