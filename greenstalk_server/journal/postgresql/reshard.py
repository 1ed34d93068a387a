"""`journal reshard URL --shards N`: divide the jobs of a queue in a database among N shards; see journal/reshard.py.

Everything is done in one transaction, which locks the rows of the queue and of its journals. So the queue is as before,
or complete. The epoch of each journal is raised, so that a former owner can add nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Final

import psycopg

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.tube_shards import Pin, TubeShards
from greenstalk_server.journal.postgresql.connection import Row
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.journal.postgresql.members import PROCESS_TIMEOUT, Members, Queue, journal_name
from greenstalk_server.journal.postgresql.rows import INSERT, Rows
from greenstalk_server.journal.postgresql.transfer import open_lease, read_journal
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.reshard import VERB, collect
from greenstalk_server.journal.saved_jobs import AFTER, BEFORE, HEAD
from greenstalk_server.journal.transfer import write_journal
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, EXIT_OK, StartError

_LOCK_QUEUE: Final = "SELECT FROM greenstalk_queue WHERE name = %s FOR UPDATE"

_LOCK_JOURNALS: Final = """
    SELECT name, id, CASE WHEN holder IS NULL OR lease_until < clock_timestamp() THEN '' ELSE holder_name END
    FROM greenstalk_journal WHERE name = ANY(%s) FOR UPDATE"""

_LIVING: Final = """
    SELECT name FROM greenstalk_process
    WHERE queue = %s AND seen > clock_timestamp() - make_interval(secs => %s) ORDER BY name"""

_FREE: Final = """
    UPDATE greenstalk_journal SET name = %s, epoch = epoch + 1, holder = NULL, lease_until = 'epoch',
           is_handing_over = false
    WHERE id = %s"""

_DELETE_DASHBOARD: Final = """
    DELETE FROM greenstalk_dashboard WHERE journal = ANY(%s) OR journal = ANY(%s) AND kind = ANY(%s)"""

_HAS_DASHBOARD: Final = "SELECT to_regclass('greenstalk_dashboard') IS NOT NULL"


def reshard_shared(url: str, name: str, shards: int, pins: Sequence[Pin]) -> int:
    """Divide the queue *name* in the database at *url* among *shards* journals; return the exit code.

    Raise StartError.
    """
    with open_lease(VERB, url, name) as lease:
        queue = _find(lease, name)
        text = ",".join(map(str, pins))
        if (queue.shards, queue.pins) == (shards, text):
            print(f"the queue {name} has {_counted(shards)} and these pins already", file=sys.stderr)
            return EXIT_OK
        change = _Change(lease, queue, TubeShards(shards, pins), text)
        [(count,)] = lease.background.call(change.run)
    print(f"the queue {name}: {count} jobs are now divided among {_counted(shards)}", file=sys.stderr)
    return EXIT_OK


def _find(lease: LeaderLease, name: str) -> Queue:
    """Return the queue *name*; make one of a journal that no server with links has led; raise StartError."""
    members = Members(lease, name, 1)
    with closing(members.connection):
        queue = members.find()
        if queue is not None:
            return queue
        if not lease.find():
            raise StartError(f"journal {VERB}: there is no queue {name}", EXIT_JOURNAL)
        return members.open()


class _Change:
    """The change of *queue* to the shards and pins of *tube_shards*; *pins* is the text of the pins."""

    def __init__(self, lease: LeaderLease, queue: Queue, tube_shards: TubeShards, pins: str) -> None:
        self._lease: LeaderLease = lease
        self._queue: Queue = queue
        self._tube_shards: TubeShards = tube_shards
        self._pins: str = pins

    def run(self, connection: psycopg.Connection[Row]) -> list[Row]:
        """Make the change in one transaction; return the number of jobs."""
        queue, name, shards = self._queue, self._queue.name, self._tube_shards.shards
        with connection.transaction():
            connection.execute(_LOCK_QUEUE, (name,))
            journals = self._lock_journals(connection)
            content = collect([(journal, self._read(shard)) for shard, journal in enumerate(queue.journals)])
            numbers = [journals[journal] for journal in queue.journals]
            connection.execute("DELETE FROM greenstalk_batch WHERE journal = ANY(%s)", (numbers,))
            self._remove(connection, numbers, numbers[shards:])
            base = 0 if shards == 1 else content.next_id
            for shard, entries in enumerate(content.divide(self._tube_shards)):
                journal = journal_name(name, shards, shard)
                if shard < len(numbers):
                    number = numbers[shard]
                    connection.execute(_FREE, (journal, number))
                else:
                    made = connection.execute(
                        "INSERT INTO greenstalk_journal (name) VALUES (%s) RETURNING id", (journal,)
                    )
                    [(number,)] = made.fetchall()
                write_journal(_Rows(self._lease, connection, number), content.next_id, entries)
            connection.execute(
                "UPDATE greenstalk_queue SET shards = %s, base = %s, pins = %s WHERE name = %s",
                (shards, base, self._pins, name),
            )
        return [(len(content.jobs),)]

    def _lock_journals(self, connection: psycopg.Connection[Row]) -> dict[str, int]:
        """Lock the journals; return their numbers by name; raise StartError if a server lives."""
        found = connection.execute(_LOCK_JOURNALS, (self._queue.journals,)).fetchall()
        living = [owner for _, _, owner in found if owner]
        processes = connection.execute(_LIVING, (self._queue.name, PROCESS_TIMEOUT)).fetchall()
        living += [process for (process,) in processes]
        if living:
            names = ", ".join(sorted(set(living)))
            advice = f"stop all servers of the queue, and wait for {PROCESS_TIMEOUT:g} s if one was killed"
            message = f"the queue {self._queue.name} is in use by {names}; {advice}"
            raise StartError(f"journal {VERB}: {message}", EXIT_JOURNAL)
        return {name: number for name, number, _ in found}

    def _read(self, shard: int) -> Recovery:
        """Return the contents of the journal of *shard*; raise StartError if it is damaged."""
        lease, queue = self._lease, self._queue
        lease.assign(queue.journals[shard], IdSequence(queue.base, queue.shards, shard))
        lease.find()
        recovery = read_journal(lease)
        if recovery.refusal or not recovery.is_sound:
            reason = recovery.refusal or "; ".join([str(damage) for damage in recovery.damage])
            raise StartError(f"journal {VERB}: the journal {lease.journal_name} is damaged: {reason}", EXIT_JOURNAL)
        recovery.settle(time.time_ns())
        return recovery

    @staticmethod
    def _remove(connection: psycopg.Connection[Row], numbers: Sequence[int], gone: Sequence[int]) -> None:
        """Remove the journals *gone* and the dashboard's data beside them; of all *numbers*, the data for undo."""
        if connection.execute(_HAS_DASHBOARD).fetchall() == [(True,)]:
            connection.execute(_DELETE_DASHBOARD, (list(gone), list(numbers), [HEAD, BEFORE, AFTER]))
        connection.execute("DELETE FROM greenstalk_journal WHERE id = ANY(%s)", (list(gone),))


class _Rows(Rows):
    """The segments of the journal *number*, which is empty, written in the transaction of *connection*."""

    def __init__(self, lease: LeaderLease, connection: psycopg.Connection[Row], number: int) -> None:
        super().__init__(lease)
        self._transaction: psycopg.Connection[Row] = connection
        self._journal: int = number

    def sync(self, handle: int) -> None:
        rows, self._unwritten = self._unwritten, []
        for row in rows:
            self._transaction.execute(INSERT, (self._journal, *row))

    def remove(self, name: str) -> None:
        """Do nothing: the transaction is rolled back."""


def _counted(shards: int) -> str:
    return "1 shard" if shards == 1 else f"{shards} shards"
