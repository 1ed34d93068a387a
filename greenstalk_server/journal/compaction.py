"""Compaction: copies the live jobs of the oldest segment to the newest, so that the oldest can be removed.

It is due when more bytes are dead than live. Segments are removed in the order in which they were begun.
"""

from __future__ import annotations

from typing import Final

from greenstalk_server.core.job import Job
from greenstalk_server.journal import record
from greenstalk_server.journal.eviction import Eviction
from greenstalk_server.journal.segment import Segment
from greenstalk_server.journal.segment_log import SegmentLog
from greenstalk_server.journal.space import Space

READ_BATCH: Final = 2**18
"""Bytes of a budget of compaction whose bodies are read back in one go."""

OVERHEAD: Final = 2.5
"""Bytes of the directory for each byte of live jobs, beside three segments."""

OUTSTANDING_SHARE: Final = 4
"""Compaction's copies take at most this part of the free bytes before their originals are removed, or a segment."""

LOOK_COST: Final = 64
"""Bytes of a budget that compaction pays for looking at a job that has gone, which takes about a microsecond."""


class Compaction:
    """Copies live jobs out of the oldest segments.

    copied_records  JOB records that were copied since the start.
    """

    __slots__ = ("_eviction", "_log", "_space", "copied_records")

    def __init__(self, segment_log: SegmentLog, space: Space, eviction: Eviction) -> None:
        self.copied_records: int = 0
        self._log: SegmentLog = segment_log
        self._space: Space = space
        self._eviction: Eviction = eviction

    def compact(self, budget: int) -> bool:
        """Copy live jobs out of the oldest segments, about *budget* bytes, if that is due; return if more is."""
        while budget > 0:
            if self._log.wants_rewrite:
                return False
            oldest = next(iter(self._log.segments.values()))
            if oldest in self._log.unsafe:
                return False
            if not oldest.live_bytes:
                self._log.remove_after(oldest, self._log.sequence)
            elif self._log.pending_removal and (self._log.is_full or self._log.outstanding > self._max_outstanding()):
                return False  # the segments copied before have to be removed first, as the room is limited
            elif self._is_due() and (cost := self._copy_next(oldest)):
                budget -= cost
            else:
                return False
        return True

    def _is_due(self) -> bool:
        """Whether more is dead than live; what is left up to the bound takes copies and what is written meanwhile."""
        dead = self._log.bytes_recorded() - self._log.live_bytes
        return dead > self._log.live_bytes or (self._log.is_full and dead > self._log.max_size // 8)

    @property
    def is_over_bound(self) -> bool:
        """Whether the directory takes more than is promised: OVERHEAD times the live bytes, and three segments.

        Only while it can shrink: a segment waits to be removed, or compaction is due.
        """
        bound = OVERHEAD * self._log.live_bytes + 3 * max(self._log.max_size, self._log.largest)
        can_shrink = bool(self._log.pending_removal) or self._is_due()
        return can_shrink and self._log.bytes_on_disk() > bound

    def _copy_next(self, oldest: Segment) -> int:
        """Look at the next job of *oldest*, copy it to the newest segment if it is live; return what it cost.

        That is nothing if its body has to be read back before.
        """
        job = self._log.jobs.get(oldest.ids[oldest.cursor])
        if job is None or job.segment != oldest.number:
            oldest.cursor += 1
            return LOOK_COST
        if job.body is None:
            self._eviction.wanted = [] if job.id in self._eviction.lost else self._next_on_disk(oldest)
            return 0
        oldest.cursor += 1
        self._log.mark_dead(job)
        self.copied_records += 1
        size = self._log.add_copy(job)
        oldest.copied += size
        self._log.outstanding += size
        self._log.current.pending_copies += size
        return size

    def _next_on_disk(self, oldest: Segment) -> list[Job]:
        """The jobs of *oldest* on disk alone that compaction comes to with the next READ_BATCH bytes of a budget."""
        found, cost = [], 0
        for at in range(oldest.cursor, len(oldest.ids)):
            if cost >= READ_BATCH:
                break
            job = self._log.jobs.get(oldest.ids[at])
            if job is None or job.segment != oldest.number:
                cost += LOOK_COST
                continue
            cost += record.recorded_size(job)
            if job.body is None and job.id not in self._eviction.lost:
                found.append(job)
        return found

    def _max_outstanding(self) -> int:
        """How many bytes of copies there may be whose originals are still on disk."""
        return max(self._log.max_size, self._space.known_free // OUTSTANDING_SHARE)
