"""Eviction of bodies from memory, and reading them back from their segments."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

from greenstalk_server.core.jobs.body_cache import SMALL, Bodies
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.journal import record
from greenstalk_server.journal.batch import BodyRead
from greenstalk_server.journal.files import Files
from greenstalk_server.journal.segment import Segment
from greenstalk_server.journal.segment_log import SegmentLog

log = logging.getLogger(__name__)

UNFINISHED_SEGMENTS: Final = 3
"""Approximate number of segments whose bodies stay in memory until the segments are fully on disk."""


class Eviction:
    """Evicts bodies, and reads them back.

    bodies  the broker's account of bodies in memory, or None if memory has no limit.
    wanted  jobs whose bodies compaction or a rewrite waits for.
    lost    ids of jobs whose bodies could not be read back.
    """

    def __init__(self, files: Files, segment_log: SegmentLog) -> None:
        self.bodies: Bodies | None = None
        self.wanted: list[Job] = []
        self.lost: set[int] = set()
        self._files: Files = files
        self._log: SegmentLog = segment_log
        self._number: int = 0
        self._remaining: int = 0

    def begin(self, bodies: Bodies | None) -> None:
        """Enable eviction of the bodies that *bodies* accounts for; None means no limit."""
        self.bodies = bodies
        self._log.keeps_positions = bodies is not None
        if bodies is not None:
            bodies.margin = max(bodies.margin, UNFINISHED_SEGMENTS * self._log.max_size)

    def evict(self, limit: int) -> bool:
        """While memory is short, evict bodies that are also on disk, newest first; return whether more are due.

        It examines up to *limit* jobs. Only bodies in finished segments are evicted, so a rewrite has the bodies of
        all other segments in memory.
        """
        bodies = self.bodies
        if bodies is None:
            return False
        while limit > 0 and bodies.needs_eviction():
            if bodies.back:
                limit -= 1
                job, _ = bodies.back.popitem()
                if self._log.is_finished(job.segment):
                    bodies.evict(job)
                continue
            segment = self._next_segment()
            if segment is None:
                bodies.is_exhausted = True
                return False
            limit -= self._evict_from(segment, bodies, limit)
        return bodies.needs_eviction()

    def _evict_from(self, segment: Segment, bodies: Bodies, limit: int) -> int:
        """Evict bodies of *segment* while memory is short; return the number of jobs examined, up to *limit*.

        Bodies that were read ahead stay.
        """
        examined = 0
        while self._remaining and examined < limit and bodies.needs_eviction():
            self._remaining -= 1
            examined += 1
            job = self._log.jobs.get(segment.ids[self._remaining])
            if job is None or job.segment != segment.number or job.body is None:
                continue
            if job.size > SMALL and job not in bodies.ahead:
                bodies.evict(job)
        if not self._remaining:
            self._log.evictable.pop()
            self._number = 0
        return examined

    def _next_segment(self) -> Segment | None:
        """Return the newest segment with jobs left to examine (its first `_remaining` ids); None if there is none."""
        while self._log.evictable:
            segment = self._log.segments.get(self._log.evictable[-1])
            if segment is not None and segment.ids:
                if self._number != segment.number:
                    self._number, self._remaining = segment.number, len(segment.ids)
                return segment
            self._log.evictable.pop()
        return None

    def read(self, jobs: Iterable[Job]) -> BodyRead:
        """Return a read of the bodies of those *jobs* whose bodies are on disk only."""
        read: dict[int, tuple[Job, int]] = {}
        wanted: dict[int, tuple[Segment, dict[int, tuple[int, int]]]] = {}
        for job in jobs:
            segment = self._log.segments.get(job.segment)
            if job.body is None and segment is not None:
                read[job.id] = job, segment.number
                of_segment = wanted.setdefault(segment.number, (segment, {}))
                of_segment[1][job.id] = record.recorded_size(job), job.size
        return BodyRead(self._files, read, wanted)

    def complete_read(self, read: BodyRead, ahead: Collection[int] = ()) -> None:
        """Keep the bodies that *read* has read; *ahead* are the ids of jobs that no client waits for yet."""
        assert self.bodies is not None
        for id, body in read.bodies.items():
            job, _ = read.jobs[id]
            if self._log.jobs.get(id) is job:  # else it was replaced by a job with another body
                self.bodies.restore(job, body, is_ahead=id in ahead)
        self.note_lost(read)

    def note_lost(self, read: BodyRead) -> None:
        """Note which bodies *read* could not read, and log the new ones."""
        if self.lost:
            self.lost.difference_update(read.bodies)
        for id, reason in read.errors.items():
            job, number = read.jobs[id]
            is_there = self._log.jobs.get(id) is job and job.body is None and job.segment == number
            if is_there and id not in self.lost:  # else it was deleted or copied, and its segment removed
                log.error("journal: the body of job %d cannot be read back: %s", id, reason)
                self.lost.add(id)

    def read_wanted(self) -> BodyRead | None:
        """Return a read of the bodies in `wanted`, and clear it; None if it is empty."""
        wanted, self.wanted = self.wanted, []
        return self.read(wanted) if wanted else None
