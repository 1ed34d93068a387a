"""Compaction: copies the live records of the oldest segment to the newest, so that it can be removed.

The live records are the newest ones of each job, policy, pause and key. Compaction is due when more bytes are dead than
live. The committer paces it: it copies at most three bytes for each byte written or deleted.
"""

from __future__ import annotations

from typing import Final

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.journal import record
from greenstalk_server.journal.eviction import Eviction
from greenstalk_server.journal.segment import Segment
from greenstalk_server.journal.segment_log import SegmentLog
from greenstalk_server.journal.space import Space

READ_BATCH: Final = 2**18
"""Bodies that the next READ_BATCH bytes of compaction budget need are read back from disk together."""

OVERHEAD: Final = 2.5
"""Maximum bytes of the directory per byte of live jobs, not counting three segments. Above it, compaction comes
first."""

OUTSTANDING_SHARE: Final = 4
"""Copies whose originals are still on disk take at most 1/OUTSTANDING_SHARE of the free bytes, or one segment if that
is more.
"""

SKIP_COST: Final = 64
"""Bytes of a budget that skipping a deleted job costs; it takes about a microsecond."""


class Compaction:
    """Copies live jobs out of the oldest segments.

    copied_records  JOB records that were copied since the start.
    """

    def __init__(self, segment_log: SegmentLog, space: Space, eviction: Eviction) -> None:
        self.copied_records: int = 0
        self._log: SegmentLog = segment_log
        self._space: Space = space
        self._eviction: Eviction = eviction

    def compact(self, budget: int) -> bool:
        """If due, copy about *budget* bytes of live jobs out of the oldest segments; return whether more is due."""
        while budget > 0:
            if self._log.wants_rewrite:
                return False
            oldest = next(iter(self._log.segments.values()))
            if oldest in self._log.unsafe:
                return False
            if not oldest.live_bytes:
                self._log.remove_after(oldest, self._log.sequence)
            elif self._log.pending_removal and (self._log.is_full or self._log.outstanding > self._max_outstanding()):
                return False  # space is limited: segments that are already copied must be removed first
            elif self._is_due() and (cost := self._copy_next(oldest)):
                budget -= cost
            else:
                return False
        return True

    def _is_due(self) -> bool:
        """Return whether more bytes are dead than live.

        When it is due, the records take more than twice the live bytes. The space between that and OVERHEAD times the
        live bytes is for copies and new records. On a full disk fewer dead bytes are enough.
        """
        dead = self._log.bytes_recorded() - self._log.live_bytes
        return dead > self._log.live_bytes or (self._log.is_full and dead > self._log.max_size // 8)

    @property
    def is_over_bound(self) -> bool:
        """Whether the directory can shrink, and is larger than OVERHEAD times the live bytes plus three segments.

        It can shrink while a segment waits to be removed, or compaction is due.
        """
        bound = OVERHEAD * self._log.live_bytes + 3 * max(self._log.max_size, self._log.largest)
        can_shrink = bool(self._log.pending_removal) or self._is_due()
        return can_shrink and self._log.bytes_on_disk() > bound

    def _copy_next(self, oldest: Segment) -> int:
        """Copy the next job of *oldest* to the newest segment, or skip it if it is gone; return the cost in bytes.

        After the jobs, copy the policies, pauses and keys. Return 0 if the body of the job has to be read back first.
        """
        if oldest.cursor == len(oldest.ids):
            return self._copy_entry(oldest)
        job = self._log.jobs.get(oldest.ids[oldest.cursor])
        if job is None or job.segment != oldest.number:
            oldest.cursor += 1
            return SKIP_COST
        if job.body is None:
            self._eviction.wanted = [] if job.id in self._eviction.lost else self._next_on_disk(oldest)
            return 0
        oldest.cursor += 1
        self._log.mark_dead(job)
        self.copied_records += 1
        return self._note_copied(oldest, self._log.add_copy(job))

    def _copy_entry(self, oldest: Segment) -> int:
        """Copy the next policy, pause or key of *oldest*, or skip it if it is gone; return the cost in bytes."""
        entry = oldest.entries.pop()
        if not self._log.is_newest(entry, oldest):
            return SKIP_COST
        if not self._log.has_entry(entry):  # it is a key that has expired
            self._log.mark_entry_dead(entry)
            return SKIP_COST
        return self._note_copied(oldest, self._log.add_entry(entry))

    def _note_copied(self, oldest: Segment, size: int) -> int:
        """Count the copy of a record of the segment *oldest*, which takes *size* bytes; return *size*."""
        oldest.copied += size
        self._log.outstanding += size
        self._log.current.pending_copies += size
        return size

    def _next_on_disk(self, oldest: Segment) -> list[Job]:
        """Return the jobs to read back: the next READ_BATCH bytes of budget would copy them out of *oldest*.

        Their bodies are on disk only.
        """
        found, cost = [], 0
        for at in range(oldest.cursor, len(oldest.ids)):
            if cost >= READ_BATCH:
                break
            job = self._log.jobs.get(oldest.ids[at])
            if job is None or job.segment != oldest.number:
                cost += SKIP_COST
                continue
            cost += record.recorded_size(job)
            if job.body is None and job.id not in self._eviction.lost:
                found.append(job)
        return found

    def _max_outstanding(self) -> int:
        """Return the maximum number of bytes of copies whose originals are still on disk."""
        return max(self._log.max_size, self._space.known_free // OUTSTANDING_SHARE)
