"""`journal export` and `journal import` with the address of a database instead of a directory.

An export reads as a standby does, and may run while a server leads. An import leads while it writes, so that no server
can lead meanwhile; a standby finds the whole archive afterwards, or nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from greenstalk_server.config.text import without_password
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal.postgresql.connection import conninfo_of
from greenstalk_server.journal.postgresql.follower import Follower, PositionLost
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.journal.postgresql.rows import Rows
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.transfer import read_archive, write_archive
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, EXIT_OK, StartError

LEASE_DURATION: Final = 600.0
"""Seconds that an import may take."""


def export_shared(url: str, name: str, target: str | None, is_quiet: bool = False) -> int:
    """Export the journal *name* in the database at *url*, as `export_journal` of journal/transfer.py does."""
    now = time.time_ns()
    missing = StartError(f"journal export: there is no journal {name} in {without_password(url)}", EXIT_JOURNAL)
    with open_lease("export", url, name) as lease:
        if not lease.find():
            raise missing
        state, recovery = lease.read_state(), read_journal(lease)
    if recovery.refusal:
        raise StartError(f"journal export: {recovery.refusal}", EXIT_JOURNAL)
    if not recovery.segments:
        raise missing
    recovery.settle(now)
    in_use = "" if state.is_free else f"the journal {name} is in use by {state.leader}"
    return write_archive(recovery, now, target, in_use, is_quiet)


def import_shared(url: str, name: str, source: str | None) -> int:
    """Import into the journal *name*, empty or missing, in the database at *url*, as `import_journal` does."""
    with open_lease("import", url, name) as lease:
        lease.open()
        state = lease.read_state()
        epoch = lease.acquire(state) if state.is_free else None
        if epoch is None:
            raise StartError(
                f"journal import: {lease.read_state().leader} is active on the journal {name}", EXIT_JOURNAL
            )
        rows = Rows(lease)
        try:
            rows.begin(epoch)
            if rows.list():
                raise StartError(f"journal import: the journal {name} must be empty, and is not", EXIT_JOURNAL)
            read_archive(rows, f"the journal {name}", source)
        finally:
            lease.release()
            rows.stop()
    return EXIT_OK


@contextmanager
def open_lease(verb: str, url: str, name: str) -> Iterator[LeaderLease]:
    """Provide the lease of the journal, for the caller to take if need be; turn an OSError into a StartError."""
    lease = LeaderLease(conninfo_of(url, f"journal {verb}"), name, f"journal {verb}", LEASE_DURATION)
    try:
        yield lease
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else error
        raise StartError(f"journal {verb}: {reason}", EXIT_JOURNAL) from error
    finally:
        lease.close()


def read_journal(lease: LeaderLease) -> Recovery:
    """Return the present contents of the journal."""
    while True:
        follower = Follower(lease, _empty_recovery(lease.ids))
        try:
            while rows := follower.fetch():
                follower.replay(rows)
        except PositionLost:
            continue
        finally:
            follower.connection.close()
        return follower.recovery


def _empty_recovery(ids: IdSequence) -> Recovery:
    """Return a recovery to read the journal of a shard into, which assigns *ids*."""
    jobs: dict[int, Job] = {}
    tubes: dict[bytes, Tube] = {}

    def tube_of(name: bytes) -> Tube:
        return tubes.get(name) or tubes.setdefault(name, Tube(name, jobs))

    return Recovery(tube_of, jobs, ids=ids)
