"""The journal as the broker sees it, its statistics, and a null journal that keeps nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from greenstalk_server.core.jobs.job import Job
    from greenstalk_server.core.travel import Location
    from greenstalk_server.core.tubes.tube import Tube

DEFAULT_BINLOG_SIZE: Final = 10485760
"""Size of a journal file in bytes."""


@dataclass(frozen=True, slots=True)
class JournalStats:
    """Statistics of the journal. The defaults are for a server without a journal.

    is_on_disk      jobs survive the process.
    is_full         the next file, which is allocated ahead, does not fit on the disk.
    files           number of files.
    bytes_on_disk   size of all files.
    bytes_recorded  size of the records in files in use.
    bytes_live      size of the newest full record of each job.
    bytes_reserved  bytes of the disk that must stay free for the journal.
    synced_ago      seconds since the last time when all written records were known to be on disk; None if never.
    syncs           histogram of the syncs of files since the start: number of syncs by the bit length of their
                    duration in nanoseconds; sync_time is the sum of the durations.
    """

    oldest_index: int = 0
    current_index: int = 0
    records_migrated: int = 0
    records_written: int = 0
    max_size: int = DEFAULT_BINLOG_SIZE
    is_on_disk: bool = False
    is_full: bool = False
    files: int = 0
    bytes_on_disk: int = 0
    bytes_recorded: int = 0
    bytes_live: int = 0
    bytes_reserved: int = 0
    synced_ago: float | None = None
    syncs: Mapping[int, int] = field(default_factory=dict)
    sync_time: int = 0


@mypyc_attr(allow_interpreted_subclasses=True)  # the tests define subclasses
class Journal:
    """Records each durable change before the reply to it may leave. By default, a method records nothing.

    A base class, not a Protocol: compiled code calls the methods of a subclass without a lookup by name.

    No method blocks or switches greenlets: a journal collects records, and the committer writes them.

    promised    increases with every record that a reply has to wait for.
    safe        records made until `promised` reached this value are as durable as `-f` asks for. A reply that waits
                for `promised` == n may leave when `safe` >= n.
    write_error reason why puts are refused, or None.
    """

    def __init__(self) -> None:
        self.promised: int = 0
        self.safe: int = 0
        self.write_error: str | None = None

    def put(self, job: Job) -> bool:
        """Record the new *job*; return False, having recorded nothing, if there is no room or writes fail."""
        return True

    def put_group(self, jobs: list[Job]) -> bool:
        """Record the new *jobs*, all or none: after a crash, either all of them are there or none is.

        Return False, having recorded nothing, if there is no room or writes fail.
        """
        return True

    def undelete(self, job: Job) -> bool:
        """Record *job*, which was deleted, in full under its former id.

        Return False, having recorded nothing, if there is no room or writes fail.
        """
        return True

    def replace(self, old: Job, new: Job) -> bool:
        """Record *new* in full, which replaces *old*.

        Return False, having recorded nothing, if there is no room or writes fail.
        """
        return True

    def update(self, job: Job) -> None:
        """Record the changed state, pri, delay, deadline and counts of *job*, and its last event."""

    def move(self, job: Job, source: Tube) -> None:
        """Record the changed tube and attributes of *job*, and all that `update` records.

        Call this method after the change of *job*, with its former tube as *source*. The record has no body, so the
        body may be only on disk. To record only changed attributes, pass the job's tube as *source*.
        """

    def reserve(self, job: Job) -> None:
        """Record that *job* was reserved.

        The reply to the reserve waits until the put of *job*, or its replacement, is durable. It waits for the record
        of the reserve only if another server may take over the journal.
        """

    def expire_reservation(self, job: Job) -> None:
        """Record that the reservation of *job* ended without a command, as its last event says.

        No reply waits for this record.
        """

    def delete(self, job: Job) -> None:
        """Record that *job* is deleted."""

    def arrive(self, job: Job) -> bool:
        """Record *job*, which comes from another shard; return False if there is no room.

        This ends its location, if there is one.
        """
        return True

    def depart(self, job: Job, location: Location) -> None:
        """Record that *job* is no longer here, and its *location*."""

    def locate(self, id: int, location: Location) -> None:
        """Record the *location* of the job *id*, which is not here; one without hops is no longer kept."""

    def pause(self, tube: Tube) -> None:
        """Record the pause of *tube*, or the end of its pause."""

    def policy(self, name: str, document: bytes) -> None:
        """Record the *document* (JSON) of the policy *name* (at most 255 bytes in UTF-8); an empty one deletes it."""

    def key(self, tube: bytes, key: bytes, id: int, until: int) -> None:
        """Record that the unique *key* (1 to 64 bytes) of *tube* belongs to the job *id* until the time *until*.

        Needed for a key that outlives its job: the record of a job has the job's own key. An *until* of 0 deletes the
        record. An expired key needs no record.
        """

    def stats(self) -> JournalStats:
        """Return the current statistics."""
        return JournalStats()


@mypyc_attr(allow_interpreted_subclasses=True)
class NullJournal(Journal):
    """A journal that keeps nothing: jobs are only in memory, and lost when the process ends."""

    def __init__(self, max_size: int = DEFAULT_BINLOG_SIZE) -> None:
        """*max_size* is the journal file size in bytes that "stats" reports."""
        super().__init__()
        self._stats: JournalStats = JournalStats(max_size=max_size)

    def stats(self) -> JournalStats:
        return self._stats
