"""Durability: what the broker tells a journal, and the twin that keeps nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from greenstalk_server.stats import JournalStats

if TYPE_CHECKING:
    from greenstalk_server.job import Job
    from greenstalk_server.tube import Tube


class Journal(Protocol):
    """What the broker tells of each durable change, before the reply to it may leave.

    No method blocks or switches greenlets: a journal collects records, and the server has it write them.
    """

    def put(self, job: Job) -> bool:
        """Record *job*, new; return False, having recorded nothing, if there is no room for it."""

    def update(self, job: Job) -> None:
        """Record what has changed of *job*: state, pri, delay, deadline, counts."""

    def delete(self, job: Job) -> None:
        """Record that *job* is gone."""

    def pause(self, tube: Tube) -> None:
        """Record the pause of *tube*, or its end."""

    def stats(self) -> JournalStats:
        """Its figures as of now."""


class NullJournal:
    """Keeps nothing: all is in memory, and lost when the process ends."""

    def put(self, job: Job) -> bool:
        return True

    def update(self, job: Job) -> None:
        pass

    def delete(self, job: Job) -> None:
        pass

    def pause(self, tube: Tube) -> None:
        pass

    def stats(self) -> JournalStats:
        return JournalStats()
