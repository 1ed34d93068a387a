"""Durability: what the broker tells a journal, and the twin that keeps nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from greenstalk_server.core.stats import DEFAULT_BINLOG_SIZE, JournalStats

if TYPE_CHECKING:
    from greenstalk_server.core.job import Job
    from greenstalk_server.core.tube import Tube


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
