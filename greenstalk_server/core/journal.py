"""Durability: what the broker tells a journal, and the twin that keeps nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from greenstalk_server.core.job import Job
    from greenstalk_server.core.tube import Tube

DEFAULT_BINLOG_SIZE: Final = 10485760
"""Bytes of a file of the journal."""


@dataclass(frozen=True, slots=True)
class JournalStats:
    """The journal's figures as "stats" shows them, and more; the defaults are those of a server without one.

    is_on_disk      jobs survive the process.
    is_full         the disk has no room for a file ahead.
    files           how many there are.
    bytes_on_disk   what the files take.
    bytes_recorded  what the records of files in use take.
    bytes_live      those of them that hold a job.
    synced_ago      seconds since it was last known that all records written before are on disk; None if never.
    syncs           how many syncs of files there were since the start, by the bit length of what each took in
                    nanoseconds; sync_time is the sum of that.
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
    synced_ago: float | None = None
    syncs: Mapping[int, int] = field(default_factory=dict)
    sync_time: int = 0


class Journal(Protocol):
    """What the broker tells of each durable change, before the reply to it may leave.

    No method blocks or switches greenlets: a journal collects records, and the server has it write them.

    promised    rises with every record that a reply has to wait for.
    safe        the value of `promised` up to which all is as durable as was asked for.
    trouble     why puts are refused, or None.
    """

    promised: int
    safe: int
    trouble: str | None

    def put(self, job: Job) -> bool:
        """Record *job*, new; return False, having recorded nothing, if there is no room for it."""

    def replace(self, old: Job, new: Job) -> bool:
        """Record *new* whole in the place of *old*, with its id; return False, having recorded nothing, if no room."""

    def update(self, job: Job) -> None:
        """Record what has changed of *job*: state, pri, delay, deadline, counts; and the last of its events."""

    def reserve(self, job: Job) -> None:
        """Record that *job* was reserved. No reply waits for this, only for its put."""

    def lapse(self, job: Job) -> None:
        """Record that the reservation of *job* ended by itself, as the last of its events says. No reply waits."""

    def delete(self, job: Job) -> None:
        """Record that *job* is gone."""

    def pause(self, tube: Tube) -> None:
        """Record the pause of *tube*, or its end."""

    def stats(self) -> JournalStats:
        """Its figures as of now."""


class NullJournal:
    """Keeps nothing: all is in memory, and lost when the process ends."""

    def __init__(self, max_size: int = DEFAULT_BINLOG_SIZE) -> None:
        """*max_size* is what "stats" shows of the binlog's, bytes."""
        self._stats: JournalStats = JournalStats(max_size=max_size)
        self.promised: int = 0
        self.safe: int = 0
        self.trouble: str | None = None

    def put(self, job: Job) -> bool:
        return True

    def replace(self, old: Job, new: Job) -> bool:
        return True

    def update(self, job: Job) -> None:
        pass

    def reserve(self, job: Job) -> None:
        pass

    def lapse(self, job: Job) -> None:
        pass

    def delete(self, job: Job) -> None:
        pass

    def pause(self, tube: Tube) -> None:
        pass

    def stats(self) -> JournalStats:
        return self._stats
