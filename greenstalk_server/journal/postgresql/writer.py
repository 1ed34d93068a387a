"""The writer of a journal in a PostgreSQL database."""

from __future__ import annotations

from dataclasses import replace

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.journal import JournalStats
from greenstalk_server.journal.writer import JournalWriter


class DatabaseJournalWriter(JournalWriter):
    """The journal of a leader that a standby may replace."""

    is_remote: bool = True

    def reserve(self, job: Job) -> None:
        """Record that *job* was reserved. The reply waits for the commit, which proves that this server still leads."""
        super().reserve(job)
        self.promised = self._log.sequence

    def stats(self) -> JournalStats:
        """Return the statistics of the database, where no space is allocated ahead."""
        found, removed_soon = super().stats(), [segment.used for _, segment in self._log.pending_removal]
        size = found.bytes_recorded + sum(removed_soon)
        return replace(found, files=len(self._log.segments) + len(removed_soon), bytes_on_disk=size)
