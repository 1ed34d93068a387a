"""`journal export` and `journal import` with the address of a database in the place of a directory.

An export reads as a standby does, whoever leads. An import leads while it writes, so that no server can; one that
stands by meanwhile finds all of the archive, or nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from greenstalk_server.config.text import without_password
from greenstalk_server.core.job import Job
from greenstalk_server.core.tube import Tube
from greenstalk_server.journal.postgresql.database import Follower, LostTrack, Rows, Seat
from greenstalk_server.journal.postgresql.link import conninfo_of
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.transfer import read_archive, write_archive
from greenstalk_server.runtime.exit_codes import EXIT_BINLOG, EXIT_OK, StartError

LEASE: Final = 600.0
"""Seconds that an import may take."""


def export_shared(url: str, name: str, target: str | None, is_quiet: bool = False) -> int:
    """Write what the journal *name* in the database at *url* holds, as backup.export_journal does."""
    now = time.time_ns()
    nothing = StartError(f"journal export: there is no journal {name} in {without_password(url)}", EXIT_BINLOG)
    with _seat("export", url, name) as seat:
        if not seat.find():
            raise nothing
        standing, recovery = seat.look(), _read(seat)
    if not recovery.is_readable:
        raise StartError("journal export: a later version has written here; export with that one", EXIT_BINLOG)
    if not recovery.segments:
        raise nothing
    recovery.settle(now)
    in_use = "" if standing.is_free else f"the journal {name} is in use by {standing.leader}"
    return write_archive(recovery, now, target, in_use, is_quiet)


def import_shared(url: str, name: str, source: str | None) -> int:
    """Make the journal *name*, which is empty or not there, in the database at *url*, as backup.import_journal does."""
    with _seat("import", url, name) as seat:
        seat.open()
        standing = seat.look()
        epoch = seat.take(standing) if standing.is_free else None
        if epoch is None:
            raise StartError(f"journal import: {seat.look().leader} is active on the journal {name}", EXIT_BINLOG)
        rows = Rows(seat)
        try:
            rows.begin(epoch)
            if rows.list():
                raise StartError(f"journal import: the journal {name} must be empty, and is not", EXIT_BINLOG)
            read_archive(rows, f"the journal {name}", source)
        finally:
            seat.release()
            rows.shut()
    return EXIT_OK


@contextmanager
def _seat(verb: str, url: str, name: str) -> Iterator[Seat]:
    """The lead of the journal, to be found, or made and asked for; an OSError meanwhile is a StartError."""
    seat = Seat(conninfo_of(url, f"journal {verb}"), name, f"journal {verb}", LEASE)
    try:
        yield seat
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else error
        raise StartError(f"journal {verb}: {reason}", EXIT_BINLOG) from error
    finally:
        seat.close()


def _read(seat: Seat) -> Recovery:
    """All that the journal holds now."""
    while True:
        follower = Follower(seat, _nothing())
        try:
            while rows := follower.fetch():
                follower.replay(rows)
        except LostTrack:
            continue
        finally:
            follower.link.close()
        return follower.recovery


def _nothing() -> Recovery:
    """What is to be filled with a journal."""
    jobs: dict[int, Job] = {}
    tubes: dict[bytes, Tube] = {}

    def tube_of(name: bytes) -> Tube:
        return tubes.get(name) or tubes.setdefault(name, Tube(name, jobs))

    return Recovery(tube_of, jobs)
